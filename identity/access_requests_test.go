package identity_test

import (
	"errors"
	"strings"
	"testing"

	"basegate/database"
	"basegate/identity"
)

func TestAccessIsRequestedApprovedAndDeclined(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	must(t, s.Accounts.RequestAccess(ctx, "bea@example.org", "Bea", "Interpretability"))
	must(t, s.Accounts.RequestAccess(ctx, "BEA@example.org", "Eve", "again"))
	must(t, s.Accounts.RequestAccess(ctx, ada, "Eve", "the account is active"))
	must(t, s.Accounts.RequestAccess(ctx, "cyd@example.org", "", ""))
	for _, bad := range [][3]string{{"bea", "", ""}, {"d@example.org", strings.Repeat("x", 101), ""}, {"d@example.org", "", strings.Repeat("x", 2001)}} {
		if err := s.Accounts.RequestAccess(ctx, bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("invalid request %.20q: got no error", bad)
		}
	}
	open, err := s.Accounts.AccessRequests(ctx)
	must(t, err)
	if len(open) != 2 || open[0].Email != "bea@example.org" || open[0].Name != "Bea" || open[0].Purpose != "Interpretability" {
		t.Fatalf("got requests %+v, want the first one of bea@example.org and the one of cyd@example.org", open)
	}
	must(t, s.Accounts.Decline(ctx, "cyd@example.org"))
	if _, err := s.Accounts.Find(ctx, "cyd@example.org"); !errors.Is(err, identity.ErrNoAccount) {
		t.Errorf("find a declined account: got error %v, want %v", err, identity.ErrNoAccount)
	}
	must(t, s.Accounts.RequestAccess(ctx, "cyd@example.org", "", "please"))
	if err := s.Accounts.Decline(ctx, ada); !errors.Is(err, identity.ErrNotPending) {
		t.Errorf("decline an active account: got error %v, want %v", err, identity.ErrNotPending)
	}
	if _, _, err := s.Accounts.Invite(ctx, "bea@example.org"); !errors.Is(err, identity.ErrAccountPending) {
		t.Errorf("invite before the approval: got error %v, want %v", err, identity.ErrAccountPending)
	}
	_, err = s.Accounts.Enable(ctx, "bea@example.org")
	must(t, err)
	invite(t, s, "bea@example.org")
	if open, err = s.Accounts.AccessRequests(ctx); err != nil || len(open) != 1 {
		t.Errorf("after the approval: got requests %+v, error %v; want one", open, err)
	}
}

func TestRequestAccessReturnsADatabaseError(t *testing.T) {
	ctx, db := t.Context(), openDatabase(t, newPath(t))
	must(t, db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ALTER TABLE accounts RENAME TO away")
		return err
	}))
	err := newStore(db).Accounts.RequestAccess(ctx, ada, "Ada", "Interpretability")
	if err == nil || errors.Is(err, identity.ErrTooManyAccessRequests) {
		t.Errorf("got error %v, want the database's", err)
	}
}
