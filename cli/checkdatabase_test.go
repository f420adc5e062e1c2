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

// onSQLite writes a configuration with database.path and receipts, and returns what runs a command with it.
func onSQLite(t *testing.T, path string) func(wantCode int, args ...string) (stdout string) {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/m"}})
	must(t, err)
	t.Cleanup(func() { mock.Close() })
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `
database: {path: %q}
receipts: {enabled: true}
models: [{id: m, checkpoint: org/m, backends: [{name: b, url: %q}]}]`, path, mock.URL()), 0o600))
	return func(wantCode int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := cli.Run(context.Background(), append(args, "--config", config), &out, &errs); code != wantCode {
			t.Errorf("%v: exit code %d, want %d: %s%s", args, code, wantCode, out.String(), errs.String())
		}
		return strings.Join(strings.Fields(out.String()), " ")
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
