package identity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// ErrKeysUnreadable is returned for an unknown secret if the database cannot be read, so that the key may exist.
var ErrKeysUnreadable = errors.New("the key is not in memory, and the database cannot be read")

const (
	// catchUpTimeout limits the wait of a caller, usually for the rest of one read, a pause, and a read of its own.
	catchUpTimeout = 2*refreshTimeout + maxCatchUpPause
	// maxCatchUpPause limits the pause after a slow read.
	maxCatchUpPause = time.Second
	// maxRefused is the number of secrets that are remembered as unknown, 32 bytes each.
	maxRefused = 4096
)

// catchUps bounds how often unknown secrets make the snapshot catch up with the database: all that arrive before a read
// begins share it, reads have a pause between them, and a secret waits for a read that began after its arrival. So no
// number of guesses makes a key refused whose creation was confirmed before the request.
type catchUps struct {
	shared singleflight.Group

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

// CatchUp returns when the snapshot has every change that was committed before the call, by any process. Calls share their
// reads of the database with those for unknown secrets. The error is ErrKeysUnreadable, or context.Cause(ctx) if ctx ends
// first.
func (k *Keys) CatchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, catchUpTimeout, ErrKeysUnreadable)
	defer cancel()
	read := k.unknown.shared.DoChan("", func() (any, error) { return nil, k.readShared(context.WithoutCancel(ctx)) })
	select {
	case result := <-read:
		return result.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readShared reads the database for all callers that have arrived before the read begins.
func (k *Keys) readShared(ctx context.Context) error {
	k.unknown.reading.Lock()
	defer k.unknown.reading.Unlock()
	if wait := time.Until(k.unknown.next); wait > 0 {
		<-time.NewTimer(wait).C
	}
	k.unknown.shared.Forget("")
	began := time.Now()
	k.unknown.reads++
	err := k.refresh(ctx, refreshTimeout)
	k.logOutage(ctx, err)
	ended := time.Now()
	k.unknown.next = ended.Add(pauseAfter(err, ended.Sub(began), k.settings.Load().CatchUpInterval))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKeysUnreadable, err)
	}
	return nil
}

// pauseAfter returns the pause after a read: as long as the read took, so that slow reads take at most half of the time. How long a
// read took that failed says nothing about the next one.
func pauseAfter(err error, took, least time.Duration) time.Duration {
	if err != nil {
		return least
	}
	return max(least, min(took, maxCatchUpPause))
}
