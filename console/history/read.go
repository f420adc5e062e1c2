package history

import (
	"cmp"
	"slices"
	"time"
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

// Read returns the figures of a period that ends with the current interval. The interval is a multiple of Step; intervals
// begin at multiples of it, so that they are the same when they are read again.
func (h *History) Read(period, interval time.Duration) Report {
	return h.read(h.clock().Truncate(interval).Add(interval), period, interval)
}

// Totals returns the series of a period that ends with the current step, for their totals: they have one point.
func (h *History) Totals(period time.Duration) []Series {
	return h.read(h.clock().Truncate(Step).Add(Step), period, period).Series
}

func (h *History) read(end time.Time, period, interval time.Duration) Report {
	r := Report{Begin: end.Add(-period), Interval: interval, Points: int(period / interval)}
	r.Waiting, r.Running = make([]*float64, r.Points), make([]*float64, r.Points)
	sums := &reader{report: &r, series: map[Key][]sum{}, codes: map[codeKey][]int64{}, ran: make([]bool, r.Points)}
	for begin := r.Begin.Truncate(time.Hour); begin.Before(end); begin = begin.Add(time.Hour) {
		h.mu.Lock() // for one hour at a time, since requests that end wait for it
		sums.addHours(begin, h.hours[begin.Unix()], h.others.hours[begin.Unix()])
		h.mu.Unlock()
	}
	sums.finish()
	return r
}

// reader sums up the hours of a report.
type reader struct {
	report *Report
	ran    []bool // the gateway was sampled in the interval
	series map[Key][]sum
	codes  map[codeKey][]int64
}

// sum is one series in one interval.
type sum struct {
	requests, failed, refused, prompt, completion int64

	inFlight   uint32
	firstToken total
}

// intervalOf returns the index of the interval of a step, or -1 if it is outside the period.
func (s *reader) intervalOf(begin time.Time, step int) int {
	from := begin.Add(time.Duration(step) * Step).Sub(s.report.Begin)
	if from < 0 || from >= time.Duration(s.report.Points)*s.report.Interval {
		return -1
	}
	return int(from / s.report.Interval)
}

// addHours adds an hour of this gateway, and of the others; either may be nil.
func (s *reader) addHours(begin time.Time, own, others *hour) {
	if own == nil {
		own, others = others, nil
	}
	if own == nil {
		return
	}
	if others == nil {
		others = &hour{}
	}
	for step := range stepsPerHour {
		at := s.intervalOf(begin, step)
		if at < 0 {
			continue
		}
		g := own.gauges[step]
		g.merge(others.gauges[step])
		if g.sampled {
			s.ran[at] = true
			s.report.Waiting[at] = highest(s.report.Waiting[at], g.waiting)
			s.report.Running[at] = highest(s.report.Running[at], g.running)
		}
		s.addSeries(own, others, step, at)
		s.addCodes(own, step, at)
		s.addCodes(others, step, at)
	}
}

// addSeries adds a step of all series to an interval. Attempts in flight at one time add up, so they are added before the
// highest number of the interval is taken.
func (s *reader) addSeries(own, others *hour, step, at int) {
	for k, points := range own.series {
		p := points[step]
		if more := others.series[k]; more != nil {
			p.merge(&more[step])
		}
		if p.requests > 0 || p.inFlight > 0 {
			s.at(k, at).add(&p)
		}
	}
	for k, points := range others.series {
		if p := &points[step]; own.series[k] == nil && (p.requests > 0 || p.inFlight > 0) {
			s.at(k, at).add(p)
		}
	}
}

func (s *reader) addCodes(o *hour, step, at int) {
	for k, counts := range o.codes {
		if counts[step] > 0 {
			if s.codes[k] == nil {
				s.codes[k] = make([]int64, s.report.Points)
			}
			s.codes[k][at] += int64(counts[step])
		}
	}
}

func (s *reader) at(k Key, interval int) *sum {
	if s.series[k] == nil {
		s.series[k] = make([]sum, s.report.Points)
	}
	return &s.series[k][interval]
}

func (s *sum) add(p *point) {
	s.requests += int64(p.requests)
	s.failed += int64(p.failed)
	s.refused += int64(p.refused)
	s.prompt += int64(p.prompt)
	s.completion += int64(p.completion)
	s.inFlight = max(s.inFlight, p.inFlight)
	s.firstToken.add(&p.firstToken)
}

func highest(a *float64, b uint32) *float64 {
	v := float64(b)
	if a != nil {
		v = max(v, *a)
	}
	return &v
}

// finish converts the sums to the series of the report, in order.
func (s *reader) finish() {
	if s.series[Key{}] == nil {
		s.series[Key{}] = make([]sum, s.report.Points)
	}
	for k, sums := range s.series {
		s.report.Series = append(s.report.Series, s.convert(k, sums))
	}
	slices.SortFunc(s.report.Series, func(a, b Series) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Backend, b.Backend))
	})
	for k, counts := range s.codes {
		c := CodeSeries{Model: k.model, Code: k.code, Counts: make([]*float64, len(counts))}
		for i, n := range counts {
			c.Total += n
			if s.ran[i] || n > 0 {
				value := float64(n)
				c.Counts[i] = &value
			}
		}
		s.report.Codes = append(s.report.Codes, c)
	}
	slices.SortFunc(s.report.Codes, func(a, b CodeSeries) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Model, b.Model))
	})
}

func (s *reader) convert(k Key, sums []sum) Series {
	n := len(sums)
	r := Series{
		Key: k, Requests: make([]*float64, n), Tokens: make([]*float64, n),
		FirstToken: make([]*float64, n), FirstToken5: make([]*float64, n),
	}
	if k.Backend != "" {
		r.InFlight = make([]*float64, n)
	}
	var firstToken total
	seconds := s.report.Interval.Seconds()
	for i := range sums {
		p := &sums[i]
		r.Total.Requests += p.requests
		r.Total.Failed += p.failed
		r.Total.Refused += p.refused
		r.Total.Prompt += p.prompt
		r.Total.Completion += p.completion
		if !s.ran[i] && p.requests == 0 {
			continue
		}
		requests, tokens := float64(p.requests)/seconds, float64(p.prompt+p.completion)/seconds
		r.Requests[i], r.Tokens[i] = &requests, &tokens
		if r.InFlight != nil {
			r.InFlight[i] = highest(nil, p.inFlight)
		}
		r.FirstToken[i], r.FirstToken5[i] = p.firstToken.quantile(.5), p.firstToken.quantile(.95)
		for bucket, count := range p.firstToken {
			firstToken[bucket] += count
		}
	}
	r.Total.FirstTokenP50, r.Total.FirstTokenP95 = firstToken.quantile(.5), firstToken.quantile(.95)
	return r
}
