// Package admission limits how many requests of each API key run at once. Each key has a number of slots and a FIFO
// queue of the requests that wait for one.
//
// It promises that a key never runs more requests than it has slots, that slots are handed out in order of arrival, and
// that the requests of one key never wait for those of another. Waiting has no time limit of its own and takes no
// goroutine besides the caller's. A request whose context ends leaves the queue at once, wherever it stands; a slot
// handed to it at the same moment goes to the next one. Memory is used only for keys that have requests. How many slots
// a key has is decided by the caller; token caps are enforced by package budget.
package admission

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned when a request has to wait but its bytes would raise the memory held by waiting requests above
// Settings.MaxBufferedBytes.
var ErrFull = errors.New("the requests that wait hold too much memory")

// Settings are the limits of a Queue.
type Settings struct {
	MaxBufferedBytes int64 // held by all waiting requests of all keys together
}

// Queue holds the slots and queues of all keys. It is safe for concurrent use.
type Queue struct {
	mu        sync.Mutex // guards every field below, and all keyQueues and Slots; never held while waiting
	settings  Settings
	keyQueues map[string]*keyQueue // only of keys that have requests
	totals    Stats
	pool      sync.Pool // of *keyQueue, so that Acquire and Release of an idle key allocate only the Slot
}

// Stats are totals over all keys.
type Stats struct {
	Keys          int   // keys that have requests
	Running       int   // requests that have a slot
	Waiting       int   // requests that wait for a slot
	BufferedBytes int64 // held by requests that wait for a slot, and reserved with ReserveMemory
	Refused       int64 // requests refused with ErrFull since New
}

// New returns a Queue without requests.
func New(s Settings) *Queue {
	return &Queue{
		settings:  s,
		keyQueues: map[string]*keyQueue{},
		pool:      sync.Pool{New: func() any { return new(keyQueue) }},
	}
}

// Reload replaces the settings. They apply to later calls; requests that already wait are not refused.
func (q *Queue) Reload(s Settings) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settings = s
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
	defer q.mu.Unlock()
	s := q.totals
	s.Keys = len(q.keyQueues)
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
// that already wait: a higher limit lets as many of them run as fit, a lower limit takes no slot away. The bytes are
// the memory that the request holds while it waits; they are not limited if the slot is free at once.
//
// The error is ErrFull, or context.Cause(ctx) if ctx ends first; then there is nothing to release.
func (q *Queue) Acquire(ctx context.Context, key string, limit int, bytes int64) (*Slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s, err := q.acquireOrEnqueue(key, max(limit, 1), max(bytes, 0))
	if err != nil || s.ready == nil {
		return s, err
	}
	select {
	case <-s.ready:
		return s, nil
	case <-ctx.Done():
		s.Release()
		return nil, context.Cause(ctx)
	}
}

// ReserveMemory counts bytes held by a request that waits for something other than a slot. The caller must call release
// exactly once. The error is ErrFull.
func (q *Queue) ReserveMemory(bytes int64) (release func(), err error) {
	bytes = max(bytes, 0)
	q.mu.Lock()
	defer q.mu.Unlock()
	if bytes > q.settings.MaxBufferedBytes-q.totals.BufferedBytes {
		q.totals.Refused++
		return nil, ErrFull
	}
	q.totals.BufferedBytes += bytes
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.totals.BufferedBytes -= bytes
	}, nil
}

// acquireOrEnqueue returns a running Slot, or a waiting one whose ready channel is not nil.
func (q *Queue) acquireOrEnqueue(key string, limit int, bytes int64) (*Slot, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.keyQueue(key)
	k.limit = limit
	q.dispatch(k)
	if k.running < k.limit { // after dispatch, so the queue is empty
		k.running++
		q.totals.Running++
		return &Slot{queue: q, keyQueue: k, state: running}, nil
	}
	if bytes > q.settings.MaxBufferedBytes-q.totals.BufferedBytes {
		q.totals.Refused++
		return nil, ErrFull
	}
	s := &Slot{queue: q, keyQueue: k, state: waiting, bytes: bytes, ready: make(chan struct{})}
	k.push(s)
	q.totals.Waiting++
	q.totals.BufferedBytes += bytes
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
	q.totals.BufferedBytes -= s.bytes
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
