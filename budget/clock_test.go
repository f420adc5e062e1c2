package budget_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/database"
)

// testClock is a clock that a test sets while a ledger reads it.
type testClock struct{ unixNano atomic.Int64 }

func (c *testClock) set(to time.Time) { c.unixNano.Store(to.UnixNano()) }
func (c *testClock) now() time.Time   { return time.Unix(0, c.unixNano.Load()).UTC() }

// clockSite is a ledger whose clock a test sets, and which it restarts.
type clockSite struct {
	t     *testing.T
	path  string
	clock testClock
	db    *database.DB
	l     *budget.Ledger
	payer budget.Payer // with a cap of 100 tokens a day
}

func newClockSite(t *testing.T) *clockSite {
	t.Helper()
	c := &clockSite{t: t, path: newPath(t)}
	c.clock.set(parseTime(t, "2026-11-22T12:00:00Z"))
	c.payer = payerWithCap(budget.ScopeKey, quota.Day, quota.Total, 100)
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *clockSite) start() {
	c.t.Helper()
	c.db = openDatabase(c.t, c.path)
	c.l = budget.New(c.db, zap.NewNop(), budget.Settings{})
	c.l.SetClock(c.clock.now)
	must(c.t, c.l.Start(c.t.Context()))
}

func (c *clockSite) stop() {
	c.l.Close()
	must(c.t, c.db.Close())
}

// do makes one step of a scenario: a time to set the clock to, "restart", or "spend N of M", which uses N tokens of the
// M that must be left.
func (c *clockSite) do(step string) {
	c.t.Helper()
	switch words := strings.Fields(step); {
	case step == "restart":
		c.stop()
		c.start()
	case words[0] == "spend":
		tokens, err := strconv.ParseInt(words[1], 10, 64)
		must(c.t, err)
		left, err := strconv.ParseInt(words[3], 10, 64)
		must(c.t, err)
		must(c.t, c.l.LoadMonth(c.t.Context()))
		if h, _ := c.l.Balance(c.payer).TightestTotal(); h.Remaining() != left {
			c.t.Errorf("%d tokens of the day remain at %s, want %d", h.Remaining(), c.clock.now().Format(time.RFC3339), left)
		}
		settle(c.t, reserve(c.t, c.l, c.payer, demand(tokens-1, 1)), tokens-1, 1)
	default:
		c.clock.set(parseTime(c.t, step))
	}
}

func TestCorrectedClockNeitherLosesNorRepeatsADaysBudget(t *testing.T) {
	const today, tomorrow, nextMonth, nextYear = "2026-11-22T12:00:00Z", "2026-11-23T12:00:00Z", "2026-12-22T12:00:00Z", "2027-11-22T12:00:00Z"
	for name, steps := range map[string][]string{
		"a day ahead":              {"spend 60 of 100", tomorrow, "spend 50 of 100", today, "spend 30 of 40", tomorrow, "spend 5 of 50"},
		"a month ahead":            {"spend 60 of 100", nextMonth, "spend 50 of 100", today, "spend 30 of 40", nextMonth, "spend 5 of 50"},
		"restarted while ahead":    {"spend 60 of 100", nextYear, "restart", "spend 50 of 100", today, "spend 30 of 40", tomorrow, "spend 5 of 100"},
		"restarted when corrected": {"spend 60 of 100", nextYear, "spend 50 of 100", today, "restart", "spend 30 of 40", nextYear, "spend 5 of 50"},
		"started while ahead":      {nextYear, "restart", "spend 50 of 100", today, "spend 30 of 100", tomorrow, "spend 30 of 100", nextYear, "spend 5 of 50"},
		"back and forth over many months": {
			"spend 60 of 100", "2027-01-01T00:00:00Z", "spend 10 of 100", "2027-02-01T00:00:00Z", "spend 10 of 100",
			"2027-03-01T00:00:00Z", "spend 10 of 100", "2027-04-01T00:00:00Z", "spend 10 of 100", today, "spend 30 of 40",
			"2027-01-01T00:00:00Z", "spend 10 of 90", today, "spend 5 of 10",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClockSite(t)
			for _, step := range steps {
				c.do(step)
			}
		})
	}
}
