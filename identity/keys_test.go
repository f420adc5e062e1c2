package identity_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/identity"
)

func TestKeysAreStoredAsCreated(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	first, _ := createKey(t, s, "laptop")
	second, secret, err := s.Keys.Create(ctx, identity.Key{Email: ada, Name: "klíč č. 2", Concurrency: 16})
	must(t, err)
	if !regexp.MustCompile(`^key_[0-9A-Za-z]{13}$`).MatchString(second.ID) {
		t.Errorf("got id %q, want key_ and 13 characters", second.ID)
	}
	want := identity.Key{
		ID: second.ID, AccountID: first.AccountID, Email: ada, Name: "klíč č. 2", Prefix: secret[:13],
		State: identity.KeyActive, Concurrency: 16, CreatedAt: second.CreatedAt,
		Operator: identity.Limits{Concurrency: 16}, // created without signing in
	}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("key (-want +got):\n%s", diff)
	}
	all, err := s.Keys.List(ctx)
	must(t, err)
	if diff := cmp.Diff([]identity.Key{first, second}, all); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	for _, ref := range []string{second.ID, second.Prefix, secret, secret[:12]} {
		got, err := s.Keys.Find(ctx, ref)
		if err != nil || got != second {
			t.Errorf("find %s: got %+v, error %v; want %+v", ref, got, err, second)
		}
	}
}

func TestInvalidOperationsOnKeysAreRefused(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	key, _ := createKey(t, s, "laptop")
	revoked, _ := createKey(t, s, "gone")
	_, err := s.Keys.Revoke(ctx, revoked.ID)
	must(t, err)
	for _, n := range []identity.Account{{Email: "off@example.org", State: identity.AccountDisabled}, {Email: "new@example.org", State: identity.AccountPending}} {
		_, err := s.Accounts.Create(ctx, n)
		must(t, err)
	}
	create := func(email, name string, concurrency int) error {
		_, secret, err := s.Keys.Create(ctx, identity.Key{Email: email, Name: name, Concurrency: concurrency})
		if secret != "" {
			t.Errorf("create key %q of %s: got a secret with error %v", name, email, err)
		}
		return err
	}
	apply := func(change func(context.Context, string) (identity.Key, error), ref string) error {
		_, err := change(ctx, ref)
		return err
	}
	for name, c := range map[string]struct{ got, want error }{
		"create for an unknown account":      {create("nobody@example.org", "laptop", 0), identity.ErrNoAccount},
		"create for a disabled account":      {create("off@example.org", "laptop", 0), identity.ErrAccountDisabled},
		"create for a pending account":       {create("new@example.org", "laptop", 0), identity.ErrAccountPending},
		"create without a name":              {create(ada, " ", 0), identity.ErrBadName},
		"create with a too long name":        {create(ada, strings.Repeat("x", 101), 0), identity.ErrBadName},
		"create with a negative concurrency": {create(ada, "laptop", -1), identity.ErrBadConcurrency},
		"pause an unknown id":                {apply(s.Keys.Pause, "key_0000000000000"), identity.ErrNoKey},
		"pause an empty ref":                 {apply(s.Keys.Pause, ""), identity.ErrNoKey},
		"pause the tag of all secrets":       {apply(s.Keys.Pause, "acs-bm-"), identity.ErrNoKey},
		"pause an unknown secret":            {apply(s.Keys.Pause, "acs-bm-"+strings.Repeat("0", 43)), identity.ErrNoKey},
		"resume a revoked key":               {apply(s.Keys.Resume, revoked.ID), identity.ErrKeyRevoked},
		"pause a revoked key":                {apply(s.Keys.Pause, revoked.Prefix), identity.ErrKeyRevoked},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got error %v, want %v", name, c.got, c.want)
		}
	}
	if got, err := s.Keys.Find(ctx, key.ID); err != nil || got != key {
		t.Errorf("the other key: got %+v, error %v; want it unchanged: %+v", got, err, key)
	}
}

// A live key of an account is the only one of its name, so that it can be named by it.
func TestLiveKeysOfAnAccountHaveDifferentNames(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	laptop, _ := createKey(t, s, "laptop")
	phone, _ := createKey(t, s, "phone")
	again := func() error {
		_, _, err := s.Keys.Create(ctx, identity.Key{Email: ada, Name: "laptop"})
		return err
	}
	rename := func(id, name string) error {
		_, err := s.Keys.Set(ctx, id, func(k *identity.Key) { k.Name = name })
		return err
	}
	wantError(t, again(), identity.ErrNameTaken, "laptop", laptop.ID)
	wantError(t, rename(phone.ID, "laptop"), identity.ErrNameTaken, "laptop", laptop.ID)
	must(t, rename(phone.ID, "phone"))
	must(t, rename(phone.ID, "Laptop")) // as different as any other name
	_, err := s.Accounts.Create(ctx, identity.Account{Email: "eve@example.org"})
	must(t, err)
	_, _, err = s.Keys.Create(ctx, identity.Key{Email: "eve@example.org", Name: "laptop"})
	must(t, err)
	must(t, rename(laptop.ID, "old laptop"))
	must(t, again())

	expired, _ := createKey(t, s, "expired")
	_, err = s.Keys.Set(ctx, expired.ID, expire)
	must(t, err)
	if err := rename(phone.ID, "expired"); !errors.Is(err, identity.ErrNameTaken) { // another expiry makes it work again
		t.Errorf("the name of an expired key: got error %v, want %v", err, identity.ErrNameTaken)
	}
	_, err = s.Keys.Revoke(ctx, expired.ID)
	must(t, err)
	must(t, rename(phone.ID, "expired"))
	_, _, err = s.Keys.Create(ctx, identity.Key{Email: ada, Name: "late", ExpiresAt: time.Now().Add(-time.Minute)})
	wantError(t, err, identity.ErrPastExpiry)
}

func TestKeyIsFoundByANameThatOnlyOneHas(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	eve, err := s.Accounts.Create(ctx, identity.Account{Email: "eve@example.org"})
	must(t, err)
	first, _ := createKey(t, s, "laptop")
	find := func(name string, want identity.Key) {
		t.Helper()
		if got, err := s.Keys.Find(ctx, name); err != nil || got.ID != want.ID {
			t.Errorf("find %q: got %+v, error %v, want %s", name, got, err, want.ID)
		}
	}
	find("laptop", first)
	_, err = s.Keys.Revoke(ctx, "laptop")
	must(t, err)
	find("laptop", first) // also a revoked one
	second, _ := createKey(t, s, "laptop")
	find("laptop", second)
	_, err = s.Keys.Revoke(ctx, second.ID)
	must(t, err)
	_, err = s.Keys.Find(ctx, "laptop")
	wantError(t, err, identity.ErrAmbiguous, first.ID, second.ID)
	third, _ := createKey(t, s, "laptop")
	other, _, err := s.Keys.Create(ctx, identity.Key{Email: eve.Email, Name: "laptop"})
	must(t, err)
	_, err = s.Keys.Pause(ctx, "laptop")
	wantError(t, err, identity.ErrAmbiguous, third.ID, other.ID, eve.Email)
	own, err := s.Keys.Pause(identity.WithActor(ctx, eve), "laptop") // a user has its own keys only
	if err != nil || own.ID != other.ID {
		t.Errorf("a user names its own key: got %+v, error %v, want %s", own, err, other.ID)
	}

	// A name that looks like the id or the beginning of another key is not taken for it.
	for i, name := range []string{third.ID, third.Prefix} {
		_, err := s.Keys.Set(ctx, other.ID, func(k *identity.Key) { k.Name = name })
		must(t, err)
		if got, err := s.Keys.Find(ctx, name); err != nil || got.ID != third.ID {
			t.Errorf("%d: find %q: got %+v, error %v, want %s", i, name, got, err, third.ID)
		}
	}
}

func TestPrefixOfTwoKeysIsAmbiguous(t *testing.T) {
	ctx, db := t.Context(), openDatabase(t, newPath(t))
	s := startStore(t, db, zap.NewNop())
	_, err := s.Accounts.Create(ctx, identity.Account{Email: ada})
	must(t, err)
	one, _ := createKey(t, s, "one")
	two, _ := createKey(t, s, "two")
	must(t, db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "UPDATE keys SET prefix = 'acs-bm-abcdef'")
		return err
	}))
	_, err = s.Keys.Pause(ctx, "acs-bm-abcdef")
	if !errors.Is(err, identity.ErrAmbiguous) || !strings.Contains(err.Error(), one.ID) || !strings.Contains(err.Error(), two.ID) {
		t.Errorf("got error %v, want %v with both ids", err, identity.ErrAmbiguous)
	}
	if _, err := s.Keys.Pause(ctx, one.ID); err != nil {
		t.Errorf("pause by id: got error %v, want none", err)
	}
}

// Lists show an ellipsis after the prefix, and users copy it with the prefix.
func TestKeyIsFoundByAPrefixWithAnEllipsis(t *testing.T) {
	s := startStoreWithAda(t)
	key, _ := createKey(t, s, "laptop")
	for _, ref := range []string{key.ID, key.Prefix, key.Prefix + "…", key.Prefix[:10] + "…"} {
		if got, err := s.Keys.Find(t.Context(), ref); err != nil || got.ID != key.ID {
			t.Errorf("find %s: got %+v, error %v; want %s", ref, got, err, key.ID)
		}
	}
	for _, ref := range []string{"…", "acs-bm-…", key.Prefix + "……"} {
		if _, err := s.Keys.Find(t.Context(), ref); !errors.Is(err, identity.ErrNoKey) {
			t.Errorf("find %s: got error %v, want %v", ref, err, identity.ErrNoKey)
		}
	}
}
