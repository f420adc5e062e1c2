package identity_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/identity"
)

func TestInvitationsAndSessionsExpire(t *testing.T) {
	ctx := t.Context()
	db := openDatabase(t, newPath(t))
	s := newStore(db)
	_, err := s.Accounts.Create(ctx, identity.Account{Email: ada})
	must(t, err)
	tokens, err := s.Sessions.AcceptInvitation(ctx, invite(t, s, ada), password)
	must(t, err)
	token := invite(t, s, ada)
	for _, table := range []string{"invitations", "sessions"} {
		var left int64 // microseconds
		must(t, db.Read().QueryRow("SELECT min(expires_at) FROM "+table).Scan(&left))
		left -= time.Now().UnixMicro()
		want := identity.InvitationLife
		if table == "sessions" {
			want = identity.SessionLife
		}
		if got := left - want.Microseconds(); got < -60e6 || got > 0 {
			t.Errorf("%s expire %d µs later than after %v", table, got, want)
		}
	}
	must(t, db.WriteGrouped(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "UPDATE invitations SET expires_at = 1; UPDATE sessions SET expires_at = 1")
		return err
	}))
	if _, err := s.Sessions.InvitedAccount(ctx, token); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("expired invitation: got error %v, want %v", err, identity.ErrNoInvitation)
	}
	if _, err := s.Sessions.Account(ctx, tokens.Session); !errors.Is(err, identity.ErrNoSession) {
		t.Errorf("expired session: got error %v, want %v", err, identity.ErrNoSession)
	}
	_, err = signIn(ctx, s, ada, password)
	must(t, err)
	var rows int
	must(t, db.Read().QueryRow("SELECT count(*) FROM sessions").Scan(&rows))
	if rows != 1 {
		t.Errorf("got %d sessions in the database, want only the new one", rows)
	}
}

func TestSessionsSurviveARestartAndEndTogether(t *testing.T) {
	ctx, path := t.Context(), newPath(t)
	db := openDatabase(t, path)
	s := newStore(db)
	_, err := s.Accounts.Create(ctx, identity.Account{Email: ada})
	must(t, err)
	must(t, s.Sessions.SetPassword(ctx, ada, password))
	first, err := signIn(ctx, s, ada, password)
	must(t, err)
	must(t, db.Close())

	s = newStore(openDatabase(t, path))
	second, err := signIn(ctx, s, ada, password)
	must(t, err)
	third, err := signIn(ctx, s, ada, password)
	must(t, err)
	must(t, s.Sessions.SignOut(ctx, third))
	wantSessions(t, s, map[string]bool{first: true, second: true, third: false, "": false, strings.Repeat("x", 43): false})
	must(t, s.Sessions.SignOutEverywhere(ctx, ada))
	wantSessions(t, s, map[string]bool{first: false, second: false})
}

func TestDisabledAccountAndNewPasswordEndSessions(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	must(t, s.Sessions.SetPassword(ctx, ada, password))
	session, err := signIn(ctx, s, ada, password)
	must(t, err)
	must(t, s.Sessions.SetPassword(ctx, ada, password+"!"))
	wantSessions(t, s, map[string]bool{session: false})
	session, err = signIn(ctx, s, ada, password+"!")
	must(t, err)
	_, err = s.Accounts.Disable(ctx, ada)
	must(t, err)
	if _, err := signIn(ctx, s, ada, password+"!"); !errors.Is(err, identity.ErrAccountDisabled) {
		t.Errorf("sign in to a disabled account: got error %v, want %v", err, identity.ErrAccountDisabled)
	}
	_, err = s.Accounts.Enable(ctx, ada)
	must(t, err)
	wantSessions(t, s, map[string]bool{session: false})
}

// wantSessions checks which tokens are of sessions.
func wantSessions(t *testing.T, s *identity.Store, want map[string]bool) {
	t.Helper()
	for token, exists := range want {
		if _, err := s.Sessions.Account(t.Context(), token); (err == nil) != exists {
			t.Errorf("session %q: got error %v, want a session: %v", token, err, exists)
		}
	}
}

func TestUnknownAccountIsRefusedLikeAWrongPassword(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	for _, email := range []string{ada, "nobody@example.org", "", strings.Repeat("x", 10000)} { // ada has no password yet
		if _, err := signIn(ctx, s, email, password); !errors.Is(err, identity.ErrBadCredentials) {
			t.Errorf("sign in as %.20q: got error %v, want %v", email, err, identity.ErrBadCredentials)
		}
	}
}

func TestWaitForPasswordHashEndsWithTheContext(t *testing.T) {
	s := startStoreWithAda(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	unblock := s.Sessions.BlockHashing()
	defer unblock()
	if _, err := signIn(ctx, s, ada, password); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

func TestDatabaseContainsNoPasswordAndNoToken(t *testing.T) {
	ctx := t.Context()
	db := openDatabase(t, newPath(t))
	s := identity.New(db, zap.NewNop(), identity.Settings{})
	_, err := s.Accounts.Create(ctx, identity.Account{Email: ada})
	must(t, err)
	tokens, err := s.Sessions.AcceptInvitation(ctx, invite(t, s, ada), password)
	must(t, err)
	invitation := invite(t, s, ada)
	var all string
	must(t, db.Read().QueryRow(`SELECT hash FROM passwords`).Scan(&all))
	if !strings.HasPrefix(all, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("got password hash %s, want argon2id with 19 MiB, 2 passes and 1 thread", all)
	}
	for _, table := range []string{"sessions", "invitations", "known_browsers"} {
		var stored []byte
		must(t, db.Read().QueryRow("SELECT token_hash FROM "+table).Scan(&stored))
		all += string(stored)
	}
	for _, secret := range []string{password, tokens.Session, tokens.Browser, invitation} {
		if strings.Contains(all, secret) {
			t.Errorf("the database contains %q", secret)
		}
	}
}
