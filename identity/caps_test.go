package identity_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/identity"
	"basegate/internal/poll"
	"basegate/quota"
)

// refused wants an error of a kind that says each of the things once.
func refused(t *testing.T, err, kind error, says ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got %v, want %v", err, kind)
		return
	}
	for _, text := range says {
		if strings.Count(err.Error(), text) != 1 {
			t.Errorf("%q is not once in: %v", text, err)
		}
	}
}

func TestCapsAreKeptAsGiven(t *testing.T) {
	file := path(t)
	d := start(t, openDatabase(t, file), zap.NewNop())
	account, of := quota.Caps{MonthTotal: quota.Limit(1000), DayTotal: quota.Limit(0)}, quota.Caps{MonthInput: quota.Limit(5), MonthOutput: quota.Limit(1 << 40)}
	_, err := d.CreateAccount(t.Context(), identity.NewAccount{Email: ada, Caps: account})
	must(t, err)
	key, secret, err := d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "k", Caps: of})
	must(t, err)
	again := start(t, openDatabase(t, file), zap.NewNop())
	read, err := again.Account(t.Context(), ada)
	must(t, err)
	found, err := again.Key(t.Context(), key.ID)
	must(t, err)
	identity, err := again.Authenticate(secret)
	must(t, err)
	for _, c := range []struct{ got, want quota.Caps }{
		{read.Caps, account}, {found.Caps, of}, {identity.AccountCaps, account}, {identity.KeyCaps, of},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	if got := read.Caps.String(); got != "monthly budget 1000, daily budget 0" {
		t.Errorf("%q", got)
	}
}

func TestAChangeTouchesOnlyWhatItNames(t *testing.T) {
	d := newDirectory(t)
	key, secret, err := d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "k", Concurrency: 3, Caps: quota.Caps{DayTotal: quota.Limit(7)}})
	must(t, err)
	_, err = d.SetKey(t.Context(), key.Prefix, func(f *identity.KeyFields) { f.Caps.MonthTotal = quota.Limit(9) })
	must(t, err)
	_, err = d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Caps.MonthInput = quota.Limit(99) })
	must(t, err)
	i, err := d.Authenticate(secret)
	must(t, err)
	if diff := cmp.Diff(quota.Caps{MonthTotal: quota.Limit(9), DayTotal: quota.Limit(7)}, i.KeyCaps); diff != "" || i.Concurrency != 3 || i.KeyName != "k" {
		t.Errorf("%+v (-want +got)\n%s", i, diff)
	}
	if diff := cmp.Diff(quota.Caps{MonthInput: quota.Limit(99)}, i.AccountCaps); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	a, err := d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Admin, f.Caps = true, quota.Caps{} })
	must(t, err)
	if !a.Admin || a.Name != "Ada" || a.Caps != (quota.Caps{}) {
		t.Errorf("%+v", a)
	}
}

func TestAnIdentityKeepsTheCapsItWasGiven(t *testing.T) {
	d := newDirectory(t)
	key, secret, err := d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "k", Caps: quota.Caps{DayTotal: quota.Limit(7)}})
	must(t, err)
	before, err := d.Authenticate(secret)
	must(t, err)
	_, err = d.SetKey(t.Context(), key.ID, func(f *identity.KeyFields) { f.Caps.DayTotal = quota.Limit(8) })
	must(t, err)
	_, err = d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Caps.MonthTotal = quota.Limit(1) })
	must(t, err)
	if before.KeyCaps.DayTotal != quota.Limit(7) || key.Caps.DayTotal != quota.Limit(7) || before.AccountCaps.MonthTotal.Bounded() {
		t.Errorf("%s; %s; %s", before.KeyCaps, key.Caps, before.AccountCaps)
	}
	after, err := d.Authenticate(secret)
	must(t, err)
	if after.KeyCaps.DayTotal != quota.Limit(8) || after.AccountCaps.MonthTotal != quota.Limit(1) {
		t.Errorf("%s; %s", after.KeyCaps, after.AccountCaps)
	}
}

// caps tells how to put a cap in its place, by what the errors call it.
var caps = map[string]func(*quota.Caps, quota.Cap){
	"monthly budget": func(c *quota.Caps, n quota.Cap) { c.MonthTotal = n },
	"daily budget":   func(c *quota.Caps, n quota.Cap) { c.DayTotal = n },
	"input budget":   func(c *quota.Caps, n quota.Cap) { c.MonthInput = n },
	"output budget":  func(c *quota.Caps, n quota.Cap) { c.MonthOutput = n },
}

func TestAKeyMayHaveNoMoreThanItsAccount(t *testing.T) {
	for name, put := range caps {
		t.Run(name, func(t *testing.T) {
			d := newDirectory(t)
			of := func(n int64) (c quota.Caps) { put(&c, quota.Limit(n)); return c }
			limit := func(n quota.Cap) error {
				_, err := d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { put(&f.Caps, n) })
				return err
			}
			raise := func(which string, n quota.Cap) error {
				_, err := d.SetKey(t.Context(), which, func(f *identity.KeyFields) { put(&f.Caps, n) })
				return err
			}
			must(t, limit(quota.Limit(100)))
			key, _, err := d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "k", Caps: of(100)})
			must(t, err)
			_, _, err = d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "x", Caps: of(101)})
			refused(t, err, identity.ErrAboveAccount, "create key: ", name+" 101 is above 100 of "+ada)
			refused(t, raise(key.ID, quota.Limit(101)), identity.ErrAboveAccount, "change key: ", name+" 101 is above 100 of "+ada)
			must(t, raise(key.ID, quota.Unbounded())) // held by the account's alone
			must(t, raise(key.ID, quota.Limit(100)))
			must(t, limit(quota.Unbounded()))
			must(t, raise(key.ID, quota.Limit(101)))
			if all, err := d.Keys(t.Context()); err != nil || len(all) != 1 || all[0].Caps.String() != name+" 101" {
				t.Errorf("%+v, %v", all, err)
			}
		})
	}
}

// Caps of different kinds have nothing to do with each other, though a day's may be more than can be spent in a month.
func TestCapsOfDifferentKindsAreNotCompared(t *testing.T) {
	d := newDirectory(t)
	_, err := d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Caps.MonthTotal = quota.Limit(100) })
	must(t, err)
	_, _, err = d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "k", Caps: quota.Caps{
		MonthTotal: quota.Limit(100), DayTotal: quota.Limit(5000), MonthInput: quota.Limit(5000), MonthOutput: quota.Limit(5000),
	}})
	must(t, err)
}

func TestAnAccountIsNotLoweredUnderItsKeys(t *testing.T) {
	d := newDirectory(t)
	limit := func(c quota.Caps) error {
		_, err := d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Name, f.Caps = "Lowered", c })
		return err
	}
	create := func(name string, c quota.Caps) identity.Key {
		k, _, err := d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: name, Caps: c})
		must(t, err)
		return k
	}
	create("unbounded", quota.Caps{})
	create("small", quota.Caps{MonthTotal: quota.Limit(10)})
	month, day := create("month", quota.Caps{MonthTotal: quota.Limit(100)}), create("day", quota.Caps{DayTotal: quota.Limit(7)})
	_, err := d.PauseKey(t.Context(), day.ID) // it may be resumed
	must(t, err)
	lower := quota.Caps{MonthTotal: quota.Limit(99), DayTotal: quota.Limit(6)}
	refused(t, limit(lower), identity.ErrAboveAccount, "change account: ",
		month.ID+" (month): monthly budget 100 is above 99; "+day.ID+" (day): daily budget 7 is above 6")
	if a, err := d.Account(t.Context(), ada); err != nil || a.Name != "Ada" || a.Caps != (quota.Caps{}) {
		t.Errorf("what was refused has been kept: %+v, %v", a, err)
	}
	_, err = d.RevokeKey(t.Context(), month.ID) // it spends nothing any more
	must(t, err)
	refused(t, limit(lower), identity.ErrAboveAccount, "these first: "+day.ID+" (day)")
	_, err = d.SetKey(t.Context(), day.ID, func(f *identity.KeyFields) { f.Caps.DayTotal = quota.Limit(6) })
	must(t, err)
	must(t, limit(lower))
	if _, err := d.SetKey(t.Context(), month.ID, func(*identity.KeyFields) {}); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("change a revoked key: %v", err)
	}
}

// An account gets its caps before it is approved, and keeps them, and its keys theirs, while it is disabled.
func TestCapsMayBeChangedWhateverTheAccountsState(t *testing.T) {
	d := newDirectory(t)
	key, secret := newKey(t, d, "k")
	_, err := d.DisableAccount(t.Context(), ada)
	must(t, err)
	_, err = d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Caps.DayTotal = quota.Limit(70) })
	must(t, err)
	_, err = d.SetKey(t.Context(), key.ID, func(f *identity.KeyFields) { f.Caps.DayTotal = quota.Limit(7) })
	must(t, err)
	if _, err := d.Authenticate(secret); !errors.Is(err, identity.ErrAccountDisabled) {
		t.Errorf("the change brought the account back: %v", err)
	}
	_, err = d.EnableAccount(t.Context(), ada)
	must(t, err)
	i, err := d.Authenticate(secret)
	must(t, err)
	if i.AccountCaps.String() != "daily budget 70" || i.KeyCaps.String() != "daily budget 7" {
		t.Errorf("%s; %s", i.AccountCaps, i.KeyCaps)
	}
	_, err = d.CreateAccount(t.Context(), identity.NewAccount{Email: "new@example.org", State: identity.AccountPending})
	must(t, err)
	a, err := d.SetAccount(t.Context(), "new@example.org", func(f *identity.AccountFields) { f.Caps.MonthTotal = quota.Limit(1) })
	must(t, err)
	if a.State != identity.AccountPending || a.Caps.String() != "monthly budget 1" {
		t.Errorf("%+v", a)
	}
}

func TestANegativeCapIsRefused(t *testing.T) {
	d := newDirectory(t)
	key, secret := newKey(t, d, "k")
	for name, put := range caps {
		var bad quota.Caps
		put(&bad, quota.Limit(-1))
		_, createAccount := d.CreateAccount(t.Context(), identity.NewAccount{Email: "eve@example.org", Caps: bad})
		_, _, createKey := d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "x", Caps: bad})
		_, setAccount := d.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Caps = bad })
		_, setKey := d.SetKey(t.Context(), key.ID, func(f *identity.KeyFields) { f.Caps = bad })
		refused(t, createAccount, identity.ErrBadCap, "create account: ", name+" -1")
		refused(t, createKey, identity.ErrBadCap, "create key: ", name+" -1")
		refused(t, setAccount, identity.ErrBadCap, "change account: ", name+" -1")
		refused(t, setKey, identity.ErrBadCap, "change key: ", name+" -1")
	}
	if i, err := d.Authenticate(secret); err != nil || i.KeyCaps != (quota.Caps{}) || i.AccountCaps != (quota.Caps{}) {
		t.Errorf("what was refused is in force: %+v, %v", i, err)
	}
}

func TestAnotherProcessSeesACapSoon(t *testing.T) {
	file := path(t)
	here := start(t, openDatabase(t, file), zap.NewNop())
	_, err := here.CreateAccount(t.Context(), identity.NewAccount{Email: ada})
	must(t, err)
	key, secret := newKey(t, here, "k")
	elsewhere := identity.New(openDatabase(t, file), zap.NewNop(), identity.Settings{})
	_, err = elsewhere.SetKey(t.Context(), key.ID, func(f *identity.KeyFields) { f.Caps.DayTotal, f.Concurrency = quota.Limit(7), 2 })
	must(t, err)
	poll.Within(t, time.Second, "the key's cap is seen", func() bool {
		i, err := here.Authenticate(secret)
		return err == nil && i.KeyCaps.DayTotal == quota.Limit(7) && i.Concurrency == 2
	})
	_, err = elsewhere.SetAccount(t.Context(), ada, func(f *identity.AccountFields) { f.Caps.DayTotal = quota.Limit(70) })
	must(t, err)
	poll.Within(t, time.Second, "the account's cap is seen", func() bool {
		i, err := here.Authenticate(secret)
		return err == nil && i.AccountCaps.DayTotal == quota.Limit(70)
	})
}
