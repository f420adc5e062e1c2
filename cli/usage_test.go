package cli_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"basegate/cli"
	"basegate/database"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// longLedger is a configuration with so many requests on its ledger, the oldest of which are of a key with a long name.
func longLedger(t *testing.T, rows int) (config string) {
	t.Helper()
	dir := t.TempDir()
	config, path := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "basegate.db")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `
database: {path: %q}
models: [{id: m, checkpoint: org/m, backends: [{url: "http://127.0.0.1:1"}]}]`, path), 0o600))
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		const text = `
			WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
			INSERT INTO requests SELECT printf('req_%06d', i), i * 1000000,
				CASE WHEN i < 10 THEN 'key_ěšč_of_a_very_long_name' ELSE 'key' END, 'acc', 'm', 'gpu1', '/v1/completions', '', '', 0,
				200, '', 'settled', 2, 1, 0, 0, 1000 FROM n`
		_, err := tx.ExecContext(t.Context(), text, rows)
		return err
	}))
	must(t, db.Close())
	return config
}

func TestALongLedgerIsShownWhole(t *testing.T) {
	const rows = 2500
	config := longLedger(t, rows)
	usage := func(flags ...string) string {
		t.Helper()
		var out, complaints bytes.Buffer
		if code := cli.Run(context.Background(), append([]string{"usage", "--config", config}, flags...), &out, &complaints); code != 0 {
			t.Fatalf("exit code %d: %s", code, complaints.String())
		}
		return out.String()
	}
	var objects []map[string]any
	must(t, json.Unmarshal([]byte(usage("--json")), &objects))
	if len(objects) != rows || objects[rows-1]["request_id"] != "req_000001" {
		t.Errorf("JSON has %d objects", len(objects))
	}
	records, err := csv.NewReader(strings.NewReader(usage("--csv"))).ReadAll()
	must(t, err)
	if len(records) != rows+1 || records[rows][0] != "req_000001" {
		t.Errorf("CSV has %d records", len(records))
	}
	lines := strings.Split(strings.TrimSuffix(usage(), "\n"), "\n")
	if len(lines) != rows+2 || strings.Join(strings.Fields(lines[rows+1]), " ") != "total 5000 2500" {
		t.Fatalf("the table has %d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	at := func(line, word string) int { return len([]rune(line[:strings.Index(line, word)])) }
	if first, last := at(lines[1], "settled"), at(lines[rows], "settled"); first >= last {
		t.Errorf("the first rows have waited for the last: a column stands at %d and %d", first, last)
	}
	if !strings.Contains(lines[rows], "long_name  acc      m") {
		t.Errorf("the gap is not two spaces: %q", lines[rows])
	}
	for _, span := range [][2]int{{1, rows - 9}, {rows - 8, rows}} { // before the long name, and from it on
		for _, line := range lines[span[0] : span[1]+1] {
			if got, want := at(line, "settled"), at(lines[span[0]], "settled"); got != want {
				t.Fatalf("a column that stands at %d is at %d: %q", want, got, line)
			}
		}
	}
}

// full is a disk without room.
type full struct{}

var errFull = errors.New("no space left on device")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWhatCannotBePrintedIsAFailure(t *testing.T) {
	config := longLedger(t, 20)
	for _, args := range [][]string{
		{"usage"},
		{"usage", "--json"},
		{"usage", "--csv"},
		{"usage", "--by", "day"},
		{"account", "list"},
		{"key", "list", "--json"},
	} {
		var complaints bytes.Buffer
		code := cli.Run(context.Background(), append(args, "--config", config), full{}, &complaints)
		if code != 1 || strings.Count(complaints.String(), errFull.Error()) != 1 {
			t.Errorf("%v: exit code %d, %q", args, code, complaints.String())
		}
	}
}
