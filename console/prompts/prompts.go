// Package prompts stores the prompts that users save in the console's workbench, with their branches. Apart from the
// files of batches, they are the only texts of prompts and completions that the gateway stores.
//
// The document of a prompt is an object of the storage of files. Its row in the database says what it is, and has the words
// that a search finds. A save never delays another write of the database, such as a settlement, by more than one small
// commit: the object is written before the row, of which at most maxWords bytes are words, and one save runs at a time. A
// deleted object is marked in the transaction of the row, and deleted after it. Without a storage of files, as on PostgreSQL by
// default, the row has the document.
//
// Each save makes a version. Of a prompt the last MaxVersions are kept, as far as there is room: an account's oldest versions go
// before a save exceeds its quota.
//
// An account has a quota in bytes, a maximum of prompts and a rate. Access control is left to the caller, which passes
// the account; the id of a prompt's link gives read access to everyone who knows it. A link may be listed for all accounts.
package prompts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"basegate/batch/storage"
	"basegate/budget/admission"
	"basegate/database"
	"basegate/internal/ratelimit"
)

// Errors of operations on prompts. Save operations may also return a *QuotaError.
var (
	ErrNotFound = errors.New("there is no such prompt")
	ErrTooMany  = fmt.Errorf("the account has %d prompts already", MaxPrompts)
)

// Limits of what an account stores.
const (
	MaxPrompts  = 1000 // of an account
	MaxVersions = 20   // of a prompt, the latest included
)

// Limits of the rate of an account, in bytes. A save costs what is sent, and at least minCost.
const (
	ratePerSecond = 1 << 20
	rateBurst     = 32 << 20
	minCost       = 16 << 10
	maxRateKeys   = 1 << 16
)

// QuotaError is returned if a save would exceed the account's quota.
type QuotaError struct {
	Used int64 // bytes of the account's other prompts, without their earlier versions
	Size int64 // bytes of the prompt
	Max  int64 // the quota, in bytes
}

// Error implements error.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("a prompt of %d bytes does not fit beside %d of %d bytes", e.Size, e.Used, e.Max)
}

// Store stores prompts. It is safe for concurrent use, also by several processes.
type Store struct {
	db       *database.DB
	objects  storage.Objects    // nil: the rows have the documents
	maxBytes atomic.Int64       // of an account
	rate     *ratelimit.Limiter // by account
	writes   *admission.Turns   // held by a save or another write of this store
}

// maxWrites limits the writes at a time, each of another account: a save waits for the storage, which may be slow.
const maxWrites = 8

// New returns a Store with a quota of an account in bytes, for documents and their words. Without objects, it stores documents
// in their rows.
func New(db *database.DB, objects storage.Objects, maxBytesPerAccount int64) *Store {
	store := &Store{
		db: db, objects: objects, writes: admission.NewTurns(maxWrites, 1),
		rate: ratelimit.New(ratelimit.Settings{
			Interval: time.Second / ratePerSecond, Burst: rateBurst, MaxKeys: maxRateKeys,
		}),
	}
	store.Reload(maxBytesPerAccount)
	return store
}

// Reload replaces the quota. Prompts that exceed a lower one stay; they can be deleted, and replaced by smaller ones.
func (s *Store) Reload(maxBytesPerAccount int64) { s.maxBytes.Store(maxBytesPerAccount) }

// Writes returns the place of the store's writes, for metrics.
func (s *Store) Writes() *admission.Turns { return s.writes }

// MaxBytesPerAccount returns the quota of an account.
func (s *Store) MaxBytesPerAccount() int64 { return s.maxBytes.Load() }

// Prompt is a saved prompt without its document, also as the workbench receives it.
type Prompt struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Model    string    `json:"model"`
	Version  int64     `json:"version"` // 1 when it is created, and incremented by every change
	Updated  time.Time `json:"updated"`
	Bytes    int64     `json:"bytes"`           // of the document and, of the latest version, its words
	Share    string    `json:"share"`           // id of the link by which others read it; empty if there is none
	Everyone bool      `json:"everyone"`        // all users find the link in their lists
	Owner    string    `json:"owner,omitempty"` // e-mail address of another user, in SearchShared only
	Origin   Origin    `json:"origin,omitzero"` // of the latest version of a copy
	Account  string    `json:"-"`               // of the owner
}

// Origin is the prompt that another one is a copy of, as it was when the copy was made.
type Origin struct {
	ID    string `json:"id"` // of the prompt, or of the link by which it was read
	Name  string `json:"name"`
	Owner string `json:"owner"` // of another account's prompt
}

// Draft is a prompt to save, also as the workbench sends it.
type Draft struct {
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Document json.RawMessage `json:"document"` // in the workbench's format
	Origin   Origin          `json:"-"`        // of a new prompt that is a copy
}

// Get returns the latest version of a prompt of an account, and its document. The error may be ErrNotFound.
func (s *Store) Get(ctx context.Context, account, id string) (Prompt, []byte, error) {
	return s.read(ctx, latestOfAccount, account, id)
}

// GetVersion returns one version of a prompt of an account, and its document. The error may be ErrNotFound.
func (s *Store) GetVersion(ctx context.Context, account, id string, version int64) (Prompt, []byte, error) {
	return s.read(ctx, ofAccount+` AND version = $3`, account, id, version)
}

// Versions returns the versions of a prompt of an account, the latest first. The error may be ErrNotFound.
func (s *Store) Versions(ctx context.Context, account, id string) ([]Prompt, error) {
	const text = `SELECT ` + columns + `, '' FROM prompts WHERE ` + ofAccount + ` ORDER BY version DESC`
	all, err := database.List(ctx, s.db.Read(), func(row database.Scanner) (Prompt, error) {
		var p stored
		err := p.scan(row.Scan, new(string))
		return p.Prompt, err
	}, text, account, id)
	if err == nil && len(all) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read versions: %w", err)
	}
	return all, nil
}

// GetShared returns the prompt of a link and its document. The error is ErrNotFound if the link was revoked, or the
// prompt deleted.
func (s *Store) GetShared(ctx context.Context, share string) (Prompt, []byte, error) {
	return s.read(ctx, `share_id = $1 AND share_id <> ''`, share)
}

// Conditions for the versions of a prompt of an account.
const (
	ofAccount       = `account_id = $1 AND id = $2`
	latestOfAccount = ofAccount + ` AND latest = TRUE`
)

// read returns the prompt that a condition selects, and its document. An object that is gone may have been replaced since its
// name was read, so it is looked up again.
func (s *Store) read(ctx context.Context, condition string, args ...any) (Prompt, []byte, error) {
	for replaced := ""; ; {
		found, err := selectPrompt(ctx, s.db.Read(), condition, args...)
		if err != nil || found.object == "" {
			return found.Prompt, found.document, err
		}
		document, err := s.readObject(ctx, &found)
		if err == nil || found.object == replaced {
			return found.Prompt, document, err
		}
		replaced = found.object
	}
}

func (s *Store) readObject(ctx context.Context, p *stored) ([]byte, error) {
	if s.objects == nil {
		return nil, fmt.Errorf("read prompt %s: files.url is not set, so there is no storage", p.ID)
	}
	document, err := s.objects.ReadObject(ctx, p.object, p.documentBytes)
	if err != nil {
		return nil, fmt.Errorf("read prompt %s: %w", p.ID, err)
	}
	return document, nil
}

// Usage returns the bytes that the prompts of an account take with their versions.
func (s *Store) Usage(ctx context.Context, account string) (int64, error) {
	u, err := selectUsage(ctx, s.db.Read(), account)
	return u.bytes, err
}
