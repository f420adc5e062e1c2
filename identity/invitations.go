package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// ErrNoInvitation is returned for a token of no invitation, or of one that was used, replaced or has expired.
var ErrNoInvitation = errors.New("there is no such invitation, or it has ended")

// InvitationLife is the time from the creation of an invitation to its expiry.
const InvitationLife = 7 * 24 * time.Hour

// Invite creates an invitation, with which the password of an account is set once, and returns its token, which cannot
// be retrieved later. It replaces the account's earlier invitation. If no account has the address, Invite creates one.
//
// The error may be ErrBadEmail, ErrAccountDisabled, or ErrAccountPending: a pending account must be approved first.
func (a *Accounts) Invite(ctx context.Context, email string) (_ Account, token string, _ error) {
	token = newToken()
	account, err := commit(ctx, a.keys, "invite", func(tx database.Tx) (Account, error) {
		account, err := selectAccount(ctx, tx, email)
		if errors.Is(err, ErrNoAccount) {
			account, err = createAccount(ctx, tx, Account{Email: email})
		}
		if err != nil {
			return Account{}, err
		}
		if err := account.State.refusal(); err != nil {
			return Account{}, fmt.Errorf("%w: %s", err, account.Email)
		}
		if err := upsertInvitation(ctx, tx, account.ID, token); err != nil {
			return Account{}, err
		}
		return account, insertAuditEntry(ctx, tx, "invite", account.Email, "")
	})
	if err != nil {
		return Account{}, "", err
	}
	return account, token, nil
}

// InvitedAccount returns the account that an invitation is for. The error may be ErrNoInvitation.
func (s *Sessions) InvitedAccount(ctx context.Context, token string) (Account, error) {
	return selectInvitedAccount(ctx, s.db.Read(), token)
}

// AcceptInvitation uses an invitation up: it sets the password of the account, ends its sessions and returns the tokens
// of a new one. The error may be ErrNoInvitation, or ErrBadPassword, after which the invitation is still valid.
func (s *Sessions) AcceptInvitation(ctx context.Context, token, password string) (SignedIn, error) {
	account, err := s.InvitedAccount(ctx, token)
	if err != nil {
		return SignedIn{}, err
	}
	if err := checkPassword(password, account.Email); err != nil {
		return SignedIn{}, err
	}
	passwordHash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return SignedIn{}, err
	}
	ctx = WithActor(ctx, account)
	return s.signIn(ctx, "accept invitation", "", func(tx database.Tx, tokens SignedIn) error {
		// A concurrent call may have used the invitation while the password was hashed.
		if _, err := selectInvitedAccount(ctx, tx, token); err != nil {
			return err
		}
		if err := deleteOf(ctx, tx, account.ID, "invitations"); err != nil {
			return err
		}
		return setPasswordAndSignIn(ctx, tx, account, passwordHash, tokens)
	})
}
