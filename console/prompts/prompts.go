// Package prompts stores the prompts that users save in the console's workbench, with their branches. Apart from the
// files of batches, they are the only texts of prompts and completions that the gateway stores.
//
// A save never delays another write of the database, such as a settlement, by more than one small commit: a content is
// written in chunks of 64 KiB, one chunk in a transaction and one transaction at a time for all users, and becomes
// visible with the last of them. A deletion removes chunks in the same way. Deleted bytes are overwritten, and their
// pages are used for what is stored next, so the file does not grow beyond the most that was stored at a time.
//
// An account has a quota in bytes, a maximum of prompts and a rate. Access control is left to the caller, which passes
// the account; the id of a prompt's link gives read access to everyone who knows it.
package prompts

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/budget/admission"
	"basegate/database"
	"basegate/internal/ratelimit"
)

// Errors of operations on prompts. Save operations may also return a *QuotaError.
var (
	ErrNotFound = errors.New("there is no such prompt")
	ErrConflict = errors.New("the prompt was changed since that version")
	ErrTooMany  = fmt.Errorf("the account has %d prompts already", MaxPrompts)
)

// MaxPrompts limits the prompts of an account.
const MaxPrompts = 1000

// Limits of the rate of an account, in bytes. A save costs what is sent, and at least minCost.
const (
	ratePerSecond = 1 << 20
	rateBurst     = 32 << 20
	minCost       = 16 << 10
	maxRateKeys   = 1 << 16
)

// QuotaError is returned if a save would exceed the account's quota.
type QuotaError struct {
	Used int64 // bytes of the account's other prompts
	Size int64 // bytes of the prompt
	Max  int64 // the quota, in bytes
}

// Error implements error.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("a prompt of %d bytes does not fit beside %d of %d bytes", e.Size, e.Used, e.Max)
}

// RateError is returned if an account saves too often.
type RateError struct {
	RetryIn time.Duration
}

// Error implements error.
func (e *RateError) Error() string {
	return fmt.Sprintf("too much was saved; try again in %s", e.RetryIn.Round(time.Second))
}

// Settings are the part of the configuration that a reload may change.
type Settings struct {
	MaxBytesPerAccount int64 // the quota; a document and its searchable text count
}

// Store stores prompts. It is safe for concurrent use, also by several processes.
type Store struct {
	db       *database.DB
	log      *zap.Logger
	settings atomic.Pointer[Settings]
	rate     *ratelimit.Limiter // by account
	writes   *admission.Turns   // one place: held while a write of this store is queued or runs

	stop context.CancelFunc // ends the cleaner; nil before Start
	done chan struct{}      // closed when the cleaner has exited
}

// New returns a Store. It works before Start, except that nothing deletes what interrupted saves have left.
func New(db *database.DB, log *zap.Logger, s Settings) *Store {
	store := &Store{
		db: db, log: log, writes: admission.NewTurns(1, 1),
		rate: ratelimit.New(ratelimit.Settings{
			Interval: time.Second / ratePerSecond, Burst: rateBurst, MaxKeys: maxRateKeys,
		}),
	}
	store.Reload(s)
	return store
}

// Reload replaces the settings. Prompts that exceed a lower quota stay; they can be deleted, and replaced by smaller
// ones.
func (s *Store) Reload(settings Settings) { s.settings.Store(&settings) }

// Writes returns the place of the store's writes, for metrics.
func (s *Store) Writes() *admission.Turns { return s.writes }

// MaxBytesPerAccount returns the quota of an account.
func (s *Store) MaxBytesPerAccount() int64 { return s.settings.Load().MaxBytesPerAccount }

// Start deletes what interrupted saves have left, now and every minute until Close.
func (s *Store) Start(ctx context.Context) {
	cleanCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop, s.done = stop, make(chan struct{})
	go s.clean(cleanCtx)
}

// Close stops the cleaner and waits for it to exit.
func (s *Store) Close() {
	if s.stop != nil {
		s.stop()
		<-s.done
	}
}

// Prompt is a saved prompt without its document.
type Prompt struct {
	ID      string
	Name    string
	Model   string
	Version int64 // 1 when it is created, and incremented by every change
	Updated time.Time
	Bytes   int64  // of the document and the searchable text
	Share   string // id of the link by which others read it; empty if there is none
	Account string // of the owner
}

// Draft is a prompt to save.
type Draft struct {
	Name     string
	Model    string
	Document []byte // JSON in the workbench's format
}

// Get returns one prompt of an account and its document. The error may be ErrNotFound.
func (s *Store) Get(ctx context.Context, account, id string) (Prompt, []byte, error) {
	return selectPromptWithDocument(ctx, s.db.Read(), account, id)
}

// GetShared returns the prompt of a link and its document. The error is ErrNotFound if the link was revoked, or the
// prompt deleted.
func (s *Store) GetShared(ctx context.Context, share string) (Prompt, []byte, error) {
	account, id, err := selectShared(ctx, s.db.Read(), share)
	if err != nil {
		return Prompt{}, nil, err
	}
	return s.Get(ctx, account, id)
}

// Usage returns the bytes that the prompts of an account take.
func (s *Store) Usage(ctx context.Context, account string) (int64, error) {
	_, bytes, err := selectUsage(ctx, s.db.Read(), account, "")
	return bytes, err
}
