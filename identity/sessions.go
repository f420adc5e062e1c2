package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// Errors of sessions.
var (
	ErrNoSession      = errors.New("there is no such session, or it has ended")
	ErrBadCredentials = errors.New("the e-mail address or the password is wrong")
)

// SessionLife is the time from signing in to the expiry of a session.
const SessionLife = 30 * 24 * time.Hour

// Sessions signs accounts in to the console: it stores sessions and passwords, and accepts invitations.
type Sessions struct {
	db       *database.DB
	failures *signInFailures
	hasher   *passwordHasher
}

// SignIn creates a session if the password is the account's, and returns its token, which cannot be retrieved later.
// address is the client's.
//
// The error may be ErrBadCredentials, a *TooManyAttemptsError, or, only if the password is right, ErrAccountPending or
// ErrAccountDisabled.
func (s *Sessions) SignIn(ctx context.Context, email, password, address string) (token string, err error) {
	account, err := s.checkCredentials(ctx, email, password, address)
	if err != nil {
		return "", err
	}
	if err := account.State.refusal(); err != nil {
		return "", err
	}
	return s.create(ctx, account.ID)
}

// checkCredentials returns the account if the password is its password. The error may be ErrBadCredentials or a
// *TooManyAttemptsError.
func (s *Sessions) checkCredentials(ctx context.Context, email, password, address string) (Account, error) {
	if len(email) > maxEmail {
		return Account{}, ErrBadCredentials
	}
	if err := s.failures.add(email, address); err != nil {
		return Account{}, err
	}
	account, err := selectAccount(ctx, s.db.Read(), email)
	if err != nil && !errors.Is(err, ErrNoAccount) {
		return Account{}, err
	}
	passwordHash, err := selectPasswordHash(ctx, s.db.Read(), account.ID)
	if err != nil {
		return Account{}, err
	}
	matches, err := s.hasher.matches(ctx, password, passwordHash)
	if err != nil {
		return Account{}, err
	}
	if !matches {
		return Account{}, ErrBadCredentials
	}
	s.failures.reset(email, address)
	return account, nil
}

func (s *Sessions) create(ctx context.Context, account string) (token string, err error) {
	token = newToken()
	err = s.db.WriteGrouped(ctx, func(tx database.Tx) error { return insertSession(ctx, tx, token, account) })
	if err != nil {
		return "", fmt.Errorf("begin session: %w", err)
	}
	return token, nil
}

// Account returns the account that a session belongs to. The error may be ErrNoSession, also if the account is not
// active.
func (s *Sessions) Account(ctx context.Context, token string) (Account, error) {
	if len(token) != tokenDigits {
		return Account{}, ErrNoSession
	}
	account, err := selectSessionAccount(ctx, s.db.Read(), token)
	if errors.Is(err, sql.ErrNoRows) || err == nil && account.State.refusal() != nil {
		return Account{}, ErrNoSession
	}
	if err != nil {
		return Account{}, fmt.Errorf("read session: %w", err)
	}
	return account, nil
}

// SignOut ends one session. An unknown token is no error.
func (s *Sessions) SignOut(ctx context.Context, token string) error {
	err := s.db.WriteGrouped(ctx, func(tx database.Tx) error { return deleteSession(ctx, tx, token) })
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return nil
}

// SignOutEverywhere ends all sessions of an account. The error may be ErrNoAccount.
func (s *Sessions) SignOutEverywhere(ctx context.Context, email string) error {
	err := s.db.WriteGrouped(ctx, func(tx database.Tx) error {
		account, err := selectAccount(ctx, tx, email)
		if err != nil {
			return err
		}
		if err := deleteSessionsOf(ctx, tx, account.ID); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "sign out everywhere", account.Email, "")
	})
	if err != nil {
		return fmt.Errorf("end sessions: %w", err)
	}
	return nil
}
