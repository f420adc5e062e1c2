// Package admission limits how many requests of each API key run at once, and how much memory the requests of all keys
// hold. Each key has a number of slots, a FIFO queue of the requests that wait for one, and a share of the memory.
//
// It promises that a key never runs more requests than it has slots, that slots are handed out in order of arrival, and
// that the requests of one key never wait for those of another. Waiting has no time limit of its own and takes no
// goroutine besides the caller's. A request whose context ends leaves the queue at once, wherever it stands; a slot
// handed to it at the same moment goes to the next one. Neither a key nor all keys together hold more memory than their
// limit, and no key holds so much that none is left for another. The package itself uses memory only for keys that have
// requests. How many slots a key has, and what a request holds, is decided by the caller; token caps are enforced by
// package budget.
package admission

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned if a request would raise the memory held by all requests above Settings.MaxBufferedBytes, or that
// held by the requests of its key above the key's share.
var ErrFull = errors.New("the requests hold too much memory")

// Settings are the limits of a Queue.
type Settings struct {
	MaxBufferedBytes int64 // held by the requests of all keys together
}

// Queue holds the slots, the queues and the memory of all keys. It is safe for concurrent use.
type Queue struct {
	memory memory

	mu        sync.Mutex           // guards every field below, and all keyQueues and Slots; never held while waiting
	keyQueues map[string]*keyQueue // only of keys that have requests
	totals    Stats
	pool      sync.Pool // of *keyQueue, so that Acquire and Release of an idle key allocate only the Slot
}

// Stats are totals over all keys.
type Stats struct {
	Keys          int   // keys that have requests
	Running       int   // requests that have a slot
	Waiting       int   // requests that wait for a slot
	BufferedBytes int64 // held by all Allocations
	Refused       int64 // calls that have returned ErrFull since New
}

// New returns a Queue without requests.
func New(s Settings) *Queue {
	return &Queue{
		memory: memory{
			limit: s.MaxBufferedBytes,
			keys:  map[string]*keyMemory{},
			pool:  sync.Pool{New: func() any { return new(keyMemory) }},
		},
		keyQueues: map[string]*keyQueue{},
		pool:      sync.Pool{New: func() any { return new(keyQueue) }},
	}
}

// Reload replaces the settings. They apply to later calls; memory that is held stays held.
func (q *Queue) Reload(s Settings) {
	q.memory.mu.Lock()
	defer q.memory.mu.Unlock()
	q.memory.limit = s.MaxBufferedBytes
}

// SetLimits updates the slot limit of every key that has requests, and hands out the slots that become free by it.
func (q *Queue) SetLimits(limit func(key string) int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, k := range q.keyQueues {
		k.limit = max(limit(key), 1)
		q.dispatch(k)
	}
}

// Stats returns the current totals.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	s := q.totals
	s.Keys = len(q.keyQueues)
	q.mu.Unlock()
	q.memory.mu.Lock()
	defer q.memory.mu.Unlock()
	s.BufferedBytes, s.Refused = q.memory.used, q.memory.refused
	return s
}

// KeyStats are the requests of one key.
type KeyStats struct {
	Running int
	Waiting int
}

// KeyStats returns how many requests of the key run and how many wait for a slot.
func (q *Queue) KeyStats(key string) (s KeyStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.keyQueues[key]
	if k == nil {
		return KeyStats{}
	}
	s.Running = k.running
	for slot := k.first; slot != nil; slot = slot.next {
		s.Waiting++
	}
	return s
}

// Acquire blocks until the key has a free slot for this request and returns it. The caller must Release it.
//
// The limit is the key's number of slots, at least 1. It replaces the limit of the previous call, also for requests
// that already wait: a higher limit lets as many of them run as fit, a lower limit takes no slot away. While the request
// waits, its Allocation grows by WaitingCost.
//
// The error is ErrFull, or context.Cause(ctx) if ctx ends first; then there is nothing to release.
func (q *Queue) Acquire(ctx context.Context, key string, limit int, a *Allocation) (*Slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s, err := q.Enqueue(key, limit, a)
	if err != nil {
		return nil, err
	}
	if err := s.Wait(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Enqueue is the first half of Acquire: it returns a Slot, perhaps one that waits. The caller must call its Wait.
func (q *Queue) Enqueue(key string, limit int, a *Allocation) (*Slot, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.keyQueue(key)
	k.limit = max(limit, 1)
	q.dispatch(k)
	if k.running < k.limit { // after dispatch, so the queue is empty
		k.running++
		q.totals.Running++
		return &Slot{queue: q, keyQueue: k, state: running}, nil
	}
	if err := a.Grow(WaitingCost); err != nil {
		return nil, err
	}
	s := &Slot{queue: q, keyQueue: k, state: waiting, ready: make(chan struct{}), memory: a}
	k.push(s)
	q.totals.Waiting++
	return s, nil
}

// keyQueue returns the queue of a key, and adds it if the key has no requests yet.
func (q *Queue) keyQueue(key string) *keyQueue {
	k, ok := q.keyQueues[key]
	if !ok {
		k = q.pool.Get().(*keyQueue) //nolint:errcheck // the pool holds nothing else
		k.key = key
		q.keyQueues[key] = k
	}
	return k
}

// dispatch hands free slots to the requests that have waited longest.
func (q *Queue) dispatch(k *keyQueue) {
	for k.running < k.limit && k.first != nil {
		s := k.first
		q.dequeue(s)
		s.state = running
		k.running++
		q.totals.Running++
		close(s.ready)
	}
}

// dequeue removes a waiting Slot from its queue.
func (q *Queue) dequeue(s *Slot) {
	s.keyQueue.remove(s)
	q.totals.Waiting--
}

// removeIfIdle returns a keyQueue without requests to the pool.
func (q *Queue) removeIfIdle(k *keyQueue) {
	if k.running > 0 || k.first != nil {
		return
	}
	delete(q.keyQueues, k.key)
	*k = keyQueue{}
	q.pool.Put(k)
}
