//go:build e2e

package e2e_test

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tidwall/gjson"

	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// earlierDatabase is a database that an earlier version has made, and what it holds.
type earlierDatabase struct {
	Versions []int64
	Secrets  map[string]string
	Caps     struct{ Account, Capped int64 } // of bob's account by month and of the key "capped" by day; 0: none
	Requests []ledgerRow                     // Key is the key's name
}

// restoreEarlierDatabase restores a stored database in a new environment.
func restoreEarlierDatabase(t *testing.T, packed string, backends ...string) (*environment, earlierDatabase) {
	t.Helper()
	var d earlierDatabase
	text, err := os.ReadFile(strings.TrimSuffix(packed, ".db.gz") + ".json")
	must(t, err)
	must(t, json.Unmarshal(text, &d))
	file, err := os.Open(packed)
	must(t, err)
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	must(t, err)
	content, err := io.ReadAll(unpacked)
	must(t, err)
	dir := t.TempDir()
	env := &environment{t: t, dir: dir, config: filepath.Join(dir, "config.yaml"), email: "ada@example.org"}
	env.writeConfig(settings{}, backends...)
	backup := filepath.Join(dir, "backup.db")
	writeFile(t, backup, string(content))
	env.run("restore", backup)
	return env, d
}

// The databases of the oldest and the newest earlier version are upgraded by the gateway that opens them: their requests are
// counted, their keys and caps hold, and paused and revoked keys stay so.
func TestEarlierDatabasesAreUpgraded(t *testing.T) {
	files, err := filepath.Glob("../database/testdata/upgrade/*.db.gz")
	must(t, err)
	if len(files) == 0 {
		t.Fatal("no stored database")
	}
	mock := startMock(t, mockvllm.Options{})
	for _, file := range []string{files[0], files[len(files)-1]} {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".db.gz"), func(t *testing.T) {
			env, d := restoreEarlierDatabase(t, file, mock.URL())
			g := env.serveWithKey(d.Secrets["laptop"])
			d.verifyRequests(env)
			d.verifyCaps(env)
			for name, want := range map[string]int{
				"laptop": http.StatusOK, "capped": http.StatusOK, "paused": http.StatusUnauthorized, "revoked": http.StatusUnauthorized,
			} {
				g.secret = d.Secrets[name]
				if got := g.complete(smallRequest); got.status != want {
					t.Errorf("key %s: %d %s, want %d", name, got.status, got.body, want)
				}
			}
			env.run("database", "check")
		})
	}
}

// verifyRequests compares the ledger with the requests that the database had.
func (d *earlierDatabase) verifyRequests(env *environment) {
	env.t.Helper()
	rows := env.usageRows()
	want := slices.Clone(d.Requests)
	for i := range want {
		want[i].Status = http.StatusOK
	}
	names := map[string]string{} // of keys by their prefix
	for _, k := range gjson.Parse(env.run("key", "list", "--json")).Array() {
		names[k.Get("prefix").String()] = k.Get("name").String()
	}
	for i := range rows {
		rows[i].Key = names[rows[i].Key]
	}
	byID := cmpopts.SortSlices(func(a, b ledgerRow) bool { return a.ID < b.ID })
	if diff := cmp.Diff(want, rows, byID, cmpopts.EquateEmpty()); diff != "" {
		env.t.Errorf("requests (-before the upgrade +after):\n%s", diff)
	}
}

// verifyCaps compares the caps, and the states of keys, with those that the database had.
func (d *earlierDatabase) verifyCaps(env *environment) {
	env.t.Helper()
	keys := gjson.Parse(env.run("key", "list", "--json"))
	for name, want := range map[string]string{"laptop": "active", "capped": "active", "paused": "paused", "revoked": "revoked"} {
		if got := keys.Get(`#(name=="` + name + `").state`).String(); got != want {
			env.t.Errorf("the key %s is %s, want %s", name, got, want)
		}
	}
	account := gjson.Get(env.run("account", "list", "--json"), `#(email=="bob@example.org").monthly_budget`).Int()
	key := keys.Get(`#(name=="capped")`)
	if account != d.Caps.Account || key.Get("daily_budget").Int() != d.Caps.Capped || key.Get("concurrency").Int() != 2 {
		env.t.Errorf("the account's cap is %d and the key is %s; want %d, a daily budget of %d and a concurrency of 2",
			account, key, d.Caps.Account, d.Caps.Capped)
	}
}

// After an upgrade, the earlier version must not open the database: it does not know what the later one has written.
func TestEarlierVersionRefusesALaterDatabase(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{}, mock.URL())
	db := env.openLedger()
	_, err := db.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)")
	must(t, err)
	must(t, db.Close())
	for _, command := range [][]string{{"serve"}, {"key", "list"}, {"check"}} {
		stdout, stderr, code := runCommand(t, append(command, "--config", env.config)...)
		if code != 1 || !strings.Contains(stdout+stderr, "made by a newer version of basegate") || !strings.Contains(stdout+stderr, "version is 9999") ||
			!strings.Contains(stdout+stderr, "restore a backup made before the upgrade") {
			t.Errorf("%v: exit code %d, %s%s; want 1, the versions and what to do", command, code, stdout, stderr)
		}
	}
	backup := filepath.Join(t.TempDir(), "later.db")
	env.run("backup", backup)
	if _, stderr, code := runCommand(t, "restore", backup, "--config", env.config); code != 1 || !strings.Contains(stderr, "made by a newer version") {
		t.Errorf("restore a later database: exit code %d, %s; want 1", code, stderr)
	}
}

// While a later release has migrated, gateways of this one serve, those that restart included. They refuse a schema that lacks
// what they use.
func TestGatewayServesOnASchemaThatALaterReleaseHasMigrated(t *testing.T) {
	server := postgrestest.Shared(t)
	running, restarted, _ := startTwo(t, server, settings{}, mockvllm.Options{})
	address, err := url.Parse(running.postgresURL)
	must(t, err)
	name := strings.TrimPrefix(address.Path, "/")
	if !postgrestest.Newer() {
		server.Expand(t, name)
	}
	restarted.kill()
	restarted = restarted.serveWithKey(running.secret)
	secret := running.createKey("later")
	for what, g := range map[string]*gateway{"the gateway that runs": running, "the one that was restarted": restarted} {
		if got, err := post(g.url, secret, smallRequest); err != nil || got.status != http.StatusOK {
			t.Errorf("%s: got %+v, error %v", what, got, err)
		}
		g.signIn()
	}
	if n := len(running.usageRows()); n != 2 {
		t.Errorf("the usage has %d rows, want 2", n)
	}
	if !strings.Contains(restarted.stderr.String(), "the schema is newer than this program") {
		t.Errorf("the log does not name the newer schema: %s", restarted.stderr.String())
	}
	if table, code := running.check(); code != 0 || !strings.Contains(table, "this program knows up to") {
		t.Errorf("check: exit code %d, %s; want 0 and both versions", code, table)
	}

	server.Exec(t, name, `UPDATE basegate.schema_compatibility SET oldest = 9998;
		INSERT INTO basegate.goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	for _, command := range [][]string{{"serve"}, {"key", "list"}, {"check"}, {"database", "migrate"}} {
		stdout, stderr, code := runCommand(t, append(command, "--config", restarted.config)...)
		if code != 1 || !strings.Contains(stdout+stderr, "version 9999, which needs a program that knows version 9998") {
			t.Errorf("%v: exit code %d, %s%s; want 1 and the versions", command, code, stdout, stderr)
		}
	}
}
