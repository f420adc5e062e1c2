package postgres_test

import (
	"os"
	"os/exec"
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
