package identity

import (
	"cmp"
	"errors"

	"basegate/quota"
)

// Errors with which a key is refused. They are for the log; a client gets the same response for all of them.
var (
	ErrKeyMissing      = errors.New("no key was given")
	ErrKeyMalformed    = errors.New("the key is malformed")
	ErrKeyUnknown      = errors.New("there is no such key")
	ErrKeyPaused       = errors.New("the key is paused")
	ErrKeyRevoked      = errors.New("the key has been revoked, which is final")
	ErrAccountDisabled = errors.New("the account is disabled")
	ErrAccountPending  = errors.New("the account awaits approval")
)

// Principal is a key with its account, as known when it was looked up.
type Principal struct {
	KeyID       string
	KeyPrefix   string
	KeyName     string
	AccountID   string
	Email       string
	Admin       bool
	Concurrency int // requests at a time; 0: the configured default
	KeyCaps     quota.Caps
	AccountCaps quota.Caps

	ConcurrencyByOperator bool // the operator has set Concurrency
	AccountConcurrency    int  // the highest that a holder can give to a key; 0: the configured default
}

// MaxRunning returns how many requests of the key may run at a time if the configuration allows perKey. Only the
// operator can exceed the account's limit, so a limit that was lowered applies to keys that had more.
func (p Principal) MaxRunning(perKey int) int {
	if p.ConcurrencyByOperator {
		return p.Concurrency
	}
	return min(cmp.Or(p.Concurrency, perKey), cmp.Or(p.AccountConcurrency, perKey))
}

// Authenticate returns the key that has the secret. For a key that exists but may not be used, it returns the Principal
// together with the error, for the log. The error is ErrKeyMissing, ErrKeyMalformed, ErrKeyUnknown, ErrKeyPaused,
// ErrKeyRevoked, ErrAccountDisabled or ErrAccountPending, unwrapped.
//
// The secret is hashed before it is looked up, so the time taken reveals nothing about other secrets.
func (k *Keys) Authenticate(secret string) (Principal, error) {
	if secret == "" {
		return Principal{}, ErrKeyMissing
	}
	if !isWellFormed(secret) {
		return Principal{}, ErrKeyMalformed
	}
	found, ok := k.snapshot.Load().byHash[hashSecret(secret)]
	if !ok {
		return Principal{}, ErrKeyUnknown
	}
	return found.principal, found.refusal
}

// Identify returns the key with the id key, for an account that has signed in and so needs no secret. A key of another
// account is ErrKeyUnknown. Otherwise it returns what Lookup returns.
func (k *Keys) Identify(account, key string) (Principal, error) {
	found, err := k.Lookup(key)
	if found.AccountID != account {
		return Principal{}, ErrKeyUnknown
	}
	return found, err
}

// Lookup returns the key with this id. For a key that may not be used, it returns the Principal together with the
// error. The error is ErrKeyUnknown, ErrKeyPaused, ErrKeyRevoked, ErrAccountDisabled or ErrAccountPending, unwrapped.
func (k *Keys) Lookup(key string) (Principal, error) {
	found, ok := k.snapshot.Load().byID[key]
	if !ok {
		return Principal{}, ErrKeyUnknown
	}
	return found.principal, found.refusal
}
