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

	"basegate/database"
	"basegate/quota"
)

// What can be wrong with an operation on accounts.
var (
	ErrNoAccount  = errors.New("there is no such account")
	ErrEmailTaken = errors.New("there is an account with this e-mail address already")
	ErrBadEmail   = errors.New("this is not an e-mail address")
	ErrBadName    = errors.New("this cannot be a name")
)

// AccountState is whether an account's keys work.
type AccountState string

// The states of an account. Only an active account's keys work.
const (
	AccountActive   AccountState = "active"
	AccountPending  AccountState = "pending" // until somebody approves it
	AccountDisabled AccountState = "disabled"
)

// refusal is why an account's keys do not work.
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

// Account is a person, or whatever else has an e-mail address and keys.
type Account struct {
	ID        string
	Email     string // as it was given; its case makes no difference
	Name      string // may be empty
	Admin     bool
	State     AccountState
	Caps      quota.Caps
	CreatedAt time.Time
}

// describe is what the audit log says of an account.
func (a Account) describe() string {
	if a.Admin {
		return "administrator, " + a.Caps.String()
	}
	return a.Caps.String()
}

// NewAccount is what CreateAccount wants to know.
type NewAccount struct {
	Email string
	Name  string // may be empty
	Admin bool
	State AccountState // empty: AccountActive
	Caps  quota.Caps
}

// CreateAccount makes an account. The error may be ErrBadEmail, ErrBadName, ErrBadCap or ErrEmailTaken.
func (d *Directory) CreateAccount(ctx context.Context, n NewAccount) (Account, error) {
	if n.State == "" {
		n.State = AccountActive
	}
	if err := checkEmail(n.Email); err != nil {
		return Account{}, fmt.Errorf("create account: %w", err)
	}
	if err := (AccountFields{n.Name, n.Admin, n.Caps}).check(); err != nil {
		return Account{}, fmt.Errorf("create account: %w", err)
	}
	a := Account{
		ID: newID("acc"), Email: n.Email, Name: n.Name, Admin: n.Admin, State: n.State, Caps: n.Caps,
		CreatedAt: now(),
	}
	err := d.change(ctx, func(tx database.Tx) error {
		if err := insertAccount(ctx, tx, a); err != nil {
			return err
		}
		return record(ctx, tx, "create account", a.Email, a.describe())
	})
	if database.IsUnique(err) {
		return Account{}, fmt.Errorf("create account: %w: %s", ErrEmailTaken, n.Email)
	}
	if err != nil {
		return Account{}, fmt.Errorf("create account: %w", err)
	}
	return a, nil
}

// Accounts lists all accounts by their addresses.
func (d *Directory) Accounts(ctx context.Context) ([]Account, error) {
	return selectAccounts(ctx, d.db.Read())
}

// Account finds an account by its address. The error may be ErrNoAccount.
func (d *Directory) Account(ctx context.Context, email string) (Account, error) {
	return selectAccount(ctx, d.db.Read(), email)
}

// DisableAccount makes all keys of an account stop working, until EnableAccount. To disable one that is disabled is no
// error. The error may be ErrNoAccount.
func (d *Directory) DisableAccount(ctx context.Context, email string) (Account, error) {
	return d.setAccountState(ctx, email, AccountDisabled)
}

// EnableAccount approves an account that is pending, and brings back one that was disabled, with its keys as they were.
// To enable one that is active is no error. The error may be ErrNoAccount.
func (d *Directory) EnableAccount(ctx context.Context, email string) (Account, error) {
	return d.setAccountState(ctx, email, AccountActive)
}

func (d *Directory) setAccountState(ctx context.Context, email string, to AccountState) (Account, error) {
	var a Account
	err := d.change(ctx, func(tx database.Tx) (err error) {
		if a, err = selectAccount(ctx, tx, email); err != nil || a.State == to {
			return err
		}
		action := "disable account"
		if to == AccountActive {
			action = "enable account"
			if a.State == AccountPending {
				action = "approve account"
			}
		}
		a.State = to
		if err := updateAccountState(ctx, tx, a.ID, to); err != nil {
			return err
		}
		if to == AccountDisabled {
			if err := deleteSessionsOf(ctx, tx, a.ID); err != nil {
				return err
			}
		}
		return record(ctx, tx, action, a.Email, "")
	})
	if err != nil {
		return Account{}, fmt.Errorf("make account %s: %w", to, err)
	}
	return a, nil
}

// AccountFields are what SetAccount may change.
type AccountFields struct {
	Name  string
	Admin bool
	Caps  quota.Caps
}

func (f AccountFields) check() error {
	if err := checkName(f.Name); err != nil {
		return err
	}
	return f.Caps.Validate()
}

// SetAccount gives change the account's fields as they are, and keeps them as it leaves them. The error may be
// ErrNoAccount, ErrBadName, ErrBadCap, or ErrAboveAccount where a key would have more than its account: keys are not
// lowered in silence. The account's state does not matter, so that one that is pending can have its caps before it is
// approved.
func (d *Directory) SetAccount(ctx context.Context, email string, change func(*AccountFields)) (Account, error) {
	var a Account
	err := d.change(ctx, func(tx database.Tx) (err error) {
		if a, err = selectAccount(ctx, tx, email); err != nil {
			return err
		}
		fields := AccountFields{Name: a.Name, Admin: a.Admin, Caps: a.Caps}
		change(&fields)
		if err := fields.check(); err != nil {
			return err
		}
		a.Name, a.Admin, a.Caps = fields.Name, fields.Admin, fields.Caps
		owned, err := selectKeysOf(ctx, tx, a.ID)
		if err != nil {
			return err
		}
		if err := checkAccountCaps(a.Caps, owned); err != nil {
			return err
		}
		if err := updateAccount(ctx, tx, a); err != nil {
			return err
		}
		return record(ctx, tx, "change account", a.Email, a.describe())
	})
	if err != nil {
		return Account{}, fmt.Errorf("change account: %w", err)
	}
	return a, nil
}

// change commits a change and takes it over.
func (d *Directory) change(ctx context.Context, apply func(database.Tx) error) error {
	if err := d.db.WriteGrouped(ctx, apply); err != nil {
		return err
	}
	d.changed(ctx)
	return nil
}

// now is the time as the database keeps it.
func now() time.Time { return time.UnixMicro(time.Now().UnixMicro()).UTC() }

// maxEmail is the longest address that mail can be sent to, in bytes.
const maxEmail = 254

func checkEmail(text string) error {
	if len(text) > maxEmail {
		return fmt.Errorf("%w: it is longer than %d characters", ErrBadEmail, maxEmail)
	}
	parsed, err := mail.ParseAddress(text)
	if err != nil || parsed.Address != text || strings.ContainsFunc(text, notInEmail) {
		return fmt.Errorf("%w: %q; want just name@example.org", ErrBadEmail, text)
	}
	return nil
}

func notInEmail(r rune) bool { return r <= ' ' || r > '~' }

// maxName is the length of the longest name, in characters.
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
