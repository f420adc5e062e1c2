package identity

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"basegate/database"
)

// What can be wrong with a request for access.
var (
	ErrBadPurpose   = errors.New("this cannot be a purpose")
	ErrTooManyAsk   = errors.New("too many requests for access are open")
	ErrNotPending   = errors.New("the account does not await approval")
	errKnownAlready = errors.New("the account exists already")
)

const (
	maxPurpose  = 2000 // characters
	maxRequests = 500  // that are open, lest strangers fill the database
)

// AccessRequest is somebody who asks for access: a pending account, and why.
type AccessRequest struct {
	Email   string
	Name    string
	Purpose string
	Time    time.Time
}

// RequestAccess makes a pending account. To ask with the address of an account that exists changes nothing and is no
// error, so that nobody finds out who has one.
//
// The error may be ErrBadEmail, ErrBadName, ErrBadPurpose or ErrTooManyAsk.
func (d *Directory) RequestAccess(ctx context.Context, email, name, purpose string) error {
	if err := errors.Join(checkEmail(email), checkName(name), checkPurpose(purpose)); err != nil {
		return err
	}
	a := Account{ID: newID("acc"), Email: email, Name: name, State: AccountPending, CreatedAt: now()}
	err := d.change(ctx, func(tx database.Tx) error {
		if _, err := selectAccount(ctx, tx, email); !errors.Is(err, ErrNoAccount) {
			return errors.Join(errKnownAlready, err)
		}
		if open, err := countAccessRequests(ctx, tx); err != nil || open >= maxRequests {
			return errors.Join(ErrTooManyAsk, err)
		}
		if err := insertAccount(ctx, tx, a); err != nil {
			return err
		}
		return insertAccessRequest(ctx, tx, a, purpose)
	})
	if err != nil && !errors.Is(err, errKnownAlready) {
		return fmt.Errorf("request access: %w", err)
	}
	return nil
}

// AccessRequests lists the requests that nobody has decided yet, the oldest first.
func (d *Directory) AccessRequests(ctx context.Context) ([]AccessRequest, error) {
	const text = `
		SELECT a.email, a.name, coalesce(r.purpose, ''), a.created_at
		FROM accounts a LEFT JOIN access_requests r ON r.account_id = a.id
		WHERE a.state = 'pending' ORDER BY a.created_at, a.id`
	return collect(ctx, d.db.Read(), scanAccessRequest, text)
}

// DeclineAccount removes a pending account; its owner may ask again. The error may be ErrNoAccount or ErrNotPending.
// EnableAccount approves one.
func (d *Directory) DeclineAccount(ctx context.Context, email string) error {
	err := d.change(ctx, func(tx database.Tx) error {
		a, err := selectAccount(ctx, tx, email)
		if err != nil {
			return err
		}
		if a.State != AccountPending {
			return fmt.Errorf("%w: %s is %s", ErrNotPending, a.Email, a.State)
		}
		if err := deletePendingAccount(ctx, tx, a.ID); err != nil {
			return err
		}
		return record(ctx, tx, "decline account", a.Email, "")
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

func countAccessRequests(ctx context.Context, q querier) (n int, err error) {
	const text = `SELECT count(*) FROM accounts WHERE state = 'pending'`
	if err := q.QueryRowContext(ctx, text).Scan(&n); err != nil {
		return 0, fmt.Errorf("count requests for access: %w", err)
	}
	return n, nil
}

func insertAccessRequest(ctx context.Context, tx database.Tx, a Account, purpose string) error {
	const text = `INSERT INTO access_requests (account_id, purpose, created_at) VALUES ($1, $2, $3)`
	_, err := tx.ExecContext(ctx, text, a.ID, purpose, a.CreatedAt.UnixMicro())
	return err
}

// deletePendingAccount removes what a request for access has made. An account that has keys is never
// pending: nothing makes one pending again.
func deletePendingAccount(ctx context.Context, tx database.Tx, id string) error {
	for _, text := range []string{
		`DELETE FROM access_requests WHERE account_id = $1`,
		`DELETE FROM invitations WHERE account_id = $1`,
		`DELETE FROM passwords WHERE account_id = $1`,
		`DELETE FROM sessions WHERE account_id = $1`,
		`DELETE FROM accounts WHERE id = $1`,
	} {
		if _, err := tx.ExecContext(ctx, text, id); err != nil {
			return err
		}
	}
	return nil
}

func scanAccessRequest(row scanner) (r AccessRequest, err error) {
	var at int64
	err = row.Scan(&r.Email, &r.Name, &r.Purpose, &at)
	r.Time = time.UnixMicro(at).UTC()
	return r, err
}
