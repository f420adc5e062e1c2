package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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
	InFlight    []*float64 // attempts; the highest of each interval; of a backend only
	FirstToken  []*float64 // median in seconds
	FirstToken5 []*float64 // 95th percentile in seconds
	Total       Totals
}

// Totals are the sums over the whole period.
type Totals struct {
	Requests           int64
	Failed, Refused    int64 // by the service's fault, and by the client's
	Prompt, Completion int64
	FirstTokenP50      *float64 // seconds
	FirstTokenP95      *float64
}

// CodeSeries are the requests of a model that ended with an error code.
type CodeSeries struct {
	Model  string // empty if they were refused before their model was known
	Code   string
	Counts []*float64 // in each interval
	Total  int64
}

// Read returns what this gateway has seen in a part of the last hour that ends with the current interval. The interval is a
// multiple of Step; intervals begin at multiples of it, so that they are the same when they are read again.
func (h *History) Read(period, interval time.Duration) Report {
	begin := h.clock().Truncate(interval).Add(interval - period)
	return newReport(begin, interval, h.sum(&h.steps, begin, period, interval))
}

// Totals returns the series of what this gateway has seen in a part of the last hour that ends with the current step, for
// their totals: they have one point.
func (h *History) Totals(period time.Duration) []Series {
	begin := h.clock().Truncate(Step).Add(Step - period)
	return newReport(begin, period, h.sum(&h.steps, begin, period, period)).Series
}

// Day returns the last 24 hours, the current one included: what the ledger knows of all gateways, and this gateway's queue
// and backends. A reader makes one such report at a time. The error is one of database.DB.Report.
func (h *History) Day(ctx context.Context, reader string) (Report, error) {
	const interval = time.Hour
	begin := h.clock().Truncate(interval).Add(interval - Keep)
	sums := h.sum(&h.hours, begin, Keep, interval)
	for _, s := range sums {
		clear(s.codes)
		for k := range s.series {
			if k.Backend == "" {
				delete(s.series, k)
			}
		}
	}
	filter := usage.Filter{Reader: reader, Since: begin, Latency: true}
	groups, err := h.ledger.Groups(ctx, filter, usage.Over(usage.ByHour, usage.ByModel))
	if err != nil {
		return Report{}, fmt.Errorf("read the last day: %w", err)
	}
	codes, err := h.ledger.Codes(ctx, reader, begin)
	if err != nil {
		return Report{}, fmt.Errorf("read the last day: %w", err)
	}
	at := func(hour time.Time) *step { return sums[min(int(hour.Sub(begin)/interval), len(sums)-1)] }
	for i := range groups[0] {
		at(groups[0][i].Time).addUsage(&groups[0][i])
	}
	for _, c := range codes {
		at(c.Hour).addCode(&c)
	}
	return newReport(begin, interval, sums), nil
}

// addUsage adds the requests of a model that the ledger knows.
func (s *step) addUsage(r *usage.Row) {
	for _, k := range []Key{{}, {Model: r.Model}} {
		p := s.at(k)
		p.requests += r.Requests
		p.prompt += r.PromptTokens
		p.completion += r.CompletionTokens
		p.latency.Merge(r.Latency)
	}
}

// addCode adds the requests that have ended with a code. Those that were refused before a reservation have no model, and are
// not among the requests of addUsage.
func (s *step) addCode(c *usage.CodeCount) {
	s.codes[codeKey{c.Model, c.Code}] += c.Requests
	s.at(Key{}).count(c.Code, c.Requests)
	if c.Model == "" {
		s.at(Key{}).requests += c.Requests
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
	keys, codes := map[Key]bool{{}: true}, map[codeKey]bool{}
	for i, s := range steps {
		if s.sampled {
			r.Waiting[i], r.Running[i] = known(s.waiting), known(s.running)
		}
		for k := range s.series {
			keys[k] = true
		}
		for k := range s.codes {
			codes[k] = true
		}
	}
	for k := range keys {
		r.Series = append(r.Series, newSeries(k, interval, steps))
	}
	slices.SortFunc(r.Series, func(a, b Series) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Backend, b.Backend))
	})
	for k := range codes {
		r.Codes = append(r.Codes, newCodeSeries(k, steps))
	}
	slices.SortFunc(r.Codes, func(a, b CodeSeries) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Model, b.Model))
	})
	return r
}

func newSeries(k Key, interval time.Duration, steps []*step) Series {
	n := len(steps)
	s := Series{
		Key: k, Requests: make([]*float64, n), Tokens: make([]*float64, n),
		FirstToken: make([]*float64, n), FirstToken5: make([]*float64, n),
	}
	if k.Backend != "" {
		s.InFlight = make([]*float64, n)
	}
	var total point
	for i, of := range steps {
		p := of.series[k]
		if p == nil {
			p = new(point)
		}
		total.merge(p)
		if !of.sampled && p.requests == 0 {
			continue
		}
		s.Requests[i] = known(float64(p.requests) / interval.Seconds())
		s.Tokens[i] = known(float64(p.prompt+p.completion) / interval.Seconds())
		if s.InFlight != nil {
			s.InFlight[i] = known(p.inFlight)
		}
		s.FirstToken[i], s.FirstToken5[i] = p.quantile(.5), p.quantile(.95)
	}
	s.Total = Totals{
		Requests: total.requests, Failed: total.failed, Refused: total.refused, Prompt: total.prompt, Completion: total.completion,
		FirstTokenP50: total.quantile(.5), FirstTokenP95: total.quantile(.95),
	}
	return s
}

func newCodeSeries(k codeKey, steps []*step) CodeSeries {
	c := CodeSeries{Model: k.model, Code: k.code, Counts: make([]*float64, len(steps))}
	for i, s := range steps {
		n := s.codes[k]
		c.Total += n
		if s.sampled || n > 0 {
			c.Counts[i] = known(n)
		}
	}
	return c
}

// known returns a figure that is known.
func known[N int | int64 | float64](n N) *float64 {
	value := float64(n)
	return &value
}
