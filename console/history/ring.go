package history

import (
	"time"

	"basegate/budget/usage"
)

// point is one series during one step.
type point struct {
	requests           int64
	failed, refused    int64
	prompt, completion int64
	inFlight           int           // the highest
	latency            usage.Latency // the time to first token of streams
}

func (p *point) add(q *Request) {
	p.requests++
	p.count(q.Code, 1)
	p.prompt += q.Prompt
	p.completion += q.Completion
	if q.FirstToken > 0 {
		p.latency.FirstToken.Record(q.FirstToken)
	}
}

// count counts the outcome of requests that are among the point's.
func (p *point) count(code string, requests int64) {
	switch failed, refused := outcome(code); {
	case failed:
		p.failed += requests
	case refused:
		p.refused += requests
	}
}

func (p *point) merge(other *point) {
	p.requests += other.requests
	p.failed += other.failed
	p.refused += other.refused
	p.prompt += other.prompt
	p.completion += other.completion
	p.inFlight = max(p.inFlight, other.inFlight)
	p.latency.Merge(&other.latency)
}

// quantile returns the time to first token, in seconds, below which a part of the streams lies; nil if there were none.
func (p *point) quantile(part float64) *float64 {
	if p.latency.FirstToken.Count() == 0 {
		return nil
	}
	return known(p.latency.FirstToken.Quantile(part).Seconds())
}

// step is what happened in a step of a ring, or in an interval of a report.
type step struct {
	number  int64 // of the step since the epoch
	sampled bool  // the gateway ran
	waiting int   // the highest
	running int   // the highest
	series  map[Key]*point
	codes   map[codeKey]int64
}

func newStep(number int64) *step {
	return &step{number: number, series: map[Key]*point{}, codes: map[codeKey]int64{}}
}

// record counts a request.
func (s *step) record(q *Request) {
	s.at(Key{}).add(q)
	if q.Code != "" {
		s.codes[codeKey{q.Model, q.Code}]++
	}
	if q.Model != "" {
		s.at(Key{Model: q.Model}).add(q)
	}
	if q.Backend != "" {
		s.at(Key{q.Model, q.Backend}).add(q)
	}
}

// at returns the point of a series, which it adds if there is none.
func (s *step) at(k Key) *point {
	p := s.series[k]
	if p == nil {
		p = new(point)
		s.series[k] = p
	}
	return p
}

func (s *step) sample(g *Gauges) {
	s.sampled = true
	s.waiting, s.running = max(s.waiting, g.Waiting), max(s.running, g.Running)
	for k, n := range g.InFlight {
		if n > 0 {
			p := s.at(k)
			p.inFlight = max(p.inFlight, n)
		}
	}
}

// merge adds an earlier or later step.
func (s *step) merge(other *step) {
	s.sampled = s.sampled || other.sampled
	s.waiting, s.running = max(s.waiting, other.waiting), max(s.running, other.running)
	for k, p := range other.series {
		s.at(k).merge(p)
	}
	for k, n := range other.codes {
		s.codes[k] += n
	}
}

// ring has the latest steps of one length.
type ring struct {
	length time.Duration
	steps  []*step // by their number, modulo; nil if not used yet
}

func newRing(length, period time.Duration) ring { return ring{length, make([]*step, period/length)} }

// at returns the step of a time. It takes the place of the oldest one.
func (r *ring) at(t time.Time) *step {
	number := t.UnixNano() / int64(r.length)
	place := &r.steps[number%int64(len(r.steps))]
	if *place == nil || (*place).number != number {
		*place = newStep(number)
	}
	return *place
}

// sum sums up the steps in intervals, whose length is a multiple of theirs.
func (r *ring) sum(begin time.Time, points int, interval time.Duration) []*step {
	sums := make([]*step, points)
	number, each := begin.UnixNano()/int64(r.length), int(interval/r.length)
	for i := range sums {
		sums[i] = newStep(number)
		for range each {
			if s := r.steps[number%int64(len(r.steps))]; s != nil && s.number == number {
				sums[i].merge(s)
			}
			number++
		}
	}
	return sums
}
