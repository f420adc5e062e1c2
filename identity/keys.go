package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/quota"
)

// Errors of operations on keys.
var (
	ErrNoKey          = errors.New("there is no such key")
	ErrAmbiguous      = errors.New("more than one key begins like this")
	ErrBadConcurrency = errors.New("a key's concurrency is at least 1")
)

// Keys stores API keys and authenticates requests with them.
type Keys struct {
	db       *database.DB
	log      *zap.Logger
	settings Settings
	snapshot atomic.Pointer[snapshot]

	mu      sync.Mutex // serializes refreshes, so that an older snapshot never replaces a newer one
	failing bool       // guarded by mu: the last refresh failed, and that has been logged

	stop context.CancelFunc // ends the poller; nil before Start
	done chan struct{}      // closed when the poller has exited
}

func newKeys(db *database.DB, log *zap.Logger, s Settings) *Keys {
	if s.PollInterval == 0 {
		s.PollInterval = DefaultPollInterval
	}
	k := &Keys{db: db, log: log, settings: s}
	k.snapshot.Store(&snapshot{})
	return k
}

// KeyState says whether a key may be used.
type KeyState string

// The states of a key.
const (
	KeyActive  KeyState = "active"
	KeyPaused  KeyState = "paused"  // refused until it is resumed
	KeyRevoked KeyState = "revoked" // refused permanently
)

// keyTransitions are the allowed changes of state. A change to the current state is always allowed and does nothing.
var keyTransitions = map[KeyState][]KeyState{
	KeyActive:  {KeyPaused, KeyRevoked},
	KeyPaused:  {KeyActive, KeyRevoked},
	KeyRevoked: {},
}

// keyStateActions are the actions in the audit log, by the state that they lead to.
var keyStateActions = map[KeyState]string{
	KeyActive: "resume key", KeyPaused: "pause key", KeyRevoked: "revoke key",
}

// refusal returns the error with which a key in this state is refused, or nil.
func (s KeyState) refusal() error {
	switch s {
	case KeyActive:
		return nil
	case KeyPaused:
		return ErrKeyPaused
	case KeyRevoked:
	}
	return ErrKeyRevoked
}

// Key is a key without its secret.
type Key struct {
	ID          string
	AccountID   string
	Email       string // of the account
	Name        string
	Prefix      string // the first characters of the secret
	State       KeyState
	Concurrency int // requests at a time; 0: the configured default
	Caps        quota.Caps
	CreatedAt   time.Time
}

// describe returns the key's description in the audit log.
func (k Key) describe() string {
	text := fmt.Sprintf("%s (%s) of %s, %s", k.Name, k.Prefix, k.Email, k.Caps)
	if k.Concurrency > 0 {
		text += fmt.Sprintf(", concurrency %d", k.Concurrency)
	}
	return text
}

// NewKey describes a key to create.
type NewKey struct {
	Email       string // of the account
	Name        string
	Concurrency int // requests at a time; 0: the configured default
	Caps        quota.Caps
}

// Create creates a key and returns it with its secret, which cannot be retrieved later. The error may be ErrNoAccount,
// ErrAccountDisabled, ErrAccountPending, ErrBadName, ErrBadConcurrency, ErrBadCap or ErrAboveAccount.
func (k *Keys) Create(ctx context.Context, n NewKey) (key Key, secret string, err error) {
	if err := (KeyFields{n.Name, n.Concurrency, n.Caps}).validate(); err != nil {
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	secret = newSecret()
	key = Key{
		ID: newID("key"), Name: n.Name, Prefix: prefixOf(secret), State: KeyActive,
		Concurrency: n.Concurrency, Caps: n.Caps, CreatedAt: now(),
	}
	err = k.write(ctx, func(tx database.Tx) error {
		account, err := selectAccount(ctx, tx, n.Email)
		if err != nil {
			return err
		}
		if err := account.State.refusal(); err != nil {
			return fmt.Errorf("%w: %s", err, account.Email)
		}
		if err := checkKeyCaps(key.Caps, account); err != nil {
			return err
		}
		key.AccountID, key.Email = account.ID, account.Email
		if err := insertKey(ctx, tx, key, hashSecret(secret)); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "create key", key.ID, key.describe())
	})
	if err != nil {
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	return key, secret, nil
}

// KeyFields are the fields of a key that Set can change.
type KeyFields struct {
	Name        string
	Concurrency int // requests at a time; 0: the configured default
	Caps        quota.Caps
}

func (f KeyFields) validate() error {
	if strings.TrimSpace(f.Name) == "" {
		return fmt.Errorf("%w: it is empty", ErrBadName)
	}
	if err := checkName(f.Name); err != nil {
		return err
	}
	if f.Concurrency < 0 {
		return fmt.Errorf("%w, not %d", ErrBadConcurrency, f.Concurrency)
	}
	return f.Caps.Validate()
}

// Set passes the fields of the key that ref names (see Find) to change, and stores the result. The error may be
// ErrNoKey, ErrAmbiguous, ErrKeyRevoked, ErrBadName, ErrBadConcurrency, ErrBadCap or ErrAboveAccount. A paused key, and
// a key of an account that is not active, can be changed too.
func (k *Keys) Set(ctx context.Context, ref string, change func(*KeyFields)) (Key, error) {
	var key Key
	err := k.write(ctx, func(tx database.Tx) (err error) {
		if key, err = findKey(ctx, tx, ref); err != nil {
			return err
		}
		if key.State == KeyRevoked {
			return fmt.Errorf("%w: %s", ErrKeyRevoked, key.ID)
		}
		fields := KeyFields{key.Name, key.Concurrency, key.Caps}
		change(&fields)
		if err := fields.validate(); err != nil {
			return err
		}
		key.Name, key.Concurrency, key.Caps = fields.Name, fields.Concurrency, fields.Caps
		account, err := selectAccount(ctx, tx, key.Email)
		if err != nil {
			return err
		}
		if err := checkKeyCaps(key.Caps, account); err != nil {
			return err
		}
		if err := updateKey(ctx, tx, key); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "change key", key.ID, key.describe())
	})
	if err != nil {
		return Key{}, fmt.Errorf("change key: %w", err)
	}
	return key, nil
}

// List returns all keys, ordered by their accounts' addresses, then by age, the oldest first.
func (k *Keys) List(ctx context.Context) ([]Key, error) {
	return selectKeys(ctx, k.db.Read())
}

// ListOf returns the keys of the account with this id, the oldest first.
func (k *Keys) ListOf(ctx context.Context, account string) ([]Key, error) {
	return selectKeysOf(ctx, k.db.Read(), account)
}

// Find returns the key that ref names. A ref is the key's id, its secret, or the beginning of its secret, up to the
// length of Key.Prefix, if only one key begins with it; an ellipsis after the beginning is ignored, since lists show
// one. The error may be ErrNoKey or ErrAmbiguous.
func (k *Keys) Find(ctx context.Context, ref string) (Key, error) {
	return findKey(ctx, k.db.Read(), ref)
}

// Pause makes the key that ref names (see Find) refused until Resume. To pause a paused key is no error. The error may
// be ErrNoKey, ErrAmbiguous or ErrKeyRevoked.
func (k *Keys) Pause(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyPaused)
}

// Resume makes the paused key that ref names (see Find) work again. To resume an active key is no error. The error may
// be ErrNoKey, ErrAmbiguous or ErrKeyRevoked.
func (k *Keys) Resume(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyActive)
}

// Revoke makes the key that ref names (see Find) refused permanently. To revoke a revoked key is no error. The error
// may be ErrNoKey or ErrAmbiguous.
func (k *Keys) Revoke(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyRevoked)
}

func (k *Keys) setState(ctx context.Context, ref string, to KeyState) (Key, error) {
	var key Key
	err := k.write(ctx, func(tx database.Tx) (err error) {
		if key, err = findKey(ctx, tx, ref); err != nil || key.State == to {
			return err
		}
		if !slices.Contains(keyTransitions[key.State], to) {
			return fmt.Errorf("%w: %s", key.State.refusal(), key.ID)
		}
		key.State = to
		if err := updateKeyState(ctx, tx, key.ID, to); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, keyStateActions[to], key.ID, key.describe())
	})
	if err != nil {
		return Key{}, fmt.Errorf("make key %s: %w", to, err)
	}
	return key, nil
}

func findKey(ctx context.Context, q querier, ref string) (Key, error) {
	if isWellFormed(ref) {
		return selectKeyByHash(ctx, q, hashSecret(ref))
	}
	found, err := selectKeysByIDOrPrefix(ctx, q, strings.TrimSuffix(ref, "…"))
	switch {
	case err != nil:
		return Key{}, err
	case len(found) == 0:
		return Key{}, fmt.Errorf("%w: %s", ErrNoKey, quoteRedacted(ref))
	case len(found) > 1:
		return Key{}, fmt.Errorf("%w: %s is %s (%s) and %s (%s)", ErrAmbiguous, quoteRedacted(ref),
			found[0].ID, found[0].Name, found[1].ID, found[1].Name)
	}
	return found[0], nil
}

// quoteRedacted quotes a ref for an error. A ref may contain most of a secret, so it is cut to the length of
// Key.Prefix.
func quoteRedacted(ref string) string {
	if len(ref) > prefixLength && strings.HasPrefix(ref, secretTag) {
		ref = prefixOf(ref) + "…"
	}
	return strconv.Quote(ref)
}
