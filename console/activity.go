package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/identity"
)

// sparkDays is the number of days of a sparkline; the last one is today.
const sparkDays = 30

// minSparkPoints is the number of days, from the first one with usage to today, from which on a sparkline is drawn.
const minSparkPoints = 7

// sparkWait is how long a sparkline, which a dashboard reads every few seconds, waits for other reports.
const sparkWait = 100 * time.Millisecond

// sparkline draws the tokens of the last days as one path with a bar for each day, in a drawing of 10*sparkDays by 100.
type sparkline struct {
	Path  string // empty if there was no usage, or none minSparkPoints ago
	Total int64
	daily [sparkDays]int64
}

// Text says what the sparkline shows, for those who do not see it.
func (s *sparkline) Text() string {
	return fmt.Sprintf("%s tokens in the last %d days", formatNumber(s.Total), sparkDays)
}

// draw computes the path with the usage of today.
func (s *sparkline) draw(today int64) {
	s.daily[sparkDays-1] = today
	highest := max(slices.Max(s.daily[:]), 1)
	var path strings.Builder
	for i, n := range s.daily {
		s.Total += n
		if n > 0 {
			height := max(4, int64(100*float64(n)/float64(highest))) // the least that can be seen
			fmt.Fprintf(&path, "M%d 100v-%dh8V100", 10*i+1, height)
		}
	}
	if s.points() >= minSparkPoints {
		s.Path = path.String()
	}
}

// points returns the number of days since the first one with usage, today included; 0 if there was none.
func (s *sparkline) points() int {
	begun := slices.IndexFunc(s.daily[:], func(n int64) bool { return n > 0 })
	if begun < 0 {
		return 0
	}
	return sparkDays - begun
}

// usual returns the median of the days before today since the first one with usage; ok is false if there are fewer than
// three.
func (s *sparkline) usual() (tokens int64, ok bool) {
	past := slices.Clone(s.daily[sparkDays-max(s.points(), 1) : sparkDays-1])
	if len(past) < 3 {
		return 0, false
	}
	slices.Sort(past)
	return past[len(past)/2], true
}

// unlessBusy returns the error of a report, but nil if too many others run, or if it takes too long.
func unlessBusy(err error) error {
	if errors.Is(err, database.ErrReportsBusy) || errors.Is(err, database.ErrReportTooLong) {
		return nil
	}
	return err
}

// sparklines returns the recent usage of an account's keys, by their ids, and of the account itself, under an empty id. It is
// nil if it cannot be read in time. Today's usage comes from the ledger's counters, which are in memory.
func (c *Console) sparklines(ctx context.Context, account string, keys []identity.Key) (map[string]*sparkline, error) {
	sparks := map[string]*sparkline{"": {}}
	if len(keys) == 0 {
		return sparks, nil
	}
	first := c.clock().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-sparkDays)
	filter := usage.Filter{Reader: account, Wait: sparkWait, Account: account, Since: first}
	past, err := c.Usage.Groups(ctx, filter, usage.Over(usage.ByDay, usage.ByKey))
	if err != nil {
		return nil, unlessBusy(err)
	}
	for _, r := range past[0] {
		at := int(r.Time.Sub(first) / (24 * time.Hour))
		if at < 0 || at >= sparkDays { // a clock was ahead
			continue
		}
		if sparks[r.KeyID] == nil {
			sparks[r.KeyID] = &sparkline{}
		}
		sparks[r.KeyID].daily[at] += r.Tokens()
		sparks[""].daily[at] += r.Tokens()
	}
	sparks[""].draw(c.accountCounters(ctx, account).Used[quota.Day].Total())
	for _, k := range keys {
		today := c.keyCounters(ctx, k.ID).Used[quota.Day].Total()
		if sparks[k.ID] == nil && today > 0 {
			sparks[k.ID] = &sparkline{}
		}
		if sparks[k.ID] != nil {
			sparks[k.ID].draw(today)
		}
	}
	return sparks, nil
}

// summary is the head of the dashboard.
type summary struct {
	Remaining *remaining // of the tightest cap; nil if the account has none
	Bar       gauge      // of that cap
	Used      gauges     // in the current windows; the tightest cap has no limit there, since Remaining has it
	Usual     string     // how today compares with the usual day; empty if there is none
	Spark     *sparkline // nil if it could not be read in time
	Steps     *firstSteps
}

// remaining is what is left of a cap, in tokens.
type remaining struct {
	Name     string    `json:"name"` // of the cap, such as "monthly" or "daily completion token"
	Left     int64     `json:"left"`
	Limit    int64     `json:"limit"`
	ResetsAt time.Time `json:"resets_at,omitzero"` // zero: never

	window quota.Window
	meter  quota.Meter
}

func (c *Console) summary(ctx context.Context, a identity.Account, keys []keyRow, spark *sparkline) summary {
	balance := c.Ledger.Recent(ctx, budget.Payer{Account: a.ID, AccountCaps: a.Caps})
	s := summary{Used: newGauges(balance.Account, a.Caps), Remaining: tightest(balance.Caps()), Spark: spark}
	for i, one := range s.Used {
		if s.Remaining != nil && one.kind.Window == s.Remaining.window && one.kind.Meter == s.Remaining.meter {
			s.Bar, s.Used[i] = one, gauge{kind: one.kind, Used: one.Used}
		}
	}
	if spark != nil {
		if usual, ok := spark.usual(); ok {
			s.Usual = fmt.Sprintf("A usual day has %s.", formatNumber(usual))
		}
	}
	if !slices.ContainsFunc(keys, func(k keyRow) bool { return !k.LastUse.Time.IsZero() }) {
		s.Steps = c.firstSteps(keys)
	}
	return s
}

// tightest returns the cap with the fewest tokens left; nil if there is none.
func tightest(all []budget.Exceeded) *remaining {
	var found *remaining
	for _, s := range all {
		if left := s.Remaining(); found == nil || left < found.Left {
			found = &remaining{windowNames[s.Window] + meterNames[s.Meter], left, s.Limit, s.ResetsAt, s.Window, s.Meter}
		}
	}
	return found
}

// firstSteps says how to make the first request.
type firstSteps struct {
	HasKey  bool
	Example createdKey // without its secret
}

func (c *Console) firstSteps(keys []keyRow) *firstSteps {
	s := &firstSteps{Example: createdKey{BaseURL: c.apiURL()}}
	s.HasKey = slices.ContainsFunc(keys, func(k keyRow) bool { return k.State == identity.KeyActive })
	if models := c.Fleet.Models(); len(models) > 0 {
		s.Example.Model = models[0].ID()
	}
	return s
}

// modelActivity is how a model has served all accounts in the last 60 minutes.
type modelActivity struct {
	FirstToken      time.Duration // the median, of streams; 0 if there were none
	TokensPerSecond float64       // the median decode speed, of streams; 0 if there were none
}

func (c *Console) modelActivity() map[string]modelActivity {
	byModel := map[string]modelActivity{}
	for k, t := range c.History.Totals(time.Hour) {
		if k.Model == "" || k.Backend != "" {
			continue
		}
		a := modelActivity{TokensPerSecond: t.DecodeSpeed()}
		if median := t.FirstToken(.5); median != nil {
			a.FirstToken = time.Duration(*median * float64(time.Second))
		}
		byModel[k.Model] = a
	}
	return byModel
}

// keyActivity is the recent usage of a key, on its page.
type keyActivity struct {
	Spark *sparkline // nil if it could not be read in time
	Model string     // of the last request; empty if not known
	Last  string     // id of the last request
}

func (c *Console) keyActivity(ctx context.Context, k identity.Key, reader string) (a keyActivity, err error) {
	sparks, err := c.sparklines(ctx, k.AccountID, []identity.Key{k})
	if err != nil || sparks == nil {
		return a, err
	}
	a.Spark = sparks[k.ID]
	filter := usage.Filter{Reader: reader, Account: k.AccountID, Key: k.ID, Limit: 1}
	last, err := c.Usage.History(ctx, filter, usage.Recorded, usage.Cursor{}) // of those that were not refused, as the time of the last use
	if err != nil {
		return a, unlessBusy(err)
	}
	if len(last.Rows) > 0 {
		a.Model, a.Last = last.Rows[0].Model, last.Rows[0].RequestID
	}
	return a, nil
}
