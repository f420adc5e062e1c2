package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"

	"basegate/budget/quota"
	"basegate/database"
)

// Errors of keys that keys have made, which are called their children, and of runs.
var (
	// ErrNoChildren is returned for a child of a key that may not make keys, as children may not.
	ErrNoChildren = errors.New("the key may not make keys")

	// ErrAboveConcurrency and ErrAboveParent are returned for more than the parent has: requests at a time, and models.
	ErrAboveConcurrency = errors.New("a key may not run more requests at a time than the key that makes it")
	ErrAboveParent      = errors.New("a key may not use other models than the key that makes it")

	ErrTooManyChildren = errors.New("the key that made it has as many keys as it may have")

	ErrBadRun = errors.New("a run's name has 1 to 64 of the characters A-Z a-z 0-9 . _ -")
	ErrNoRun  = errors.New("no key is part of such a run")
)

// TooManyChildrenError is ErrTooManyChildren, which is returned when a key has as many children as Settings.ChildrenPerKey allows.
type TooManyChildrenError struct{ Most int }

func (e *TooManyChildrenError) Error() string {
	return fmt.Sprintf("%v: %d that are neither revoked nor expired", ErrTooManyChildren, e.Most)
}
func (*TooManyChildrenError) Unwrap() error { return ErrTooManyChildren }

var runName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// CheckRun returns ErrBadRun for what cannot be the name of a run.
func CheckRun(name string) error {
	if !runName.MatchString(name) {
		return fmt.Errorf("%w, not %.80q", ErrBadRun, name)
	}
	return nil
}

// MayMakeKeys reports whether a key may have children.
func (k *Keys) MayMakeKeys(p *Principal) bool {
	return p.Parent == nil && k.allowsChildren(p.Children)
}

// HasRight is MayMakeKeys for a key that may not be in the snapshot yet.
func (k *Keys) HasRight(key Key) bool { return key.Parent == "" && k.allowsChildren(key.Children) }

func (k *Keys) allowsChildren(own sql.NullBool) bool {
	if own.Valid {
		return own.Bool
	}
	return k.settings.Load().Children
}

// checkParent returns an error if a key cannot be a child of its parent: the one with which that is refused, ErrNoKey,
// ErrNoChildren, ErrAboveConcurrency or ErrAboveParent.
func (k *Keys) checkParent(ctx context.Context, tx database.Tx, account Account, key Key) error {
	found, err := selectKeysByID(ctx, tx, key.Parent)
	if err != nil {
		return err
	}
	if len(found) == 0 || found[0].AccountID != account.ID {
		return fmt.Errorf("%w: %s", ErrNoKey, key.Parent)
	}
	parent := found[0]
	if err := parent.State.refusal(); err != nil {
		return err
	}
	holder := Principal{
		Concurrency: parent.Concurrency, ConcurrencyByOperator: parent.Operator.Concurrency > 0, AccountConcurrency: account.Concurrency,
	}
	most := holder.MaxRunning(k.settings.Load().ConcurrencyPerKey)
	switch {
	case parent.Expired():
		return ErrKeyExpired
	case !k.HasRight(parent):
		return fmt.Errorf("%w: %s", ErrNoChildren, parent.ID)
	case key.Concurrency > most:
		return fmt.Errorf("%w: %d is above %d", ErrAboveConcurrency, key.Concurrency, most)
	case !key.Models.Any() && key.Models.beyond(parent.Models) != "":
		return fmt.Errorf("%w: %s", ErrAboveParent, key.Models.beyond(parent.Models))
	}
	return nil
}

// Children returns the keys that a key has made, of one run or of all if it is empty, at most limit after the one with the id
// after, the newest first. The error may be ErrNoKey, for after.
func (k *Keys) Children(ctx context.Context, parent, run, after string, limit int) ([]Key, error) {
	var last Key
	if after != "" {
		var err error
		if last, err = k.Get(ctx, after); err != nil {
			return nil, err
		}
		if last.Parent != parent {
			return nil, fmt.Errorf("%w: %s", ErrNoKey, quoteRedacted(after))
		}
	}
	const text = selectKey + `
		WHERE k.parent = $1 AND ($2 = '' OR k.run = $2) AND ($3 = '' OR (k.created_at, k.id) < ($4, $3))
		ORDER BY k.created_at DESC, k.id DESC LIMIT $5`
	return database.List(ctx, k.db.Read(), scanKey, text, parent, run, last.ID, last.CreatedAt.UnixMicro(), limit)
}

// LiveChildren returns how many keys that the keys of an account have made are neither revoked nor expired, at most 10,000 of each: by
// the id of the key, without those that have none.
func (k *Keys) LiveChildren(ctx context.Context, account string) (map[string]int, error) {
	return countLiveChildrenOf(ctx, k.db.Read(), account, 10_000)
}

// Run returns the keys that are part of a run of an account, the oldest first. An empty account or run is all.
func (k *Keys) Run(ctx context.Context, account, run string) ([]Key, error) {
	return selectRun(ctx, k.db.Read(), account, run)
}

// StopRun pauses the keys of a run that are active, and ends their requests that run. It returns the keys that are not revoked.
// The error may be ErrNoRun.
func (k *Keys) StopRun(ctx context.Context, account, run string) ([]Key, error) {
	return k.changeRun(ctx, "stop run", account, run, func(tx database.Tx, key Key) (Key, error) {
		return key.withState(ctx, tx, KeyPaused, true)
	})
}

// ResumeRun resumes the keys of a run that are paused. The error may be ErrNoRun, or ErrSetByOperator if the holder resumes a run
// that the operator has stopped.
func (k *Keys) ResumeRun(ctx context.Context, account, run string) ([]Key, error) {
	return k.changeRun(ctx, "resume run", account, run, func(tx database.Tx, key Key) (Key, error) {
		return key.withState(ctx, tx, KeyActive, false)
	})
}

// RaiseRun adds tokens to the lifetime budget of each key of a run that has one. The error may be ErrNoRun.
func (k *Keys) RaiseRun(ctx context.Context, account, run string, tokens int64) ([]Key, error) {
	return k.changeRun(ctx, "raise run", account, run, func(tx database.Tx, key Key) (Key, error) {
		limit, bounded := key.Caps[quota.LifeTotal].Tokens()
		if !bounded || key.Expired() {
			return key, nil
		}
		raised := key
		raised.Caps[quota.LifeTotal] = quota.Limit(limit + tokens)
		return k.update(ctx, tx, Account{}, key, raised) // the account limits the concurrency, which stays
	})
}

// changeRun changes the keys of a run that are not revoked, in one transaction, and returns them.
func (k *Keys) changeRun(
	ctx context.Context, what, account, run string, change func(database.Tx, Key) (Key, error),
) ([]Key, error) {
	if holder, isHolder := holderOf(ctx); isHolder && holder.ID != account {
		return nil, fmt.Errorf("%w: %q", ErrNoRun, run)
	}
	return commit(ctx, k, what, func(tx database.Tx) (changed []Key, err error) {
		keys, err := selectRun(ctx, tx, account, run)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if key.State == KeyRevoked {
				continue
			}
			if key, err = change(tx, key); err != nil {
				return nil, err
			}
			changed = append(changed, key)
		}
		if changed == nil {
			return nil, fmt.Errorf("%w that is not over: %q", ErrNoRun, run)
		}
		return changed, nil
	})
}
