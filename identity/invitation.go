package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// ErrNoInvitation says that a token is of no invitation, or of one that has been used, replaced or has expired.
var ErrNoInvitation = errors.New("this invitation does not exist or is over")

// InvitationLife is how long an invitation waits to be used.
const InvitationLife = 7 * 24 * time.Hour

// Invite makes an invitation with which somebody sets the password of an account, once; one that was made before is over.
// Where there is no account with the address, one is made. The token exists in the clear only here.
//
// The error may be ErrBadEmail, ErrAccountDisabled, or ErrAccountPending: who asked for access is approved first.
func (d *Directory) Invite(ctx context.Context, email string) (a Account, token string, err error) {
	token = newToken()
	err = d.change(ctx, func(tx database.Tx) (err error) {
		a, err = selectAccount(ctx, tx, email)
		if errors.Is(err, ErrNoAccount) {
			a, err = d.invitee(ctx, tx, email)
		}
		if err != nil {
			return err
		}
		if err := a.State.refusal(); err != nil {
			return fmt.Errorf("%w: %s", err, a.Email)
		}
		if err := upsertInvitation(ctx, tx, a.ID, token); err != nil {
			return err
		}
		return record(ctx, tx, "invite", a.Email, "")
	})
	if err != nil {
		return Account{}, "", fmt.Errorf("invite: %w", err)
	}
	return a, token, nil
}

// invitee makes the account of somebody who is invited and has none.
func (*Directory) invitee(ctx context.Context, tx database.Tx, email string) (Account, error) {
	if err := checkEmail(email); err != nil {
		return Account{}, err
	}
	a := Account{ID: newID("acc"), Email: email, State: AccountActive, CreatedAt: now()}
	if err := insertAccount(ctx, tx, a); err != nil {
		return Account{}, err
	}
	return a, record(ctx, tx, "create account", a.Email, a.describe())
}

// Invitation is the account that an invitation is for. The error may be ErrNoInvitation.
func (d *Directory) Invitation(ctx context.Context, token string) (Account, error) {
	return selectInvitation(ctx, d.db.Read(), token)
}

// Accept uses an invitation up: its account gets the password, and whoever used it is signed in. The error may be
// ErrNoInvitation or ErrBadPassword, which leaves the invitation as it is.
func (d *Directory) Accept(ctx context.Context, token, password string) (a Account, session string, err error) {
	if a, err = d.Invitation(ctx, token); err != nil {
		return Account{}, "", err
	}
	if err := CheckPassword(password, a.Email); err != nil {
		return Account{}, "", err
	}
	hashed, err := d.hashPassword(ctx, password)
	if err != nil {
		return Account{}, "", err
	}
	session = newToken()
	ctx = WithActor(ctx, a.Email)
	err = d.db.WriteGrouped(ctx, func(tx database.Tx) error {
		if _, err := selectInvitation(ctx, tx, token); err != nil { // of two who use it at once, one comes late
			return err
		}
		if err := deleteInvitation(ctx, tx, a.ID); err != nil {
			return err
		}
		if err := setPassword(ctx, tx, a, hashed); err != nil {
			return err
		}
		return insertSession(ctx, tx, session, a.ID)
	})
	if err != nil {
		return Account{}, "", fmt.Errorf("accept invitation: %w", err)
	}
	return a, session, nil
}

func upsertInvitation(ctx context.Context, tx database.Tx, account, token string) error {
	const text = `
		INSERT INTO invitations (token_hash, account_id, expires_at) VALUES ($1, $2, $3)
		ON CONFLICT (account_id) DO UPDATE SET token_hash = excluded.token_hash, expires_at = excluded.expires_at`
	_, err := tx.ExecContext(ctx, text, tokenHash(token), account, now().Add(InvitationLife).UnixMicro())
	return err
}

func selectInvitation(ctx context.Context, q querier, token string) (Account, error) {
	const text = `
		SELECT a.id, a.email, a.name, a.admin, a.state, a.created_at, a.month_total, a.day_total, a.month_input, a.month_output
		FROM invitations i JOIN accounts a ON a.id = i.account_id
		WHERE i.token_hash = $1 AND i.expires_at > $2 AND a.state = 'active'`
	a, err := scanAccount(q.QueryRowContext(ctx, text, tokenHash(token), now().UnixMicro()))
	if errors.Is(err, sql.ErrNoRows) {
		return Account{}, ErrNoInvitation
	}
	if err != nil {
		return Account{}, fmt.Errorf("read invitation: %w", err)
	}
	return a, nil
}

func deleteInvitation(ctx context.Context, tx database.Tx, account string) error {
	const text = `DELETE FROM invitations WHERE account_id = $1`
	_, err := tx.ExecContext(ctx, text, account)
	return err
}
