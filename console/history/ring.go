package history

import (
	"time"

	"basegate/budget/usage"
	"basegate/proxy"
)

// Totals are the sums of a series over a time.
type Totals struct {
	Requests           int64
	Failed, Refused    int64 // by the service's fault, and those that were refused
	Left               int64 // clients that left
	Prompt, Completion int64 // tokens
	Cached, Known      int64 // prompt tokens that were cached, of those of which that is known

	inFlight   int             // the highest
	firstToken usage.Histogram // of streams
	perToken   usage.Histogram // the time that streams took for each token after the first one
}

func (t *Totals) add(q *proxy.Ended) {
	t.Requests++
	t.count(q.Code, 1)
	t.Prompt += q.Prompt
	t.Completion += q.Completion
	if q.Cached != nil {
		t.Cached += *q.Cached
		t.Known += q.Prompt
	}
	if q.FirstToken > 0 {
		t.firstToken.Record(q.FirstToken)
	}
	if q.Code == "" && q.FirstToken > 0 && q.Completion > 1 && q.Total > q.FirstToken {
		t.perToken.Record((q.Total - q.FirstToken) / time.Duration(q.Completion-1))
	}
}

// count counts the outcome of requests that are among the totals.
func (t *Totals) count(code string, requests int64) {
	switch outcomeOf(code) {
	case Failed:
		t.Failed += requests
	case Refused:
		t.Refused += requests
	case Left:
		t.Left += requests
	}
}

func (t *Totals) merge(other *Totals) {
	t.Requests += other.Requests
	t.Failed += other.Failed
	t.Refused += other.Refused
	t.Left += other.Left
	t.Prompt += other.Prompt
	t.Completion += other.Completion
	t.Cached += other.Cached
	t.Known += other.Known
	t.inFlight = max(t.inFlight, other.inFlight)
	t.firstToken.Merge(&other.firstToken)
	t.perToken.Merge(&other.perToken)
}

// FirstToken returns the time to first token, in seconds, below which a part of the streams lies; nil if there were none.
func (t *Totals) FirstToken(part float64) *float64 {
	if t.firstToken.Count() == 0 {
		return nil
	}
	return new(t.firstToken.Quantile(part).Seconds())
}

// DecodeSpeed returns the median decode speed of the streams that succeeded, in tokens a second; 0 if there were none.
func (t *Totals) DecodeSpeed() float64 {
	if perToken := t.perToken.Quantile(.5); perToken > 0 {
		return 1 / perToken.Seconds()
	}
	return 0
}

// step is what happened in a step of a ring, or in an interval of a report.
type step struct {
	number  int64 // of the step since the epoch
	sampled bool  // the gateway ran
	waiting int   // the highest
	running int   // the highest
	series  map[Key]*Totals
	codes   map[codeKey]int64
}

func newStep(number int64) *step {
	return &step{number: number, series: map[Key]*Totals{}, codes: map[codeKey]int64{}}
}

// at returns the totals of a series, which it adds if there are none.
func (s *step) at(k Key) *Totals {
	if s.series[k] == nil {
		s.series[k] = new(Totals)
	}
	return s.series[k]
}

func (s *step) sample(g *Gauges) {
	s.sampled = true
	s.waiting, s.running = max(s.waiting, g.Waiting), max(s.running, g.Running)
	for k, n := range g.InFlight {
		if n > 0 {
			s.at(k).merge(&Totals{inFlight: n})
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
