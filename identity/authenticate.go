package identity

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"basegate/budget/quota"
)

// Errors with which a key is refused. They are for the log; a client gets the same response for all of them but
// ErrKeyShortened, which says nothing about any key.
var (
	ErrKeyMissing      = errors.New("no key was given")
	ErrKeyMalformed    = errors.New("the key is malformed")
	ErrKeyShortened    = fmt.Errorf("%w: it ends in an ellipsis, as keys are shown", ErrKeyMalformed)
	ErrKeyUnknown      = errors.New("there is no such key")
	ErrKeyPaused       = errors.New("the key is paused")
	ErrKeyRevoked      = errors.New("the key has been revoked, which is final")
	ErrKeyExpired      = errors.New("the key has expired")
	ErrSecretReplaced  = errors.New("the key has a new secret, and the grace time of this one has ended")
	ErrAccountDisabled = errors.New("the account is disabled")
	ErrAccountPending  = errors.New("the account awaits approval")
)

// Principal is a key with its account, as known when it was looked up.
type Principal struct {
	KeyID       string
	KeyPrefix   string // of the secret that was given, which may be one that Rotate has replaced
	KeyName     string
	AccountID   string
	Email       string
	Admin       bool
	Concurrency int // requests at a time; 0: the configured default
	KeyCaps     quota.Caps
	AccountCaps quota.Caps
	ExpiresAt   time.Time // of the key; zero: never
	Models      ModelList
	Run         string     // of a child: the run that its requests are part of; may be empty
	Parent      *Principal // the key that has made this one, a child; nil if none has. It is not changed
	Stops       int64      // how often requests of the key that ran were ended

	Children              sql.NullBool // whether the key may make keys; not valid: Settings.Children says
	Adapters              bool         // it may add LoRA adapters
	ConcurrencyByOperator bool         // the operator has set Concurrency
	AccountConcurrency    int          // the highest that a holder can give to a key; 0: the configured default
	GrantedConcurrency    int          // the highest that the operator has given to the account or one of its active keys; 0: none
}

// MaxRunning returns how many requests of the key may run at a time if the configuration allows perKey. Only the
// operator can exceed the account's limit, so a limit that was lowered applies to keys that had more. A child has at most what
// its parent has.
func (p *Principal) MaxRunning(perKey int) int {
	if p.Parent != nil {
		most := p.Parent.MaxRunning(perKey)
		return min(cmp.Or(p.Concurrency, most), most)
	}
	if p.ConcurrencyByOperator {
		return p.Concurrency
	}
	return min(cmp.Or(p.Concurrency, perKey), cmp.Or(p.AccountConcurrency, perKey))
}

// MaxRunningOfAccount returns how many requests of all keys of the account may run at a time if the configuration allows
// perAccount. What the operator has given to the account or to one key is never too much for the account.
func (p *Principal) MaxRunningOfAccount(perAccount int) int {
	return max(perAccount, p.GrantedConcurrency)
}

// Authenticate returns the key that has the secret. For a key that exists but may not be used, it returns the Principal
// together with the error, for the log. The error is ErrKeyMissing, ErrKeyMalformed, ErrKeyShortened, ErrKeyUnknown,
// ErrKeyPaused, ErrKeyRevoked, ErrKeyExpired, ErrSecretReplaced, ErrAccountDisabled or ErrAccountPending, unwrapped.
//
// An unknown secret of the right form may have been created by another process since the snapshot was read, so it waits
// until the snapshot has caught up with the database, about 10 milliseconds. Then the error may also wrap
// ErrKeysUnreadable, or be context.Cause(ctx).
//
// The secret is hashed before it is looked up, so the time taken reveals nothing about other secrets.
func (k *Keys) Authenticate(ctx context.Context, secret string) (p Principal, err error) {
	if secret == "" {
		return p, ErrKeyMissing
	}
	if strings.HasSuffix(secret, "…") || strings.HasSuffix(secret, "...") {
		return p, ErrKeyShortened
	}
	if !isWellFormed(secret) {
		return p, ErrKeyMalformed
	}
	hash := hashSecret(secret)
	snapshot := k.snapshot.Load()
	found, ok := find(&snapshot.byHash, hash)
	if !ok {
		// While the database is away, a failover may lead to another one, so that nothing is known of any unknown secret.
		if !k.failing.Load() && k.unknown.isRefused(hash) {
			return p, ErrKeyUnknown
		}
		if err := k.CatchUp(ctx); err != nil {
			return p, err
		}
		snapshot = k.snapshot.Load()
		if found, ok = find(&snapshot.byHash, hash); !ok {
			k.unknown.refuse(hash)
			return p, ErrKeyUnknown
		}
	}
	err = snapshot.read(found, &p)
	return p, err
}

// Identify returns the key with the id key, for an account that has signed in and so needs no secret. A key of another
// account is ErrKeyUnknown. Otherwise it returns what Lookup returns, after it has caught up as Authenticate does.
func (k *Keys) Identify(ctx context.Context, account, key string) (Principal, error) {
	found, err := k.Lookup(key)
	if errors.Is(err, ErrKeyUnknown) {
		if err := k.CatchUp(ctx); err != nil {
			return Principal{}, err
		}
		found, err = k.Lookup(key)
	}
	if found.AccountID != account {
		return Principal{}, ErrKeyUnknown
	}
	return found, err
}

// Email returns the address of the account with this id, or "" if there is none.
func (k *Keys) Email(account string) string {
	if found, ok := k.snapshot.Load().accounts.Load(account); ok {
		return found.(*atomic.Pointer[snapshotAccount]).Load().Email
	}
	return ""
}

// Lookup returns the key with this id. For a key that may not be used, it returns the Principal together with the
// error. The error is ErrKeyUnknown, ErrKeyPaused, ErrKeyRevoked, ErrKeyExpired, ErrAccountDisabled or
// ErrAccountPending, unwrapped.
func (k *Keys) Lookup(key string) (p Principal, err error) {
	err = k.LookupInto(key, &p)
	return p, err
}

// LookupInto is Lookup for a caller deep within a request, whose stack has no room for a Principal twice.
func (k *Keys) LookupInto(key string, p *Principal) error {
	snapshot := k.snapshot.Load()
	found, ok := find(&snapshot.byID, key)
	if !ok {
		return ErrKeyUnknown
	}
	return snapshot.read(found, p)
}
