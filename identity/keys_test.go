package identity_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/database"
	"basegate/identity"
	"basegate/internal/poll"
	"basegate/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func openDatabase(tb testing.TB, path string) *database.DB {
	tb.Helper()
	db, err := database.Open(tb.Context(), database.Settings{Path: path}, zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func start(tb testing.TB, db *database.DB, log *zap.Logger) *identity.Directory {
	tb.Helper()
	d := identity.New(db, log, identity.Settings{})
	must(tb, d.Start(tb.Context()))
	tb.Cleanup(d.Close)
	return d
}

func path(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "base.db")
}

// newDirectory is a Directory that knows one account.
func newDirectory(tb testing.TB) *identity.Directory {
	tb.Helper()
	d := start(tb, openDatabase(tb, path(tb)), zap.NewNop())
	_, err := d.CreateAccount(tb.Context(), identity.NewAccount{Email: ada, Name: "Ada"})
	must(tb, err)
	return d
}

const ada = "ada@example.org"

func newKey(tb testing.TB, d *identity.Directory, name string) (identity.Key, string) {
	tb.Helper()
	key, secret, err := d.CreateKey(tb.Context(), identity.NewKey{Email: ada, Name: name})
	must(tb, err)
	return key, secret
}

func TestAuthenticateTellsWhose(t *testing.T) {
	d := newDirectory(t)
	key, secret, err := d.CreateKey(t.Context(), identity.NewKey{Email: "ADA@example.org", Name: "laptop", Concurrency: 3})
	must(t, err)
	got, err := d.Authenticate(secret)
	must(t, err)
	want := identity.Identity{
		KeyID: key.ID, KeyPrefix: secret[:13], KeyName: "laptop", AccountID: key.AccountID, Email: ada, Concurrency: 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
}

func TestAuthenticateTellsWhyNot(t *testing.T) {
	d := newDirectory(t)
	_, secret := newKey(t, d, "laptop")
	last := secret[len(secret)-1]
	other := map[bool]string{true: "a", false: "b"}[last != 'a']
	for given, want := range map[string]error{
		"":                                  identity.ErrMissing,
		"secret":                            identity.ErrMalformed,
		secret + "x":                        identity.ErrMalformed,
		secret[:len(secret)-1]:              identity.ErrMalformed,
		secret[:len(secret)-1] + "-":        identity.ErrMalformed,
		"sk-" + secret[3:]:                  identity.ErrMalformed,
		strings.Repeat("é", 25):             identity.ErrMalformed,
		secret[:len(secret)-1] + other:      identity.ErrUnknown,
		"acs-bm-" + strings.Repeat("0", 43): identity.ErrUnknown,
	} {
		if got, err := d.Authenticate(given); !errors.Is(err, want) || got != (identity.Identity{}) {
			t.Errorf("%q: got %v, %v; want %v", given, got, err, want)
		}
	}
}

func TestEveryStateIsObeyedAtOnceWhereItWasChanged(t *testing.T) {
	d := newDirectory(t)
	ctx := t.Context()
	key, secret := newKey(t, d, "laptop")
	_, other := newKey(t, d, "cluster")
	onKey := func(do func(context.Context, string) (identity.Key, error), which string) func() error {
		return func() error { _, err := do(ctx, which); return err }
	}
	onAccount := func(do func(context.Context, string) (identity.Account, error), email string) func() error {
		return func() error { _, err := do(ctx, email); return err }
	}
	for _, step := range []struct {
		name string
		do   func() error
		want error
	}{
		{"pause", onKey(d.PauseKey, key.ID), identity.ErrPaused},
		{"pause again", onKey(d.PauseKey, key.Prefix), identity.ErrPaused},
		{"resume", onKey(d.ResumeKey, key.Prefix), nil},
		{"resume again", onKey(d.ResumeKey, key.ID), nil},
		{"disable account", onAccount(d.DisableAccount, "Ada@Example.org"), identity.ErrAccountDisabled},
		{"pause with it", onKey(d.PauseKey, key.ID), identity.ErrPaused},
		{"enable account", onAccount(d.EnableAccount, ada), identity.ErrPaused},
		{"resume after it", onKey(d.ResumeKey, key.ID), nil},
		{"revoke", onKey(d.RevokeKey, secret), identity.ErrRevoked},
		{"revoke again", onKey(d.RevokeKey, key.ID), identity.ErrRevoked},
	} {
		must(t, step.do())
		got, err := d.Authenticate(secret)
		if !errors.Is(err, step.want) {
			t.Errorf("after %s: got %v, want %v", step.name, err, step.want)
		}
		if got.KeyID != key.ID || got.Email != ada {
			t.Errorf("after %s: the log is not told whose key it is: %+v", step.name, got)
		}
	}
	if _, err := d.Authenticate(other); err != nil {
		t.Errorf("the other key was affected: %v", err)
	}
}

func TestAnotherProcessSeesEveryChangeSoon(t *testing.T) {
	ctx, file := t.Context(), path(t)
	here, there := start(t, openDatabase(t, file), zap.NewNop()), start(t, openDatabase(t, file), zap.NewNop())
	_, err := here.CreateAccount(ctx, identity.NewAccount{Email: ada})
	must(t, err)
	key, secret := newKey(t, here, "laptop")
	sees := func(want error) {
		t.Helper()
		poll.Within(t, time.Second, "the change is seen", func() bool {
			_, err := there.Authenticate(secret)
			return errors.Is(err, want)
		})
	}
	sees(nil)
	_, err = here.PauseKey(ctx, key.ID)
	must(t, err)
	sees(identity.ErrPaused)
	_, err = here.ResumeKey(ctx, key.ID)
	must(t, err)
	sees(nil)
	_, err = here.DisableAccount(ctx, ada)
	must(t, err)
	sees(identity.ErrAccountDisabled)
	_, err = here.EnableAccount(ctx, ada)
	must(t, err)
	sees(nil)
	_, err = here.RevokeKey(ctx, key.ID)
	must(t, err)
	sees(identity.ErrRevoked)
}

func TestAChangeIsToldOnceItIsInForce(t *testing.T) {
	ctx := t.Context()
	var d *identity.Directory
	var key string
	told := make(chan error, 100)
	d = identity.New(openDatabase(t, path(t)), zap.NewNop(), identity.Settings{Changed: func() {
		_, err := d.Lookup(key)
		told <- err
	}})
	must(t, d.Start(ctx))
	t.Cleanup(d.Close)
	_, err := d.CreateAccount(ctx, identity.NewAccount{Email: ada})
	must(t, err)
	created, _ := newKey(t, d, "laptop")
	for len(told) > 0 {
		<-told
	}
	key = created.ID
	for _, step := range []struct {
		change func(context.Context, string) (identity.Key, error)
		want   error
	}{{d.PauseKey, identity.ErrPaused}, {d.ResumeKey, nil}} {
		_, err = step.change(ctx, key)
		must(t, err)
		if got := <-told; !errors.Is(got, step.want) {
			t.Errorf("told of %v, want %v", got, step.want)
		}
	}
	if _, err := d.Lookup("nobody's"); !errors.Is(err, identity.ErrUnknown) {
		t.Errorf("of a key that is none: %v", err)
	}
}

func TestAReplacedDatabaseIsReadEvenAtTheSameRevision(t *testing.T) {
	file := path(t)
	fill := func(where string) string {
		db, err := database.Open(t.Context(), database.Settings{Path: where}, zap.NewNop())
		must(t, err)
		d := identity.New(db, zap.NewNop(), identity.Settings{})
		_, err = d.CreateAccount(t.Context(), identity.NewAccount{Email: ada})
		must(t, err)
		_, secret := newKey(t, d, "laptop")
		must(t, db.Close())
		return secret
	}
	old, fresh := fill(file), fill(file+".new")
	d := start(t, openDatabase(t, file), zap.NewNop())
	_, err := d.Authenticate(old)
	must(t, err)
	for _, end := range []string{"-wal", "-shm"} {
		must(t, os.Remove(file+end))
	}
	must(t, os.Rename(file+".new", file))
	poll.Within(t, 5*time.Second, "the new database's key is known", func() bool {
		_, err := d.Authenticate(fresh)
		_, gone := d.Authenticate(old)
		return err == nil && errors.Is(gone, identity.ErrUnknown)
	})
}

func TestTheLastKeysStayInForceWhileTheDatabaseIsAway(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	db := openDatabase(t, path(t))
	d := start(t, db, zap.New(core))
	_, err := d.CreateAccount(t.Context(), identity.NewAccount{Email: ada})
	must(t, err)
	_, secret := newKey(t, d, "laptop")
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ALTER TABLE keys_revision RENAME TO away")
		return err
	}))
	poll.Within(t, time.Second, "it is noticed", func() bool { return logged.FilterLevelExact(zap.WarnLevel).Len() > 0 })
	_, err = d.Authenticate(secret)
	must(t, err)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ALTER TABLE away RENAME TO keys_revision")
		return err
	}))
	poll.Within(t, time.Second, "its end is noticed", func() bool { return logged.FilterMessage("keys can be read again").Len() > 0 })
	if n := logged.FilterLevelExact(zap.WarnLevel).Len(); n != 1 {
		t.Errorf("%d warnings for one outage", n)
	}
}

func TestStartFailsWithoutADatabase(t *testing.T) {
	db := openDatabase(t, path(t))
	must(t, db.Close())
	d := identity.New(db, zap.NewNop(), identity.Settings{})
	if err := d.Start(t.Context()); err == nil {
		t.Error("it started")
	}
	d.Close()
	if _, err := d.CreateAccount(t.Context(), identity.NewAccount{Email: ada}); !errors.Is(err, database.ErrClosed) {
		t.Errorf("writing: %v", err)
	}
}

func TestOperationsEndWithTheirContext(t *testing.T) {
	d := newDirectory(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Accounts(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAuthenticateAllocatesNothing(t *testing.T) {
	d := newDirectory(t)
	_, secret := newKey(t, d, "laptop")
	every := quota.Caps{MonthTotal: quota.Limit(4), DayTotal: quota.Limit(3), MonthInput: quota.Limit(2), MonthOutput: quota.Limit(1)}
	_, capped, err := d.CreateKey(t.Context(), identity.NewKey{Email: ada, Name: "capped", Caps: every})
	must(t, err)
	for name, given := range map[string]string{"known": secret, "capped": capped, "unknown": "acs-bm-" + strings.Repeat("0", 43), "malformed": "x"} {
		if n := testing.AllocsPerRun(100, func() { _, _ = d.Authenticate(given) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	d := newDirectory(b)
	_, secret := newKey(b, d, "laptop")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Authenticate(secret); err != nil {
			b.Fatal(err)
		}
	}
}
