package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"basegate/budget/quota"
	"basegate/database"
)

// Errors of changes to keys.
var (
	ErrBadConcurrency          = errors.New("a key's concurrency is at least 1")
	ErrConcurrencyAboveAccount = errors.New("a key's concurrency may not exceed what its account allows")
	ErrSetByOperator           = errors.New("the operator has set this, so only the operator can change it")
)

// Limits are the limits of a key that the operator has set. A zero field is not set: it is the holder's to choose.
type Limits struct {
	Concurrency int        // the holder cannot change the key's concurrency
	Caps        quota.Caps // the holder can lower the key's caps, and raise them up to these
	ExpiresAt   time.Time  // the holder can let the key expire earlier, but not later
	Models      ModelList  // the holder can choose among these
}

// String lists what is set, or returns "none".
func (l Limits) String() string {
	var parts []string
	if l.Caps.Any() {
		parts = append(parts, l.Caps.String())
	}
	if l.Concurrency > 0 {
		parts = append(parts, "concurrency "+strconv.Itoa(l.Concurrency))
	}
	if !l.ExpiresAt.IsZero() {
		parts = append(parts, "expires "+expiryText(l.ExpiresAt))
	}
	if !l.Models.Any() {
		parts = append(parts, "models "+l.Models.String())
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// KeyFields are the fields of a key that Set can change.
type KeyFields struct {
	Name        string
	Concurrency int // requests at a time; 0: the configured default
	Caps        quota.Caps
	ExpiresAt   time.Time // zero: never
	Models      ModelList

	// Operator is what the operator has set. A change of a limit by the operator sets it too; to set it otherwise makes
	// a limit of the holder one of the operator. Changes by a holder are ignored.
	Operator Limits
}

func (f *KeyFields) validate() error {
	if strings.TrimSpace(f.Name) == "" {
		return fmt.Errorf("%w: it is empty", ErrBadName)
	}
	if err := checkName(f.Name); err != nil {
		return err
	}
	if err := checkConcurrency(f.Concurrency); err != nil {
		return err
	}
	return f.Caps.Validate()
}

func checkConcurrency(n int) error {
	if n < 0 {
		return fmt.Errorf("%w, not %d", ErrBadConcurrency, n)
	}
	return nil
}

// Set passes the fields of the key that ref names (see Find) to change, and stores the result. The error may be
// ErrNoKey, ErrAmbiguous, ErrKeyRevoked, ErrBadName, ErrBadConcurrency, ErrBadCap or ErrAboveAccount; for a holder also
// ErrSetByOperator or ErrConcurrencyAboveAccount. A paused key, and a key of an account that is not active, can be
// changed too.
func (k *Keys) Set(ctx context.Context, ref string, change func(*KeyFields)) (Key, error) {
	var key Key
	err := k.write(ctx, func(tx database.Tx) (err error) {
		before, err := findKeyOfActor(ctx, tx, ref)
		if err != nil {
			return err
		}
		if before.State == KeyRevoked {
			return fmt.Errorf("%w: %s", ErrKeyRevoked, before.ID)
		}
		fields := KeyFields{before.Name, before.Concurrency, before.Caps, before.ExpiresAt, before.Models, before.Operator}
		change(&fields)
		fields.ExpiresAt, fields.Operator.ExpiresAt = normalizeTime(fields.ExpiresAt), normalizeTime(fields.Operator.ExpiresAt)
		if err := fields.validate(); err != nil {
			return err
		}
		account, err := selectAccount(ctx, tx, before.Email)
		if err != nil {
			return err
		}
		if err := checkKeyCaps(fields.Caps, account); err != nil {
			return err
		}
		if _, isHolder := holderOf(ctx); isHolder {
			fields.Operator = before.Operator
			err = k.checkChangeByHolder(before, &fields, account)
		} else {
			fields.claimForOperator(before)
		}
		if err != nil {
			return err
		}
		key = before.with(&fields)
		if err := updateKey(ctx, tx, key); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "change key", key.ID, describeKeyChange(before, key))
	})
	if err != nil {
		return Key{}, fmt.Errorf("change key: %w", err)
	}
	return key, nil
}

// with returns the key with changed fields.
func (k Key) with(f *KeyFields) Key {
	k.Name, k.Concurrency, k.Caps, k.ExpiresAt, k.Models, k.Operator = f.Name, f.Concurrency, f.Caps, f.ExpiresAt, f.Models, f.Operator
	return k
}

// claimForOperator makes the limits that differ from those of the key limits of the operator.
func (f *KeyFields) claimForOperator(before Key) {
	f.Operator.Caps.CopyChanges(before.Caps, f.Caps)
	if f.Concurrency != before.Concurrency {
		f.Operator.Concurrency = f.Concurrency
	}
	if f.ExpiresAt != before.ExpiresAt {
		f.Operator.ExpiresAt = f.ExpiresAt
	}
	if f.Models != before.Models {
		f.Operator.Models = f.Models
	}
}

// checkChangeByHolder returns ErrSetByOperator or ErrConcurrencyAboveAccount if the holder of a key may not make a change.
func (k *Keys) checkChangeByHolder(before Key, after *KeyFields, account Account) error {
	limits := before.Operator
	if beyond := after.Caps.Beyond(limits.Caps); beyond != "" {
		return fmt.Errorf("%w: %s", ErrSetByOperator, beyond)
	}
	if !limits.ExpiresAt.IsZero() && earlier(after.ExpiresAt, limits.ExpiresAt) != after.ExpiresAt {
		return fmt.Errorf("%w: the key expires %s at the latest", ErrSetByOperator, expiryText(limits.ExpiresAt))
	}
	if beyond := after.Models.beyond(limits.Models); beyond != "" {
		return fmt.Errorf("%w: the models are among %s", ErrSetByOperator, limits.Models)
	}
	if after.Concurrency == before.Concurrency {
		return nil
	}
	if before.Operator.Concurrency > 0 {
		return fmt.Errorf("%w: concurrency %d", ErrSetByOperator, before.Operator.Concurrency)
	}
	return k.checkConcurrencyOfHolder(after.Concurrency, account)
}

// checkNewKeyOfHolder returns ErrNoAccount for a key of another account, or ErrConcurrencyAboveAccount.
func (k *Keys) checkNewKeyOfHolder(holder, account Account, key Key) error {
	if account.ID != holder.ID {
		return fmt.Errorf("%w: %s", ErrNoAccount, account.Email)
	}
	return k.checkConcurrencyOfHolder(key.Concurrency, account)
}

func (k *Keys) checkConcurrencyOfHolder(n int, account Account) error {
	if limit := k.MaxConcurrency(account); n > limit {
		return fmt.Errorf("%w: %d is above %d of %s", ErrConcurrencyAboveAccount, n, limit, account.Email)
	}
	return nil
}

// MaxConcurrency returns the highest concurrency that the holder of an account can give to a key.
func (k *Keys) MaxConcurrency(a Account) int { return cmp.Or(a.Concurrency, int(k.perKey.Load())) }

// findKeyOfActor is findKey, except that a holder finds its own keys only.
func findKeyOfActor(ctx context.Context, tx database.Tx, ref string) (Key, error) {
	key, err := findKey(ctx, tx, ref)
	if err != nil {
		return Key{}, err
	}
	if holder, isHolder := holderOf(ctx); isHolder && key.AccountID != holder.ID {
		return Key{}, fmt.Errorf("%w: %s", ErrNoKey, quoteRedacted(ref))
	}
	return key, nil
}

// Pause makes the key that ref names (see Find) refused until Resume. To pause a paused key is no error; if the operator
// does, only the operator can resume it. The error may be ErrNoKey, ErrAmbiguous or ErrKeyRevoked.
func (k *Keys) Pause(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyPaused)
}

// Resume makes the paused key that ref names (see Find) work again. To resume an active key is no error. The error may
// be ErrNoKey, ErrAmbiguous, ErrKeyRevoked, or ErrSetByOperator if the holder resumes a key that the operator has paused.
func (k *Keys) Resume(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyActive)
}

// Revoke makes the key that ref names (see Find) refused permanently. To revoke a revoked key is no error. The error
// may be ErrNoKey or ErrAmbiguous.
func (k *Keys) Revoke(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyRevoked)
}

// keyTransitions are the allowed changes of state. A change to the current state is always allowed.
var keyTransitions = map[KeyState][]KeyState{
	KeyActive:  {KeyPaused, KeyRevoked},
	KeyPaused:  {KeyActive, KeyRevoked},
	KeyRevoked: {},
}

// keyStateActions are the actions in the audit log, by the state that they lead to.
var keyStateActions = map[KeyState]string{
	KeyActive: "resume key", KeyPaused: "pause key", KeyRevoked: "revoke key",
}

func (k *Keys) setState(ctx context.Context, ref string, to KeyState) (Key, error) {
	var key Key
	err := k.write(ctx, func(tx database.Tx) error {
		before, err := findKeyOfActor(ctx, tx, ref)
		if err != nil {
			return err
		}
		if before.State != to && !slices.Contains(keyTransitions[before.State], to) {
			return fmt.Errorf("%w: %s", before.State.refusal(), before.ID)
		}
		_, isHolder := holderOf(ctx)
		if isHolder && before.PausedByOperator && to == KeyActive {
			return fmt.Errorf("%w: the key is paused", ErrSetByOperator)
		}
		key = before
		key.State = to
		key.PausedByOperator = to == KeyPaused && (before.PausedByOperator || !isHolder)
		if key == before {
			return nil
		}
		if err := updateKeyState(ctx, tx, key); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, keyStateActions[to], key.ID, describeKeyChange(before, key))
	})
	if err != nil {
		return Key{}, fmt.Errorf("make key %s: %w", to, err)
	}
	return key, nil
}
