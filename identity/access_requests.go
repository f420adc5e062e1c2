package identity

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"basegate/database"
)

// Errors of requests for access.
var (
	ErrBadPurpose            = errors.New("this cannot be a purpose")
	ErrTooManyAccessRequests = errors.New("too many requests for access are open")
	ErrNotPending            = errors.New("the account does not await approval")

	errAccountExists = errors.New("the account exists already")
)

const (
	maxPurpose        = 2000 // characters
	maxAccessRequests = 500  // open at a time; anyone can send one, so this limits the database's growth
)

// AccessRequest is a pending account, with the purpose that its owner gave.
type AccessRequest struct {
	Email   string
	Name    string
	Purpose string
	Time    time.Time
}

// RequestAccess creates a pending account. If an account with the address exists, it changes nothing and returns nil,
// so that the result does not reveal which addresses have accounts.
//
// The error may be ErrBadEmail, ErrBadName, ErrBadPurpose or ErrTooManyAccessRequests.
func (a *Accounts) RequestAccess(ctx context.Context, email, name, purpose string) error {
	if err := errors.Join(checkEmail(email), checkName(name), checkPurpose(purpose)); err != nil {
		return err
	}
	account := Account{ID: newID("acc"), Email: email, Name: name, State: AccountPending, CreatedAt: now()}
	err := a.keys.write(ctx, func(tx database.Tx) error {
		switch _, err := selectAccount(ctx, tx, email); {
		case err == nil:
			return errAccountExists
		case !errors.Is(err, ErrNoAccount):
			return err
		}
		switch open, err := countAccessRequests(ctx, tx); {
		case err != nil:
			return err
		case open >= maxAccessRequests:
			return ErrTooManyAccessRequests
		}
		if err := insertAccount(ctx, tx, account); err != nil {
			return err
		}
		return insertAccessRequest(ctx, tx, account, purpose)
	})
	if err != nil && !errors.Is(err, errAccountExists) {
		return fmt.Errorf("request access: %w", err)
	}
	return nil
}

// AccessRequests returns the requests that are neither approved nor declined, the oldest first. Enable approves one.
func (a *Accounts) AccessRequests(ctx context.Context) ([]AccessRequest, error) {
	return selectAccessRequests(ctx, a.db.Read())
}

// Decline deletes a pending account. Its owner may request access again. The error may be ErrNoAccount or
// ErrNotPending.
func (a *Accounts) Decline(ctx context.Context, email string) error {
	err := a.keys.write(ctx, func(tx database.Tx) error {
		account, err := selectAccount(ctx, tx, email)
		if err != nil {
			return err
		}
		if account.State != AccountPending {
			return fmt.Errorf("%w: %s is %s", ErrNotPending, account.Email, account.State)
		}
		if err := deletePendingAccount(ctx, tx, account.ID); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "decline account", account.Email, "")
	})
	if err != nil {
		return fmt.Errorf("decline account: %w", err)
	}
	return nil
}

func checkPurpose(text string) error {
	if n := utf8.RuneCountInString(text); !utf8.ValidString(text) || n > maxPurpose {
		return fmt.Errorf("%w: want at most %d characters", ErrBadPurpose, maxPurpose)
	}
	return nil
}
