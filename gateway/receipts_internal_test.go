package gateway

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	apierr "basegate/errors"
	"basegate/identity"
	"basegate/internal/databasetest"
)

// A client that is told 401 gives its key up, although the key may be a new one that another process has created.
func TestReceiptsDoNotRefuseAKeyThatCannotBeLookedUp(t *testing.T) {
	db, err := database.Open(t.Context(), databasetest.SQLite(t, filepath.Join(t.TempDir(), "base.db")), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	store := identity.New(db, zap.NewNop(), identity.Settings{PollInterval: time.Hour})
	if err := store.Keys.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Keys.Close)
	if err := db.Read().Close(); err != nil {
		t.Fatal(err)
	}
	g := &Gateway{keys: store.Keys}
	for header, want := range map[string]apierr.Code{
		"Bearer acs-bm-" + strings.Repeat("0", 43): apierr.Overloaded, "Bearer acs-bm-wrong": apierr.InvalidAPIKey, "Basic YTpi": apierr.InvalidAPIKey,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/receipts/0", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", header)
		if _, err := g.keyOf(r); err == nil || apierr.From(err).Code != want {
			t.Errorf("%s: got error %v, want %s", header, err, want)
		}
	}
}
