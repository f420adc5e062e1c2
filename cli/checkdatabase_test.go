package cli_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver that reads the file

	"basegate/cli"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// onSQLite writes a configuration with database.path and receipts, and returns what runs a command with it. output is what the
// command writes, with a blank for each white space.
func onSQLite(t *testing.T, path string) func(wantCode int, args ...string) (output string) {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/m"}})
	must(t, err)
	t.Cleanup(func() { mock.Close() })
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `
server: {listen: "127.0.0.1:0", admin_listen: "127.0.0.1:0"}
database: {path: %q}
receipts: {enabled: true}
models: [{id: m, checkpoint: org/m, backends: [{name: b, url: %q}]}]`, path, mock.URL()), 0o600))
	return func(wantCode int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := cli.Run(context.Background(), append(args, "--config", config), &out, &errs); code != wantCode {
			t.Errorf("%v: exit code %d, want %d: %s%s", args, code, wantCode, out.String(), errs.String())
		}
		return strings.Join(strings.Fields(out.String()+errs.String()), " ")
	}
}

// contents returns the names and the hashes of the files of a folder.
func contents(t *testing.T, folder string) string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	must(t, err)
	var all strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		must(t, err)
		fmt.Fprintf(&all, "%s %x\n", e.Name(), sha256.Sum256(text))
	}
	return all.String()
}

func TestCheckChangesNoDatabaseFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "basegate.db")
	run := onSQLite(t, path)
	if got := run(0, "check"); !strings.Contains(got, "the file does not exist: the first start makes it") {
		t.Errorf("without a file: %s", got)
	}
	if left := contents(t, folder); left != "" {
		t.Errorf("check has made %s", left)
	}
	run(0, "account", "create", "a@example.org")
	if got := run(0, "check"); strings.Contains(got, "migration") || !strings.Contains(got, "receipts ok the log begins at the first start") {
		t.Errorf("a current database: %s", got)
	}

	db, err := sql.Open("sqlite3", path)
	must(t, err)
	_, err = db.ExecContext(t.Context(), `UPDATE schema_migrations SET version_id = -1 WHERE version_id > 0`)
	must(t, err)
	must(t, db.Close())
	before := contents(t, folder)
	if got := run(0, "check"); !strings.Contains(got, "database ok "+path) ||
		!strings.Contains(got, "the first start makes the schema, with 1 migration") {
		t.Errorf("an older database: %s", got)
	}
	if after := contents(t, folder); after != before {
		t.Errorf("check has changed the folder from\n%sto\n%s", before, after)
	}

	foreign := filepath.Join(folder, "foreign.db")
	db, err = sql.Open("sqlite3", foreign)
	must(t, err)
	_, err = db.ExecContext(t.Context(), `CREATE TABLE other (n int)`)
	must(t, err)
	must(t, db.Close())
	if got := onSQLite(t, foreign)(1, "check"); !strings.Contains(got, "not a database of basegate") {
		t.Errorf("the database of another program: %s", got)
	}
	must(t, os.WriteFile(foreign, bytes.Repeat([]byte("damaged "), 1024), 0o600))
	if got := onSQLite(t, foreign)(1, "check"); !strings.Contains(got, "database failed") {
		t.Errorf("a damaged file: %s", got)
	}
	if got := onSQLite(t, filepath.Join(folder, "missing", "base.db"))(1, "check"); !strings.Contains(got, "database failed") {
		t.Errorf("a missing folder: %s", got)
	}
}

// After an upgrade, the earlier version must not open the database: it does not know what the later one has written.
func TestEarlierVersionRefusesALaterDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "basegate.db")
	run := onSQLite(t, path)
	run(0, "account", "create", "a@example.org")
	db, err := sql.Open("sqlite3", path)
	must(t, err)
	_, err = db.ExecContext(t.Context(), `INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, 1)`)
	must(t, err)
	must(t, db.Close())
	for _, command := range [][]string{{"serve"}, {"key", "list"}, {"check"}} {
		got := run(1, command...)
		for _, part := range []string{"made by a newer version of basegate", "the schema has version 9999", "restore a backup made before the upgrade"} {
			if !strings.Contains(got, part) {
				t.Errorf("%v: %s; want %q", command, got, part)
			}
		}
	}
	backup := filepath.Join(t.TempDir(), "later.db")
	run(0, "backup", backup)
	if got := run(1, "restore", backup); !strings.Contains(got, "made by a newer version") {
		t.Errorf("restore a later database: %s", got)
	}
}

func TestCheckMakesNoSchemaOnPostgres(t *testing.T) {
	server := postgrestest.Start(t)
	name := server.Create(t, "")
	run := onPostgres(t, server.URL(name), "receipts: {enabled: true, key: /nowhere/key}")
	if stdout, _ := run(0, "check"); !strings.Contains(stdout, "the first start makes the schema, with ") {
		t.Errorf("an empty database: %s", stdout)
	}
	server.Exec(t, name, `DO $$ BEGIN ASSERT to_regnamespace('basegate') IS NULL, 'check has made the schema'; END $$`)
	run(0, "database", "migrate")
	if stdout, _ := run(0, "check"); strings.Contains(stdout, "migration") {
		t.Errorf("a current schema: %s", stdout)
	}
}
