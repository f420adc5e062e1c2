package identity

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// snapshot is one version of all keys. It is replaced as a whole.
type snapshot struct {
	revision int64
	source   *sql.DB // the database it was read from; a database that replaced it may have the same revision
	byHash   map[secretHash]snapshotEntry
	byID     map[string]snapshotEntry
}

// snapshotEntry is what Authenticate returns for a secret.
type snapshotEntry struct {
	principal     Principal
	refusal       error
	replacedUntil time.Time // until when a secret works that Rotate has replaced; zero for the key's current secret
}

// check returns the error with which the secret is refused at this moment, or nil.
func (e *snapshotEntry) check() error {
	switch {
	case e.refusal != nil:
		return e.refusal
	case hasPassed(e.principal.ExpiresAt):
		return ErrKeyExpired
	case hasPassed(e.replacedUntil):
		return ErrSecretReplaced
	default:
		return nil
	}
}

// Start reads all keys, then polls for changes until Close.
func (k *Keys) Start(ctx context.Context) error {
	if err := k.refresh(ctx); err != nil {
		return err
	}
	pollCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	k.stop, k.done = stop, make(chan struct{})
	go k.poll(pollCtx)
	return nil
}

// Close stops polling and waits for the poller to exit. The last snapshot stays in force.
func (k *Keys) Close() {
	if k.stop != nil {
		k.stop()
		<-k.done
	}
}

// write commits a change to accounts or keys, then refreshes the snapshot. The change is on disk by then, so an error
// of the refresh is logged and not returned; the next poll tries again.
func (k *Keys) write(ctx context.Context, apply func(database.Tx) error) error {
	if err := k.db.WriteGrouped(ctx, apply); err != nil {
		return err
	}
	if k.stop != nil {
		k.logOutage(ctx, k.refresh(ctx))
	}
	return nil
}

// poll refreshes the snapshot at every interval until ctx ends.
func (k *Keys) poll(ctx context.Context) {
	defer close(k.done)
	ticker := time.NewTicker(k.settings.PollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.logOutage(ctx, k.refresh(ctx))
		}
	}
}

// refresh replaces the snapshot if the database has changed since it was read.
func (k *Keys) refresh(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	last, source := k.snapshot.Load(), k.db.Read()
	revision, err := selectRevision(ctx, source)
	if err != nil {
		return err
	}
	if revision == last.revision && source == last.source {
		return nil
	}
	next, err := readSnapshot(ctx, source)
	if err != nil {
		return err
	}
	k.snapshot.Store(next)
	if k.settings.Changed != nil {
		k.settings.Changed()
	}
	return nil
}

// readSnapshot reads the revision and the keys in one transaction, so that they match.
func readSnapshot(ctx context.Context, source *sql.DB) (*snapshot, error) {
	tx, err := source.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	s := &snapshot{source: source}
	if s.revision, err = selectRevision(ctx, tx); err != nil {
		return nil, err
	}
	if s.byHash, err = selectSnapshotEntries(ctx, tx); err != nil {
		return nil, err
	}
	s.byID = make(map[string]snapshotEntry, len(s.byHash))
	for _, e := range s.byHash {
		s.byID[e.principal.KeyID] = e
	}
	return s, addReplacedSecrets(ctx, tx, s)
}

// logOutage logs the first failed refresh of an outage, and the first one that succeeds after it.
func (k *Keys) logOutage(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil && !k.failing:
		k.log.Warn("keys cannot be read; the last known ones stay in force", zap.Error(err))
	case err == nil && k.failing:
		k.log.Info("keys can be read again")
	}
	k.failing = err != nil
}
