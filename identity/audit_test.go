package identity_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget/quota"
	"basegate/database"
	"basegate/identity"
)

func TestAuditLogRecordsActorAndChange(t *testing.T) {
	ctx := t.Context()
	s := newStore(openDatabase(t, newPath(t)))
	_, err := s.Accounts.Create(ctx, identity.Account{Email: ada, Admin: true})
	must(t, err)
	ctx = identity.WithActor(ctx, identity.Account{ID: "acc_boss", Email: "boss@example.org", Admin: true})
	k, secret, err := s.Keys.Create(ctx, identity.Key{Email: ada, Name: "laptop"})
	must(t, err)
	_, err = s.Keys.Pause(ctx, k.ID)
	must(t, err)
	_, err = s.Keys.Pause(ctx, k.ID) // changes nothing
	must(t, err)
	_, err = s.Keys.Set(ctx, k.ID, func(f *identity.Key) { f.Caps[quota.MonthTotal], f.Concurrency = quota.Limit(1000), 4 })
	must(t, err)
	_, err = s.Keys.Revoke(ctx, k.ID)
	must(t, err)
	if _, err := s.Keys.Resume(ctx, k.ID); err == nil {
		t.Error("resume a revoked key: got no error")
	}
	_, err = s.Accounts.Set(ctx, ada, func(f *identity.Account) { f.Caps[quota.DayTotal] = quota.Limit(5) })
	must(t, err)
	_, err = s.Accounts.Disable(ctx, ada)
	must(t, err)
	entries, _, err := s.AuditLog.Find(ctx, identity.AuditFilter{}, "", 100)
	must(t, err)
	var got []string
	for _, e := range entries {
		subject := strings.ReplaceAll(e.Subject, k.ID, "KEY")
		got = append(got, fmt.Sprintf("%s: %s %s: %s", e.Actor, e.Action, subject, strings.ReplaceAll(e.Detail, k.Prefix, "PREFIX")))
		if strings.Contains(e.Detail+e.Subject, secret) {
			t.Errorf("the entry contains the secret: %+v", e)
		}
	}
	want := []string{
		"boss@example.org: disable account ada@example.org: active → disabled",
		"boss@example.org: change account ada@example.org: daily budget unbounded → 5",
		"boss@example.org: revoke key KEY: laptop (PREFIX) of ada@example.org: paused by the operator → revoked",
		"boss@example.org: change key KEY: laptop (PREFIX) of ada@example.org: monthly budget unbounded → 1000, " +
			"concurrency default → 4, limits of the operator: none → monthly budget 1000, concurrency 4",
		"boss@example.org: pause key KEY: laptop (PREFIX) of ada@example.org: active → paused by the operator",
		"boss@example.org: create key KEY: laptop (PREFIX) of ada@example.org, unbounded",
		"command line: create account ada@example.org: administrator, unbounded",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// signInEntries returns the entries of sign-ins, the oldest first.
func signInEntries(t *testing.T, s *identity.Store) (all []string) {
	t.Helper()
	entries, _, err := s.AuditLog.Find(t.Context(), identity.AuditFilter{Search: "from "}, "", 1000)
	must(t, err)
	for _, e := range slices.Backward(entries) {
		all = append(all, fmt.Sprintf("%s: %s %s: %s", e.Actor, e.Action, e.Subject, e.Detail))
	}
	return all
}

func TestAuditLogHasSignInsAndFailures(t *testing.T) {
	ctx, s := t.Context(), startStoreWithPassword(t)
	for range 2 {
		_, err := signIn(ctx, s, strings.ToUpper(ada), password)
		must(t, err)
	}
	for _, email := range []string{ada, "my-password", "eve@example.org"} {
		if _, err := signIn(ctx, s, email, "wrong"); !errors.Is(err, identity.ErrBadCredentials) {
			t.Fatalf("%s: got error %v, want %v", email, err, identity.ErrBadCredentials)
		}
	}
	_, err := s.Sessions.SignInFromProvider(ctx, identity.ProviderUser{Email: ada, Address: "198.51.100.7"})
	must(t, err)
	if _, err := s.Sessions.SignInFromProvider(ctx, identity.ProviderUser{Email: "bob@example.org"}); !errors.Is(err, identity.ErrNoAccount) {
		t.Errorf("an unknown user of the provider: got error %v, want %v", err, identity.ErrNoAccount)
	}
	want := []string{
		"ada@example.org: sign in ada@example.org: from 192.0.2.0/24",
		"not signed in: failed sign-in ada@example.org: from 192.0.2.0/24: the e-mail address or the password is wrong",
		"not signed in: failed sign-in an unknown address: from 192.0.2.0/24: the e-mail address or the password is wrong",
		"ada@example.org: sign in ada@example.org: from 198.51.100.0/24, by the identity provider",
	}
	if diff := cmp.Diff(want, signInEntries(t, s)); diff != "" {
		t.Errorf("entries of sign-ins (-want +got):\n%s", diff)
	}
}

// Guesses at passwords from many networks, and a script that signs in, leave an entry an hour each, for 90 days.
func TestSignInsDoNotFillTheAuditLog(t *testing.T) {
	db := openDatabase(t, newPath(t))
	ctx, s := t.Context(), newStore(db)
	_, err := s.Accounts.Create(ctx, identity.Account{Email: ada})
	must(t, err)
	must(t, s.Sessions.SetPassword(ctx, ada, password))
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{0, 3}, {0, 3}, {2 * time.Hour, 6}, {91 * 24 * time.Hour, 3}} {
		for text, args := range map[string][]any{`UPDATE audit SET time = time - $1`: {c.later.Microseconds()}, `DELETE FROM sign_in_failures`: nil} {
			must(t, db.WriteExclusive(ctx, func(tx database.Tx) error { return database.Exec(ctx, tx, text, args...) }))
		}
		for i := range 10 {
			from := identity.Credentials{Email: ada, Password: password, Address: address}
			if i > 0 {
				from.Password, from.Address = "wrong", fmt.Sprintf("198.51.%d.1", i)
			}
			_, _ = s.Sessions.SignIn(ctx, from)
			from.Email = fmt.Sprintf("%d@example.org", i)
			_, _ = s.Sessions.SignIn(ctx, from)
		}
		if got := signInEntries(t, s); len(got) != c.want {
			t.Errorf("%v later: got %d entries, want %d: %q", c.later, len(got), c.want, got)
		}
	}
}

func TestAuditLogIsFilteredAndPaged(t *testing.T) {
	s := newStore(openDatabase(t, newPath(t)))
	ctx := identity.WithActor(t.Context(), identity.Account{ID: "acc_boss", Email: "boss@example.org", Admin: true})
	for i := range 25 {
		action := "warm model"
		if i%5 == 0 {
			action = "stop model"
		}
		must(t, s.AuditLog.Record(ctx, action, fmt.Sprintf("model_%d", i), "100% done"))
	}
	find := func(f identity.AuditFilter, after string) (subjects []string, next string) {
		t.Helper()
		entries, next, err := s.AuditLog.Find(t.Context(), f, after, 10)
		must(t, err)
		for _, e := range entries {
			subjects = append(subjects, e.Subject)
		}
		return subjects, next
	}
	var all []string
	page, next := find(identity.AuditFilter{}, "")
	for all = page; next != ""; all = append(all, page...) {
		page, next = find(identity.AuditFilter{}, next)
	}
	unique := map[string]bool{}
	for _, subject := range all {
		unique[subject] = true
	}
	if len(all) != 25 || len(unique) != 25 {
		t.Errorf("got %q, want 25 entries, each once", all)
	}
	for _, c := range []struct {
		filter identity.AuditFilter
		want   int
	}{
		{identity.AuditFilter{Action: "stop model"}, 5},
		{identity.AuditFilter{Search: "BOSS", Action: "stop model"}, 5},
		{identity.AuditFilter{Search: "model_7"}, 1},
		{identity.AuditFilter{Search: "l_7"}, 1},
		{identity.AuditFilter{Search: "model%7"}, 0}, // no wildcard
		{identity.AuditFilter{Search: "100%"}, 10},
		{identity.AuditFilter{Since: time.Now().Add(time.Hour)}, 0},
		{identity.AuditFilter{Until: time.Now().Add(time.Hour)}, 10},
	} {
		if got, _ := find(c.filter, ""); len(got) != c.want {
			t.Errorf("%+v: got %q, want %d", c.filter, got, c.want)
		}
	}
	if got, _ := find(identity.AuditFilter{}, "yesterday"); len(got) != 0 {
		t.Errorf("after an entry that does not exist: got %q, want none", got)
	}
	actions, err := s.AuditLog.Actions(t.Context())
	must(t, err)
	if diff := cmp.Diff([]string{"stop model", "warm model"}, actions); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}
