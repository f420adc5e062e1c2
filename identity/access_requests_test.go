package identity_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"basegate/database"
	"basegate/identity"
)

// request returns a request for access.
func request(email, name, purpose string) identity.AccessRequest {
	return identity.AccessRequest{Email: email, Name: name, Purpose: purpose, Network: "192.0.2.0/24"}
}

// openRequests returns the open requests.
func openRequests(t *testing.T, s *identity.Store) []identity.AccessRequest {
	t.Helper()
	oldest, open, err := s.Accounts.AccessRequests(t.Context(), 2*identity.MaxAccessRequests)
	must(t, err)
	if open != len(oldest) {
		t.Errorf("got %d requests and a number of %d", len(oldest), open)
	}
	return oldest
}

func TestAccessIsRequestedApprovedAndDeclined(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	must(t, s.Accounts.RequestAccess(ctx, request("bea@example.org", "Bea", "Interpretability")))
	must(t, s.Accounts.RequestAccess(ctx, request("BEA@example.org", "Eve", "again")))
	must(t, s.Accounts.RequestAccess(ctx, request(ada, "Eve", "the account is active")))
	must(t, s.Accounts.RequestAccess(ctx, request("cyd@example.org", "", "")))
	for _, bad := range [][3]string{{"bea", "", ""}, {"d@example.org", strings.Repeat("x", 101), ""}, {"d@example.org", "", strings.Repeat("x", 2001)}} {
		if err := s.Accounts.RequestAccess(ctx, request(bad[0], bad[1], bad[2])); err == nil {
			t.Errorf("invalid request %.20q: got no error", bad)
		}
	}
	open := openRequests(t, s)
	if len(open) != 2 || open[0].Email != "bea@example.org" || open[0].Name != "Bea" || open[0].Purpose != "Interpretability" {
		t.Fatalf("got requests %+v, want the first one of bea@example.org and the one of cyd@example.org", open)
	}
	must(t, s.Accounts.Decline(ctx, "cyd@example.org"))
	if _, err := s.Accounts.Find(ctx, "cyd@example.org"); !errors.Is(err, identity.ErrNoAccount) {
		t.Errorf("find a declined account: got error %v, want %v", err, identity.ErrNoAccount)
	}
	must(t, s.Accounts.RequestAccess(ctx, request("cyd@example.org", "", "please")))
	if err := s.Accounts.Decline(ctx, ada); !errors.Is(err, identity.ErrNotPending) {
		t.Errorf("decline an active account: got error %v, want %v", err, identity.ErrNotPending)
	}
	if _, _, err := s.Accounts.Invite(ctx, "bea@example.org"); !errors.Is(err, identity.ErrAccountPending) {
		t.Errorf("invite before the approval: got error %v, want %v", err, identity.ErrAccountPending)
	}
	_, err := s.Accounts.Enable(ctx, "bea@example.org")
	must(t, err)
	invite(t, s, "bea@example.org")
	if open = openRequests(t, s); len(open) != 1 {
		t.Errorf("after the approval: got requests %+v, want one", open)
	}
}

func TestRequestAccessReturnsADatabaseError(t *testing.T) {
	ctx, db := t.Context(), openDatabase(t, newPath(t))
	must(t, db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ALTER TABLE accounts RENAME TO away")
		return err
	}))
	err := newStore(db).Accounts.RequestAccess(ctx, request(ada, "Ada", "Interpretability"))
	if err == nil || errors.Is(err, identity.ErrTooManyAccessRequests) {
		t.Errorf("got error %v, want the database's", err)
	}
}

// A client with one network cannot fill the queue, and when many have filled it, the oldest requests stay.
func TestOpenRequestsAreLimitedByNetworkAndTogether(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	ctx, s := t.Context(), startStoreWithAda(t)
	send := func(i int, network string) error {
		r := identity.AccessRequest{Email: fmt.Sprintf("%d@example.org", i), Name: "N", Purpose: "P", Network: network}
		return s.Accounts.RequestAccess(ctx, r)
	}
	for i := range 2 * identity.MaxRequestsPerNetwork {
		err := send(i, "192.0.2.0/24")
		if i < identity.MaxRequestsPerNetwork {
			must(t, err)
		} else if !errors.Is(err, identity.ErrTooManyFromNetwork) {
			t.Fatalf("request %d of the network: got error %v, want %v", i+1, err, identity.ErrTooManyFromNetwork)
		}
	}
	for i := identity.MaxRequestsPerNetwork; i < identity.MaxAccessRequests; i++ {
		must(t, send(i, fmt.Sprintf("network %d", i/identity.MaxRequestsPerNetwork)))
	}
	if err := send(2000, "another network"); !errors.Is(err, identity.ErrTooManyAccessRequests) {
		t.Errorf("a request to a full queue: got error %v, want %v", err, identity.ErrTooManyAccessRequests)
	}
	for _, network := range []string{"another network", "192.0.2.0/24"} { // both answer as for an unknown address
		r := identity.AccessRequest{Email: ada, Network: network}
		if err := s.Accounts.RequestAccess(ctx, r); err == nil {
			t.Errorf("a request from %s for an account that exists: got no error, which reveals the account", network)
		}
	}
	open := openRequests(t, s)
	if len(open) != identity.MaxAccessRequests || open[0].Email != "0@example.org" || open[0].Network != "192.0.2.0/24" {
		t.Errorf("got %d requests, the first %+v; want %d, the first the oldest", len(open), open[0], identity.MaxAccessRequests)
	}
	oldest, number, err := s.Accounts.AccessRequests(ctx, 3)
	must(t, err)
	if len(oldest) != 3 || number != identity.MaxAccessRequests {
		t.Errorf("got %d of %d requests, want 3 of %d", len(oldest), number, identity.MaxAccessRequests)
	}

	must(t, s.Accounts.Decline(ctx, "0@example.org"))
	must(t, send(0, "192.0.2.0/24"))
}

func TestApprovalForgetsTheNetwork(t *testing.T) {
	ctx, db := t.Context(), openDatabase(t, newPath(t))
	s := newStore(db)
	must(t, s.Accounts.RequestAccess(ctx, request("bea@example.org", "Bea", "poems")))
	_, err := s.Accounts.Enable(ctx, "bea@example.org")
	must(t, err)
	var rows int
	must(t, db.Read().QueryRow("SELECT count(*) FROM access_requests").Scan(&rows))
	if rows != 0 {
		t.Errorf("got %d requests in the database, want none", rows)
	}
}
