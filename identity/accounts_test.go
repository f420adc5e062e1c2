package identity_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/identity"
)

func TestAccountsAreStoredAsCreated(t *testing.T) {
	ctx := t.Context()
	accounts := newStore(openDatabase(t, newPath(t))).Accounts
	var want []identity.Account
	for _, n := range []identity.Account{
		{Email: "Bea@example.org", Name: "Bea Žáková", Admin: true},
		{Email: "ada@example.org", State: identity.AccountPending},
		{Email: "cyd+lab@sub.example.org", Name: "Cyd", State: identity.AccountDisabled},
	} {
		a, err := accounts.Create(ctx, n)
		must(t, err)
		if !regexp.MustCompile(`^acc_[0-9A-Za-z]{13}$`).MatchString(a.ID) || time.Since(a.CreatedAt) > time.Minute {
			t.Errorf("got id %q and creation time %v, want acc_ and 13 characters, and the current time", a.ID, a.CreatedAt)
		}
		want = append(want, a)
	}
	want[0], want[1] = want[1], want[0] // List orders by address, without case
	got, err := accounts.List(ctx)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
	one, err := accounts.Find(ctx, "BEA@EXAMPLE.ORG")
	must(t, err)
	if diff := cmp.Diff(want[1], one); diff != "" {
		t.Errorf("account (-want +got):\n%s", diff)
	}
	approved, err := accounts.Enable(ctx, ada)
	must(t, err)
	if approved.State != identity.AccountActive {
		t.Errorf("approved account: got state %s, want %s", approved.State, identity.AccountActive)
	}
}

func TestInvalidOperationsOnAccountsAreRefused(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	create := func(email, name string) error {
		_, err := s.Accounts.Create(ctx, identity.Account{Email: email, Name: name})
		return err
	}
	disable := func(email string) error { _, err := s.Accounts.Disable(ctx, email); return err }
	for name, c := range map[string]struct{ got, want error }{
		"create with a taken address":             {create(ada, ""), identity.ErrEmailTaken},
		"create with a taken address in capitals": {create("ADA@EXAMPLE.ORG", ""), identity.ErrEmailTaken},
		"create without an address":               {create("", ""), identity.ErrBadEmail},
		"create with a local part only":           {create("ada", ""), identity.ErrBadEmail},
		"create with a name and an address":       {create("Ada <ada@example.org>", ""), identity.ErrBadEmail},
		"create with a space before the address":  {create(" ada@example.org", ""), identity.ErrBadEmail},
		"create with two addresses":               {create("a@example.org, b@example.org", ""), identity.ErrBadEmail},
		"create with a quoted local part":         {create(`"a b"@example.org`, ""), identity.ErrBadEmail},
		"create with a non-ASCII address":         {create("ž@example.org", ""), identity.ErrBadEmail},
		"create with a too long address":          {create(strings.Repeat("a", 250)+"@example.org", ""), identity.ErrBadEmail},
		"create with a too long name":             {create("x@example.org", strings.Repeat("ž", 101)), identity.ErrBadName},
		"create with a line break in the name":    {create("x@example.org", "a\nb"), identity.ErrBadName},
		"create with a name that is not UTF-8":    {create("x@example.org", "a\xffb"), identity.ErrBadName},
		"disable an unknown account":              {disable("nobody@example.org"), identity.ErrNoAccount},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got error %v, want %v", name, c.got, c.want)
		}
	}
}

func TestOperationsEndWithTheirContext(t *testing.T) {
	s := startStoreWithAda(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Accounts.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}
