package identity

import (
	"context"
	"errors"

	"basegate/budget/quota"
	"basegate/database"
)

// ProviderUser is a user whom an identity provider has authenticated.
type ProviderUser struct {
	Email   string     // verified by the provider
	Name    string     // of an account that is created; may be empty
	Create  bool       // the user may have an account that does not exist yet, or that awaits approval
	Admin   *bool      // whether the user is an administrator; nil: the provider does not decide
	Caps    quota.Caps // of an account that is created or approved
	Address string     // of the client
	Browser string     // the token that an earlier sign-in gave the browser; may be empty
}

// SignInFromProvider creates a session for the account with the user's address, and the account too if it may. The error
// may be ErrNoAccount, ErrAccountPending, ErrAccountDisabled or ErrBadEmail.
func (s *Sessions) SignInFromProvider(ctx context.Context, u ProviderUser) (SignedIn, error) {
	browser, err := s.knownBrowser(ctx, u.Email, u.Browser)
	if err != nil {
		return SignedIn{}, err
	}
	tokens, err := s.signIn(ctx, "sign in from the identity provider", browser, func(tx database.Tx, tokens SignedIn) error {
		account, err := accountOfProvider(ctx, tx, u)
		if err != nil {
			return err
		}
		generation, err := ensurePasswordRow(ctx, tx, account.ID)
		if err != nil {
			return err
		}
		if err := insertSignIn(ctx, tx, account.ID, generation, tokens); err != nil {
			return err
		}
		return recordSignIn(ctx, tx, account, u.Address, ", by the identity provider")
	})
	if errors.Is(err, ErrNoAccount) || errors.Is(err, ErrAccountPending) || errors.Is(err, ErrAccountDisabled) {
		return SignedIn{}, s.recordFailure(ctx, u.Email, u.Address, err)
	}
	return tokens, err
}

// accountOfProvider returns the active account of a user. It creates and approves it if it may, and makes it an
// administrator's or not as the provider says.
func accountOfProvider(ctx context.Context, tx database.Tx, u ProviderUser) (Account, error) {
	account, err := selectAccount(ctx, tx, u.Email)
	ctx = WithActor(ctx, Account{Email: providerActor})
	switch {
	case errors.Is(err, ErrNoAccount) && u.Create:
		created := Account{Email: u.Email, Caps: u.Caps}
		if checkName(u.Name) == nil {
			created.Name = u.Name
		}
		account, err = createAccount(ctx, tx, created)
	case err == nil && account.State == AccountPending && u.Create:
		if account, err = account.withState(ctx, tx, AccountActive); err == nil && u.Caps.Any() {
			before := account
			account.Caps = u.Caps
			err = account.update(ctx, tx, before)
		}
	}
	if err != nil {
		return Account{}, err
	}
	if err := account.State.refusal(); err != nil {
		return Account{}, err
	}
	if u.Admin == nil || *u.Admin == account.Admin {
		return account, nil
	}
	before := account
	account.Admin = *u.Admin
	return account, account.update(ctx, tx, before)
}

// providerActor is the actor of changes that an identity provider decides.
const providerActor = "identity provider"
