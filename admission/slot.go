package admission

import "context"

// Slot is the permission to run one request. Until Wait returns, it is the request's place in the queue.
type Slot struct {
	queue    *Queue
	keyQueue *keyQueue
	state    state
	ready    chan struct{} // closed when the slot is handed out; nil if it was free at once
	memory   *Allocation   // of the request, if it waits

	number     int64 // in the order of arrival
	prev, next *Slot // in the queue
}

// state is a Slot's state. It only moves forward; waiting may go straight to released.
type state int

const (
	waiting state = iota
	running
	released
)

// Wait waits until the slot is handed out. If ctx ends first, it releases the Slot and returns context.Cause(ctx).
func (s *Slot) Wait(ctx context.Context) error {
	if s.ready == nil {
		return nil
	}
	defer s.memory.Shrink(WaitingCost)
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		s.Release()
		return context.Cause(ctx)
	}
}

// maxWalk limits the requests that Before counts one by one.
const maxWalk = 1000

// Before returns how many requests of the key wait in front of this one; 0 if it does not wait. For more than maxWalk, the
// number includes some that have left the queue.
func (s *Slot) Before() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if s.state != waiting {
		return 0
	}
	if most := s.number - s.keyQueue.first.number; most > maxWalk {
		return int(most)
	}
	before := 0
	for other := s.prev; other != nil; other = other.prev {
		before++
	}
	return before
}

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
	arrived     int64 // requests that have waited
	first, last *Slot // nil unless running has reached limit
}

// push appends s to the queue.
func (k *keyQueue) push(s *Slot) {
	k.arrived++
	s.number, s.prev = k.arrived, k.last
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
