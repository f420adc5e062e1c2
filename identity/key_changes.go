package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	return cmp.Or(join(
		part{l.Caps.Any(), l.Caps.String()},
		part{l.Concurrency > 0, "concurrency " + strconv.Itoa(l.Concurrency)},
		part{!l.ExpiresAt.IsZero(), "expires " + expiryText(l.ExpiresAt)},
		part{!l.Models.Any(), "models " + l.Models.String()},
	), "none")
}

// validate checks the name and the limits.
func (k *Key) validate() error {
	if strings.TrimSpace(k.Name) == "" {
		return fmt.Errorf("%w: it is empty", ErrBadName)
	}
	if err := checkName(k.Name); err != nil {
		return err
	}
	if err := checkConcurrency(k.Concurrency); err != nil {
		return err
	}
	if k.Run != "" {
		if err := CheckRun(k.Run); err != nil {
			return err
		}
	}
	return k.Caps.Validate()
}

func checkConcurrency(n int) error {
	if n < 0 {
		return fmt.Errorf("%w, not %d", ErrBadConcurrency, n)
	}
	return nil
}

// Set passes the key that ref names (see Find) to edit, and stores the name and the limits that it has then. A change of a
// limit by the operator sets it in Key.Operator too; to set it there makes a limit of the holder one of the operator. The
// error may be ErrNoKey, ErrAmbiguous, ErrKeyRevoked, ErrBadName, ErrNameTaken, ErrBadConcurrency, ErrBadCap or
// ErrAboveAccount, for one that had expired what Create returns of too many, for a holder also ErrSetByOperator or
// ErrConcurrencyAboveAccount. A paused key, and a key of an account that is not active, can be changed too.
func (k *Keys) Set(ctx context.Context, ref string, edit func(*Key)) (Key, error) {
	return commit(ctx, k, "change key", func(tx database.Tx) (Key, error) {
		before, err := findLiveKey(ctx, tx, ref)
		if err != nil {
			return Key{}, err
		}
		key := before
		edit(&key)
		key.ExpiresAt, key.Operator.ExpiresAt = normalizeTime(key.ExpiresAt), normalizeTime(key.Operator.ExpiresAt)
		if err := key.validate(); err != nil {
			return Key{}, err
		}
		if key.Name != before.Name && key.Parent == "" {
			if err := checkNameFree(ctx, tx, key); err != nil {
				return Key{}, err
			}
		}
		account, err := selectAccount(ctx, tx, before.Email)
		if err != nil {
			return Key{}, err
		}
		if err := checkKeyCaps(key.Caps, account); err != nil {
			return Key{}, err
		}
		if before.Expired() && !key.Expired() { // it is live again
			if err := k.checkCount(ctx, tx, account, key); err != nil {
				return Key{}, err
			}
		}
		return k.update(ctx, tx, account, before, key)
	})
}

// update stores what Set can change. The error is ErrSetByOperator or ErrConcurrencyAboveAccount if the holder may not change it so.
func (k *Keys) update(ctx context.Context, tx database.Tx, account Account, before, key Key) (Key, error) {
	if _, isHolder := holderOf(ctx); isHolder {
		key.Operator = before.Operator
		if err := k.checkChangeByHolder(before, &key, account); err != nil {
			return Key{}, err
		}
	} else {
		key.claimForOperator(before)
	}
	if err := updateKey(ctx, tx, key); err != nil {
		return Key{}, err
	}
	return key, insertAuditEntry(ctx, tx, "change key", key.ID, describeKeyChange(before, key))
}

// claimForOperator makes the limits that differ from those before limits of the operator.
func (k *Key) claimForOperator(before Key) {
	k.Operator.Caps.CopyChanges(before.Caps, k.Caps)
	if k.Concurrency != before.Concurrency {
		k.Operator.Concurrency = k.Concurrency
	}
	if k.ExpiresAt != before.ExpiresAt {
		k.Operator.ExpiresAt = k.ExpiresAt
	}
	if k.Models != before.Models {
		k.Operator.Models = k.Models
	}
}

// checkChangeByHolder returns ErrSetByOperator or ErrConcurrencyAboveAccount if the holder of a key may not make a change.
func (k *Keys) checkChangeByHolder(before Key, after *Key, account Account) error {
	limits := before.Operator
	if after.Adapters && !before.Adapters {
		return fmt.Errorf("%w: adapters", ErrSetByOperator)
	}
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

// checkNewKeyOfHolder returns ErrNoAccount for a key of another account, or ErrConcurrencyAboveAccount. The concurrency of a child
// is its parent's at most.
func (k *Keys) checkNewKeyOfHolder(holder, account Account, key Key) error {
	if account.ID != holder.ID {
		return fmt.Errorf("%w: %s", ErrNoAccount, account.Email)
	}
	if key.Adapters {
		return fmt.Errorf("%w: adapters", ErrSetByOperator)
	}
	if key.Parent != "" {
		return nil
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
func (k *Keys) MaxConcurrency(a Account) int {
	return cmp.Or(a.Concurrency, k.settings.Load().ConcurrencyPerKey)
}

// findKeyOfActor is findKey, except that a holder finds its own keys only.
func findKeyOfActor(ctx context.Context, tx database.Tx, ref string) (Key, error) {
	holder, isHolder := holderOf(ctx)
	account := ""
	if isHolder {
		account = holder.ID
	}
	key, err := findKey(ctx, tx, ref, account)
	if err != nil {
		return Key{}, err
	}
	if isHolder && key.AccountID != holder.ID {
		return Key{}, fmt.Errorf("%w: %s", ErrNoKey, quoteRedacted(ref))
	}
	return key, nil
}

// findLiveKey is findKeyOfActor for a change that a revoked key takes no more.
func findLiveKey(ctx context.Context, tx database.Tx, ref string) (Key, error) {
	key, err := findKeyOfActor(ctx, tx, ref)
	if err == nil && key.State == KeyRevoked {
		err = fmt.Errorf("%w: %s", ErrKeyRevoked, key.ID)
	}
	return key, err
}

// Pause makes the key that ref names (see Find) refused until Resume. To pause a paused key is no error; if the operator
// does, only the operator can resume it. The error may be ErrNoKey, ErrAmbiguous or ErrKeyRevoked.
func (k *Keys) Pause(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyPaused, false)
}

// Resume makes the paused key that ref names (see Find) work again. To resume an active key is no error. The error may
// be ErrNoKey, ErrAmbiguous, ErrKeyRevoked, or ErrSetByOperator if the holder resumes a key that the operator has paused.
func (k *Keys) Resume(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyActive, false)
}

// Revoke makes the key that ref names (see Find) refused permanently. To revoke a revoked key is no error. The error
// may be ErrNoKey or ErrAmbiguous.
func (k *Keys) Revoke(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyRevoked, false)
}

// RevokeNow is Revoke that also ends the requests of a child that run, as if their clients had disconnected.
func (k *Keys) RevokeNow(ctx context.Context, ref string) (Key, error) {
	return k.setState(ctx, ref, KeyRevoked, true)
}

// keyStateActions are the actions in the audit log, by the state that they lead to.
var keyStateActions = map[KeyState]string{
	KeyActive: "resume key", KeyPaused: "pause key", KeyRevoked: "revoke key",
}

func (k *Keys) setState(ctx context.Context, ref string, to KeyState, end bool) (Key, error) {
	return commit(ctx, k, keyStateActions[to], func(tx database.Tx) (Key, error) {
		find := findLiveKey
		if to == KeyRevoked {
			find = findKeyOfActor
		}
		before, err := find(ctx, tx, ref)
		if err != nil {
			return Key{}, err
		}
		return before.withState(ctx, tx, to, end)
	})
}

// withState stores another state of a key. With end, its requests that run are ended.
func (k Key) withState(ctx context.Context, tx database.Tx, to KeyState, end bool) (Key, error) {
	before := k
	_, isHolder := holderOf(ctx)
	if isHolder && before.PausedByOperator && to == KeyActive {
		return Key{}, fmt.Errorf("%w: the key is paused", ErrSetByOperator)
	}
	k.State = to
	k.PausedByOperator = to == KeyPaused && (before.PausedByOperator || !isHolder)
	if end {
		k.Stops++
	}
	if k == before {
		return k, nil
	}
	if err := updateKeyState(ctx, tx, k); err != nil {
		return Key{}, err
	}
	return k, insertAuditEntry(ctx, tx, keyStateActions[to], k.ID, describeKeyChange(before, k))
}
