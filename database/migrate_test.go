package database_test

import (
	"bufio"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/database"
)

// migrationsOf returns the checksums of an engine's migrations.
func migrationsOf(t *testing.T, folder string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.sql")
	must(t, err)
	sums := map[string]string{}
	for i, path := range files {
		text, err := os.ReadFile(path)
		must(t, err)
		file, sum := filepath.Base(path), sha256.Sum256(text)
		sums[file] = hex.EncodeToString(sum[:])
		if want := fmt.Sprintf("%04d_", i+1); !strings.HasPrefix(file, want) {
			t.Errorf("%s does not begin with %s: numbers have no gaps", path, want)
		}
	}
	return sums
}

// Databases made with a migration exist, so the migration must stay as it is, comments included: a change of the schema
// is a new file.
func TestMigrationsAreImmutable(t *testing.T) {
	for _, folder := range []string{"migrations", "postgres/migrations"} {
		list, err := os.Open(folder + "/SHA256SUMS")
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
		if diff := cmp.Diff(want, migrationsOf(t, folder)); diff != "" || len(want) == 0 {
			t.Errorf("checksums of %s (-SHA256SUMS +files):\n%s", folder, diff)
		}
	}
}

// An operator decides by the schema version in the notes whether a rollback needs a restore.
func TestChangelogNamesTheSchemaVersions(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	must(t, err)
	want := fmt.Sprintf("The schema version of the database is %d, on PostgreSQL %d.",
		len(migrationsOf(t, "migrations")), len(migrationsOf(t, "postgres/migrations")))
	notes := regexp.MustCompile(`(?s)\n## .*?(\n## |$)`).FindString(string(text))
	if !strings.Contains(notes, want) {
		t.Errorf("the notes of the latest version do not say: %s", want)
	}
}

func TestDatabaseOfAnotherProgramIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	raw, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	_, err = raw.Exec("CREATE TABLE other (n INTEGER)")
	must(t, err)
	must(t, raw.Close())
	if _, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop()); !errors.Is(err, database.ErrUnknownContent) {
		t.Errorf("got error %v, want ErrUnknownContent", err)
	}
}

// Cached snapshots of keys and accounts are validated by the revision.
func TestEveryChangeOfKeysAndAccountsIncrementsTheRevision(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "base.db"))
	revision := func() (n int) {
		must(t, db.Read().QueryRow("SELECT revision FROM keys_revision").Scan(&n))
		return n
	}
	for _, statement := range []string{
		`INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ('a', 'ada@example.org', 'Ada', false, 'active', 1)`,
		`INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at) VALUES ('k', 'a', 'laptop', 'acs', 'h', 'active', 1)`,
		`INSERT INTO replaced_secrets (secret_hash, key_id, prefix, valid_until) VALUES ('r', 'k', 'acs', 2)`,
		`UPDATE accounts SET caps = '{"month_total":100}'`, `UPDATE keys SET caps = '{"month_total":100}'`,
		`UPDATE keys SET operator_caps = '{"day_total":100}'`,
		`UPDATE replaced_secrets SET valid_until = 3`, `DELETE FROM replaced_secrets`, `DELETE FROM keys`, `DELETE FROM accounts`,
	} {
		before := revision()
		must(t, db.WriteGrouped(t.Context(), execute(statement)))
		if revision() != before+1 {
			t.Errorf("this does not increment keys_revision: %s", statement)
		}
	}
}
