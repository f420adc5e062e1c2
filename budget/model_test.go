package budget_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
)

// model is a reference implementation of the ledger's decisions: plain sums by counter name.
type model struct {
	used, reserved map[string]int64
}

// modelCap is one of a payer's eight caps.
type modelCap struct {
	scope  budget.Scope
	window budget.Window
	meter  budget.Meter
	limit  int64
	name   string // of its counter at the time of the decision
}

// counters returns the names of the counters of a key or an account at a time, by window and meter.
func counters(scope budget.Scope, id string, at time.Time) map[string]string {
	owner := string(scope) + "/" + id + "/"
	return map[string]string{
		"month total":  owner + at.Format("2006-01") + "/total",
		"day total":    owner + at.Format("2006-01-02") + "/total",
		"month input":  owner + at.Format("2006-01") + "/input",
		"month output": owner + at.Format("2006-01") + "/output",
	}
}

func modelCaps(p budget.Payer, at time.Time) []modelCap {
	var all []modelCap
	for _, side := range []struct {
		scope budget.Scope
		id    string
		caps  quota.Caps
	}{{budget.ScopeKey, p.Key, p.KeyCaps}, {budget.ScopeAccount, p.Account, p.AccountCaps}} {
		names := counters(side.scope, side.id, at)
		for _, c := range []struct {
			cap    quota.Cap
			window budget.Window
			meter  budget.Meter
		}{
			{side.caps.MonthTotal, budget.Month, budget.Total},
			{side.caps.DayTotal, budget.Day, budget.Total},
			{side.caps.MonthInput, budget.Month, budget.Input},
			{side.caps.MonthOutput, budget.Month, budget.Output},
		} {
			if limit, ok := c.cap.Tokens(); ok {
				all = append(all, modelCap{side.scope, c.window, c.meter, limit, names[string(c.window)+" "+string(c.meter)]})
			}
		}
	}
	return all
}

func (m *model) add(to map[string]int64, p budget.Payer, at time.Time, input, output int64) {
	for _, names := range []map[string]string{counters(budget.ScopeKey, p.Key, at), counters(budget.ScopeAccount, p.Account, at)} {
		to[names["month total"]] += input + output
		to[names["day total"]] += input + output
		to[names["month input"]] += input
		to[names["month output"]] += output
	}
}

// evaluate returns the tokens granted, or the cap that refuses, or neither if the request has to wait.
func (m *model) evaluate(p budget.Payer, d budget.Demand, at time.Time) (granted int64, refusal *modelCap) {
	caps := modelCaps(p, at)
	for granted = d.MaxTokens; granted > 0; granted-- { // the most that fits, by trying
		if refusal = m.exceeded(caps, d.PromptTokens, d.Candidates*granted, m.used); refusal == nil {
			break
		}
	}
	if granted == 0 {
		return 0, refusal
	}
	both := map[string]int64{}
	for _, c := range caps {
		both[c.name] = m.used[c.name] + m.reserved[c.name]
	}
	if m.exceeded(caps, d.PromptTokens, d.Candidates*granted, both) != nil {
		return 0, nil
	}
	return granted, nil
}

// exceeded returns the cap that a refusal names, of those that the additional tokens exceed.
func (m *model) exceeded(caps []modelCap, input, output int64, taken map[string]int64) *modelCap {
	var named *modelCap
	for i, c := range caps {
		need := map[budget.Meter]int64{budget.Total: input + output, budget.Input: input, budget.Output: output}[c.meter]
		if taken[c.name]+need <= c.limit && (c.meter != budget.Input || taken[c.name] < c.limit) {
			continue
		}
		if named == nil || named.window == budget.Day && c.window == budget.Month ||
			named.window == c.window && c.limit-taken[c.name] < named.limit-taken[named.name] {
			named = &caps[i]
		}
	}
	return named
}

// modelReservation is an open reservation.
type modelReservation struct {
	r             budget.Reservation
	p             budget.Payer
	at            time.Time
	input, output int64
}

// comparison applies the same random operations to a ledger and a model.
type comparison struct {
	*model
	t        *testing.T
	rng      *rand.Rand
	ledger   *budget.Ledger
	now      time.Time
	clock    testClock // of the ledger; shows now
	earliest time.Time // the clock is not set back further
	payers   []budget.Payer
	open     []modelReservation
	ended    context.Context
	results  map[string]int // how often each kind of decision was made
}

func newComparison(t *testing.T, seed uint64) *comparison {
	t.Helper()
	db := openDatabase(t, newPath(t))
	c := &comparison{
		model: &model{used: map[string]int64{}, reserved: map[string]int64{}}, t: t,
		rng: rand.New(rand.NewPCG(seed, 2)), now: parseTime(t, "2027-11-20T12:00:00Z"), results: map[string]int{},
	}
	c.earliest = c.now
	c.ledger = budget.New(db, zap.NewNop(), budget.Settings{})
	c.ledger.LimitBacklog(1)
	c.clock.set(c.now)
	c.ledger.SetClock(c.clock.now)
	must(t, c.ledger.Start(t.Context()))
	t.Cleanup(c.ledger.Close)
	c.ledger.HoldMonths(c.now, 60)
	must(t, db.Close()) // only the counters are compared; they do not depend on the rows
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.ended = ended
	limit := func(below int64) quota.Cap {
		if c.rng.IntN(3) == 0 {
			return quota.Unbounded()
		}
		return quota.Limit(c.rng.Int64N(below))
	}
	for key := range 12 {
		p := budget.Payer{Key: fmt.Sprint("key", key), Account: fmt.Sprint("acc", key%4)}
		p.KeyCaps = quota.Caps{MonthTotal: limit(2e6), DayTotal: limit(1e5), MonthInput: limit(2e6), MonthOutput: limit(1e6)}
		p.AccountCaps = quota.Caps{MonthTotal: limit(4e6), DayTotal: limit(2e5), MonthInput: limit(4e6), MonthOutput: limit(2e6)}
		if key >= 4 {
			p.AccountCaps = c.payers[key%4].AccountCaps
		}
		c.payers = append(c.payers, p)
	}
	return c
}

func (c *comparison) step() {
	switch n := c.rng.IntN(100); {
	case n < 50:
		c.reserve()
	case n < 97 && len(c.open) > 0:
		c.settle(c.rng.IntN(len(c.open)))
	case n == 97 && c.rng.IntN(50) == 0: // set the clock back
		c.now = c.now.Add(-time.Duration(c.rng.Int64N(int64(20 * 24 * time.Hour))))
		if c.now.Before(c.earliest) {
			c.now = c.earliest
		}
		c.clock.set(c.now)
	default:
		c.now = c.now.Add(time.Duration(c.rng.Int64N(int64(20 * time.Minute))))
		c.earliest = maxTime(c.earliest, c.now.AddDate(0, 0, -25))
		c.clock.set(c.now)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c *comparison) reserve() {
	c.t.Helper()
	p := c.payers[c.rng.IntN(len(c.payers))]
	d := budget.Demand{
		PromptTokens: c.rng.Int64N(300), Exact: true, Candidates: 1 + c.rng.Int64N(3), MaxTokens: 1 + c.rng.Int64N(60),
	}
	want, refusal := c.evaluate(p, d, c.now)
	r, err := c.ledger.Reserve(c.ended, p, budget.Request{ID: "x"}, d, nil)
	var e *budget.Exceeded
	switch {
	case err == nil:
		if want != r.MaxTokens() {
			c.t.Fatalf("%s: %+v: got %d tokens, want %d (refusal: %+v)", c.now, d, r.MaxTokens(), want, refusal)
		}
		o := modelReservation{r: r, p: p, at: c.now, input: d.PromptTokens, output: d.Candidates * want}
		c.add(c.reserved, p, c.now, o.input, o.output)
		c.open = append(c.open, o)
		c.results[fmt.Sprint("granted, clamped ", r.Clamped())]++
	case errors.As(err, &e):
		if refusal == nil || e.Scope != refusal.scope || e.Window != refusal.window || e.Meter != refusal.meter ||
			e.Limit != refusal.limit || e.Used != c.used[refusal.name] || e.Reserved != c.reserved[refusal.name] ||
			e.ResetsAt.Before(c.now) || e.ResetsAt.AddDate(0, -1, 0).After(c.now) {
			c.t.Fatalf("%s: %+v: got refusal %+v, want %+v", c.now, d, e, refusal)
		}
		c.results["refused"]++
	case errors.Is(err, context.Canceled):
		if want != 0 || refusal != nil {
			c.t.Fatalf("%s: %+v: the request waits, want %d tokens or refusal %+v", c.now, d, want, refusal)
		}
		c.results["waiting"]++
	default:
		c.t.Fatal(err)
	}
	for _, one := range modelCaps(p, c.now) {
		if c.used[one.name]+c.reserved[one.name] > one.limit {
			c.t.Fatalf("%s: used and reserved tokens exceed %+v", c.now, one)
		}
	}
}

func (c *comparison) settle(i int) {
	o := c.open[i]
	c.open[i] = c.open[len(c.open)-1]
	c.open = c.open[:len(c.open)-1]
	input, output := o.input, int64(0)
	if o.output > 0 {
		output = c.rng.Int64N(o.output + 1)
	}
	if c.rng.IntN(10) == 0 {
		o.r.SetPromptTokens(input)
		o.r.SetProgress(output)
		o.r.Release()
	} else {
		_ = o.r.Settle(c.ended, budget.Outcome{Prompt: input, Completion: output}) // the database is closed
	}
	c.add(c.reserved, o.p, o.at, -o.input, -o.output)
	c.add(c.used, o.p, o.at, input, output)
}

func TestDecisionsAgreeWithAReferenceModel(t *testing.T) {
	operations := 1_000_000
	switch {
	case testing.Short():
		operations = 10_000
	case raceDetector:
		operations = 50_000
	}
	for seed := range uint64(4) {
		c := newComparison(t, seed)
		for range operations / 4 {
			c.step()
		}
		t.Log(c.now, c.results)
	}
}
