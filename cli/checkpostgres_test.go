package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"basegate/cli"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// onPostgres writes a configuration with database.url, and returns what runs a command with it.
func onPostgres(t *testing.T, url string, more ...string) func(wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/m"}})
	must(t, err)
	t.Cleanup(func() { mock.Close() })
	folder := t.TempDir()
	config := filepath.Join(folder, "config.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `
database: {url: %q}
files: {url: "file://%s/files", shared: true}
models: [{id: m, checkpoint: org/m, backends: [{name: b, url: %q}]}]
%s`, url, folder, mock.URL(), strings.Join(more, "\n")), 0o600))
	return func(wantCode int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := cli.Run(context.Background(), append(args, "--config", config), &out, &errs); code != wantCode {
			t.Errorf("%v: exit code %d, want %d: %s%s", args, code, wantCode, out.String(), errs.String())
		}
		return out.String(), errs.String()
	}
}

func TestCheckExaminesThePostgresServer(t *testing.T) {
	server := postgrestest.Start(t)
	name := server.Create(t, "")
	run := onPostgres(t, server.URL(name))
	stdout, _ := run(0, "check")
	for _, want := range []string{"database ok PostgreSQL 1", "database warning the database is empty", "database warning there is no synchronous standby"} {
		if !strings.Contains(strings.Join(strings.Fields(stdout), " "), want) {
			t.Errorf("got %s, want %q", stdout, want)
		}
	}
	server.Exec(t, name, `CREATE SCHEMA basegate; CREATE TABLE basegate.other (n int)`)
	if stdout, _ = run(1, "check"); !strings.Contains(stdout, "that basegate has not made") {
		t.Errorf("a schema of others: %s", stdout)
	}
	missing := onPostgres(t, server.URL("missing"))
	if stdout, _ = missing(1, "check"); !strings.Contains(stdout, "CREATE DATABASE") {
		t.Errorf("no database: %s", stdout)
	}
}

func TestDatabaseCheckMendsThePostgresLedger(t *testing.T) {
	server := postgrestest.Start(t)
	name := server.Create(t, "")
	run := onPostgres(t, server.URL(name))
	run(0, "database", "migrate")
	run(0, "account", "create", "a@example.org")
	if _, stderr := run(0, "database", "check"); !strings.Contains(stderr, "every request in flight has a gateway") {
		t.Errorf("a database without differences: %s", stderr)
	}
	server.Exec(t, name, `UPDATE basegate.owner SET month_in = 5;
		INSERT INTO basegate.usage_days SELECT 1, 20000, 1, 0, 0, 1, 1`)
	stdout, stderr := run(1, "database", "check")
	if !strings.Contains(stdout, "month_in is 5, its rows have 0") || !strings.Contains(stderr, "basegate database check --repair") {
		t.Errorf("got %q and %q, want the counter and the repair", stdout, stderr)
	}
	if _, stderr := run(0, "database", "check", "--repair"); !strings.Contains(stderr, "1 counters of 1 accounts are counted again") {
		t.Errorf("the repair says %q", stderr)
	}
	run(0, "database", "check")
}
