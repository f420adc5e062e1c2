package identity

import (
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

// NewAccount describes an account to create.
type NewAccount struct {
	Email       string
	Name        string // may be empty
	Admin       bool
	State       AccountState // empty: AccountActive
	Concurrency int          // see Account
	Caps        quota.Caps
}

// Create creates an account. The error may be ErrBadEmail, ErrBadName, ErrBadConcurrency, ErrBadCap or ErrEmailTaken.
func (a *Accounts) Create(ctx context.Context, n NewAccount) (Account, error) {
	if n.State == "" {
		n.State = AccountActive
	}
	if err := checkEmail(n.Email); err != nil {
		return Account{}, fmt.Errorf("create account: %w", err)
	}
	if err := (AccountFields{n.Name, n.Admin, n.Concurrency, n.Caps}).validate(); err != nil {
		return Account{}, fmt.Errorf("create account: %w", err)
	}
	account := Account{
		ID: newID("acc"), Email: n.Email, Name: n.Name, Admin: n.Admin, State: n.State,
		Concurrency: n.Concurrency, Caps: n.Caps, CreatedAt: now(),
	}
	err := a.keys.write(ctx, func(tx database.Tx) error {
		if err := insertAccount(ctx, tx, account); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "create account", account.Email, account.describe())
	})
	if database.IsUnique(err) {
		return Account{}, fmt.Errorf("create account: %w: %s", ErrEmailTaken, n.Email)
	}
	if err != nil {
		return Account{}, fmt.Errorf("create account: %w", err)
	}
	return account, nil
}

// List returns all accounts, ordered by their addresses.
func (a *Accounts) List(ctx context.Context) ([]Account, error) {
	return selectAccounts(ctx, a.db.Read())
}

// Find returns the account with this address. The error may be ErrNoAccount.
func (a *Accounts) Find(ctx context.Context, email string) (Account, error) {
	return selectAccount(ctx, a.db.Read(), email)
}

// Disable makes all keys of an account refused until Enable, and ends its sessions. To disable a disabled account is no
// error. The error may be ErrNoAccount.
func (a *Accounts) Disable(ctx context.Context, email string) (Account, error) {
	return a.setState(ctx, email, AccountDisabled)
}

// Enable approves a pending account, or makes a disabled account active again, with its keys unchanged. To enable an
// active account is no error. The error may be ErrNoAccount.
func (a *Accounts) Enable(ctx context.Context, email string) (Account, error) {
	return a.setState(ctx, email, AccountActive)
}

func (a *Accounts) setState(ctx context.Context, email string, to AccountState) (Account, error) {
	var account Account
	err := a.keys.write(ctx, func(tx database.Tx) (err error) {
		if account, err = selectAccount(ctx, tx, email); err != nil || account.State == to {
			return err
		}
		action := "disable account"
		if to == AccountActive {
			action = "enable account"
			if account.State == AccountPending {
				action = "approve account"
			}
		}
		before := account.State
		account.State = to
		if err := updateAccountState(ctx, tx, account.ID, to); err != nil {
			return err
		}
		if err := deleteOutdated(ctx, tx, account); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, action, account.Email, fmt.Sprintf("%s → %s", before, to))
	})
	if err != nil {
		return Account{}, fmt.Errorf("make account %s: %w", to, err)
	}
	return account, nil
}

// deleteOutdated deletes the request for access of an account that has left AccountPending, since nothing needs the
// applicant's network any more, and the sessions of an account that has been disabled.
func deleteOutdated(ctx context.Context, tx database.Tx, a Account) error {
	if err := deleteAccessRequest(ctx, tx, a.ID); err != nil || a.State != AccountDisabled {
		return err
	}
	return deleteSignInsOf(ctx, tx, a.ID)
}

// AccountFields are the fields of an account that Set can change.
type AccountFields struct {
	Name        string
	Admin       bool
	Concurrency int // see Account
	Caps        quota.Caps
}

func (f AccountFields) validate() error {
	if err := checkName(f.Name); err != nil {
		return err
	}
	if err := checkConcurrency(f.Concurrency); err != nil {
		return err
	}
	return f.Caps.Validate()
}

// Set passes the account's fields to change, and stores the result. The error may be ErrNoAccount, ErrBadName,
// ErrBadConcurrency, ErrBadCap, or ErrAboveAccount if a key would have a higher cap than its account: Set never lowers a
// key's caps. An account in any state can be changed, so that a pending one can get its caps before it is approved.
func (a *Accounts) Set(ctx context.Context, email string, change func(*AccountFields)) (Account, error) {
	var account Account
	err := a.keys.write(ctx, func(tx database.Tx) (err error) {
		if account, err = selectAccount(ctx, tx, email); err != nil {
			return err
		}
		before := account
		fields := AccountFields{account.Name, account.Admin, account.Concurrency, account.Caps}
		change(&fields)
		if err := fields.validate(); err != nil {
			return err
		}
		account.Name, account.Admin, account.Concurrency, account.Caps = fields.Name, fields.Admin, fields.Concurrency, fields.Caps
		above, err := selectKeysAbove(ctx, tx, account)
		if err != nil {
			return err
		}
		if err := checkAccountCaps(account.Caps, above); err != nil {
			return err
		}
		if err := updateAccount(ctx, tx, account); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "change account", account.Email, describeAccountChange(before, account))
	})
	if err != nil {
		return Account{}, fmt.Errorf("change account: %w", err)
	}
	return account, nil
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
