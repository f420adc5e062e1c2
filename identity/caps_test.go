package identity_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/identity"
)

func TestCapsAreStoredAsCreated(t *testing.T) {
	path := newPath(t)
	s := startStore(t, openDatabase(t, path), zap.NewNop())
	accountCaps := quota.Caps{quota.MonthTotal: quota.Limit(1000), quota.DayTotal: quota.Limit(0)}
	keyCaps := quota.Caps{quota.MonthInput: quota.Limit(5), quota.MonthOutput: quota.Limit(1 << 40)}
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada, Caps: accountCaps})
	must(t, err)
	key, secret, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k", Caps: keyCaps})
	must(t, err)
	reopened := startStore(t, openDatabase(t, path), zap.NewNop())
	account, err := reopened.Accounts.Find(t.Context(), ada)
	must(t, err)
	found, err := reopened.Keys.Find(t.Context(), key.ID)
	must(t, err)
	p, err := reopened.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	for _, c := range []struct{ got, want quota.Caps }{
		{account.Caps, accountCaps}, {found.Caps, keyCaps}, {p.AccountCaps, accountCaps}, {p.KeyCaps, keyCaps},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("caps (-want +got):\n%s", diff)
		}
	}
	if got, want := account.Caps.String(), "monthly budget 1000, daily budget 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSetChangesOnlyTheGivenFields(t *testing.T) {
	s := startStoreWithAda(t)
	key, secret, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k", Concurrency: 3, Caps: quota.Caps{quota.DayTotal: quota.Limit(7)}})
	must(t, err)
	_, err = s.Keys.Set(t.Context(), key.Prefix, func(f *identity.Key) { f.Caps[quota.MonthTotal] = quota.Limit(9) })
	must(t, err)
	_, err = s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Caps[quota.MonthInput] = quota.Limit(99) })
	must(t, err)
	p, err := s.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	if diff := cmp.Diff(quota.Caps{quota.MonthTotal: quota.Limit(9), quota.DayTotal: quota.Limit(7)}, p.KeyCaps); diff != "" || p.Concurrency != 3 || p.KeyName != "k" {
		t.Errorf("got %+v, want concurrency 3, name k and other key caps (-want +got):\n%s", p, diff)
	}
	if diff := cmp.Diff(quota.Caps{quota.MonthInput: quota.Limit(99)}, p.AccountCaps); diff != "" {
		t.Errorf("account caps (-want +got):\n%s", diff)
	}
	a, err := s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Admin, f.Caps = true, quota.Caps{} })
	must(t, err)
	if !a.Admin || a.Name != "Ada" || a.Caps != (quota.Caps{}) {
		t.Errorf("got account %+v, want an administrator named Ada without caps", a)
	}
}

func TestPrincipalKeepsItsCapsAfterAChange(t *testing.T) {
	s := startStoreWithAda(t)
	key, secret, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k", Caps: quota.Caps{quota.DayTotal: quota.Limit(7)}})
	must(t, err)
	before, err := s.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	_, err = s.Keys.Set(t.Context(), key.ID, func(f *identity.Key) { f.Caps[quota.DayTotal] = quota.Limit(8) })
	must(t, err)
	_, err = s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Caps[quota.MonthTotal] = quota.Limit(1) })
	must(t, err)
	if before.KeyCaps[quota.DayTotal] != quota.Limit(7) || key.Caps[quota.DayTotal] != quota.Limit(7) || before.AccountCaps[quota.MonthTotal].Bounded() {
		t.Errorf("before: got principal's key caps %s, key's caps %s, account caps %s; want daily budget 7 twice, and unbounded",
			before.KeyCaps, key.Caps, before.AccountCaps)
	}
	after, err := s.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	if after.KeyCaps[quota.DayTotal] != quota.Limit(8) || after.AccountCaps[quota.MonthTotal] != quota.Limit(1) {
		t.Errorf("after: got key caps %s, account caps %s; want daily budget 8, monthly budget 1", after.KeyCaps, after.AccountCaps)
	}
}

// setCap sets one cap, by its name in errors.
var setCap = map[string]func(*quota.Caps, quota.Cap){
	"monthly budget": func(c *quota.Caps, limit quota.Cap) { c[quota.MonthTotal] = limit },
	"daily budget":   func(c *quota.Caps, limit quota.Cap) { c[quota.DayTotal] = limit },
	"input budget":   func(c *quota.Caps, limit quota.Cap) { c[quota.MonthInput] = limit },
	"output budget":  func(c *quota.Caps, limit quota.Cap) { c[quota.MonthOutput] = limit },
}

func TestKeyCapsMayNotExceedTheAccounts(t *testing.T) {
	for name, set := range setCap {
		t.Run(name, func(t *testing.T) {
			s := startStoreWithAda(t)
			capsOf := func(n int64) (c quota.Caps) { set(&c, quota.Limit(n)); return c }
			setAccount := func(limit quota.Cap) error {
				_, err := s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { set(&f.Caps, limit) })
				return err
			}
			setKey := func(ref string, limit quota.Cap) error {
				_, err := s.Keys.Set(t.Context(), ref, func(f *identity.Key) { set(&f.Caps, limit) })
				return err
			}
			must(t, setAccount(quota.Limit(100)))
			key, _, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k", Caps: capsOf(100)})
			must(t, err)
			_, _, err = s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "x", Caps: capsOf(101)})
			wantError(t, err, identity.ErrAboveAccount, "create key: ", name+" 101 is above 100 of "+ada)
			wantError(t, setKey(key.ID, quota.Limit(101)), identity.ErrAboveAccount, "change key: ", name+" 101 is above 100 of "+ada)
			must(t, setKey(key.ID, quota.Unbounded())) // the account's cap still applies
			must(t, setKey(key.ID, quota.Limit(100)))
			must(t, setAccount(quota.Unbounded()))
			must(t, setKey(key.ID, quota.Limit(101)))
			if all, err := s.Keys.List(t.Context()); err != nil || len(all) != 1 || all[0].Caps.String() != name+" 101" {
				t.Errorf("got keys %+v, error %v; want one with %s 101", all, err, name)
			}
		})
	}
}

// A daily cap may exceed a monthly one, and so on.
func TestCapsOfDifferentKindsAreNotCompared(t *testing.T) {
	s := startStoreWithAda(t)
	_, err := s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Caps[quota.MonthTotal] = quota.Limit(100) })
	must(t, err)
	_, _, err = s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k", Caps: quota.Caps{
		quota.MonthTotal: quota.Limit(100), quota.DayTotal: quota.Limit(5000), quota.MonthInput: quota.Limit(5000), quota.MonthOutput: quota.Limit(5000),
	}})
	must(t, err)
}

func TestAccountCapsMayNotBeLoweredBelowItsKeys(t *testing.T) {
	s := startStoreWithAda(t)
	setAccount := func(c quota.Caps) error {
		_, err := s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Name, f.Caps = "Lowered", c })
		return err
	}
	create := func(name string, c quota.Caps) identity.Key {
		k, _, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: name, Caps: c})
		must(t, err)
		return k
	}
	create("unbounded", quota.Caps{})
	create("small", quota.Caps{quota.MonthTotal: quota.Limit(10)})
	month, day := create("month", quota.Caps{quota.MonthTotal: quota.Limit(100)}), create("day", quota.Caps{quota.DayTotal: quota.Limit(7)})
	_, err := s.Keys.Pause(t.Context(), day.ID) // a paused key counts, because it can be resumed
	must(t, err)
	lower := quota.Caps{quota.MonthTotal: quota.Limit(99), quota.DayTotal: quota.Limit(6)}
	wantError(t, setAccount(lower), identity.ErrAboveAccount, "change account: ",
		month.ID+" (month): monthly budget 100 is above 99; "+day.ID+" (day): daily budget 7 is above 6")
	if a, err := s.Accounts.Find(t.Context(), ada); err != nil || a.Name != "Ada" || a.Caps != (quota.Caps{}) {
		t.Errorf("after the refused change: got account %+v, error %v; want it unchanged", a, err)
	}
	_, err = s.Keys.Revoke(t.Context(), month.ID) // a revoked key does not count
	must(t, err)
	wantError(t, setAccount(lower), identity.ErrAboveAccount, "these first: "+day.ID+" (day)")
	_, err = s.Keys.Set(t.Context(), day.ID, func(f *identity.Key) { f.Caps[quota.DayTotal] = quota.Limit(6) })
	must(t, err)
	must(t, setAccount(lower))
	if _, err := s.Keys.Set(t.Context(), month.ID, func(*identity.Key) {}); !errors.Is(err, identity.ErrKeyRevoked) {
		t.Errorf("change a revoked key: got error %v, want %v", err, identity.ErrKeyRevoked)
	}
}

// A disabled account and its keys keep their caps, and a pending account can get caps before it is approved.
func TestCapsCanBeChangedInAnyStateOfTheAccount(t *testing.T) {
	s := startStoreWithAda(t)
	key, secret := createKey(t, s, "k")
	_, err := s.Accounts.Disable(t.Context(), ada)
	must(t, err)
	_, err = s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Caps[quota.DayTotal] = quota.Limit(70) })
	must(t, err)
	_, err = s.Keys.Set(t.Context(), key.ID, func(f *identity.Key) { f.Caps[quota.DayTotal] = quota.Limit(7) })
	must(t, err)
	if _, err := s.Keys.Authenticate(t.Context(), secret); !errors.Is(err, identity.ErrAccountDisabled) {
		t.Errorf("after the changes: got error %v, want %v", err, identity.ErrAccountDisabled)
	}
	_, err = s.Accounts.Enable(t.Context(), ada)
	must(t, err)
	p, err := s.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	if p.AccountCaps.String() != "daily budget 70" || p.KeyCaps.String() != "daily budget 7" {
		t.Errorf("got account caps %s, key caps %s; want daily budget 70, daily budget 7", p.AccountCaps, p.KeyCaps)
	}
	_, err = s.Accounts.Create(t.Context(), identity.Account{Email: "new@example.org", State: identity.AccountPending})
	must(t, err)
	a, err := s.Accounts.Set(t.Context(), "new@example.org", func(f *identity.Account) { f.Caps[quota.MonthTotal] = quota.Limit(1) })
	must(t, err)
	if a.State != identity.AccountPending || a.Caps.String() != "monthly budget 1" {
		t.Errorf("got account %+v, want it pending with monthly budget 1", a)
	}
}

func TestNegativeCapsAreRefused(t *testing.T) {
	s := startStoreWithAda(t)
	key, secret := createKey(t, s, "k")
	for name, set := range setCap {
		var bad quota.Caps
		set(&bad, quota.Limit(-1))
		_, createAccountErr := s.Accounts.Create(t.Context(), identity.Account{Email: "eve@example.org", Caps: bad})
		_, _, createKeyErr := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "x", Caps: bad})
		_, setAccountErr := s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Caps = bad })
		_, setKeyErr := s.Keys.Set(t.Context(), key.ID, func(f *identity.Key) { f.Caps = bad })
		wantError(t, createAccountErr, identity.ErrBadCap, "create account: ", name+" -1")
		wantError(t, createKeyErr, identity.ErrBadCap, "create key: ", name+" -1")
		wantError(t, setAccountErr, identity.ErrBadCap, "change account: ", name+" -1")
		wantError(t, setKeyErr, identity.ErrBadCap, "change key: ", name+" -1")
	}
	if p, err := s.Keys.Authenticate(t.Context(), secret); err != nil || p.KeyCaps != (quota.Caps{}) || p.AccountCaps != (quota.Caps{}) {
		t.Errorf("after the refused changes: got %+v, error %v; want no caps", p, err)
	}
}
