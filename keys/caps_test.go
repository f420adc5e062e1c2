package keys_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/keys"
)

func tokens(n int64) *int64 { return new(n) }

func TestCapsAreKeptAsGiven(t *testing.T) {
	file := path(t)
	d := start(t, openDatabase(t, file), zap.NewNop())
	account, of := keys.Caps{MonthTotal: tokens(1000), DayTotal: tokens(0)}, keys.Caps{MonthInput: tokens(5), MonthOutput: tokens(1 << 40)}
	_, err := d.CreateAccount(t.Context(), keys.NewAccount{Email: ada, Caps: account})
	must(t, err)
	key, secret, err := d.CreateKey(t.Context(), keys.NewKey{Email: ada, Name: "k", Caps: of})
	must(t, err)
	again := start(t, openDatabase(t, file), zap.NewNop())
	read, err := again.Account(t.Context(), ada)
	must(t, err)
	found, err := again.Key(t.Context(), key.ID)
	must(t, err)
	identity, err := again.Authenticate(secret)
	must(t, err)
	for _, c := range []struct{ got, want keys.Caps }{
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
	key, secret, err := d.CreateKey(t.Context(), keys.NewKey{Email: ada, Name: "k", Concurrency: 3, Caps: keys.Caps{DayTotal: tokens(7)}})
	must(t, err)
	_, err = d.SetKey(t.Context(), key.Prefix, func(f *keys.KeyFields) { f.Caps.MonthTotal = tokens(9) })
	must(t, err)
	_, err = d.SetAccount(t.Context(), ada, func(f *keys.AccountFields) { f.Caps.MonthInput = tokens(99) })
	must(t, err)
	i, err := d.Authenticate(secret)
	must(t, err)
	if diff := cmp.Diff(keys.Caps{MonthTotal: tokens(9), DayTotal: tokens(7)}, i.KeyCaps); diff != "" || i.Concurrency != 3 || i.KeyName != "k" {
		t.Errorf("%+v (-want +got)\n%s", i, diff)
	}
	if diff := cmp.Diff(keys.Caps{MonthInput: tokens(99)}, i.AccountCaps); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	a, err := d.SetAccount(t.Context(), ada, func(f *keys.AccountFields) { f.Admin, f.Caps = true, keys.Caps{} })
	must(t, err)
	if !a.Admin || a.Name != "Ada" || a.Caps != (keys.Caps{}) {
		t.Errorf("%+v", a)
	}
}

// An Identity shares its pointers with the directory, so what they point to must never change.
func TestAnIdentityKeepsTheCapsThatItWasGiven(t *testing.T) {
	d := newDirectory(t)
	mine := tokens(7)
	key, secret, err := d.CreateKey(t.Context(), keys.NewKey{Email: ada, Name: "k", Caps: keys.Caps{DayTotal: mine}})
	must(t, err)
	*mine = 1
	before, err := d.Authenticate(secret)
	must(t, err)
	_, err = d.SetKey(t.Context(), key.ID, func(f *keys.KeyFields) { f.Caps.DayTotal = tokens(8) })
	must(t, err)
	if *before.KeyCaps.DayTotal != 7 || *key.Caps.DayTotal != 7 {
		t.Errorf("%d, %d", *before.KeyCaps.DayTotal, *key.Caps.DayTotal)
	}
}

func TestAKeyMayHaveNoMoreThanItsAccount(t *testing.T) {
	d := newDirectory(t)
	limit := func(n *int64) error {
		_, err := d.SetAccount(t.Context(), ada, func(f *keys.AccountFields) { f.Caps.MonthTotal = n })
		return err
	}
	must(t, limit(tokens(100)))
	key, _, err := d.CreateKey(t.Context(), keys.NewKey{Email: ada, Name: "k", Caps: keys.Caps{MonthTotal: tokens(100), DayTotal: tokens(5000)}})
	must(t, err)
	if _, _, err := d.CreateKey(t.Context(), keys.NewKey{Email: ada, Name: "k", Caps: keys.Caps{MonthTotal: tokens(101)}}); !errors.Is(err, keys.ErrAboveAccount) || !strings.Contains(err.Error(), "monthly budget 101 is above 100 of "+ada) {
		t.Errorf("create: %v", err)
	}
	if _, err := d.SetKey(t.Context(), key.ID, func(f *keys.KeyFields) { f.Caps.MonthTotal = tokens(101) }); !errors.Is(err, keys.ErrAboveAccount) {
		t.Errorf("set: %v", err)
	}
	if err := limit(tokens(99)); !errors.Is(err, keys.ErrAboveAccount) || !strings.Contains(err.Error(), key.ID+" (k): monthly budget 100 is above 99") {
		t.Errorf("lower the account: %v", err)
	}
	must(t, limit(nil))
	_, err = d.SetKey(t.Context(), key.ID, func(f *keys.KeyFields) { f.Caps.MonthTotal = tokens(101) })
	must(t, err)
	_, err = d.RevokeKey(t.Context(), key.ID)
	must(t, err)
	must(t, limit(tokens(1))) // a revoked key stands in nobody's way
	if _, err := d.SetKey(t.Context(), key.ID, func(*keys.KeyFields) {}); !errors.Is(err, keys.ErrRevoked) {
		t.Errorf("change a revoked key: %v", err)
	}
}

func TestANegativeCapIsRefused(t *testing.T) {
	d := newDirectory(t)
	key, _ := newKey(t, d, "k")
	bad := keys.Caps{MonthOutput: tokens(-1)}
	_, createAccount := d.CreateAccount(t.Context(), keys.NewAccount{Email: "eve@example.org", Caps: bad})
	_, _, createKey := d.CreateKey(t.Context(), keys.NewKey{Email: ada, Name: "x", Caps: bad})
	_, setAccount := d.SetAccount(t.Context(), ada, func(f *keys.AccountFields) { f.Caps = bad })
	_, setKey := d.SetKey(t.Context(), key.ID, func(f *keys.KeyFields) { f.Caps = bad })
	for name, err := range map[string]error{"create account": createAccount, "create key": createKey, "set account": setAccount, "set key": setKey} {
		if !errors.Is(err, keys.ErrBadCap) || !strings.Contains(err.Error(), "output budget -1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnotherProcessSeesACapSoon(t *testing.T) {
	file := path(t)
	here := start(t, openDatabase(t, file), zap.NewNop())
	_, err := here.CreateAccount(t.Context(), keys.NewAccount{Email: ada})
	must(t, err)
	key, secret := newKey(t, here, "k")
	elsewhere := keys.New(openDatabase(t, file), zap.NewNop(), keys.Settings{})
	_, err = elsewhere.SetKey(t.Context(), key.ID, func(f *keys.KeyFields) { f.Caps.DayTotal, f.Concurrency = tokens(7), 2 })
	must(t, err)
	eventually(t, 5*time.Second, "the key's cap is seen", func() bool {
		i, err := here.Authenticate(secret)
		return err == nil && i.KeyCaps.DayTotal != nil && *i.KeyCaps.DayTotal == 7 && i.Concurrency == 2
	})
	_, err = elsewhere.SetAccount(t.Context(), ada, func(f *keys.AccountFields) { f.Caps.DayTotal = tokens(70) })
	must(t, err)
	eventually(t, 5*time.Second, "the account's cap is seen", func() bool {
		i, err := here.Authenticate(secret)
		return err == nil && i.AccountCaps.DayTotal != nil && *i.AccountCaps.DayTotal == 70
	})
}
