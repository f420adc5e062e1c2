package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"basegate/database"
	"basegate/internal/ratelimit"
)

// ErrBadCredentials is returned for an address without an account, and for a wrong password.
var ErrBadCredentials = errors.New("the e-mail address or the password is wrong")

// Lives of what a sign-in creates.
const (
	SessionLife      = 30 * 24 * time.Hour  // from signing in
	KnownBrowserLife = 400 * 24 * time.Hour // from the latest sign-in; browsers keep no cookie for longer
)

// maxKnownBrowsers limits the browsers by which an account is known; a new one replaces the least recently used.
const maxKnownBrowsers = 10

// Credentials are what a user enters to sign in, and where it comes from.
type Credentials struct {
	Email    string
	Password string
	Address  string // of the client
	Browser  string // the token that an earlier sign-in gave the browser; may be empty
}

// SignedIn has the tokens for a browser that has signed in. They cannot be retrieved later.
type SignedIn struct {
	Session string
	Browser string // by which the account knows the browser
}

// SignIn creates a session if the password is the account's.
//
// Failed sign-ins delay the network that they come from, and the account: see throttle. Strangers who know an
// account's address, or share a network with its user, can so delay its sign-ins, but not those from a browser that the
// account knows: only failures from that browser count for it. An unknown address is treated like a wrong password, also
// in the time that it takes.
//
// The error may be ErrBadCredentials, a *TooManyAttemptsError, or, only if the password is right, ErrAccountPending or
// ErrAccountDisabled.
func (s *Sessions) SignIn(ctx context.Context, c Credentials) (SignedIn, error) {
	if len(c.Email) > maxEmail {
		return SignedIn{}, ErrBadCredentials
	}
	subjects := []subject{networkThrottle.of(ratelimit.Network(c.Address)), accountThrottle.of("account " + strings.ToLower(c.Email))}
	browser, err := s.knownBrowser(ctx, c.Email, c.Browser)
	if err != nil {
		return SignedIn{}, err
	}
	if browser != "" {
		subjects = []subject{accountThrottle.of("browser " + string(hashToken(browser)))}
	}
	l, err := s.checkCredentials(ctx, c, subjects...)
	if err == nil {
		err = l.account.State.refusal()
	}
	if errors.Is(err, ErrBadCredentials) || errors.Is(err, ErrAccountPending) || errors.Is(err, ErrAccountDisabled) {
		return SignedIn{}, s.recordFailure(ctx, c.Email, c.Address, err)
	}
	if err != nil {
		return SignedIn{}, err
	}
	return s.signIn(ctx, "begin session", browser, func(tx database.Tx, tokens SignedIn) error {
		if err := insertSignIn(ctx, tx, l.account.ID, l.generation, tokens); err != nil {
			return err
		}
		return recordSignIn(ctx, tx, l.account, c.Address, "")
	})
}

func recordSignIn(ctx context.Context, tx database.Tx, a Account, address, how string) error {
	detail := "from " + ratelimit.Network(address) + how
	return insertSignInEntry(WithActor(ctx, a), tx, "sign in", a.Email, detail, detail)
}

// unknownAccount is the subject of failed sign-ins for addresses without an account, which are not recorded: they may be anything.
const unknownAccount = "an unknown address"

// recordFailure records why a sign-in has failed, and returns that.
func (s *Sessions) recordFailure(ctx context.Context, email, address string, why error) error {
	ctx = WithActor(ctx, Account{Email: "not signed in"})
	err := write(ctx, s.db, "record failed sign-in", func(tx database.Tx) error {
		account, err := selectAccount(ctx, tx, email)
		if err != nil && !errors.Is(err, ErrNoAccount) {
			return err
		}
		detail := fmt.Sprintf("from %s: %v", ratelimit.Network(address), why)
		return insertSignInEntry(ctx, tx, "failed sign-in", cmp.Or(account.Email, unknownAccount), detail, "")
	})
	return cmp.Or(err, why)
}

// signIn makes a write that begins a session, and returns its tokens. browser is the token by which the account knows the
// browser; if it is empty, the browser gets one.
func (s *Sessions) signIn(ctx context.Context, what, browser string, begin func(database.Tx, SignedIn) error) (SignedIn, error) {
	tokens := SignedIn{newToken(), cmp.Or(browser, newToken())}
	if err := write(ctx, s.db, what, func(tx database.Tx) error { return begin(tx, tokens) }); err != nil {
		return SignedIn{}, err
	}
	return tokens, nil
}

// login is an account with its password.
type login struct {
	account      Account
	passwordHash string
	generation   int64 // of the password; 0 if the account has none
}

// knownBrowser returns the token of a browser if the account with an address knows it, or else an empty one.
func (s *Sessions) knownBrowser(ctx context.Context, email, token string) (string, error) {
	if len(token) != tokenDigits {
		return "", nil
	}
	const text = `
		SELECT EXISTS (
			SELECT 1 FROM known_browsers b
			JOIN accounts a ON a.id = b.account_id JOIN passwords p ON p.account_id = a.id
			WHERE b.token_hash = $1 AND lower(a.email) = lower($2) AND b.used_at > $3 AND b.password_generation = p.generation)`
	var known bool
	since := now().Add(-KnownBrowserLife)
	err := s.db.Read().QueryRowContext(ctx, text, hashToken(token), email, since.UnixMicro()).Scan(&known)
	if err != nil || !known {
		return "", err
	}
	return token, nil
}

// checkCredentials returns the account if the password is its password. Failures count for the subjects. The error may be
// ErrBadCredentials or a *TooManyAttemptsError.
func (s *Sessions) checkCredentials(ctx context.Context, c Credentials, subjects ...subject) (login, error) {
	if err := s.beginAttempt(ctx, subjects); err != nil {
		return login{}, err
	}
	l, err := selectLogin(ctx, s.db.Read(), c.Email)
	if err != nil {
		return login{}, err
	}
	matches, err := s.hasher.matches(ctx, c.Password, l.passwordHash)
	if err != nil {
		return login{}, err
	}
	if !matches {
		return login{}, ErrBadCredentials
	}
	return l, s.endAttempt(ctx, subjects)
}
