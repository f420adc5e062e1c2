package database_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/identity"
	"basegate/internal/poll"
)

// Databases made with a migration exist, so the migration must stay as it is, comments included: a change of the schema
// is a new file. SHA256SUMS says how to add its line.
func TestMigrationsAreImmutable(t *testing.T) {
	list, err := os.Open("migrations/SHA256SUMS")
	must(t, err)
	defer list.Close()
	want := map[string]string{}
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			sum, file, _ := strings.Cut(line, "  ")
			want[file] = sum
		}
	}
	must(t, lines.Err())
	files, err := filepath.Glob("migrations/*.sql")
	must(t, err)
	got, numbers := map[string]string{}, map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		must(t, err)
		file, sum := filepath.Base(path), sha256.Sum256(text)
		got[file] = hex.EncodeToString(sum[:])
		number, _, _ := strings.Cut(file, "_")
		if other := numbers[number]; other != "" {
			t.Errorf("%s and %s have the same number", other, file)
		}
		numbers[number] = file
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
		t.Errorf("checksums of migrations (-SHA256SUMS +files):\n%s", diff)
	}
}

// fixture describes a database that an earlier version has made.
type fixture struct {
	Versions []int64
	Secrets  map[string]string                // by the names of their keys
	Caps     struct{ Account, Capped *int64 } // of bob's account by month and of the key "capped" by day; nil: none
	Prompt   bool
	Requests []fixtureRequest
}

type fixtureRequest struct {
	ID         string `json:"request_id"`
	Key        string // its name
	State      string
	User       string
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
}

// unpackFixtures writes the stored databases to new files and returns their paths by name.
func unpackFixtures(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/upgrade/*.db.gz")
	must(t, err)
	if len(files) < 12 {
		t.Fatalf("found %d stored databases, want at least 12", len(files))
	}
	unpacked, dir := map[string]string{}, t.TempDir()
	for _, file := range files {
		packed, err := os.ReadFile(file)
		must(t, err)
		if len(packed) > 50<<10 {
			t.Errorf("%s has %d bytes, want at most 50 KiB", file, len(packed))
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		name := strings.TrimSuffix(filepath.Base(file), ".db.gz")
		unpacked[name] = filepath.Join(dir, name+".db")
		must(t, os.WriteFile(unpacked[name], content, 0o600))
	}
	return unpacked
}

func readFixture(t *testing.T, name string) (f fixture) {
	t.Helper()
	text, err := os.ReadFile("testdata/upgrade/" + name + ".json")
	must(t, err)
	must(t, json.Unmarshal(text, &f))
	return f
}

// schema returns the columns of each table and index, and the number of triggers, of a database.
func schema(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	rows, err := db.Query(`
		SELECT name, coalesce(
			(SELECT group_concat(name || ' ' || type || ' ' || "notnull" || ' ' || pk, ', ') FROM (SELECT * FROM pragma_table_info(s.name) ORDER BY name)),
			(SELECT group_concat(coalesce(name, 'expression'), ', ') FROM pragma_index_info(s.name)), type)
		FROM sqlite_schema s WHERE name NOT LIKE 'sqlite_%'`)
	must(t, err)
	defer rows.Close()
	found := map[string]string{}
	for rows.Next() {
		var name, columns string
		must(t, rows.Scan(&name, &columns))
		found[name] = columns
	}
	must(t, rows.Err())
	return found
}

// Databases of every earlier version, and of the commits whose migrations were changed afterwards, get the schema of a
// new database and keep their rows.
func TestDatabasesOfEarlierVersionsAreUpgraded(t *testing.T) {
	t.Parallel()
	want := schema(t, open(t, filepath.Join(t.TempDir(), "new.db")).Read())
	for name, path := range unpackFixtures(t) {
		t.Run(name, func(t *testing.T) {
			f := readFixture(t, name)
			db := open(t, path)
			if diff := cmp.Diff(want, schema(t, db.Read())); diff != "" {
				t.Errorf("schema (-new +upgraded):\n%s", diff)
			}
			var keys, requests, prompts, problems int
			for query, into := range map[string]*int{
				"SELECT count(*) FROM keys": &keys, "SELECT count(*) FROM requests": &requests,
				"SELECT count(*) FROM pragma_foreign_key_check":                                                           &problems,
				`SELECT count(*) FROM prompts WHERE name = 'Fairy tale' AND CAST(words AS TEXT) LIKE '%once upon a time'`: &prompts,
			} {
				must(t, db.Read().QueryRow(query).Scan(into))
			}
			if keys != 4 || requests != len(f.Requests) || problems > 0 || (prompts == 1) != f.Prompt {
				t.Errorf("got %d keys, %d requests, %d searchable prompts and %d broken references; want 4, %d, %t, 0",
					keys, requests, prompts, problems, len(f.Requests), f.Prompt)
			}
			f.verifyRows(t, db)
		})
	}
}

// verifyRows compares the requests, keys and caps of an upgraded database with those that it had, and the sums of usage with
// its requests.
func (f *fixture) verifyRows(t *testing.T, db *database.DB) {
	t.Helper()
	if diff := cmp.Diff(f.Requests, upgradedRequests(t, db), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("requests (-before +after):\n%s", diff)
	}

	store := identity.New(db, zap.NewNop(), identity.Settings{})
	must(t, store.Keys.Start(t.Context()))
	defer store.Keys.Close()
	for key, want := range map[string]error{"laptop": nil, "capped": nil, "paused": identity.ErrKeyPaused, "revoked": identity.ErrKeyRevoked} {
		if p, err := store.Keys.Authenticate(t.Context(), f.Secrets[key]); !errors.Is(err, want) || p.KeyID == "" {
			t.Errorf("the key %s: got %q, error %v, want %v", key, p.KeyID, err, want)
		}
	}
	account, err := store.Accounts.Find(t.Context(), "bob@example.org")
	must(t, err)
	key, err := store.Keys.Find(t.Context(), f.Secrets["capped"])
	must(t, err)
	var wantAccount, wantKey quota.Caps
	if f.Caps.Account != nil {
		wantAccount.MonthTotal, wantKey.DayTotal = quota.Limit(*f.Caps.Account), quota.Limit(*f.Caps.Capped)
	}
	if account.Caps != wantAccount || key.Caps != wantKey || key.Concurrency != 2 {
		t.Errorf("the account has the caps %v; the key has %v and a concurrency of %d; want %v, %v and 2",
			account.Caps, key.Caps, key.Concurrency, wantAccount, wantKey)
	}

	sums := usage.New(db, zap.NewNop())
	sums.Start(t.Context())
	defer sums.Close()
	poll.Until(t, "all requests are in the rollups", func() bool {
		var left int
		must(t, db.Read().QueryRow(`SELECT count(*) FROM requests WHERE seq > (SELECT seq FROM usage_watermark)`).Scan(&left))
		return left == 0
	})
	must(t, sums.Check(t.Context(), func(d usage.Difference) { t.Errorf("a rollup differs: %s", d) }))
}

// upgradedRequests returns the requests in the order in which they were made.
func upgradedRequests(t *testing.T, db *database.DB) (all []fixtureRequest) {
	t.Helper()
	rows, err := db.Read().Query(`SELECT request_id, k.name, r.state, user_tag, prompt_tokens, completion_tokens
		FROM requests r JOIN keys k ON k.id = r.key_id WHERE status = 200 AND code = '' ORDER BY seq`)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var r fixtureRequest
		must(t, rows.Scan(&r.ID, &r.Key, &r.State, &r.User, &r.Prompt, &r.Completion))
		all = append(all, r)
	}
	must(t, rows.Err())
	return all
}

// A database that has later migrations, but not this one, is of a commit between the merges of two branches.
func TestMissingMigrationIsAppliedAfterLaterOnes(t *testing.T) {
	if f := readFixture(t, "schema09-3992eb7"); slices.Contains(f.Versions, 7) || !slices.Contains(f.Versions, 9) {
		t.Fatalf("the stored database has the versions %v, want 9 and not 7", f.Versions)
	}
	var watermarks int
	must(t, open(t, unpackFixtures(t)["schema09-3992eb7"]).Read().QueryRow("SELECT count(*) FROM usage_watermark").Scan(&watermarks))
	if watermarks != 1 {
		t.Errorf("got %d watermarks, want 1", watermarks)
	}
}

// A backup is of the version that made the database, and a restore migrates nothing: the earlier version may use both.
func TestBackupAndRestoreKeepTheSchemaVersion(t *testing.T) {
	path := unpackFixtures(t)["schema06-22f6ce1"]
	copied, restored := filepath.Join(t.TempDir(), "copy.db"), filepath.Join(t.TempDir(), "restored.db")
	contents, err := database.Backup(t.Context(), path, copied)
	must(t, err)
	result, err := database.Restore(t.Context(), restored, copied)
	must(t, err)
	if contents.SchemaVersion != 6 || result.SchemaVersion != 6 || result.Newest < 10 || result.Previous != "" {
		t.Errorf("got %+v and %+v, want schema version 6, at least 10 as the newest, and no previous database", contents, result)
	}
	if contents.Accounts != 2 || contents.Keys != 4 || contents.Requests != 4 || contents.Latest.IsZero() {
		t.Errorf("got %+v, want 2 accounts, 4 keys, 4 requests and the time of the latest", contents)
	}
}

// An operator decides by the schema version in the notes whether a rollback needs a restore.
func TestChangelogNamesTheSchemaVersion(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	must(t, err)
	named := regexp.MustCompile(`(?s)## Unreleased.*?schema version of the database is (\d+)`).FindSubmatch(text)
	var newest string
	must(t, open(t, filepath.Join(t.TempDir(), "new.db")).Read().QueryRow("SELECT max(version_id) FROM goose_db_version").Scan(&newest))
	if named == nil || string(named[1]) != newest {
		t.Errorf("the notes of the next version name the schema version %q, want %s", named, newest)
	}
}
