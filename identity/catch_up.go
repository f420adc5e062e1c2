package identity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrKeysUnreadable is returned for an unknown secret if the database cannot be read, so that the key may exist.
var ErrKeysUnreadable = errors.New("the key is not in memory, and the database cannot be read")

const (
	// catchUpTimeout limits one such read.
	catchUpTimeout = 2 * time.Second
	// maxRefused is the number of secrets that are remembered as unknown, 32 bytes each.
	maxRefused = 4096
)

// catchUps bounds how often unknown secrets make the snapshot catch up with the database: all that arrive before a read
// begins share it, reads have a pause between them, and a secret waits for a read that began after its arrival. So no
// number of guesses makes a key refused whose creation was confirmed before the request.
type catchUps struct {
	mu      sync.Mutex
	pending *catchUp // has not begun to read; nil if there is none; guarded by mu

	reading sync.Mutex // held during a read and the pause before it
	next    time.Time  // when the next read may begin; guarded by reading
	reads   int        // so far; guarded by reading

	refusedMu sync.Mutex
	refused   map[secretHash]struct{} // secrets that the database does not know; see isRefused
}

// isRefused reports whether the database did not know the secret when it was asked. A secret is random, so one that does
// not exist is not created later. If the database is replaced by one that has it, the snapshot has it too.
func (c *catchUps) isRefused(secret secretHash) bool {
	c.refusedMu.Lock()
	defer c.refusedMu.Unlock()
	_, refused := c.refused[secret]
	return refused
}

// refuse remembers a secret that the database does not know.
func (c *catchUps) refuse(secret secretHash) {
	c.refusedMu.Lock()
	defer c.refusedMu.Unlock()
	if c.refused == nil || len(c.refused) >= maxRefused {
		c.refused = make(map[secretHash]struct{})
	}
	c.refused[secret] = struct{}{}
}

// catchUp is one read of the database. err is set before done is closed.
type catchUp struct {
	done chan struct{}
	err  error
}

// CatchUp returns when the snapshot has every change that was committed before the call, by any process. Calls share their
// reads of the database with those for unknown secrets.
func (k *Keys) CatchUp(ctx context.Context) error { return k.catchUp(ctx) }

// catchUp returns when the snapshot has every change that was committed before the call. The error is
// ErrKeysUnreadable, or context.Cause(ctx) if ctx ends first.
func (k *Keys) catchUp(ctx context.Context) error {
	k.unknown.mu.Lock()
	c := k.unknown.pending
	leads := c == nil
	if leads {
		c = &catchUp{done: make(chan struct{})}
		k.unknown.pending = c
	}
	k.unknown.mu.Unlock()
	if leads {
		k.lead(ctx, c)
		return c.err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lead reads the database for all callers that wait for c. It goes on if the leader's own request ends.
func (k *Keys) lead(ctx context.Context, c *catchUp) {
	defer close(c.done)
	k.unknown.reading.Lock()
	defer k.unknown.reading.Unlock()
	if wait := time.Until(k.unknown.next); wait > 0 {
		<-time.NewTimer(wait).C
	}
	k.unknown.mu.Lock()
	k.unknown.pending = nil
	k.unknown.mu.Unlock()

	began := time.Now()
	k.unknown.reads++
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), catchUpTimeout)
	defer cancel()
	if err := k.refresh(ctx); err != nil {
		k.logOutage(ctx, err)
		c.err = fmt.Errorf("%w: %w", ErrKeysUnreadable, err)
	}
	ended := time.Now()
	k.unknown.next = ended.Add(max(k.settings.CatchUpInterval, ended.Sub(began)))
}
