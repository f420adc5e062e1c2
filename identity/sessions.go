package identity

import (
	"context"
	"errors"

	"basegate/database"
)

// ErrNoSession is returned for a token of no session, or of one that has ended.
var ErrNoSession = errors.New("there is no such session, or it has ended")

// Sessions signs accounts in to the console: it stores sessions and passwords, and accepts invitations.
//
// A session carries the generation of the password that it was created with, and is valid only with that. So no session
// survives a change of the password, whenever its sign-in began.
type Sessions struct {
	db     *database.DB
	hasher *passwordHasher
}

// Account returns the account that a session belongs to. The error may be ErrNoSession, also if the password has been changed
// since, or the account is not active.
func (s *Sessions) Account(ctx context.Context, token string) (Account, error) {
	if len(token) != tokenDigits {
		return Account{}, ErrNoSession
	}
	const text = `SELECT` + accountColumns + `
		FROM sessions s JOIN accounts a ON a.id = s.account_id JOIN passwords p ON p.account_id = a.id
		WHERE s.token_hash = $1 AND s.password_generation = p.generation AND a.state = 'active' AND s.expires_at > `
	clock, args := `$2`, []any{hashToken(token), now().UnixMicro()}
	if s.db.Postgres() != nil {
		clock, args = databaseNow, args[:1]
	}
	a, err := scanAccount(s.db.Read().QueryRowContext(ctx, text+clock, args...))
	return orMissing(a, err, ErrNoSession)
}

// SignOut ends one session. An unknown token is no error.
func (s *Sessions) SignOut(ctx context.Context, token string) error {
	return write(ctx, s.db, "end session", func(tx database.Tx) error {
		return database.Exec(ctx, tx, `DELETE FROM sessions WHERE token_hash = $1`, hashToken(token))
	})
}

// SignOutEverywhere ends all sessions of an account, which then knows no browser. The error may be ErrNoAccount.
func (s *Sessions) SignOutEverywhere(ctx context.Context, email string) error {
	return write(ctx, s.db, "end sessions", func(tx database.Tx) error {
		account, err := selectAccount(ctx, tx, email)
		if err != nil {
			return err
		}
		if err := deleteOf(ctx, tx, account.ID, signIns...); err != nil {
			return err
		}
		return insertAuditEntry(ctx, tx, "sign out everywhere", account.Email, "")
	})
}
