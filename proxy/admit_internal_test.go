package proxy

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/identity"
	"basegate/internal/databasetest"
)

// A key is found only in a single Authorization header with the scheme Bearer, and only known workloads are recorded.
func FuzzHeaders(f *testing.F) {
	db, err := database.Open(f.Context(), databasetest.SQLite(f, filepath.Join(f.TempDir(), "test.db")), zap.NewNop())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { db.Close() })
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	if _, err := store.Accounts.Create(f.Context(), identity.Account{Email: "ada@example.org"}); err != nil {
		f.Fatal(err)
	}
	_, secret, err := store.Keys.Create(f.Context(), identity.Key{Email: "ada@example.org", Name: "k"})
	if err != nil {
		f.Fatal(err)
	}
	if err := store.Keys.Start(f.Context()); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(store.Keys.Close)
	s := &Server{deps: Deps{Keys: store.Keys}}
	for _, value := range []string{"Bearer SECRET", "bearer  SECRET ", "Bearer SECRET,Bearer SECRET", "Basic SECRET", "SECRET", "Bearer", "Bearer\tSECRET", "Bearer SECRET x", ""} {
		f.Add(value, "", "batch")
		f.Add(value, value, "Batch ")
	}
	f.Fuzz(func(t *testing.T, value, second, workload string) {
		value = strings.ReplaceAll(value, "SECRET", secret)
		r := &http.Request{Header: http.Header{"Authorization": {value}, "X-Acs-Workload": {workload}}}
		if second != "" {
			r.Header.Add("Authorization", second)
		}
		x := &exchange{r: r}
		identity, err := s.identify(x)
		fields := strings.SplitN(value, " ", 2)
		want := second == "" && len(fields) == 2 && strings.EqualFold(fields[0], "Bearer") && strings.TrimSpace(fields[1]) == secret
		if (err == nil) != want || (identity.KeyID != "") != want {
			t.Errorf("Authorization %q, %q: got %+v, %v, want a key: %t", value, second, identity, err, want)
		}
		if got := x.workload(); got != "" && got != "interactive" && got != "batch" || got != "" && got != workload {
			t.Errorf("X-Acs-Workload %q: got the workload %q", workload, got)
		}
	})
}
