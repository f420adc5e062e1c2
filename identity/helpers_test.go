package identity_test

import (
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/internal/postgrestest"
)

const (
	ada      = "ada@example.org"
	password = "correct horse battery"
	address  = "192.0.2.1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// wantError fails the test unless err is of a kind and contains each of the texts exactly once.
func wantError(t *testing.T, err, kind error, texts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got error %v, want %v", err, kind)
		return
	}
	for _, text := range texts {
		if n := strings.Count(err.Error(), text); n != 1 {
			t.Errorf("%q occurs %d times, want once, in: %v", text, n, err)
		}
	}
}

// newPath returns a path for a database in a temporary directory.
func newPath(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "base.db")
}

func openDatabase(tb testing.TB, path string) *database.DB {
	tb.Helper()
	return openSettings(tb, databasetest.Settings(tb, path))
}

func openSettings(tb testing.TB, s database.Settings) *database.DB {
	tb.Helper()
	db, err := database.Open(tb.Context(), s, zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

// openThroughProxy is openDatabase through a proxy, which can make the server hang. It skips tests on SQLite.
func openThroughProxy(t *testing.T, path string) (*database.DB, *postgrestest.Proxy) {
	t.Helper()
	if !databasetest.Postgres() {
		t.Skip("only a server can hang; BASEGATE_TEST_ENGINE=postgres runs this test")
	}
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	s := databasetest.Settings(t, path)
	direct, err := url.Parse(s.URL)
	must(t, err)
	s.URL = proxy.URL(strings.TrimPrefix(direct.Path, "/"))
	return openSettings(t, s), proxy
}

// cheap is a cost of password hashes for tests of other things.
var cheap = identity.PasswordCost{Memory: 8, Passes: 1, Threads: 1}

// newStore returns a Store whose keys are not started.
func newStore(db *database.DB) *identity.Store {
	return identity.New(db, zap.NewNop(), identity.Settings{PasswordCost: cheap})
}

// startStore returns a Store whose keys are started until the end of the test.
func startStore(tb testing.TB, db *database.DB, log *zap.Logger) *identity.Store {
	tb.Helper()
	s := identity.New(db, log, identity.Settings{PasswordCost: cheap})
	must(tb, s.Keys.Start(tb.Context()))
	tb.Cleanup(s.Keys.Close)
	return s
}

// startStoreWithAda returns a started Store on a new database, with the account ada.
func startStoreWithAda(tb testing.TB) *identity.Store {
	tb.Helper()
	s := startStore(tb, openDatabase(tb, newPath(tb)), zap.NewNop())
	_, err := s.Accounts.Create(tb.Context(), identity.Account{Email: ada, Name: "Ada"})
	must(tb, err)
	return s
}

// createKey creates a key of ada.
func createKey(tb testing.TB, s *identity.Store, name string) (identity.Key, string) {
	tb.Helper()
	key, secret, err := s.Keys.Create(tb.Context(), identity.Key{Email: ada, Name: name})
	must(tb, err)
	return key, secret
}

// invite creates an invitation and returns its token.
func invite(t *testing.T, s *identity.Store, email string) (token string) {
	t.Helper()
	_, token, err := s.Accounts.Invite(t.Context(), email)
	must(t, err)
	return token
}
