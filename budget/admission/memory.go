// Package admission limits how much memory the requests of all API keys hold, and gives places for work to accounts in turn.
//
// It promises that neither a key nor all keys together hold more memory than their limit, that no key holds so much that none
// is left for another, and that whatever one account does, others get places. The package itself uses memory only for keys that
// hold some, and for accounts that hold places or wait for one. What a request holds is decided by the caller; how many requests
// of a key run at once is decided by package budget.
package admission

import (
	"errors"
	"sync"
)

// ErrFull is returned if a request would raise the memory held by all requests above their limit, or that held by the requests
// of its key above the key's share.
var ErrFull = errors.New("the requests hold too much memory")

// WaitingCost is what a request that waits holds besides its body, in bytes: its goroutine's stack, its connection, and
// what is known about it.
const WaitingCost = 15 << 10

// Every key may hold a small part of the memory whatever the other keys hold, so that small requests are served while
// large ones fill the memory: the part of a key and the memory kept for these parts, as divisors of all memory. With
// 256 MiB these are 512 KiB for each of 64 keys.
const (
	guaranteedToKey = 512
	keptForKeys     = 8
)

// shareOfFree is how many times the memory that is still free the requests of one key may hold. A key alone can thus hold
// three quarters of the memory, and of two keys each three sevenths: something is always left for the next key.
const shareOfFree = 3

// keptForRunning is the part of all memory, as a divisor, that only running requests may use: otherwise the bodies of
// waiting requests would leave no room for the responses of those that backends have worked on.
const keptForRunning = 4

// Memory limits the memory that the requests of all keys hold, and shares it out among the keys. It is safe for concurrent
// use.
type Memory struct {
	mu      sync.Mutex // guards every field below, and all keyMemories and Allocations; no other lock is taken under it
	limit   int64
	used    int64
	refused int64
	keys    map[string]*keyMemory // only of keys that hold memory
	pool    sync.Pool             // of *keyMemory, so that the requests of an idle key allocate nothing
}

// MemoryStats are totals over all keys.
type MemoryStats struct {
	BufferedBytes int64 // held by all Allocations
	Refused       int64 // calls that have returned ErrFull since NewMemory
}

// NewMemory returns a Memory of which nothing is held, with a limit in bytes.
func NewMemory(limit int64) *Memory {
	return &Memory{limit: limit, keys: map[string]*keyMemory{}, pool: sync.Pool{New: func() any { return new(keyMemory) }}}
}

// Reload replaces the limit. It applies to later calls; memory that is held stays held.
func (m *Memory) Reload(limit int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = limit
}

// Stats returns the current totals.
func (m *Memory) Stats() MemoryStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return MemoryStats{m.used, m.refused}
}

// keyMemory is the memory that the requests of one key hold.
type keyMemory struct {
	key   string
	bytes int64
}

// Allocation is the memory that one request holds. Its methods are safe for concurrent use. A request that has called Grow
// must call Release at its end.
type Allocation struct {
	memory  *Memory // nil: nothing is counted
	key     string
	owner   *keyMemory // nil while bytes is 0
	bytes   int64
	running bool
}

// Allocate returns the Allocation of a request, which holds nothing yet.
func (m *Memory) Allocate(key string) Allocation { return Allocation{memory: m, key: key} }

// SetRunning lets the Allocation grow into the memory that is kept for running requests. It must not be called at the same
// time as the other methods.
func (a *Allocation) SetRunning() { a.running = true }

// Grow counts further bytes. The error is ErrFull: the requests of all keys would hold more than the limit, or those of
// this key more than its share.
func (a *Allocation) Grow(bytes int64) error {
	m := a.memory
	if m == nil || bytes <= 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.keys[a.key]
	if !m.fits(k, bytes, a.running) {
		m.refused++
		return ErrFull
	}
	if k == nil {
		k = m.pool.Get().(*keyMemory)
		k.key = a.key
		m.keys[a.key] = k
	}
	k.bytes += bytes
	m.used += bytes
	a.bytes += bytes
	a.owner = k
	return nil
}

// fits reports whether the requests of a key may hold further bytes. k is nil if they hold none.
func (m *Memory) fits(k *keyMemory, bytes int64, running bool) bool {
	free := m.limit - m.used
	if bytes > free {
		return false
	}
	free -= bytes
	held := bytes
	if k != nil {
		held += k.bytes
	}
	if held <= m.limit/guaranteedToKey {
		return true
	}
	free -= m.limit / keptForKeys
	if !running {
		free -= m.limit / keptForRunning
	}
	return free >= 0 && held/shareOfFree <= free
}

// Shrink returns some of the bytes.
func (a *Allocation) Shrink(bytes int64) {
	if a.memory == nil {
		return
	}
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	a.shrink(bytes)
}

// Release returns all bytes.
func (a *Allocation) Release() {
	if a.memory == nil {
		return
	}
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	a.shrink(a.bytes)
}

// shrink returns some of the bytes. The caller holds the lock.
func (a *Allocation) shrink(bytes int64) {
	m, k := a.memory, a.owner
	bytes = min(max(bytes, 0), a.bytes)
	if bytes == 0 {
		return
	}
	a.bytes -= bytes
	m.used -= bytes
	k.bytes -= bytes
	if a.bytes == 0 {
		a.owner = nil
	}
	if k.bytes == 0 {
		delete(m.keys, k.key)
		*k = keyMemory{}
		m.pool.Put(k)
	}
}
