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

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/identity"
	"basegate/quota"
)

const (
	password = "correct horse battery"
	home     = "192.0.2.1"
)

func invited(t *testing.T, d *identity.Directory, email string) (token string) {
	t.Helper()
	_, token, err := d.Invite(t.Context(), email)
	must(t, err)
	return token
}

func TestAnInvitationSetsThePasswordOnceAndSignsIn(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	token := invited(t, d, ada)
	if a, err := d.Invitation(ctx, token); err != nil || a.Email != ada {
		t.Errorf("it is for %q, %v", a.Email, err)
	}
	for _, bad := range []string{"short", ada, strings.Repeat("x", 201), "not text \xff\xfe"} {
		if _, _, err := d.Accept(ctx, token, bad); !errors.Is(err, identity.ErrBadPassword) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	_, session, err := d.Accept(ctx, token, password)
	must(t, err)
	if a, err := d.Session(ctx, session); err != nil || a.Email != ada {
		t.Errorf("the session is of %q, %v", a.Email, err)
	}
	if _, _, err := d.Accept(ctx, token, password); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("used again: %v", err)
	}
	if _, err := d.Invitation(ctx, token); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("looked at again: %v", err)
	}
	_, err = d.SignIn(ctx, strings.ToUpper(ada), password, home)
	must(t, err)
}

func TestOfTwoWhoUseAnInvitationAtOnceOneIsIn(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	token := invited(t, d, ada)
	var in sync.WaitGroup
	results := make(chan error, 4)
	for i := range cap(results) {
		in.Go(func() {
			_, _, err := d.Accept(ctx, token, fmt.Sprint(password, i))
			results <- err
		})
	}
	in.Wait()
	won := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			won++
		case !errors.Is(err, identity.ErrNoInvitation):
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d have got in", won)
	}
}

func TestANewInvitationEndsTheOneBefore(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	first, second := invited(t, d, ada), invited(t, d, ada)
	if _, _, err := d.Accept(ctx, first, password); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("the first: %v", err)
	}
	_, _, err := d.Accept(ctx, second, password)
	must(t, err)
}

func TestAnInvitationMakesTheAccountThatIsNotThere(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	_, _, err := d.Accept(ctx, invited(t, d, "new@example.org"), password)
	must(t, err)
	a, err := d.Account(ctx, "new@example.org")
	must(t, err)
	if a.State != identity.AccountActive || a.Admin {
		t.Errorf("it is %+v", a)
	}
	if _, _, err := d.Invite(ctx, "nobody"); !errors.Is(err, identity.ErrBadEmail) {
		t.Errorf("no address: %v", err)
	}
	_, err = d.DisableAccount(ctx, ada)
	must(t, err)
	if _, _, err := d.Invite(ctx, ada); !errors.Is(err, identity.ErrAccountDisabled) {
		t.Errorf("a disabled account: %v", err)
	}
}

func TestInvitationsAndSessionsRunOut(t *testing.T) {
	ctx := t.Context()
	db := openDatabase(t, path(t))
	d := identity.New(db, zap.NewNop(), identity.Settings{})
	_, err := d.CreateAccount(ctx, identity.NewAccount{Email: ada})
	must(t, err)
	_, session, err := d.Accept(ctx, invited(t, d, ada), password)
	must(t, err)
	token := invited(t, d, ada)
	for _, table := range []string{"invitations", "sessions"} {
		var left int64
		must(t, db.Read().QueryRow("SELECT min(expires_at) - 1000000 * CAST(strftime('%s') AS INTEGER) FROM "+table).Scan(&left))
		want := identity.InvitationLife
		if table == "sessions" {
			want = identity.SessionLife
		}
		if got := left - want.Microseconds(); got < -60e6 || got > 2e6 {
			t.Errorf("%s last %d µs more than they should", table, got)
		}
	}
	must(t, db.WriteGrouped(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "UPDATE invitations SET expires_at = 1; UPDATE sessions SET expires_at = 1")
		return err
	}))
	if _, err := d.Invitation(ctx, token); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("invitation: %v", err)
	}
	if _, err := d.Session(ctx, session); !errors.Is(err, identity.ErrNoSession) {
		t.Errorf("session: %v", err)
	}
	_, err = d.SignIn(ctx, ada, password, home)
	must(t, err)
	var rows int
	must(t, db.Read().QueryRow("SELECT count(*) FROM sessions").Scan(&rows))
	if rows != 1 {
		t.Errorf("%d sessions are kept", rows)
	}
}

func TestSessionsSurviveARestartAndEndTogether(t *testing.T) {
	ctx, file := t.Context(), path(t)
	db := openDatabase(t, file)
	d := identity.New(db, zap.NewNop(), identity.Settings{})
	_, err := d.CreateAccount(ctx, identity.NewAccount{Email: ada})
	must(t, err)
	must(t, d.SetPassword(ctx, ada, password))
	first, err := d.SignIn(ctx, ada, password, home)
	must(t, err)
	must(t, db.Close())

	d = identity.New(openDatabase(t, file), zap.NewNop(), identity.Settings{})
	second, err := d.SignIn(ctx, ada, password, home)
	must(t, err)
	third, err := d.SignIn(ctx, ada, password, home)
	must(t, err)
	must(t, d.SignOut(ctx, third))
	wantSessions(t, d, map[string]bool{first: true, second: true, third: false, "": false, strings.Repeat("x", 43): false})
	must(t, d.SignOutEverywhere(ctx, ada))
	wantSessions(t, d, map[string]bool{first: false, second: false})
}

func TestADisabledAccountAndANewPasswordSignOut(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	must(t, d.SetPassword(ctx, ada, password))
	session, err := d.SignIn(ctx, ada, password, home)
	must(t, err)
	must(t, d.SetPassword(ctx, ada, password+"!"))
	wantSessions(t, d, map[string]bool{session: false})
	session, err = d.SignIn(ctx, ada, password+"!", home)
	must(t, err)
	_, err = d.DisableAccount(ctx, ada)
	must(t, err)
	if _, err := d.SignIn(ctx, ada, password+"!", home); !errors.Is(err, identity.ErrAccountDisabled) {
		t.Errorf("disabled: %v", err)
	}
	_, err = d.EnableAccount(ctx, ada)
	must(t, err)
	wantSessions(t, d, map[string]bool{session: false})
}

func wantSessions(t *testing.T, d *identity.Directory, want map[string]bool) {
	t.Helper()
	for token, alive := range want {
		if _, err := d.Session(t.Context(), token); (err == nil) != alive {
			t.Errorf("session %q: %v", token, err)
		}
	}
}

func TestWhoIsNotThereIsRefusedLikeAWrongPassword(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	for _, email := range []string{ada, "nobody@example.org", "", strings.Repeat("x", 10000)} { // ada has no password yet
		if _, err := d.SignIn(ctx, email, password, home); !errors.Is(err, identity.ErrSignIn) {
			t.Errorf("%.20q: %v", email, err)
		}
	}
}

func TestAttemptsAreLimitedByAccountAndByAddress(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	must(t, d.SetPassword(ctx, ada, password))
	tooMany := func(email, word, address string) bool {
		_, err := d.SignIn(ctx, email, word, address)
		_, many := errors.AsType[*identity.TooManyError](err)
		return many
	}
	for i := range 9 {
		tooMany(ada, "wrong", fmt.Sprintf("192.0.2.%d", i))
	}
	if tooMany(ada, password, "192.0.2.100") {
		t.Error("the right password is refused too early")
	}
	for i := range 10 {
		tooMany(strings.ToUpper(ada), "wrong", fmt.Sprintf("192.0.2.%d", i))
	}
	if !tooMany(ada, password, "198.51.100.1") {
		t.Error("an account is tried more than ten times, whatever the address")
	}
	for i := range 50 {
		tooMany(fmt.Sprintf("%d@example.org", i), "wrong", fmt.Sprintf("2001:db8::%x", i))
	}
	if !tooMany("bea@example.org", password, "2001:db8::ffff") {
		t.Error("a network tries more than fifty times, whatever the account")
	}
	if tooMany("bea@example.org", password, "2001:db8:0:1::1") {
		t.Error("its neighbour pays for it")
	}
}

func TestAttemptsAreForgottenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := identity.NewAttempts()
		for range identity.AttemptsPerAccount {
			must(t, a.Take(ada, home))
		}
		many, ok := errors.AsType[*identity.TooManyError](a.Take(ada, home))
		if !ok || many.RetryIn != identity.AttemptsWindow {
			t.Errorf("one too many: %v", many)
		}
		<-time.NewTimer(many.RetryIn).C
		must(t, a.Take(ada, home))
	})
}

func TestStrangersCannotFillTheMemoryWithAttempts(t *testing.T) {
	a := identity.NewAttempts()
	for range identity.AttemptsPerAccount {
		must(t, a.Take(ada, home))
	}
	for i := range 2 * identity.AttemptsKept {
		must(t, a.Take(fmt.Sprintf("%d@example.org", i), fmt.Sprintf("2001:db8:0:%x::", i)))
	}
	if a.Len() > identity.AttemptsKept+1 {
		t.Errorf("%d are remembered", a.Len())
	}
	if err := a.Take(ada, "192.0.2.2"); err == nil {
		t.Error("who is refused has been forgotten")
	}
}

func TestWhoWaitsToHashCanLeave(t *testing.T) {
	d := newDirectory(t)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	release := d.HoldHashing()
	defer release()
	if _, err := d.SignIn(ctx, ada, password, home); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAccessIsRequestedApprovedAndDeclined(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	must(t, d.RequestAccess(ctx, "bea@example.org", "Bea", "Interpretability"))
	must(t, d.RequestAccess(ctx, "BEA@example.org", "Eve", "again"))
	must(t, d.RequestAccess(ctx, ada, "Eve", "the account is active"))
	must(t, d.RequestAccess(ctx, "cyd@example.org", "", ""))
	for _, bad := range [][3]string{{"bea", "", ""}, {"d@example.org", strings.Repeat("x", 101), ""}, {"d@example.org", "", strings.Repeat("x", 2001)}} {
		if err := d.RequestAccess(ctx, bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
	open, err := d.AccessRequests(ctx)
	must(t, err)
	if len(open) != 2 || open[0].Email != "bea@example.org" || open[0].Name != "Bea" || open[0].Purpose != "Interpretability" {
		t.Fatalf("open: %+v", open)
	}
	must(t, d.DeclineAccount(ctx, "cyd@example.org"))
	if _, err := d.Account(ctx, "cyd@example.org"); !errors.Is(err, identity.ErrNoAccount) {
		t.Errorf("after a decline: %v", err)
	}
	must(t, d.RequestAccess(ctx, "cyd@example.org", "", "please"))
	if err := d.DeclineAccount(ctx, ada); !errors.Is(err, identity.ErrNotPending) {
		t.Errorf("an active account: %v", err)
	}
	if _, _, err := d.Invite(ctx, "bea@example.org"); !errors.Is(err, identity.ErrAccountPending) {
		t.Errorf("an invitation before the approval: %v", err)
	}
	_, err = d.EnableAccount(ctx, "bea@example.org")
	must(t, err)
	invited(t, d, "bea@example.org")
	if open, err = d.AccessRequests(ctx); err != nil || len(open) != 1 {
		t.Errorf("open: %+v, %v", open, err)
	}
}

func TestTheAuditLogSaysWhoChangedWhat(t *testing.T) {
	ctx := t.Context()
	d := identity.New(openDatabase(t, path(t)), zap.NewNop(), identity.Settings{})
	_, err := d.CreateAccount(ctx, identity.NewAccount{Email: ada, Admin: true})
	must(t, err)
	ctx = identity.WithActor(ctx, "boss@example.org")
	k, secret, err := d.CreateKey(ctx, identity.NewKey{Email: ada, Name: "laptop"})
	must(t, err)
	_, err = d.PauseKey(ctx, k.ID)
	must(t, err)
	_, err = d.PauseKey(ctx, k.ID) // changes nothing
	must(t, err)
	_, err = d.SetKey(ctx, k.ID, func(f *identity.KeyFields) { f.Caps.MonthTotal, f.Concurrency = quota.Limit(1000), 4 })
	must(t, err)
	_, err = d.RevokeKey(ctx, k.ID)
	must(t, err)
	if _, err := d.ResumeKey(ctx, k.ID); err == nil {
		t.Error("a revoked key is resumed")
	}
	_, err = d.SetAccount(ctx, ada, func(f *identity.AccountFields) { f.Caps.DayTotal = quota.Limit(5) })
	must(t, err)
	_, err = d.DisableAccount(ctx, ada)
	must(t, err)
	log, err := d.Changes(ctx, 100)
	must(t, err)
	var got []string
	for _, c := range log {
		subject := strings.ReplaceAll(c.Subject, k.ID, "KEY")
		got = append(got, fmt.Sprintf("%s: %s %s: %s", c.Actor, c.Action, subject, strings.ReplaceAll(c.Detail, k.Prefix, "PREFIX")))
		if strings.Contains(c.Detail+c.Subject, secret) {
			t.Errorf("the log has the secret: %+v", c)
		}
	}
	want := []string{
		"boss@example.org: disable account ada@example.org: ",
		"boss@example.org: change account ada@example.org: administrator, daily budget 5",
		"boss@example.org: revoke key KEY: laptop (PREFIX) of ada@example.org, monthly budget 1000, concurrency 4",
		"boss@example.org: change key KEY: laptop (PREFIX) of ada@example.org, monthly budget 1000, concurrency 4",
		"boss@example.org: pause key KEY: laptop (PREFIX) of ada@example.org, unbounded",
		"boss@example.org: create key KEY: laptop (PREFIX) of ada@example.org, unbounded",
		"command line: create account ada@example.org: administrator, unbounded",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheDatabaseHoldsNoPasswordAndNoToken(t *testing.T) {
	ctx := t.Context()
	db := openDatabase(t, path(t))
	d := identity.New(db, zap.NewNop(), identity.Settings{})
	_, err := d.CreateAccount(ctx, identity.NewAccount{Email: ada})
	must(t, err)
	_, session, err := d.Accept(ctx, invited(t, d, ada), password)
	must(t, err)
	invitation := invited(t, d, ada)
	var all string
	must(t, db.Read().QueryRow(`SELECT (SELECT hash FROM passwords) || (SELECT hex(token_hash) FROM sessions) || (SELECT hex(token_hash) FROM invitations)`).Scan(&all))
	if !strings.HasPrefix(all, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("the password's hash is %s", all)
	}
	for _, secret := range []string{password, session, invitation} {
		if strings.Contains(all, secret) || strings.Contains(all, fmt.Sprintf("%X", secret)) {
			t.Errorf("%q is there", secret)
		}
	}
}
