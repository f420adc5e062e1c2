// Package admission limits how many requests of each API key and of each account run at once, and how much memory the requests of
// all keys hold. Each key has a number of slots, a FIFO queue of the requests that wait for one, and a share of the memory. Each
// account has a number of slots for all its keys.
//
// It promises that a key or an account never runs more requests than it has slots, that slots are handed out in order of
// arrival, and that the requests of one account never wait for those of another. Among the keys of an account that have a free
// slot, the request that arrived first gets the next slot of the account. Waiting has no time limit of its own and takes no
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

	mu           sync.Mutex           // guards every field below, and all queues and Slots; never held while waiting
	keyQueues    map[string]*keyQueue // only of keys that have requests
	accounts     map[string]*accountQueue
	arrived      int64 // requests that have waited
	totals       Stats
	pool         sync.Pool // of *keyQueue, so that Acquire and Release of an idle key allocate only the Slot
	accountsPool sync.Pool // of *accountQueue
}

// Limits are the slots of a key and of its account.
type Limits struct {
	Key     int // at least 1
	Account int // of all keys of the account together; 0: the account does not limit this key
}

// Requester is the key of a request, with its account.
type Requester struct {
	Key, Account string
	Limits
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
		keyQueues:    map[string]*keyQueue{},
		accounts:     map[string]*accountQueue{},
		pool:         sync.Pool{New: func() any { return &keyQueue{place: noPlace} }},
		accountsPool: sync.Pool{New: func() any { return new(accountQueue) }},
	}
}

// Reload replaces the settings. They apply to later calls; memory that is held stays held.
func (q *Queue) Reload(s Settings) {
	q.memory.mu.Lock()
	defer q.memory.mu.Unlock()
	q.memory.limit = s.MaxBufferedBytes
}

// SetLimits updates the slots of every key that has requests and of its account, and hands out those that become free by it.
func (q *Queue) SetLimits(limits func(key string) Limits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, k := range q.keyQueues {
		k.setLimits(limits(key))
		k.account.place(k)
	}
	for _, k := range q.keyQueues { // by the limits of all, so that the order of the map does not matter
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

// KeyStats are the requests of one key, or of all keys of an account.
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

// AccountStats returns how many requests of an account run and how many wait for a slot.
func (q *Queue) AccountStats(account string) KeyStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a := q.accounts[account]; a != nil {
		return KeyStats{a.running, a.waiting}
	}
	return KeyStats{}
}

// Acquire blocks until the key and its account have a free slot for this request and returns it. The caller must Release it.
//
// The limits replace those of the previous call, also for requests that already wait: a higher limit lets as many of them run
// as fit, a lower limit takes no slot away. While the request waits, its Allocation grows by WaitingCost.
//
// The error is ErrFull, or context.Cause(ctx) if ctx ends first; then there is nothing to release.
func (q *Queue) Acquire(ctx context.Context, r Requester, a *Allocation) (*Slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s, err := q.Enqueue(r, a)
	if err != nil {
		return nil, err
	}
	if err := s.Wait(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Enqueue is the first half of Acquire: it returns a Slot, perhaps one that waits. The caller must call its Wait.
func (q *Queue) Enqueue(r Requester, a *Allocation) (*Slot, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.keyQueue(r.Key, r.Account)
	k.setLimits(r.Limits)
	q.dispatch(k)
	if k.running < k.limit && k.account.admits(k) { // after dispatch, so no request of the key waits, and none of the account can run
		q.start(k)
		return &Slot{queue: q, keyQueue: k, state: running}, nil
	}
	if err := a.Grow(WaitingCost); err != nil {
		q.removeIfIdle(k)
		return nil, err
	}
	q.arrived++
	s := &Slot{queue: q, keyQueue: k, state: waiting, ready: make(chan struct{}), memory: a, arrival: q.arrived}
	k.push(s)
	k.account.waiting++
	k.account.place(k)
	q.totals.Waiting++
	return s, nil
}

// keyQueue returns the queue of a key, and adds it if the key has no requests yet.
func (q *Queue) keyQueue(key, account string) *keyQueue {
	k, ok := q.keyQueues[key]
	if !ok {
		k = q.pool.Get().(*keyQueue)
		k.key, k.account = key, q.account(account)
		k.account.keys++
		q.keyQueues[key] = k
	}
	return k
}

// account returns the queue of an account, and adds it if the account has no requests yet.
func (q *Queue) account(name string) *accountQueue {
	a, ok := q.accounts[name]
	if !ok {
		a = q.accountsPool.Get().(*accountQueue)
		a.name = name
		q.accounts[name] = a
	}
	return a
}

// dispatch hands free slots to the requests of the key, and of others of its account, that have waited longest.
func (q *Queue) dispatch(k *keyQueue) {
	a := k.account
	a.place(k)
	for len(a.ready) > 0 && a.admits(a.ready[0]) {
		next := a.ready[0]
		s := next.first
		q.dequeue(s)
		s.state = running
		q.start(next)
		a.place(next)
		close(s.ready)
	}
}

// start counts a request that gets a slot.
func (q *Queue) start(k *keyQueue) {
	k.running++
	k.account.running++
	q.totals.Running++
}

// dequeue removes a waiting Slot from its queue.
func (q *Queue) dequeue(s *Slot) {
	s.keyQueue.remove(s)
	s.keyQueue.account.waiting--
	q.totals.Waiting--
}

// removeIfIdle returns a keyQueue without requests to the pool, and the accountQueue if it was its last one.
func (q *Queue) removeIfIdle(k *keyQueue) {
	if k.running > 0 || k.first != nil {
		return
	}
	a := k.account
	delete(q.keyQueues, k.key)
	*k = keyQueue{place: noPlace}
	q.pool.Put(k)
	if a.keys--; a.keys > 0 {
		return
	}
	delete(q.accounts, a.name)
	*a = accountQueue{ready: a.ready[:0]}
	q.accountsPool.Put(a)
}
