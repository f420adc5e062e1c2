package fleet

import (
	"maps"
	"sync"
)

// transition is a change of state.
type transition struct{ from, to State }

// transitions counts the transitions of all backends and signals each of them.
type transitions struct {
	mu     sync.Mutex
	counts map[transition]int64
	next   chan struct{} // closed by the next transition; nil if nothing waits for it
}

func (t *transitions) record(from, to State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[transition]int64{}
	}
	t.counts[transition{from, to}]++
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

// totals returns how often each transition has occurred.
func (t *transitions) totals() map[transition]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}
