package identity_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/budget/quota"
	"basegate/identity"
)

func TestAuthenticateReturnsThePrincipalOfASecret(t *testing.T) {
	s := startStoreWithAda(t)
	key, secret, err := s.Keys.Create(t.Context(), identity.Key{Email: "ADA@example.org", Name: "laptop", Concurrency: 3})
	must(t, err)
	got, err := s.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	want := identity.Principal{
		KeyID: key.ID, KeyPrefix: secret[:13], KeyName: "laptop", AccountID: key.AccountID, Email: ada,
		Concurrency: 3, ConcurrencyByOperator: true, GrantedConcurrency: 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("principal (-want +got):\n%s", diff)
	}
}

func TestAuthenticateRefusesWhatIsNoKey(t *testing.T) {
	s := startStoreWithAda(t)
	_, secret := createKey(t, s, "laptop")
	last := secret[len(secret)-1]
	other := map[bool]string{true: "a", false: "b"}[last != 'a']
	for given, want := range map[string]error{
		"":                                  identity.ErrKeyMissing,
		"secret":                            identity.ErrKeyMalformed,
		secret + "x":                        identity.ErrKeyMalformed,
		secret[:len(secret)-1]:              identity.ErrKeyMalformed,
		secret[:len(secret)-1] + "-":        identity.ErrKeyMalformed,
		"sk-" + secret[3:]:                  identity.ErrKeyMalformed,
		secret[:14] + "…":                   identity.ErrKeyShortened,
		secret[:14] + "...":                 identity.ErrKeyShortened,
		strings.Repeat("é", 25):             identity.ErrKeyMalformed,
		secret[:len(secret)-1] + other:      identity.ErrKeyUnknown,
		"acs-bm-" + strings.Repeat("0", 43): identity.ErrKeyUnknown,
	} {
		if got, err := s.Keys.Authenticate(t.Context(), given); !errors.Is(err, want) || got != (identity.Principal{}) {
			t.Errorf("%q: got %v, %v; want no principal, %v", given, got, err, want)
		}
	}
}

func TestChangedStateIsInForceAtOnce(t *testing.T) {
	s := startStoreWithAda(t)
	ctx := t.Context()
	key, secret := createKey(t, s, "laptop")
	_, otherSecret := createKey(t, s, "cluster")
	onKey := func(change func(context.Context, string) (identity.Key, error), ref string) func() error {
		return func() error { _, err := change(ctx, ref); return err }
	}
	onAccount := func(change func(context.Context, string) (identity.Account, error), email string) func() error {
		return func() error { _, err := change(ctx, email); return err }
	}
	for _, step := range []struct {
		name   string
		change func() error
		want   error
	}{
		{"pause", onKey(s.Keys.Pause, key.ID), identity.ErrKeyPaused},
		{"pause again", onKey(s.Keys.Pause, key.Prefix), identity.ErrKeyPaused},
		{"resume", onKey(s.Keys.Resume, key.Prefix), nil},
		{"resume again", onKey(s.Keys.Resume, key.ID), nil},
		{"disable account", onAccount(s.Accounts.Disable, "Ada@Example.org"), identity.ErrAccountDisabled},
		{"pause in a disabled account", onKey(s.Keys.Pause, key.ID), identity.ErrKeyPaused},
		{"enable account", onAccount(s.Accounts.Enable, ada), identity.ErrKeyPaused},
		{"resume in the enabled account", onKey(s.Keys.Resume, key.ID), nil},
		{"revoke", onKey(s.Keys.Revoke, secret), identity.ErrKeyRevoked},
		{"revoke again", onKey(s.Keys.Revoke, key.ID), identity.ErrKeyRevoked},
	} {
		must(t, step.change())
		got, err := s.Keys.Authenticate(t.Context(), secret)
		if !errors.Is(err, step.want) {
			t.Errorf("after %s: got error %v, want %v", step.name, err, step.want)
		}
		if got.KeyID != key.ID || got.Email != ada {
			t.Errorf("after %s: got principal %+v, want key %s of %s, for the log", step.name, got, key.ID, ada)
		}
	}
	if _, err := s.Keys.Authenticate(t.Context(), otherSecret); err != nil {
		t.Errorf("the other key: got error %v, want none", err)
	}
}

func TestAuthenticateAllocatesNothing(t *testing.T) {
	s := slowPolls(t, newPath(t)) // a poll allocates
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	_, secret := createKey(t, s, "laptop")
	all := quota.Caps{quota.MonthTotal: quota.Limit(4), quota.DayTotal: quota.Limit(3), quota.MonthInput: quota.Limit(2), quota.MonthOutput: quota.Limit(1)}
	_, capped, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "capped", Caps: all})
	must(t, err)
	for name, given := range map[string]string{"known": secret, "capped": capped, "unknown": "acs-bm-" + strings.Repeat("0", 43), "malformed": "x"} {
		if n := testing.AllocsPerRun(100, func() { _, _ = s.Keys.Authenticate(t.Context(), given) }); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	s := startStoreWithAda(b)
	_, secret := createKey(b, s, "laptop")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Keys.Authenticate(b.Context(), secret); err != nil {
			b.Fatal(err)
		}
	}
}
