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

// newLedger returns the path of a configuration whose ledger has that many requests. The nine oldest are of a key with
// a long id.
func newLedger(t *testing.T, requests int) (config string) {
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
			INSERT INTO requests SELECT i, printf('req_%06d', i), i * 1000000,
				CASE WHEN i < 10 THEN 'key_ěšč_of_a_very_long_name' ELSE 'key' END, 'acc', 'm', 'gpu1', '/v1/completions',
				'', '', 0, 200, '', 'settled', 2, 1, 0, 0, 1000, 0, '', NULL, '', 0, NULL, NULL, NULL, NULL, NULL FROM n`
		_, err := tx.ExecContext(t.Context(), text, requests)
		return err
	}))
	must(t, db.Close())
	return config
}

func TestUsagePrintsALongLedgerInFull(t *testing.T) {
	const requests = 2500
	config := newLedger(t, requests)
	usage := func(flags ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		args := append([]string{"usage", "--config", config}, flags...)
		if code := cli.Run(context.Background(), args, &stdout, &stderr); code != 0 {
			t.Fatalf("%v: exit code %d, want 0: %s", args, code, stderr.String())
		}
		return stdout.String()
	}
	var objects []map[string]any
	must(t, json.Unmarshal([]byte(usage("--json")), &objects))
	if len(objects) != requests || objects[requests-1]["request_id"] != "req_000001" {
		t.Errorf("JSON has %d objects, want %d, the last of req_000001", len(objects), requests)
	}
	records, err := csv.NewReader(strings.NewReader(usage("--csv"))).ReadAll()
	must(t, err)
	if len(records) != requests+1 || records[requests][0] != "req_000001" {
		t.Errorf("CSV has %d records, want %d, the last of req_000001", len(records), requests+1)
	}
	lines := strings.Split(strings.TrimSuffix(usage("--by", "request"), "\n"), "\n")
	if len(lines) != requests+2 || strings.Join(strings.Fields(lines[requests+1]), " ") != "total 5000 2500" {
		t.Fatalf("the table has %d lines, want %d; the last is %q, want the total",
			len(lines), requests+2, lines[len(lines)-1])
	}
	checkAlignment(t, lines, requests)
}

// checkAlignment checks a table that is too long to be measured as a whole: the rows before the long key, which are
// printed first, are narrower than those from it on, and within each of the two ranges the columns are aligned.
func checkAlignment(t *testing.T, lines []string, requests int) {
	t.Helper()
	column := func(line, word string) int { return len([]rune(line[:strings.Index(line, word)])) }
	if first, last := column(lines[1], "settled"), column(lines[requests], "settled"); first >= last {
		t.Errorf("STATE is at column %d of the first row and %d of the last: the first rows waited for the last", first, last)
	}
	if !strings.Contains(lines[requests], "long_name  acc      m") {
		t.Errorf("the gap between columns is not two spaces: %q", lines[requests])
	}
	for _, span := range [][2]int{{1, requests - 9}, {requests - 8, requests}} {
		want := column(lines[span[0]], "settled")
		for _, line := range lines[span[0] : span[1]+1] {
			if got := column(line, "settled"); got != want {
				t.Fatalf("STATE is at column %d, want %d: %q", got, want, line)
			}
		}
	}
}

// fullDisk fails every write.
type fullDisk struct{}

var errNoSpace = errors.New("no space left on device")

func (fullDisk) Write([]byte) (int, error) { return 0, errNoSpace }

func TestWriteErrorExitsWithOne(t *testing.T) {
	config := newLedger(t, 20)
	for _, args := range [][]string{
		{"usage"},
		{"usage", "--json"},
		{"usage", "--csv"},
		{"usage", "--by", "day"},
		{"account", "list"},
		{"key", "list", "--json"},
	} {
		var stderr bytes.Buffer
		code := cli.Run(context.Background(), append(args, "--config", config), fullDisk{}, &stderr)
		if code != 1 || strings.Count(stderr.String(), errNoSpace.Error()) != 1 {
			t.Errorf("%v: exit code %d, want 1, and the error once on stderr: %q", args, code, stderr.String())
		}
	}
}
