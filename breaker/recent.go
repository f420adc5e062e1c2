package breaker

import (
	"slices"
	"sync"
	"time"
)

// Observation is the class of one reported attempt and the time of the report.
type Observation struct {
	Time  time.Time
	Class Class
}

// MaxRecent is the number of observations that a Breaker keeps.
const MaxRecent = 20

// recent holds the last observations of one backend, for display.
type recent struct {
	mu   sync.Mutex
	last []Observation // oldest first
}

func (r *recent) add(c Class) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) == MaxRecent {
		r.last = slices.Delete(r.last, 0, 1)
	}
	r.last = append(r.last, Observation{time.Now(), c})
}

// Recent returns the last reported observations, oldest first, including those that the breaker does not count.
func (b *Breaker) Recent() []Observation {
	b.recent.mu.Lock()
	defer b.recent.mu.Unlock()
	return slices.Clone(b.recent.last)
}
