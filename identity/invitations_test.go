package identity_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"basegate/identity"
)

func TestInvitationSetsThePasswordOnceAndSignsIn(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	token := invite(t, s, ada)
	if a, err := s.Sessions.InvitedAccount(ctx, token); err != nil || a.Email != ada {
		t.Errorf("invited account: got %q, error %v; want %s", a.Email, err, ada)
	}
	for _, bad := range []string{"short", ada, strings.Repeat("x", 201), "not text \xff\xfe"} {
		if _, err := s.Sessions.AcceptInvitation(ctx, token, bad); !errors.Is(err, identity.ErrBadPassword) {
			t.Errorf("accept with password %q: got error %v, want %v", bad, err, identity.ErrBadPassword)
		}
	}
	tokens, err := s.Sessions.AcceptInvitation(ctx, token, password)
	must(t, err)
	if a, err := s.Sessions.Account(ctx, tokens.Session); err != nil || a.Email != ada {
		t.Errorf("account of the session: got %q, error %v; want %s", a.Email, err, ada)
	}
	if _, err := s.Sessions.AcceptInvitation(ctx, token, password); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("accept a used invitation: got error %v, want %v", err, identity.ErrNoInvitation)
	}
	if _, err := s.Sessions.InvitedAccount(ctx, token); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("account of a used invitation: got error %v, want %v", err, identity.ErrNoInvitation)
	}
	_, err = signIn(ctx, s, strings.ToUpper(ada), password)
	must(t, err)
}

func TestConcurrentCallsAcceptAnInvitationOnce(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	token := invite(t, s, ada)
	var calls sync.WaitGroup
	results := make(chan error, 4)
	for i := range cap(results) {
		calls.Go(func() {
			_, err := s.Sessions.AcceptInvitation(ctx, token, fmt.Sprint(password, i))
			results <- err
		})
	}
	calls.Wait()
	accepted := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			accepted++
		case !errors.Is(err, identity.ErrNoInvitation):
			t.Error(err)
		}
	}
	if accepted != 1 {
		t.Errorf("the invitation was accepted %d times, want once", accepted)
	}
}

func TestNewInvitationReplacesTheEarlierOne(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	first, second := invite(t, s, ada), invite(t, s, ada)
	if _, err := s.Sessions.AcceptInvitation(ctx, first, password); !errors.Is(err, identity.ErrNoInvitation) {
		t.Errorf("accept the replaced invitation: got error %v, want %v", err, identity.ErrNoInvitation)
	}
	_, err := s.Sessions.AcceptInvitation(ctx, second, password)
	must(t, err)
}

func TestInvitationCreatesAMissingAccount(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	_, err := s.Sessions.AcceptInvitation(ctx, invite(t, s, "new@example.org"), password)
	must(t, err)
	a, err := s.Accounts.Find(ctx, "new@example.org")
	must(t, err)
	if a.State != identity.AccountActive || a.Admin {
		t.Errorf("got account %+v, want an active one without administrator rights", a)
	}
	if _, _, err := s.Accounts.Invite(ctx, "nobody"); !errors.Is(err, identity.ErrBadEmail) {
		t.Errorf("invite an invalid address: got error %v, want %v", err, identity.ErrBadEmail)
	}
	_, err = s.Accounts.Disable(ctx, ada)
	must(t, err)
	if _, _, err := s.Accounts.Invite(ctx, ada); !errors.Is(err, identity.ErrAccountDisabled) {
		t.Errorf("invite a disabled account: got error %v, want %v", err, identity.ErrAccountDisabled)
	}
}
