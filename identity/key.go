package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"basegate/database"
	"basegate/quota"
)

// What can be wrong with an operation on keys.
var (
	ErrNoKey          = errors.New("there is no such key")
	ErrAmbiguous      = errors.New("more than one key begins like this")
	ErrBadConcurrency = errors.New("a key's concurrency is at least 1")
)

// State is whether a key works.
type State string

// The states of a key.
const (
	Active  State = "active"
	Paused  State = "paused"  // refused until it is resumed
	Revoked State = "revoked" // refused for ever
)

// moves are the changes of state that there are; to stay is always allowed.
var moves = map[State][]State{
	Active:  {Paused, Revoked},
	Paused:  {Active, Revoked},
	Revoked: {},
}

// moveNames are what the audit log calls the changes to a state.
var moveNames = map[State]string{Active: "resume key", Paused: "pause key", Revoked: "revoke key"}

// refusal is why a key does not work.
func (s State) refusal() error {
	switch s {
	case Active:
		return nil
	case Paused:
		return ErrPaused
	case Revoked:
	}
	return ErrRevoked
}

// Key is a key without its secret.
type Key struct {
	ID          string
	AccountID   string
	Email       string // the account's
	Name        string
	Prefix      string // the first characters of the secret
	State       State
	Concurrency int // requests at a time; 0: whatever is configured for all
	Caps        quota.Caps
	CreatedAt   time.Time
}

// describe is what the audit log says of a key.
func (k Key) describe() string {
	text := fmt.Sprintf("%s (%s) of %s, %s", k.Name, k.Prefix, k.Email, k.Caps)
	if k.Concurrency > 0 {
		text += fmt.Sprintf(", concurrency %d", k.Concurrency)
	}
	return text
}

// NewKey is what CreateKey wants to know.
type NewKey struct {
	Email       string // the account's
	Name        string
	Concurrency int // requests at a time; 0: whatever is configured for all
	Caps        quota.Caps
}

// CreateKey makes a key and returns its secret, which nobody can find out later. The error may be ErrNoAccount,
// ErrAccountDisabled, ErrAccountPending, ErrBadName, ErrBadConcurrency, ErrBadCap or ErrAboveAccount.
func (d *Directory) CreateKey(ctx context.Context, n NewKey) (key Key, secret string, err error) {
	if err := (KeyFields{n.Name, n.Concurrency, n.Caps}).check(); err != nil {
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	secret = newSecret()
	key = Key{
		ID: newID("key"), Name: n.Name, Prefix: prefixOf(secret), State: Active,
		Concurrency: n.Concurrency, Caps: n.Caps, CreatedAt: now(),
	}
	err = d.change(ctx, func(tx database.Tx) error {
		a, err := selectAccount(ctx, tx, n.Email)
		if err != nil {
			return err
		}
		if err := a.State.refusal(); err != nil {
			return fmt.Errorf("%w: %s", err, a.Email)
		}
		if err := checkKeyCaps(key.Caps, a); err != nil {
			return err
		}
		key.AccountID, key.Email = a.ID, a.Email
		if err := insertKey(ctx, tx, key, hashOf(secret)); err != nil {
			return err
		}
		return record(ctx, tx, "create key", key.ID, key.describe())
	})
	if err != nil {
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	return key, secret, nil
}

// KeyFields are what SetKey may change.
type KeyFields struct {
	Name        string
	Concurrency int // requests at a time; 0: whatever is configured for all
	Caps        quota.Caps
}

func (f KeyFields) check() error {
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

// SetKey gives change the key's fields as they are, and keeps them as it leaves them. The error may be ErrNoKey,
// ErrAmbiguous, ErrRevoked, ErrBadName, ErrBadConcurrency, ErrBadCap or ErrAboveAccount; for what which may be, see Key.
// Neither a pause nor the account's state matters: the key is as it was left when it works again.
func (d *Directory) SetKey(ctx context.Context, which string, change func(*KeyFields)) (Key, error) {
	var key Key
	err := d.change(ctx, func(tx database.Tx) (err error) {
		if key, err = findKey(ctx, tx, which); err != nil {
			return err
		}
		if key.State == Revoked {
			return fmt.Errorf("%w: %s", ErrRevoked, key.ID)
		}
		fields := KeyFields{key.Name, key.Concurrency, key.Caps}
		change(&fields)
		if err := fields.check(); err != nil {
			return err
		}
		key.Name, key.Concurrency, key.Caps = fields.Name, fields.Concurrency, fields.Caps
		a, err := selectAccount(ctx, tx, key.Email)
		if err != nil {
			return err
		}
		if err := checkKeyCaps(key.Caps, a); err != nil {
			return err
		}
		if err := updateKey(ctx, tx, key); err != nil {
			return err
		}
		return record(ctx, tx, "change key", key.ID, key.describe())
	})
	if err != nil {
		return Key{}, fmt.Errorf("change key: %w", err)
	}
	return key, nil
}

// Keys lists all keys by their accounts' addresses, the oldest first.
func (d *Directory) Keys(ctx context.Context) ([]Key, error) {
	return selectKeys(ctx, d.db.Read())
}

// KeysOf lists the keys of an account by its id, the oldest first.
func (d *Directory) KeysOf(ctx context.Context, account string) ([]Key, error) {
	return selectKeysOf(ctx, d.db.Read(), account)
}

// Key finds a key by its id, its whole secret, or the beginning of the secret, as far as it is shown, where only one
// key begins so; the ellipsis behind a prefix in a list does not matter. The error may be ErrNoKey or ErrAmbiguous.
func (d *Directory) Key(ctx context.Context, which string) (Key, error) {
	return findKey(ctx, d.db.Read(), which)
}

// PauseKey makes a key stop working until ResumeKey. To pause one that is paused is no error. The error may be
// ErrNoKey, ErrAmbiguous or ErrRevoked; for what which may be, see Key.
func (d *Directory) PauseKey(ctx context.Context, which string) (Key, error) {
	return d.move(ctx, which, Paused)
}

// ResumeKey makes a paused key work again. To resume one that is active is no error. The error may be ErrNoKey,
// ErrAmbiguous or ErrRevoked; for what which may be, see Key.
func (d *Directory) ResumeKey(ctx context.Context, which string) (Key, error) {
	return d.move(ctx, which, Active)
}

// RevokeKey makes a key stop working for ever. To revoke one that is revoked is no error. The error may be ErrNoKey or
// ErrAmbiguous; for what which may be, see Key.
func (d *Directory) RevokeKey(ctx context.Context, which string) (Key, error) {
	return d.move(ctx, which, Revoked)
}

func (d *Directory) move(ctx context.Context, which string, to State) (Key, error) {
	var key Key
	err := d.change(ctx, func(tx database.Tx) (err error) {
		if key, err = findKey(ctx, tx, which); err != nil || key.State == to {
			return err
		}
		if !slices.Contains(moves[key.State], to) {
			return fmt.Errorf("%w: %s", key.State.refusal(), key.ID)
		}
		key.State = to
		if err := updateKeyState(ctx, tx, key.ID, to); err != nil {
			return err
		}
		return record(ctx, tx, moveNames[to], key.ID, key.describe())
	})
	if err != nil {
		return Key{}, fmt.Errorf("make key %s: %w", to, err)
	}
	return key, nil
}

func findKey(ctx context.Context, q querier, which string) (Key, error) {
	if wellFormed(which) {
		return selectKeyByHash(ctx, q, hashOf(which))
	}
	found, err := selectKeysLike(ctx, q, strings.TrimSuffix(which, "…"))
	switch {
	case err != nil:
		return Key{}, err
	case len(found) == 0:
		return Key{}, fmt.Errorf("%w: %s", ErrNoKey, shown(which))
	case len(found) > 1:
		return Key{}, fmt.Errorf("%w: %s is %s (%s) and %s (%s)", ErrAmbiguous, shown(which),
			found[0].ID, found[0].Name, found[1].ID, found[1].Name)
	}
	return found[0], nil
}

// shown is what an error may show of something that may be most of a secret.
func shown(which string) string {
	if len(which) > prefixLength && strings.HasPrefix(which, secretHead) {
		which = prefixOf(which) + "…"
	}
	return strconv.Quote(which)
}
