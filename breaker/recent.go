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

// recent is a ring buffer of the last observations of one backend, for display.
type recent struct {
	mu    sync.Mutex
	ring  [MaxRecent]Observation
	total int // observations ever added
}

func (r *recent) add(c Class) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.total%MaxRecent] = Observation{time.Now(), c}
	r.total++
}

// list returns the observations, oldest first.
func (r *recent) list() []Observation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total <= MaxRecent {
		return slices.Clone(r.ring[:r.total])
	}
	oldest := r.total % MaxRecent
	return append(slices.Clone(r.ring[oldest:]), r.ring[:oldest]...)
}

// Recent returns the last reported observations, oldest first, including those that the breaker does not count.
func (b *Breaker) Recent() []Observation { return b.recent.list() }
