package breaker

import (
	"slices"
	"sync"
	"time"
)

// Outcome is what became of one attempt, and when.
type Outcome struct {
	Time  time.Time
	Class Class
}

// Remembered is how many outcomes a Breaker remembers.
const Remembered = 20

// recent is the last outcomes of one backend, for people to look at.
type recent struct {
	mu   sync.Mutex
	ring [Remembered]Outcome
	n    int // outcomes ever
}

func (r *recent) add(c Class) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.n%Remembered] = Outcome{time.Now(), c}
	r.n++
}

// list is in the order in which the outcomes came.
func (r *recent) list() []Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n <= Remembered {
		return slices.Clone(r.ring[:r.n])
	}
	at := r.n % Remembered
	return append(slices.Clone(r.ring[at:]), r.ring[:at]...)
}

// Outcomes lists the last outcomes that were reported, the oldest first, those too that the breaker does not count.
func (b *Breaker) Outcomes() []Outcome { return b.recent.list() }
