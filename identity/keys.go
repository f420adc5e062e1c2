// Package keys knows who asks: the accounts, their keys, and which key a secret belongs to; who is signed in at the
// console; and who changed what of all this.
//
// Authenticate answers from a snapshot in memory, without the database and without a lock, so that it costs a request
// next to nothing and goes on answering while the database cannot be read. Every change bumps a number in the database,
// whichever process made it; the snapshot follows that number within a quarter of a second, and at once where the change
// was made here.
//
// A secret exists in the clear only in what CreateKey returns. The database has its SHA-256, which for 32 random bytes
// cannot be guessed back, and its first characters, by which people tell keys apart.
//
// Caps and concurrency are kept here and carried in an Identity; to hold a key to them is the business of the ledger and
// of admission.
package identity

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/quota"
)

// Why a secret is refused. This is for the log; a client is told the same for all of them.
var (
	ErrMissing         = errors.New("no key was given")
	ErrMalformed       = errors.New("this cannot be a key")
	ErrUnknown         = errors.New("there is no such key")
	ErrPaused          = errors.New("the key is paused")
	ErrRevoked         = errors.New("the key has been revoked, which is final")
	ErrAccountDisabled = errors.New("the account is disabled")
	ErrAccountPending  = errors.New("the account awaits approval")
)

// Identity is who asks: a key and its account.
type Identity struct {
	KeyID       string
	KeyPrefix   string
	KeyName     string
	AccountID   string
	Email       string
	Admin       bool
	Concurrency int // requests at a time; 0: whatever is configured for all
	KeyCaps     quota.Caps
	AccountCaps quota.Caps
}

// Settings say how closely a Directory follows changes that other processes make.
type Settings struct {
	PollInterval time.Duration // 0: DefaultPollInterval
	Changed      func()        // called, if not nil, when a change is in force, and not by two goroutines at once
}

// DefaultPollInterval keeps a Directory within a quarter of a second of the database. A poll reads one row.
const DefaultPollInterval = 100 * time.Millisecond

// Directory is all accounts and keys. It is safe for concurrent use, by several processes on one database.
type Directory struct {
	db       *database.DB
	log      *zap.Logger
	settings Settings
	snapshot atomic.Pointer[snapshot]
	attempts *attempts     // to sign in
	hashing  chan struct{} // holds a token for every password that is being hashed

	mu      sync.Mutex // held while a snapshot is made, so that an older one never replaces a newer
	failing bool       // whether the outage has been logged

	stop context.CancelFunc // nil before Start
	done chan struct{}
}

// snapshot is one version of all keys; it is replaced as a whole.
type snapshot struct {
	revision int64
	source   *sql.DB // where it was read; another database may have the same revision
	byHash   map[hash]entry
	byID     map[string]entry
}

// hash is the SHA-256 of a secret.
type hash [sha256.Size]byte

// entry is what Authenticate answers for a key.
type entry struct {
	identity Identity
	refusal  error
}

// New makes a Directory. Its operations work at once; Authenticate knows no key before Start.
func New(db *database.DB, log *zap.Logger, s Settings) *Directory {
	if s.PollInterval == 0 {
		s.PollInterval = DefaultPollInterval
	}
	d := &Directory{
		db: db, log: log, settings: s,
		attempts: newAttempts(), hashing: make(chan struct{}, hashesAtOnce),
	}
	d.snapshot.Store(&snapshot{})
	return d
}

// Start reads all keys and follows their changes until Close.
func (d *Directory) Start(ctx context.Context) error {
	if err := d.refresh(ctx); err != nil {
		return err
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop, d.done = stop, make(chan struct{})
	go d.follow(following)
	return nil
}

// Close ends the following and waits for it. The last snapshot goes on answering.
func (d *Directory) Close() {
	if d.stop != nil {
		d.stop()
		<-d.done
	}
}

// Authenticate says whose key a secret is. When the key is known but may not be used, the Identity is given with the
// error, for the log. The error is ErrMissing, ErrMalformed, ErrUnknown, ErrPaused, ErrRevoked, ErrAccountDisabled or
// ErrAccountPending itself.
//
// The secret is hashed before it is looked up, so the time that takes tells nothing about other secrets.
func (d *Directory) Authenticate(secret string) (Identity, error) {
	if secret == "" {
		return Identity{}, ErrMissing
	}
	if !wellFormed(secret) {
		return Identity{}, ErrMalformed
	}
	found, ok := d.snapshot.Load().byHash[hashOf(secret)]
	if !ok {
		return Identity{}, ErrUnknown
	}
	return found.identity, found.refusal
}

// Identify says who an account is that asks with one of its keys, for whom the account has signed in and no secret is
// needed. A key that is not the account's is as good as none. The error is ErrUnknown, or one of Authenticate's for a key
// that may not be used.
func (d *Directory) Identify(account, key string) (Identity, error) {
	found, err := d.Lookup(key)
	if found.AccountID != account {
		return Identity{}, ErrUnknown
	}
	return found, err
}

// Lookup says how a key of this id stands now. Its errors are Identify's.
func (d *Directory) Lookup(key string) (Identity, error) {
	found, ok := d.snapshot.Load().byID[key]
	if !ok {
		return Identity{}, ErrUnknown
	}
	return found.identity, found.refusal
}

// follow polls until ctx ends.
func (d *Directory) follow(ctx context.Context) {
	defer close(d.done)
	poll := time.NewTicker(d.settings.PollInterval)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			d.noteOutage(ctx, d.refresh(ctx))
		}
	}
}

// refresh makes a new snapshot, if the database has changed since the last.
func (d *Directory) refresh(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, source := d.snapshot.Load(), d.db.Read()
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
	d.snapshot.Store(next)
	if d.settings.Changed != nil {
		d.settings.Changed()
	}
	return nil
}

// readSnapshot reads revision and keys as they are at one moment.
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
	if s.byHash, err = selectEntries(ctx, tx); err != nil {
		return nil, err
	}
	s.byID = make(map[string]entry, len(s.byHash))
	for _, e := range s.byHash {
		s.byID[e.identity.KeyID] = e
	}
	return s, nil
}

// changed takes over a change that was made here. The change is on disk, so a failure to read it back is not the
// caller's; the poll will see it.
func (d *Directory) changed(ctx context.Context) {
	if d.stop != nil {
		d.noteOutage(ctx, d.refresh(ctx))
	}
}

// noteOutage logs the beginning and the end of a time without fresh keys.
func (d *Directory) noteOutage(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err != nil && !d.failing:
		d.log.Warn("keys cannot be read; the last known ones stay in force", zap.Error(err))
	case err == nil && d.failing:
		d.log.Info("keys can be read again")
	}
	d.failing = err != nil
}
