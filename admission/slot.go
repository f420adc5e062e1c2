package admission

// Slot is the permission to run one request. Until Acquire returns it, it is the request's place in the queue.
type Slot struct {
	queue    *Queue
	keyQueue *keyQueue
	state    state
	ready    chan struct{} // closed when the slot is handed out; nil if it was free at once

	prev, next *Slot // in the queue
}

// state is a Slot's state. It only moves forward; waiting may go straight to released.
type state int

const (
	waiting state = iota
	running
	released
)

// Release returns the slot and hands it to the next request in the queue. Later calls have no effect; concurrent calls
// are safe.
func (s *Slot) Release() {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch s.state {
	case waiting:
		q.dequeue(s)
	case running:
		s.keyQueue.running--
		q.totals.Running--
		q.dispatch(s.keyQueue)
	case released:
		return
	}
	q.removeIfIdle(s.keyQueue)
	s.state, s.keyQueue = released, nil
}

// keyQueue holds one key's running count and its queue of waiting Slots, a doubly linked list.
type keyQueue struct {
	key         string
	limit       int
	running     int   // above limit after a reduction, until enough slots are released
	first, last *Slot // nil unless running has reached limit
}

// push appends s to the queue.
func (k *keyQueue) push(s *Slot) {
	s.prev = k.last
	if k.last == nil {
		k.first = s
	} else {
		k.last.next = s
	}
	k.last = s
}

// remove takes s out of the queue, at any position.
func (k *keyQueue) remove(s *Slot) {
	if s.prev == nil {
		k.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		k.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}
