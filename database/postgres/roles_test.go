package postgres_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"basegate/database/postgres"
	"basegate/internal/postgrestest"
)

// deploy/cluster/roles.sql is all that an administrator runs: the owner migrates, and a role in basegate_runtime serves from
// the schema without being able to change it.
func TestRolesOfTheClusterAreEnough(t *testing.T) {
	server := postgrestest.Start(t)
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Fatal("psql is missing: it comes with PostgreSQL")
	}
	cmd := exec.CommandContext(t.Context(), psql, "-X", "-v", "ON_ERROR_STOP=1", "-f", "../../deploy/cluster/roles.sql", server.URL("postgres"))
	cmd.Env = append(os.Environ(), "BASEGATE_DATABASE_PASSWORD=it's secret")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	as := func(role string) postgres.Settings {
		return postgres.Settings{URL: strings.Replace(server.URL("basegate"), "postgres@", role+"@", 1)}
	}
	owner := open(t, as("basegate"))
	if _, err := owner.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Exec(t, "basegate", "CREATE ROLE gateways LOGIN IN ROLE basegate_runtime")
	server.Exec(t, "basegate", "CREATE ROLE stranger LOGIN")
	runtime := open(t, as("gateways"))
	_, err = runtime.CheckSchema(t.Context())
	must(t, err)
	if _, err := runtime.Migrate(t.Context()); err != nil {
		t.Errorf("a gateway that need not migrate does not start: %v", err)
	}
	if _, err := runtime.Pool().Exec(t.Context(), "SELECT ledger_join_v1('gateway', 'test', 1)"); err != nil {
		t.Errorf("a gateway cannot join: %v", err)
	}
	if _, err := runtime.Pool().Exec(t.Context(), "CREATE TABLE basegate.mine (id integer)"); err == nil {
		t.Error("a role in basegate_runtime has created a table")
	}
	if db, err := postgres.Open(t.Context(), as("stranger")); err == nil {
		db.Close()
		t.Error("a role without a grant has connected")
	}
}

// Roles in basegate_runtime may call the functions whose names end with a version; a gateway of the schema's owner
// would not show that it calls another one.
func TestProgramCallsOnlyFunctionsOfTheRuntimeRole(t *testing.T) {
	call := regexp.MustCompile(`\bledger_\w+\(`)
	granted := regexp.MustCompile(`^ledger_.*v\d+\($`)
	calls := 0
	const root = "../.."
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, root+"/database/postgres/"):
			return nil // the package migrates and checks as the owner
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range call.FindAllString(string(text), -1) {
			if calls++; !granted.MatchString(name) {
				t.Errorf("%s calls %s…), which basegate_runtime may not", path, name)
			}
		}
		return nil
	})
	must(t, err)
	if calls < 10 {
		t.Errorf("found %d calls, want more: the test looks in the wrong place", calls)
	}
}
