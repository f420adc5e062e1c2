package admission

import (
	"container/heap"
	"context"
)

// Slot is the permission to run one request. Until Wait returns, it is the request's place in the queue.
type Slot struct {
	queue    *Queue
	keyQueue *keyQueue
	state    state
	ready    chan struct{} // closed when the slot is handed out; nil if it was free at once
	memory   *Allocation   // of the request, if it waits

	number     int64 // in the order of arrival at the key
	arrival    int64 // among the requests of all keys
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

// Before returns how many requests wait in front of this one: those of its key, and of other keys of the account those that
// only wait for the account and arrived earlier. It is 0 if it does not wait. For more than maxWalk, the number includes some
// that have left the queue.
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
	for _, k := range s.keyQueue.account.ready {
		if k == s.keyQueue {
			continue
		}
		for other := k.first; other != nil && other.arrival < s.arrival && before < maxWalk; other = other.next {
			before++
		}
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
		s.keyQueue.account.place(s.keyQueue)
	case running:
		s.keyQueue.running--
		s.keyQueue.account.running--
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
	account     *accountQueue
	limit       int
	exempt      bool  // the account does not limit the key
	running     int   // above limit after a reduction, until enough slots are released
	arrived     int64 // requests that have waited
	first, last *Slot // nil unless running has reached limit, or the account its own
	place       int   // in accountQueue.ready; noPlace if it is not there
}

const noPlace = -1

func (k *keyQueue) setLimits(l Limits) {
	k.limit, k.exempt = max(l.Key, 1), l.Account == 0
	if !k.exempt {
		k.account.limit = max(l.Account, 1)
	}
}

// accountQueue holds what the keys of an account share.
type accountQueue struct {
	name    string
	limit   int // of the keys that are not exempt; that of the latest call
	running int // requests of all keys
	waiting int
	keys    int       // that have requests
	ready   readyKeys // keys that have a free slot and requests that wait; empty unless running has reached limit
}

// admits reports whether the account has a slot for a request of the key.
func (a *accountQueue) admits(k *keyQueue) bool { return k.exempt || a.running < a.limit }

// place updates the place of a key among those whose first request waits for a slot of the account.
func (a *accountQueue) place(k *keyQueue) {
	switch waits := k.first != nil && k.running < k.limit; {
	case waits && k.place == noPlace:
		heap.Push(&a.ready, k)
	case waits:
		heap.Fix(&a.ready, k.place)
	case k.place != noPlace:
		heap.Remove(&a.ready, k.place)
	}
}

// readyKeys is a heap of keys, by the arrival of their first requests; keys that their account does not limit come first.
type readyKeys []*keyQueue

func (r readyKeys) Len() int { return len(r) }

func (r readyKeys) Less(i, j int) bool {
	if r[i].exempt != r[j].exempt {
		return r[i].exempt
	}
	return r[i].first.arrival < r[j].first.arrival
}

func (r readyKeys) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].place, r[j].place = i, j
}

func (r *readyKeys) Push(k any) {
	added := k.(*keyQueue)
	added.place = len(*r)
	*r = append(*r, added)
}

func (r *readyKeys) Pop() any {
	last := len(*r) - 1
	k := (*r)[last]
	(*r)[last], *r = nil, (*r)[:last]
	k.place = noPlace
	return k
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
