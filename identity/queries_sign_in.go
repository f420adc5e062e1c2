package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"basegate/database"
	"basegate/database/postgres"
)

// Invitations.

// upsertInvitation replaces the account's invitation, if it has one.
func upsertInvitation(ctx context.Context, tx database.Tx, account, token string) error {
	const text = `
		INSERT INTO invitations (token_hash, account_id, expires_at) VALUES ($1, $2, $3)
		ON CONFLICT (account_id) DO UPDATE SET token_hash = excluded.token_hash, expires_at = excluded.expires_at`
	return database.Exec(ctx, tx, text, hashToken(token), account, now().Add(InvitationLife).UnixMicro())
}

// selectInvitedAccount returns ErrNoInvitation if no valid invitation to an active account has the token.
func selectInvitedAccount(ctx context.Context, q database.Reader, token string) (Account, error) {
	const text = `SELECT` + accountColumns + `
		FROM invitations i JOIN accounts a ON a.id = i.account_id
		WHERE i.token_hash = $1 AND i.expires_at > $2 AND a.state = 'active'`
	a, err := scanAccount(q.QueryRowContext(ctx, text, hashToken(token), now().UnixMicro()))
	return orMissing(a, err, ErrNoInvitation)
}

// Passwords.

// upsertPasswordHash returns the generation of the new password.
func upsertPasswordHash(
	ctx context.Context, tx database.Tx, account, passwordHash string,
) (generation int64, err error) {
	const text = `
		INSERT INTO passwords (account_id, hash, changed_at, generation) VALUES ($1, $2, $3, 1)
		ON CONFLICT (account_id) DO UPDATE
		SET hash = excluded.hash, changed_at = excluded.changed_at, generation = passwords.generation + 1
		RETURNING generation`
	err = tx.QueryRowContext(ctx, text, account, passwordHash, now().UnixMicro()).Scan(&generation)
	return generation, err
}

// selectGeneration returns the generation of an account's password, or 0 if it has none.
func selectGeneration(ctx context.Context, q database.Reader, account string) (generation int64, err error) {
	const text = `SELECT coalesce(max(generation), 0) FROM passwords WHERE account_id = $1`
	err = q.QueryRowContext(ctx, text, account).Scan(&generation)
	return generation, err
}

// selectLogin returns a login without a hash if no account has the address, or the account has no password.
func selectLogin(ctx context.Context, q database.Reader, email string) (l login, err error) {
	const text = `SELECT coalesce(p.hash, ''), coalesce(p.generation, 0), ` + accountColumns + `
		FROM accounts a LEFT JOIN passwords p ON p.account_id = a.id
		WHERE lower(a.email) = lower($1)`
	l.account, err = scanAccount(q.QueryRowContext(ctx, text, email), &l.passwordHash, &l.generation)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return login{}, fmt.Errorf("read account: %w", err)
	}
	return l, nil
}

// Sessions.

// insertSignIn inserts a session, and makes the browser known to the account. The error is ErrBadCredentials if the account is
// not active, or its password is not of this generation any more. It also deletes all expired sessions, so that no other code has to.
func insertSignIn(ctx context.Context, tx database.Tx, account string, generation int64, tokens SignedIn) error {
	const (
		deleteExpired = `DELETE FROM sessions WHERE expires_at <= $1`
		insert        = `
			INSERT INTO sessions (token_hash, account_id, created_at, expires_at, password_generation)
			SELECT $1, a.id, $2, $3, p.generation
			FROM accounts a JOIN passwords p ON p.account_id = a.id
			WHERE a.id = $4 AND p.generation = $5 AND a.state = 'active'`
	)
	at := now()
	if err := database.Exec(ctx, tx, deleteExpired, at.UnixMicro()); err != nil {
		return err
	}
	n, err := database.Change(ctx, tx, insert, hashToken(tokens.Session), at.UnixMicro(), at.Add(SessionLife).UnixMicro(), account, generation)
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrBadCredentials
	}
	return upsertKnownBrowser(ctx, tx, tokens.Browser, account, generation)
}

// databaseNow is the time of PostgreSQL's clock, by which all gateways agree whether a session has expired.
const databaseNow = postgres.Now

// Known browsers.

// upsertKnownBrowser makes a browser known to an account, or updates the time of its use. It also deletes the account's
// least recently used browsers beyond maxKnownBrowsers.
func upsertKnownBrowser(ctx context.Context, tx database.Tx, token, account string, generation int64) error {
	const (
		upsert = `
			INSERT INTO known_browsers (token_hash, account_id, password_generation, used_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (token_hash) DO UPDATE SET used_at = excluded.used_at`
		deleteOldest = `
			DELETE FROM known_browsers WHERE account_id = $1 AND token_hash NOT IN (
				SELECT token_hash FROM known_browsers WHERE account_id = $1 ORDER BY used_at DESC, token_hash LIMIT $2)`
	)
	if err := database.Exec(ctx, tx, upsert, hashToken(token), account, generation, now().UnixMicro()); err != nil {
		return err
	}
	return database.Exec(ctx, tx, deleteOldest, account, maxKnownBrowsers)
}

// ensurePasswordRow returns the generation of the account's password. An account without one gets a row with an empty
// hash, which no password matches: sessions refer to the row.
func ensurePasswordRow(ctx context.Context, tx database.Tx, account string) (generation int64, err error) {
	const insert = `INSERT INTO passwords (account_id, hash, changed_at, generation) VALUES ($1, '', $2, 1)
		ON CONFLICT (account_id) DO NOTHING`
	if err := database.Exec(ctx, tx, insert, account, now().UnixMicro()); err != nil {
		return 0, err
	}
	return selectGeneration(ctx, tx, account)
}
