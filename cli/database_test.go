package cli_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"basegate/cli"
	"basegate/database"
)

func TestDatabaseCheckReportsAndRepairsDifferences(t *testing.T) {
	config := newLedger(t, 20)
	path := filepath.Join(filepath.Dir(config), "basegate.db")
	run := func(wantCode int, flags ...string) (stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		args := append([]string{"database", "check", "--config", config}, flags...)
		if code := cli.Run(context.Background(), args, &out, &errs); code != wantCode {
			t.Errorf("%v: exit code %d, want %d: %s%s", args, code, wantCode, out.String(), errs.String())
		}
		return out.String(), errs.String()
	}
	run(0)
	run(0, "--repair")
	run(0)
	damage := func(text string) {
		t.Helper()
		db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
		must(t, err)
		must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
			_, err := tx.ExecContext(t.Context(), text)
			return err
		}))
		must(t, db.Close())
	}
	damage(`UPDATE usage_days SET requests = requests + 1`)
	stdout, stderr := run(1)
	if !strings.HasPrefix(stdout, "usage_days, 1970-01-01 00:00, account acc, key key") || !strings.Contains(stderr, "basegate database check --repair") {
		t.Errorf("damaged rollups: got %q and %q, want the differences and the repair", stdout, stderr)
	}
	damage(`WITH RECURSIVE n (i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 130)
		INSERT INTO usage_hours SELECT series, i, requests, errors, streams, prompt_tokens, completion_tokens, saved_tokens, 0, 0
		FROM usage_hours, n WHERE series = 1`)
	if stdout, _ = run(1); strings.Count(stdout, "\n") != 21 || !strings.Contains(stdout, "more differences\n") {
		t.Errorf("got %q, want 20 differences and the number of the others", stdout)
	}
	lock, err := database.Acquire(t.Context(), path, "serves as a gateway")
	must(t, err)
	if _, stderr = run(1, "--repair"); !strings.Contains(stderr, "serves as a gateway") {
		t.Errorf("a repair beside a gateway says %q, want the gateway", stderr)
	}
	must(t, lock.Release())
	run(0, "--repair")
	run(0)
}
