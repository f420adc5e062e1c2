package identity_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
)

// signIn signs in from a browser that no account knows, and returns the token of the session.
func signIn(ctx context.Context, s *identity.Store, email, password string) (session string, err error) {
	tokens, err := s.Sessions.SignIn(ctx, identity.Credentials{Email: email, Password: password, Address: address})
	return tokens.Session, err
}

// isTooMany reports whether an attempt was refused before the password was checked.
func isTooMany(err error) bool {
	_, ok := errors.AsType[*identity.TooManyAttemptsError](err)
	return ok
}

// failSignIns tries wrong passwords for an account from many networks until it is delayed.
func failSignIns(t *testing.T, s *identity.Store, email string) {
	t.Helper()
	for i := range 6 {
		c := identity.Credentials{Email: email, Password: "wrong", Address: fmt.Sprintf("198.51.%d.1", i)}
		if _, err := s.Sessions.SignIn(t.Context(), c); !errors.Is(err, identity.ErrBadCredentials) {
			t.Fatalf("attempt %d: got error %v, want %v", i+1, err, identity.ErrBadCredentials)
		}
	}
}

// startStoreWithPassword returns a started Store with the account ada and its password.
func startStoreWithPassword(t *testing.T) *identity.Store {
	t.Helper()
	s := startStoreWithAda(t)
	must(t, s.Sessions.SetPassword(t.Context(), ada, password))
	return s
}

// The tests of delays run in a synctest bubble, whose clock stands still while the test runs.

// serverClock is why a test of delays does not run on PostgreSQL; TestFailuresCountAtEveryGateway does.
const serverClock = "delays are measured by the clock of the server, which no test can stop"

func TestSignInFromAKnownBrowserIsNotDelayedByStrangers(t *testing.T) {
	databasetest.SkipPostgres(t, serverClock)
	synctest.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), startStoreWithPassword(t)
		c := identity.Credentials{Email: ada, Password: password, Address: address}
		tokens, err := s.Sessions.SignIn(ctx, c)
		must(t, err)
		failSignIns(t, s, strings.ToUpper(ada))
		if _, err := s.Sessions.SignIn(ctx, c); !isTooMany(err) {
			t.Errorf("the right password from an unknown browser: got error %v, want a TooManyAttemptsError", err)
		}
		c.Browser = tokens.Browser
		again, err := s.Sessions.SignIn(ctx, c)
		must(t, err)
		if again.Browser != tokens.Browser || again.Session == tokens.Session {
			t.Error("the second sign-in did not keep the browser's token and create a session")
		}

		c.Password = "wrong"
		for i := range 6 {
			if _, err := s.Sessions.SignIn(ctx, c); !errors.Is(err, identity.ErrBadCredentials) {
				t.Errorf("wrong password %d from the known browser: got error %v, want %v", i+1, err, identity.ErrBadCredentials)
			}
		}
		if _, err := s.Sessions.SignIn(ctx, c); !isTooMany(err) {
			t.Errorf("after 6 wrong passwords from the known browser: got error %v, want a TooManyAttemptsError", err)
		}
		c = identity.Credentials{Email: ada, Password: password, Address: address, Browser: strings.Repeat("0", 43)}
		if _, err := s.Sessions.SignIn(ctx, c); !isTooMany(err) {
			t.Errorf("an invented browser: got error %v, want a TooManyAttemptsError", err)
		}
		wait(time.Minute)
		_, err = s.Sessions.SignIn(ctx, c)
		must(t, err) // the delay is over
	})
}

func TestBrowserIsKnownToItsAccountOnlyUntilThePasswordChanges(t *testing.T) {
	databasetest.SkipPostgres(t, serverClock)
	synctest.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), startStoreWithPassword(t)
		_, err := s.Accounts.Create(ctx, identity.Account{Email: "eve@example.org"})
		must(t, err)
		must(t, s.Sessions.SetPassword(ctx, "eve@example.org", password))
		eves, err := s.Sessions.SignIn(ctx, identity.Credentials{Email: "eve@example.org", Password: password, Address: address})
		must(t, err)
		signIn := func(browser, password string) (identity.SignedIn, error) {
			return s.Sessions.SignIn(ctx, identity.Credentials{Email: ada, Password: password, Address: address, Browser: browser})
		}
		known, err := signIn("", password)
		must(t, err)
		failSignIns(t, s, ada)
		if _, err := signIn(eves.Browser, password); !isTooMany(err) {
			t.Errorf("a browser that another account knows: got error %v, want a TooManyAttemptsError", err)
		}
		known, err = signIn(known.Browser, password)
		must(t, err)

		changed, err := s.Sessions.ChangePassword(ctx, identity.Credentials{Email: ada, Password: password, Address: address}, password+"!")
		must(t, err)
		if _, err := signIn(known.Browser, password+"!"); !isTooMany(err) {
			t.Errorf("a browser known before the password was changed: got error %v, want a TooManyAttemptsError", err)
		}
		changed, err = signIn(changed.Browser, password+"!")
		must(t, err)
		must(t, s.Sessions.SignOutEverywhere(ctx, ada))
		if _, err := signIn(changed.Browser, password+"!"); !isTooMany(err) {
			t.Errorf("a browser known before signing out everywhere: got error %v, want a TooManyAttemptsError", err)
		}
	})
}

func TestNumberOfKnownBrowsersIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), openDatabase(t, newPath(t))
		s := newStore(db)
		_, err := s.Accounts.Create(ctx, identity.Account{Email: ada})
		must(t, err)
		must(t, s.Sessions.SetPassword(ctx, ada, password))
		var first, last identity.SignedIn
		for i := range identity.MaxKnownBrowsers + 1 {
			last, err = s.Sessions.SignIn(ctx, identity.Credentials{Email: ada, Password: password, Address: address})
			must(t, err)
			if i == 0 {
				first = last
			}
			wait(time.Second)
		}
		var n int
		must(t, db.Read().QueryRow("SELECT count(*) FROM known_browsers").Scan(&n))
		if n != identity.MaxKnownBrowsers {
			t.Errorf("got %d known browsers, want %d", n, identity.MaxKnownBrowsers)
		}
		if databasetest.Postgres() {
			return // serverClock
		}
		failSignIns(t, s, ada)
		c := identity.Credentials{Email: ada, Password: password, Address: address, Browser: first.Browser}
		if _, err := s.Sessions.SignIn(ctx, c); !isTooMany(err) {
			t.Errorf("the least recently used browser: got error %v, want a TooManyAttemptsError", err)
		}
		c.Browser = last.Browser
		_, err = s.Sessions.SignIn(ctx, c)
		must(t, err)
	})
}

func TestFailuresDelayTheNetworkForAllAccounts(t *testing.T) {
	databasetest.SkipPostgres(t, serverClock)
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	synctest.Test(t, func(t *testing.T) {
		s := startStoreWithPassword(t)
		known, err := s.Sessions.SignIn(t.Context(), identity.Credentials{Email: ada, Password: password, Address: "2001:db8:0:ff::2"})
		must(t, err)
		try := func(email, address string) error {
			_, err := s.Sessions.SignIn(t.Context(), identity.Credentials{Email: email, Password: password, Address: address})
			return err
		}
		for i := range 51 {
			if err := try(fmt.Sprintf("%d@example.org", i), fmt.Sprintf("2001:db8:0:%x::1", i)); !errors.Is(err, identity.ErrBadCredentials) {
				t.Fatalf("attempt %d: got error %v, want %v", i+1, err, identity.ErrBadCredentials)
			}
		}
		if err := try(ada, "2001:db8:0:ff::2"); !isTooMany(err) {
			t.Errorf("an attempt from the same /56: got error %v, want a TooManyAttemptsError", err)
		}
		must(t, try(ada, "2001:db8:0:100::1"))
		c := identity.Credentials{Email: ada, Password: password, Address: "2001:db8:0:ff::2", Browser: known.Browser}
		_, err = s.Sessions.SignIn(t.Context(), c)
		must(t, err) // a known browser is not delayed by others of its network
		_, err = s.Sessions.ChangePassword(t.Context(), c, password+"!")
		must(t, err)
		must(t, s.Sessions.SetPassword(t.Context(), ada, password))
		wait(time.Second)
		must(t, try(ada, "2001:db8:0:ff::2"))
	})
}

// Whether an account exists can be seen neither from the errors nor from when they change.
func TestUnknownAccountIsDelayedLikeAKnownOne(t *testing.T) {
	databasetest.SkipPostgres(t, serverClock)
	outcomes := map[string]string{}
	for _, email := range []string{ada, "nobody@example.org"} {
		synctest.Test(t, func(t *testing.T) {
			s := startStoreWithPassword(t)
			var all []string
			for i := range 12 {
				c := identity.Credentials{
					Email: email, Password: "wrong", Address: fmt.Sprintf("198.51.%d.1", i), Browser: strings.Repeat("0", 43),
				}
				_, err := s.Sessions.SignIn(t.Context(), c)
				all = append(all, fmt.Sprint(err))
				wait(time.Second)
			}
			outcomes[email] = strings.Join(all, "\n")
		})
	}
	if outcomes[ada] != outcomes["nobody@example.org"] {
		t.Errorf("the account:\n%s\nno account:\n%s", outcomes[ada], outcomes["nobody@example.org"])
	}
	if !strings.Contains(outcomes[ada], "too many") {
		t.Errorf("the attempts were not delayed:\n%s", outcomes[ada])
	}
}

// A sign-in that has checked the old password when it changes must not create a session that survives the change.
func TestNoSessionOfTheOldPasswordSurvivesItsChange(t *testing.T) {
	databasetest.SkipPostgres(t, serverClock)
	for name, change := range map[string]func(ctx context.Context, s *identity.Store, next string) error{
		"set": func(ctx context.Context, s *identity.Store, next string) error {
			return s.Sessions.SetPassword(ctx, ada, next)
		},
		"changed": func(ctx context.Context, s *identity.Store, next string) error {
			_, err := s.Sessions.ChangePassword(ctx, identity.Credentials{Email: ada, Password: password, Address: address}, next)
			return err
		},
		"set by an invitation": func(ctx context.Context, s *identity.Store, next string) error {
			_, token, err := s.Accounts.Invite(ctx, ada)
			if err == nil {
				_, err = s.Sessions.AcceptInvitation(ctx, token, next)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, s := t.Context(), startStoreWithAda(t)
			for range 3 {
				must(t, s.Sessions.SetPassword(ctx, ada, password))
				sessions := make(chan string, 4)
				var all sync.WaitGroup
				for range cap(sessions) {
					all.Go(func() {
						session, err := signIn(ctx, s, ada, password)
						if err != nil && !errors.Is(err, identity.ErrBadCredentials) {
							t.Error(err)
						}
						sessions <- session
					})
				}
				all.Go(func() {
					if err := change(ctx, s, password+"!"); err != nil {
						t.Error(err)
					}
				})
				all.Wait()
				for range cap(sessions) {
					wantSessions(t, s, map[string]bool{<-sessions: false})
				}
				if _, err := signIn(ctx, s, ada, password+"!"); err != nil { // which forgets the failures, or they add up to a delay
					t.Error(err)
				}
			}
		})
	}
}

// Of two users who know the password, one changes it first, and the other's change is refused.
func TestConcurrentPasswordChanges(t *testing.T) {
	ctx, s := t.Context(), startStoreWithPassword(t)
	results := make(chan error, 4)
	var all sync.WaitGroup
	for i := range cap(results) {
		all.Go(func() {
			c := identity.Credentials{Email: ada, Password: password, Address: address}
			_, err := s.Sessions.ChangePassword(ctx, c, fmt.Sprint(password, i))
			results <- err
		})
	}
	all.Wait()
	changed := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			changed++
		case !errors.Is(err, identity.ErrBadCredentials):
			t.Error(err)
		}
	}
	if changed != 1 {
		t.Errorf("the password was changed %d times, want once", changed)
	}
}

// An account that was disabled while a sign-in checked the password gets no session that works when it is enabled again.
func TestNoSessionSurvivesTheDisablingOfItsAccount(t *testing.T) {
	ctx, s := t.Context(), startStoreWithPassword(t)
	unblock := s.Sessions.BlockHashing()
	session := make(chan string, 1)
	var signingIn sync.WaitGroup
	signingIn.Go(func() {
		token, _ := signIn(ctx, s, ada, password) // may be refused
		session <- token
	})
	_, err := s.Accounts.Disable(ctx, ada)
	must(t, err)
	unblock()
	signingIn.Wait()
	_, err = s.Accounts.Enable(ctx, ada)
	must(t, err)
	wantSessions(t, s, map[string]bool{<-session: false})
}

func TestStrangersDoNotDelayAPasswordChange(t *testing.T) {
	ctx, s := t.Context(), startStoreWithPassword(t)
	failSignIns(t, s, ada)
	_, err := s.Sessions.ChangePassword(ctx, identity.Credentials{Email: ada, Password: password, Address: address}, password+"!")
	must(t, err)
}

func TestFailuresCountAtEveryGateway(t *testing.T) {
	if !databasetest.Postgres() {
		t.Skip("several gateways share PostgreSQL only")
	}
	path := newPath(t)
	first := startStore(t, openDatabase(t, path), zap.NewNop())
	second := startStore(t, openDatabase(t, path), zap.NewNop())
	_, err := first.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	must(t, first.Sessions.SetPassword(t.Context(), ada, password))
	gateways := []*identity.Store{first, second}
	attempt := func(i int, password string) error {
		c := identity.Credentials{Email: ada, Password: password, Address: fmt.Sprintf("198.51.%d.1", i)}
		_, err := gateways[i%2].Sessions.SignIn(t.Context(), c)
		return err
	}
	failures := 0
	poll.Until(t, "attempts at either gateway delay those at both", func() bool {
		err := attempt(failures, "wrong")
		failures++
		return isTooMany(err)
	})
	if failures < 6 {
		t.Errorf("attempt %d was delayed already", failures)
	}
	poll.Until(t, "the right password is accepted after the delay, and forgets the failures", func() bool {
		return attempt(0, password) == nil
	})
	must(t, attempt(1, password))
	for i := range 5 {
		if err := attempt(i, "wrong"); !errors.Is(err, identity.ErrBadCredentials) {
			t.Errorf("failure %d after a success: got error %v, want %v", i+1, err, identity.ErrBadCredentials)
		}
	}
}
