package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"basegate/budget/usage"
)

// Report are the figures of a period, summed up in intervals of equal length. A nil figure is one of which nothing is
// known, because the gateway did not run or, of a quantile, nothing was counted.
type Report struct {
	Begin    time.Time
	Interval time.Duration
	Points   int
	Waiting  []*float64 // the highest of each interval
	Running  []*float64 // the highest of each interval
	Series   []Series   // all requests first, then each model, followed by its backends
	Codes    []CodeSeries
}

// Series are the figures of all requests, of a model or of a backend. Rates are per second.
type Series struct {
	Key
	Requests    []*float64
	Tokens      []*float64 // of prompts and completions
	Failed      []*float64 // requests in each interval by the service's fault
	Refused     []*float64 // requests in each interval that were refused, those of clients that left included
	InFlight    []*float64 // attempts; the highest of each interval; of a backend only
	FirstToken  []*float64 // median in seconds
	FirstToken5 []*float64 // 95th percentile in seconds
	Total       *Totals    // of the whole period
}

// CodeSeries are the requests of a model that ended with an error code.
type CodeSeries struct {
	Model   string // empty if they were refused before their model was known
	Code    string
	Outcome Outcome
	Counts  []*float64 // in each interval
	Total   int64
}

// Read returns what this gateway has seen in a part of the last hour that ends with the current interval. The interval is a
// multiple of Step; intervals begin at multiples of it, so that they are the same when they are read again.
func (h *History) Read(period, interval time.Duration) Report {
	begin := h.clock().Truncate(interval).Add(interval - period)
	return newReport(begin, interval, h.sum(&h.steps, begin, period, interval))
}

// Totals returns what this gateway has seen in a part of the last hour that ends with the current step, by the series that
// had requests or attempts.
func (h *History) Totals(period time.Duration) map[Key]*Totals {
	begin := h.clock().Truncate(Step).Add(Step - period)
	return h.sum(&h.steps, begin, period, period)[0].series
}

// reportLife is how long a report of the ledger is shown: it reads each request of its time, and the page asks for it every ten
// seconds.
const reportLife = time.Minute

// cached is a report of the ledger.
type cached[T any] struct {
	mu     sync.Mutex // held while it is read
	at     time.Time
	report T
}

// get returns the report, and reads it again if it is too old.
func (c *cached[T]) get(now time.Time, read func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.at) < reportLife {
		return c.report, nil
	}
	report, err := read()
	if err == nil {
		c.at, c.report = now, report
	}
	return report, err
}

// Top returns the accounts and the keys that have used the most tokens of all gateways in the last 60 minutes, of a minute ago at
// most. The error is one of database.DB.Report.
func (h *History) Top(ctx context.Context, reader string) (accounts, keys []usage.Row, err error) {
	now := h.clock()
	all, err := h.top.get(now, func() ([][]usage.Row, error) {
		return h.ledger.Groups(ctx, usage.Filter{Reader: reader, Since: now.Add(-time.Hour)}, usage.ByAccount, usage.ByKey)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the last hour: %w", err)
	}
	return all[0], all[1], nil
}

// Day returns the last 24 hours, the current one included, of a minute ago at most: what the ledger knows of all gateways, and
// this gateway's queue and backends. The error is one of database.DB.Report.
func (h *History) Day(ctx context.Context, reader string) (Report, error) {
	return h.day.get(h.clock(), func() (Report, error) { return h.readLedger(ctx, reader) })
}

func (h *History) readLedger(ctx context.Context, reader string) (Report, error) {
	const interval = time.Hour
	begin := h.clock().Truncate(interval).Add(interval - Keep)
	sums := h.sum(&h.hours, begin, Keep, interval)
	err := h.addLedger(ctx, sums, usage.Filter{Reader: reader, Since: begin}, interval)
	return newReport(begin, interval, sums), err
}

// OfLedger returns what the ledger knows of the requests that a filter selects, whose range is of whole intervals: hours or days. The
// report has no queue and no backends. The error is one of database.DB.Report.
func (h *History) OfLedger(ctx context.Context, filter usage.Filter, interval time.Duration) (Report, error) {
	sums := make([]*step, filter.Until.Sub(filter.Since)/interval)
	for i := range sums {
		sums[i] = newStep(0)
		sums[i].sampled = filter.Since.Add(time.Duration(i) * interval).Before(h.clock()) // without requests, their number is known to be 0
	}
	err := h.addLedger(ctx, sums, filter, interval)
	return newReport(filter.Since, interval, sums), err
}

// addLedger adds what the ledger knows of the requests that a filter selects to the intervals since its begin.
func (h *History) addLedger(ctx context.Context, sums []*step, filter usage.Filter, interval time.Duration) error {
	filter.Latency = true
	by := usage.ByDay
	if interval == time.Hour {
		by = usage.ByHour
	}
	groups, err := h.ledger.Groups(ctx, filter, usage.Over(by, usage.ByModel))
	if err != nil {
		return fmt.Errorf("read the requests of a time: %w", err)
	}
	codes, err := h.ledger.Codes(ctx, filter)
	if err != nil {
		return fmt.Errorf("read the requests of a time: %w", err)
	}
	at := func(hour time.Time) *step { return sums[min(int(hour.Sub(filter.Since)/interval), len(sums)-1)] }
	for i := range groups[0] {
		at(groups[0][i].Time).addUsage(&groups[0][i])
	}
	for _, c := range codes {
		at(c.Hour).addCode(&c)
	}
	return nil
}

func (s *step) addUsage(r *usage.Row) {
	for _, k := range []Key{{}, {Model: r.Model}} {
		s.at(k).merge(&Totals{
			Requests: r.Requests, Prompt: r.PromptTokens, Completion: r.CompletionTokens, Cached: r.CachedTokens, Known: r.KnownTokens,
			firstToken: r.Latency.FirstToken,
		})
	}
}

// addCode adds the requests that have ended with a code. Those that were refused before a reservation have no model, and are
// not among the requests of addUsage.
func (s *step) addCode(c *usage.CodeCount) {
	s.codes[codeKey{c.Model, c.Code}] += c.Requests
	s.at(Key{}).count(c.Code, c.Requests)
	if c.Model == "" {
		s.at(Key{}).Requests += c.Requests
	} else {
		s.at(Key{Model: c.Model}).count(c.Code, c.Requests)
	}
}

func (h *History) sum(r *ring, begin time.Time, period, interval time.Duration) []*step {
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.sum(begin, int(period/interval), interval)
}

func newReport(begin time.Time, interval time.Duration, steps []*step) Report {
	r := Report{Begin: begin, Interval: interval, Points: len(steps), Waiting: make([]*float64, len(steps)), Running: make([]*float64, len(steps))}
	total := newStep(0)
	total.at(Key{})
	for i, s := range steps {
		total.merge(s)
		if s.sampled {
			r.Waiting[i], r.Running[i] = new(float64(s.waiting)), new(float64(s.running))
		}
	}
	for k, t := range total.series {
		r.Series = append(r.Series, newSeries(k, t, interval, steps))
	}
	slices.SortFunc(r.Series, func(a, b Series) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Backend, b.Backend))
	})
	for k, n := range total.codes {
		c := CodeSeries{Model: k.model, Code: k.code, Outcome: outcomeOf(k.code), Counts: make([]*float64, len(steps)), Total: n}
		for i, s := range steps {
			if n, counted := s.codes[k]; counted || s.sampled {
				c.Counts[i] = new(float64(n))
			}
		}
		r.Codes = append(r.Codes, c)
	}
	slices.SortFunc(r.Codes, func(a, b CodeSeries) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Model, b.Model))
	})
	return r
}

func newSeries(k Key, total *Totals, interval time.Duration, steps []*step) Series {
	n := len(steps)
	s := Series{
		Key: k, Total: total, Requests: make([]*float64, n), Tokens: make([]*float64, n), Failed: make([]*float64, n), Refused: make([]*float64, n),
		FirstToken: make([]*float64, n), FirstToken5: make([]*float64, n),
	}
	if k.Backend != "" {
		s.InFlight = make([]*float64, n)
	}
	for i, of := range steps {
		t := cmp.Or(of.series[k], new(Totals))
		if !of.sampled && t.Requests == 0 {
			continue
		}
		s.Requests[i] = new(float64(t.Requests) / interval.Seconds())
		s.Tokens[i] = new(float64(t.Prompt+t.Completion) / interval.Seconds())
		s.Failed[i], s.Refused[i] = new(float64(t.Failed)), new(float64(t.Refused+t.Left))
		if s.InFlight != nil {
			s.InFlight[i] = new(float64(t.inFlight))
		}
		s.FirstToken[i], s.FirstToken5[i] = t.FirstToken(.5), t.FirstToken(.95)
	}
	return s
}
