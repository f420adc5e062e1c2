package identity_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/identity"
	"basegate/quota"
)

func TestAuditLogRecordsActorAndChange(t *testing.T) {
	ctx := t.Context()
	s := newStore(openDatabase(t, newPath(t)))
	_, err := s.Accounts.Create(ctx, identity.NewAccount{Email: ada, Admin: true})
	must(t, err)
	ctx = identity.WithActor(ctx, identity.Account{ID: "acc_boss", Email: "boss@example.org", Admin: true})
	k, secret, err := s.Keys.Create(ctx, identity.NewKey{Email: ada, Name: "laptop"})
	must(t, err)
	_, err = s.Keys.Pause(ctx, k.ID)
	must(t, err)
	_, err = s.Keys.Pause(ctx, k.ID) // changes nothing
	must(t, err)
	_, err = s.Keys.Set(ctx, k.ID, func(f *identity.KeyFields) { f.Caps.MonthTotal, f.Concurrency = quota.Limit(1000), 4 })
	must(t, err)
	_, err = s.Keys.Revoke(ctx, k.ID)
	must(t, err)
	if _, err := s.Keys.Resume(ctx, k.ID); err == nil {
		t.Error("resume a revoked key: got no error")
	}
	_, err = s.Accounts.Set(ctx, ada, func(f *identity.AccountFields) { f.Caps.DayTotal = quota.Limit(5) })
	must(t, err)
	_, err = s.Accounts.Disable(ctx, ada)
	must(t, err)
	entries, err := s.AuditLog.List(ctx, 100)
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
