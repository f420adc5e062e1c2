package identity_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/identity"
)

func TestAccountsAreKeptAsGiven(t *testing.T) {
	ctx := t.Context()
	d := identity.New(openDatabase(t, path(t)), zap.NewNop(), identity.Settings{})
	var want []identity.Account
	for _, n := range []identity.NewAccount{
		{Email: "Bea@example.org", Name: "Bea Žáková", Admin: true},
		{Email: "ada@example.org", State: identity.AccountPending},
		{Email: "cyd+lab@sub.example.org", Name: "Cyd", State: identity.AccountDisabled},
	} {
		a, err := d.CreateAccount(ctx, n)
		must(t, err)
		if !regexp.MustCompile(`^acc_[0-9A-Za-z]{13}$`).MatchString(a.ID) || time.Since(a.CreatedAt) > time.Minute {
			t.Errorf("odd id or time: %+v", a)
		}
		want = append(want, a)
	}
	want[0], want[1] = want[1], want[0] // by address, whatever its case
	got, err := d.Accounts(ctx)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
	one, err := d.Account(ctx, "BEA@EXAMPLE.ORG")
	must(t, err)
	if diff := cmp.Diff(want[1], one); diff != "" {
		t.Errorf("account (-want +got):\n%s", diff)
	}
	approved, err := d.EnableAccount(ctx, ada)
	must(t, err)
	if approved.State != identity.AccountActive {
		t.Errorf("it is %s", approved.State)
	}
}

func TestKeysAreKeptAsGiven(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	first, _ := newKey(t, d, "laptop")
	second, secret, err := d.CreateKey(ctx, identity.NewKey{Email: ada, Name: "klíč č. 2", Concurrency: 16})
	must(t, err)
	if !regexp.MustCompile(`^key_[0-9A-Za-z]{13}$`).MatchString(second.ID) {
		t.Errorf("odd id %q", second.ID)
	}
	want := identity.Key{
		ID: second.ID, AccountID: first.AccountID, Email: ada, Name: "klíč č. 2", Prefix: secret[:13],
		State: identity.Active, Concurrency: 16, CreatedAt: second.CreatedAt,
	}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("key (-want +got):\n%s", diff)
	}
	all, err := d.Keys(ctx)
	must(t, err)
	if diff := cmp.Diff([]identity.Key{first, second}, all); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	for _, which := range []string{second.ID, second.Prefix, secret, secret[:12]} {
		got, err := d.Key(ctx, which)
		if err != nil || got != second {
			t.Errorf("%s: got %+v, %v", which, got, err)
		}
	}
}

func TestWhatCannotBeDoneIsExplained(t *testing.T) {
	ctx, d := t.Context(), newDirectory(t)
	key, _ := newKey(t, d, "laptop")
	gone, _ := newKey(t, d, "gone")
	_, err := d.RevokeKey(ctx, gone.ID)
	must(t, err)
	for _, n := range []identity.NewAccount{{Email: "off@example.org", State: identity.AccountDisabled}, {Email: "new@example.org", State: identity.AccountPending}} {
		_, err := d.CreateAccount(ctx, n)
		must(t, err)
	}
	account := func(email, name string) error {
		_, err := d.CreateAccount(ctx, identity.NewAccount{Email: email, Name: name})
		return err
	}
	create := func(email, name string, concurrency int) error {
		_, secret, err := d.CreateKey(ctx, identity.NewKey{Email: email, Name: name, Concurrency: concurrency})
		if secret != "" {
			t.Errorf("%s %s: a secret came with an error", email, name)
		}
		return err
	}
	on := func(do func(context.Context, string) (identity.Key, error), which string) error {
		_, err := do(ctx, which)
		return err
	}
	disable := func(email string) error { _, err := d.DisableAccount(ctx, email); return err }
	const nobody = "nobody@example.org"
	for what, c := range map[string]struct{ got, want error }{
		"account of a taken address":     {account(ada, ""), identity.ErrEmailTaken},
		"the same in capitals":           {account("ADA@EXAMPLE.ORG", ""), identity.ErrEmailTaken},
		"account without an address":     {account("", ""), identity.ErrBadEmail},
		"account of no address":          {account("ada", ""), identity.ErrBadEmail},
		"account of a name and address":  {account("Ada <ada@example.org>", ""), identity.ErrBadEmail},
		"account of an address in space": {account(" ada@example.org", ""), identity.ErrBadEmail},
		"account of two addresses":       {account("a@example.org, b@example.org", ""), identity.ErrBadEmail},
		"account of a quoted address":    {account(`"a b"@example.org`, ""), identity.ErrBadEmail},
		"account of a foreign address":   {account("ž@example.org", ""), identity.ErrBadEmail},
		"account of an endless address":  {account(strings.Repeat("a", 250)+"@example.org", ""), identity.ErrBadEmail},
		"account of an endless name":     {account("x@example.org", strings.Repeat("ž", 101)), identity.ErrBadName},
		"account of a broken name":       {account("x@example.org", "a\nb"), identity.ErrBadName},
		"account of no text":             {account("x@example.org", "a\xffb"), identity.ErrBadName},
		"disable nobody":                 {disable(nobody), identity.ErrNoAccount},
		"key for nobody":                 {create(nobody, "laptop", 0), identity.ErrNoAccount},
		"key for a disabled account":     {create("off@example.org", "laptop", 0), identity.ErrAccountDisabled},
		"key for a pending account":      {create("new@example.org", "laptop", 0), identity.ErrAccountPending},
		"key without a name":             {create(ada, " ", 0), identity.ErrBadName},
		"key of an endless name":         {create(ada, strings.Repeat("x", 101), 0), identity.ErrBadName},
		"key of no concurrency":          {create(ada, "laptop", -1), identity.ErrBadConcurrency},
		"pause no key":                   {on(d.PauseKey, "key_0000000000000"), identity.ErrNoKey},
		"pause nothing":                  {on(d.PauseKey, ""), identity.ErrNoKey},
		"pause all":                      {on(d.PauseKey, "acs-bm-"), identity.ErrNoKey},
		"pause an unknown secret":        {on(d.PauseKey, "acs-bm-"+strings.Repeat("0", 43)), identity.ErrNoKey},
		"resume a revoked key":           {on(d.ResumeKey, gone.ID), identity.ErrRevoked},
		"pause a revoked key":            {on(d.PauseKey, gone.Prefix), identity.ErrRevoked},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", what, c.got, c.want)
		}
	}
	if got, err := d.Key(ctx, key.ID); err != nil || got != key {
		t.Errorf("the key was changed: %+v, %v", got, err)
	}
}

func TestAPrefixOfTwoKeysIsAmbiguous(t *testing.T) {
	ctx, file := t.Context(), path(t)
	db := openDatabase(t, file)
	d := start(t, db, zap.NewNop())
	_, err := d.CreateAccount(ctx, identity.NewAccount{Email: ada})
	must(t, err)
	one, _ := newKey(t, d, "one")
	two, _ := newKey(t, d, "two")
	must(t, db.WriteExclusive(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "UPDATE keys SET prefix = 'acs-bm-abcdef'")
		return err
	}))
	_, err = d.PauseKey(ctx, "acs-bm-abcdef")
	if !errors.Is(err, identity.ErrAmbiguous) || !strings.Contains(err.Error(), one.ID) || !strings.Contains(err.Error(), two.ID) {
		t.Errorf("got %v", err)
	}
	if _, err := d.PauseKey(ctx, one.ID); err != nil {
		t.Errorf("by id: %v", err)
	}
}

// A list shows an ellipsis behind the prefix, and whoever copies the one copies the other.
func TestAKeyIsFoundByWhatAListShows(t *testing.T) {
	d := newDirectory(t)
	key, _ := newKey(t, d, "laptop")
	for _, which := range []string{key.ID, key.Prefix, key.Prefix + "…", key.Prefix[:10] + "…"} {
		if got, err := d.Key(t.Context(), which); err != nil || got.ID != key.ID {
			t.Errorf("%s: %+v, %v", which, got, err)
		}
	}
	for _, which := range []string{"…", "acs-bm-…", key.Prefix + "……"} {
		if _, err := d.Key(t.Context(), which); !errors.Is(err, identity.ErrNoKey) {
			t.Errorf("%s: %v", which, err)
		}
	}
}

func TestSecretsHaveTheirShapeAndDiffer(t *testing.T) {
	d := newDirectory(t)
	shape := regexp.MustCompile(`^acs-bm-[0-9A-Za-z]{43}$`)
	seen := map[string]bool{}
	for range 200 {
		key, secret := newKey(t, d, "laptop")
		if !shape.MatchString(secret) || seen[secret] || seen[key.ID] || !strings.HasPrefix(secret, key.Prefix) {
			t.Fatalf("secret %q of %+v", secret, key)
		}
		seen[secret], seen[key.ID] = true, true
	}
}

func TestNoSecretReachesTheDisk(t *testing.T) {
	file := path(t)
	d := start(t, openDatabase(t, file), zap.NewNop())
	_, err := d.CreateAccount(t.Context(), identity.NewAccount{Email: ada})
	must(t, err)
	_, secret := newKey(t, d, "laptop")
	files, err := filepath.Glob(file + "*")
	must(t, err)
	found := false
	for _, name := range files {
		content, err := os.ReadFile(name)
		must(t, err)
		found = found || bytes.Contains(content, []byte(secret[:13]))
		for at := 0; at+14 <= len(secret); at++ { // any 14 characters are more than the prefix
			if bytes.Contains(content, []byte(secret[at:at+14])) {
				t.Fatalf("%s holds characters %d to %d of the secret", name, at, at+14)
			}
		}
	}
	if !found {
		t.Error("not even the prefix is there; the test looks in the wrong place")
	}
}

// What is typed in place of an id may be most of a secret.
func TestErrorsShowNoSecret(t *testing.T) {
	d := newDirectory(t)
	_, secret := newKey(t, d, "laptop")
	for _, which := range []string{secret[:40], secret + "x", "acs-bm-" + strings.Repeat("Z", 43)} {
		if _, err := d.PauseKey(t.Context(), which); err == nil || strings.Contains(err.Error(), which[:15]) {
			t.Errorf("got %v", err)
		}
	}
}
