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
	ErrTooManyAccessRequests = errors.New("too many requests for access are open, so no more are accepted for now")
	ErrTooManyFromNetwork    = errors.New("too many requests for access from your network are open already")
	ErrNotPending            = errors.New("the account does not await approval")

	errAccountExists = errors.New("the account exists already")
)

const (
	maxPurpose = 2000 // characters

	// Limits of open requests. Anyone can send one, so the first limits the database's growth. When it is reached, the
	// oldest requests stay. The second keeps a single client from reaching it.
	maxAccessRequests     = 1000
	maxRequestsPerNetwork = 10
)

// AccessRequest is a pending account, with the purpose that its owner gave.
type AccessRequest struct {
	Email   string
	Name    string
	Purpose string
	Network string // of the client, see ratelimit.Network; empty if unknown
	Time    time.Time
}

func (r AccessRequest) validate() error {
	return errors.Join(checkEmail(r.Email), checkName(r.Name), checkPurpose(r.Purpose))
}

// RequestAccess creates a pending account, and sets the time of the request. If an account with the address exists, it
// changes nothing and returns nil, so that the result does not reveal which addresses have accounts.
//
// The error may be ErrBadEmail, ErrBadName, ErrBadPurpose, ErrTooManyFromNetwork or ErrTooManyAccessRequests.
func (a *Accounts) RequestAccess(ctx context.Context, r AccessRequest) error {
	if err := r.validate(); err != nil {
		return err
	}
	account := Account{ID: newID("acc"), Email: r.Email, Name: r.Name, State: AccountPending, CreatedAt: now()}
	err := a.keys.write(ctx, "request access", func(tx database.Tx) error {
		if err := checkOpenRequests(ctx, tx, r.Network); err != nil { // before the next, which would reveal the account
			return err
		}
		switch _, err := selectAccount(ctx, tx, r.Email); {
		case err == nil:
			return errAccountExists
		case !errors.Is(err, ErrNoAccount):
			return err
		}
		if err := insertAccount(ctx, tx, account); err != nil {
			return err
		}
		return insertAccessRequest(ctx, tx, account, r)
	})
	if errors.Is(err, errAccountExists) {
		return nil
	}
	return err
}

// checkOpenRequests returns ErrTooManyFromNetwork or ErrTooManyAccessRequests if no more requests are accepted.
func checkOpenRequests(ctx context.Context, q database.Reader, network string) error {
	open, ofNetwork, err := countAccessRequests(ctx, q, network)
	switch {
	case err != nil:
		return err
	case network != "" && ofNetwork >= maxRequestsPerNetwork:
		return ErrTooManyFromNetwork
	case open >= maxAccessRequests:
		return ErrTooManyAccessRequests
	}
	return nil
}

// AccessRequests returns the oldest requests that are neither approved nor declined, at most limit, the oldest first, and
// the number of all of them. Enable approves one.
func (a *Accounts) AccessRequests(ctx context.Context, limit int) (oldest []AccessRequest, open int, err error) {
	if open, _, err = countAccessRequests(ctx, a.db.Read(), ""); err != nil {
		return nil, 0, err
	}
	const text = `
		SELECT a.email, a.name, coalesce(r.purpose, ''), coalesce(r.network, ''), a.created_at
		FROM accounts a LEFT JOIN access_requests r ON r.account_id = a.id
		WHERE a.state = 'pending' ORDER BY a.created_at, a.id LIMIT $1`
	oldest, err = database.List(ctx, a.db.Read(), scanAccessRequest, text, limit)
	return oldest, open, err
}

// Decline deletes a pending account. Its owner may request access again. The error may be ErrNoAccount or
// ErrNotPending.
func (a *Accounts) Decline(ctx context.Context, email string) error {
	return a.keys.write(ctx, "decline account", func(tx database.Tx) error {
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
}

func checkPurpose(text string) error {
	if n := utf8.RuneCountInString(text); !utf8.ValidString(text) || n > maxPurpose {
		return fmt.Errorf("%w: want at most %d characters", ErrBadPurpose, maxPurpose)
	}
	return nil
}
