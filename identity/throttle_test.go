package identity_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"basegate/identity"
	"basegate/internal/databasetest"
)

func wait(d time.Duration) { <-time.NewTimer(d).C }

// Many people of one network sign in at the same time, and some fail.
func TestSuccessesDoNotCountForTheNetwork(t *testing.T) {
	databasetest.SkipPostgres(t, serverClock)
	synctest.Test(t, func(t *testing.T) {
		s := startStoreWithPassword(t)
		for i := range 200 {
			c := identity.Credentials{Email: ada, Password: password, Address: address}
			if i%25 == 0 {
				c.Password = "wrong"
			}
			if _, err := s.Sessions.SignIn(t.Context(), c); err != nil && !errors.Is(err, identity.ErrBadCredentials) {
				t.Fatalf("attempt %d: got error %v, want no delay", i+1, err)
			}
		}
	})
}

func TestFailuresSurviveARestartUntilTheyAreForgotten(t *testing.T) {
	databasetest.SkipPostgres(t, serverClock)
	synctest.Test(t, func(t *testing.T) {
		db := openDatabase(t, newPath(t))
		rows := func() (n int) {
			must(t, db.Read().QueryRow("SELECT count(*) FROM sign_in_failures").Scan(&n))
			return n
		}
		failSignIns(t, newStore(db), ada)
		if _, err := signIn(t.Context(), newStore(db), ada, "wrong"); !isTooMany(err) {
			t.Errorf("after a restart: got error %v, want a TooManyAttemptsError", err)
		}
		if got := rows(); got != 7 {
			t.Errorf("got %d rows, want one of the account and 6 of networks", got)
		}
		wait(20 * time.Minute)
		if _, err := signIn(t.Context(), newStore(db), fmt.Sprint("other", ada), "wrong"); !errors.Is(err, identity.ErrBadCredentials) {
			t.Errorf("another account: got error %v, want %v", err, identity.ErrBadCredentials)
		}
		if got := rows(); got != 2 {
			t.Errorf("after they are forgotten: got %d rows, want those of the last attempt", got)
		}
	})
}
