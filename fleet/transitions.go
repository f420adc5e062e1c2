package fleet

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// transitions counts the transitions of all backends and signals each of them.
type transitions struct {
	counts *prometheus.CounterVec

	mu   sync.Mutex
	next chan struct{} // closed by the next transition; nil if nothing waits for it
}

func newTransitions() transitions {
	return transitions{counts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "basegate_backend_transitions_total", Help: "Changes of state of all backends.",
	}, []string{"from", "to"})}
}

func (t *transitions) record(from, to State) {
	t.counts.WithLabelValues(string(from), string(to)).Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next != nil {
		close(t.next)
		t.next = nil
	}
}

// changed returns a channel that the next transition closes.
func (t *transitions) changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next == nil {
		t.next = make(chan struct{})
	}
	return t.next
}
