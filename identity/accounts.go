package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"basegate/budget/quota"
	"basegate/database"
)

// Errors of operations on accounts.
var (
	ErrNoAccount  = errors.New("there is no such account")
	ErrEmailTaken = errors.New("there is an account with this e-mail address already")
	ErrBadEmail   = errors.New("this is not an e-mail address")
	ErrBadName    = errors.New("this cannot be a name")
)

// Accounts stores accounts, requests for access, and invitations.
type Accounts struct {
	db   *database.DB
	keys *Keys // whose snapshot contains the accounts' states and caps
}

// AccountState says whether an account's keys may be used.
type AccountState string

// The states of an account. Only the keys of an active account may be used.
const (
	AccountActive   AccountState = "active"
	AccountPending  AccountState = "pending" // until an administrator approves it
	AccountDisabled AccountState = "disabled"
)

// refusal returns the error with which the keys of an account in this state are refused, or nil.
func (s AccountState) refusal() error {
	switch s {
	case AccountActive:
		return nil
	case AccountPending:
		return ErrAccountPending
	case AccountDisabled:
	}
	return ErrAccountDisabled
}

// Account is a person or a service with an e-mail address and keys.
type Account struct {
	ID          string
	Email       string // as given at creation; compared without case
	Name        string // may be empty
	Admin       bool
	State       AccountState
	Concurrency int // the highest that a holder can give to a key; 0: the configured concurrency of a key
	Caps        quota.Caps
	CreatedAt   time.Time
}

// Create creates an account, whose id and time it sets; without a state it is active. The error may be ErrBadEmail,
// ErrBadName, ErrBadConcurrency, ErrBadCap or ErrEmailTaken.
func (a *Accounts) Create(ctx context.Context, n Account) (Account, error) {
	return commit(ctx, a.keys, "create account", func(tx database.Tx) (Account, error) {
		if err := n.validate(); err != nil {
			return Account{}, err
		}
		account, err := createAccount(ctx, tx, n)
		if database.IsUnique(err) {
			err = fmt.Errorf("%w: %s", ErrEmailTaken, n.Email)
		}
		return account, err
	})
}

// createAccount stores an account with a valid name and valid limits.
func createAccount(ctx context.Context, tx database.Tx, a Account) (Account, error) {
	if err := checkEmail(a.Email); err != nil {
		return Account{}, err
	}
	a.ID, a.State, a.CreatedAt = newID("acc"), cmp.Or(a.State, AccountActive), now()
	if err := insertAccount(ctx, tx, a); err != nil {
		return Account{}, err
	}
	return a, insertAuditEntry(ctx, tx, "create account", a.Email, a.describe())
}

// List returns all accounts, ordered by their addresses.
func (a *Accounts) List(ctx context.Context) ([]Account, error) {
	const text = `SELECT` + accountColumns + ` FROM accounts a ORDER BY lower(a.email)`
	return database.List(ctx, a.db.Read(), func(row database.Scanner) (Account, error) { return scanAccount(row) }, text)
}

// Find returns the account with this address. The error may be ErrNoAccount.
func (a *Accounts) Find(ctx context.Context, email string) (Account, error) {
	return selectAccount(ctx, a.db.Read(), email)
}

// Disable makes all keys of an account refused until Enable, and ends its sessions. To disable a disabled account is no
// error. The error may be ErrNoAccount.
func (a *Accounts) Disable(ctx context.Context, email string) (Account, error) {
	return a.setState(ctx, "disable account", email, AccountDisabled)
}

// Enable approves a pending account, or makes a disabled account active again, with its keys unchanged. To enable an
// active account is no error. The error may be ErrNoAccount.
func (a *Accounts) Enable(ctx context.Context, email string) (Account, error) {
	return a.setState(ctx, "approve account", email, AccountActive)
}

func (a *Accounts) setState(ctx context.Context, what, email string, to AccountState) (Account, error) {
	return commit(ctx, a.keys, what, func(tx database.Tx) (Account, error) {
		account, err := selectAccount(ctx, tx, email)
		if err != nil || account.State == to {
			return account, err
		}
		return account.withState(ctx, tx, to)
	})
}

// withState stores another state of an account. It deletes its request for access, since nothing needs the applicant's
// network any more, and its sessions if it is disabled.
func (a Account) withState(ctx context.Context, tx database.Tx, to AccountState) (Account, error) {
	before, action := a.State, "disable account"
	switch {
	case to == AccountActive && before == AccountPending:
		action = "approve account"
	case to == AccountActive:
		action = "enable account"
	}
	a.State = to
	err := database.Exec(ctx, tx, `UPDATE accounts SET state = $2 WHERE id = $1`, a.ID, to)
	if err == nil {
		err = deleteOf(ctx, tx, a.ID, "access_requests")
	}
	if err == nil && to == AccountDisabled {
		err = deleteOf(ctx, tx, a.ID, signIns...)
	}
	if err == nil {
		err = insertAuditEntry(ctx, tx, action, a.Email, fmt.Sprintf("%s → %s", before, to))
	}
	return a, err
}

// validate checks the fields that Set can change.
func (a Account) validate() error {
	if err := checkName(a.Name); err != nil {
		return err
	}
	if err := checkConcurrency(a.Concurrency); err != nil {
		return err
	}
	return a.Caps.Validate()
}

// Set passes the account to edit, and stores the name, the role, the concurrency and the caps that it has then. The error
// may be ErrNoAccount, ErrBadName, ErrBadConcurrency, ErrBadCap, or ErrAboveAccount if a key would have a higher cap than
// its account: Set never lowers a key's caps. An account in any state can be changed, so that a pending one can get its
// caps before it is approved.
func (a *Accounts) Set(ctx context.Context, email string, edit func(*Account)) (Account, error) {
	return commit(ctx, a.keys, "change account", func(tx database.Tx) (Account, error) {
		before, err := selectAccount(ctx, tx, email)
		if err != nil {
			return Account{}, err
		}
		account := before
		edit(&account)
		if err := account.validate(); err != nil {
			return Account{}, err
		}
		above, err := selectKeysAbove(ctx, tx, account)
		if err != nil {
			return Account{}, err
		}
		if err := checkAccountCaps(account.Caps, above); err != nil {
			return Account{}, err
		}
		return account, account.update(ctx, tx, before)
	})
}

// update stores what Set can change.
func (a Account) update(ctx context.Context, tx database.Tx, before Account) error {
	if err := updateAccount(ctx, tx, a); err != nil {
		return err
	}
	return insertAuditEntry(ctx, tx, "change account", a.Email, describeAccountChange(before, a))
}

// maxEmail is the length of the longest address that mail can be sent to, in bytes.
const maxEmail = 254

func checkEmail(text string) error {
	if len(text) > maxEmail {
		return fmt.Errorf("%w: it is longer than %d characters", ErrBadEmail, maxEmail)
	}
	parsed, err := mail.ParseAddress(text)
	if err != nil || parsed.Address != text || strings.ContainsFunc(text, isForbiddenInEmail) {
		return fmt.Errorf("%w: %q; want just name@example.org", ErrBadEmail, text)
	}
	return nil
}

// isForbiddenInEmail reports whether r is not a printable ASCII character, or is a space.
func isForbiddenInEmail(r rune) bool { return r <= ' ' || r > '~' }

// maxName limits the name of an account or a key, in characters.
const maxName = 100

func checkName(text string) error {
	if !utf8.ValidString(text) || utf8.RuneCountInString(text) > maxName {
		return fmt.Errorf("%w: want at most %d characters", ErrBadName, maxName)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%w: %q has control characters", ErrBadName, text)
	}
	return nil
}
