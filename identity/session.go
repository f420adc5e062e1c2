package identity

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// ErrNoSession says that a token is of no session, or of one that has ended.
var ErrNoSession = errors.New("nobody is signed in")

// SessionLife is how long a session lasts from the moment of signing in.
const SessionLife = 30 * 24 * time.Hour

// tokenDigits is the length of the tokens of sessions and invitations: 32 random bytes in base 62.
const tokenDigits = secretDigits

func newToken() string { return randomDigits(secretBytes, tokenDigits) }

// tokenHash is what the database keeps of a token.
func tokenHash(token string) []byte {
	h := sha256.Sum256([]byte(token))
	return h[:]
}

// SignIn begins a session for whoever knows an account's password; address is where the attempt comes from. The token is
// the only thing that proves the session, and exists in the clear only here.
//
// The error may be ErrSignIn, a *TooManyError, or, for one who knows the password, ErrAccountPending or
// ErrAccountDisabled.
func (d *Directory) SignIn(ctx context.Context, email, password, address string) (token string, err error) {
	a, err := d.knows(ctx, email, password, address)
	if err != nil {
		return "", err
	}
	if err := a.State.refusal(); err != nil {
		return "", err
	}
	return d.beginSession(ctx, a.ID)
}

// ChangePassword gives an account another password for whoever knows the present one. All its sessions end, and a new one
// begins. The error may be that of SignIn or ErrBadPassword.
func (d *Directory) ChangePassword(ctx context.Context, email, present, next, address string) (token string, err error) {
	if err := CheckPassword(next, email); err != nil {
		return "", err
	}
	if _, err := d.knows(ctx, email, present, address); err != nil {
		return "", err
	}
	if err := d.SetPassword(ctx, email, next); err != nil {
		return "", err
	}
	a, err := d.Account(ctx, email)
	if err != nil {
		return "", err
	}
	return d.beginSession(ctx, a.ID)
}

// knows finds the account whose password somebody knows. The error may be ErrSignIn or a *TooManyError.
func (d *Directory) knows(ctx context.Context, email, password, address string) (Account, error) {
	if len(email) > maxEmail {
		return Account{}, ErrSignIn
	}
	if err := d.attempts.take(email, address); err != nil {
		return Account{}, err
	}
	a, err := d.Account(ctx, email)
	if err != nil && !errors.Is(err, ErrNoAccount) {
		return Account{}, err
	}
	hashed, err := selectPassword(ctx, d.db.Read(), a.ID)
	if err != nil {
		return Account{}, err
	}
	right, err := d.verifyPassword(ctx, password, hashed)
	if err != nil {
		return Account{}, err
	}
	if !right {
		return Account{}, ErrSignIn
	}
	d.attempts.forgive(email, address)
	return a, nil
}

func (d *Directory) beginSession(ctx context.Context, account string) (token string, err error) {
	token = newToken()
	err = d.db.WriteGrouped(ctx, func(tx database.Tx) error { return insertSession(ctx, tx, token, account) })
	if err != nil {
		return "", fmt.Errorf("begin session: %w", err)
	}
	return token, nil
}

// Session is the account that a token's session belongs to. The error may be ErrNoSession: an account that may not be
// used is not signed in.
func (d *Directory) Session(ctx context.Context, token string) (Account, error) {
	if len(token) != tokenDigits {
		return Account{}, ErrNoSession
	}
	a, err := selectSession(ctx, d.db.Read(), token)
	if errors.Is(err, sql.ErrNoRows) || err == nil && a.State.refusal() != nil {
		return Account{}, ErrNoSession
	}
	if err != nil {
		return Account{}, fmt.Errorf("read session: %w", err)
	}
	return a, nil
}

// SignOut ends one session. To end one that is none is no error.
func (d *Directory) SignOut(ctx context.Context, token string) error {
	err := d.db.WriteGrouped(ctx, func(tx database.Tx) error { return deleteSession(ctx, tx, token) })
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return nil
}

// SignOutEverywhere ends all sessions of an account. The error may be ErrNoAccount.
func (d *Directory) SignOutEverywhere(ctx context.Context, email string) error {
	err := d.db.WriteGrouped(ctx, func(tx database.Tx) error {
		a, err := selectAccount(ctx, tx, email)
		if err != nil {
			return err
		}
		if err := deleteSessionsOf(ctx, tx, a.ID); err != nil {
			return err
		}
		return record(ctx, tx, "sign out everywhere", a.Email, "")
	})
	if err != nil {
		return fmt.Errorf("end sessions: %w", err)
	}
	return nil
}

// insertSession also clears away what has expired, so that nobody else need do so.
func insertSession(ctx context.Context, tx database.Tx, token, account string) error {
	const (
		clearing = `DELETE FROM sessions WHERE expires_at <= $1`
		text     = `INSERT INTO sessions (token_hash, account_id, created_at, expires_at) VALUES ($1, $2, $3, $4)`
	)
	at := now()
	if _, err := tx.ExecContext(ctx, clearing, at.UnixMicro()); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, text, tokenHash(token), account, at.UnixMicro(), at.Add(SessionLife).UnixMicro())
	return err
}

func selectSession(ctx context.Context, q querier, token string) (Account, error) {
	const text = `
		SELECT a.id, a.email, a.name, a.admin, a.state, a.created_at, a.month_total, a.day_total, a.month_input, a.month_output
		FROM sessions s JOIN accounts a ON a.id = s.account_id
		WHERE s.token_hash = $1 AND s.expires_at > $2`
	return scanAccount(q.QueryRowContext(ctx, text, tokenHash(token), now().UnixMicro()))
}

func deleteSession(ctx context.Context, tx database.Tx, token string) error {
	const text = `DELETE FROM sessions WHERE token_hash = $1`
	_, err := tx.ExecContext(ctx, text, tokenHash(token))
	return err
}

func deleteSessionsOf(ctx context.Context, tx database.Tx, account string) error {
	const text = `DELETE FROM sessions WHERE account_id = $1`
	_, err := tx.ExecContext(ctx, text, account)
	return err
}
