package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"basegate/database/postgres"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// nextRelease returns the migrations of this program and one more.
func nextRelease(t *testing.T, text string) (files fstest.MapFS, version int64) {
	t.Helper()
	files = fstest.MapFS{}
	names, err := fs.Glob(postgres.Migrations, "*.sql")
	must(t, err)
	for _, name := range names {
		data, err := fs.ReadFile(postgres.Migrations, name)
		must(t, err)
		files[name] = &fstest.MapFile{Data: data}
		if _, err := fmt.Sscanf(name, "%d", &version); err != nil {
			t.Fatal(err)
		}
	}
	version++
	files[fmt.Sprintf("%04d_next.sql", version)] = &fstest.MapFile{Data: []byte(text)}
	return files, version
}

// A role that may not change the schema serves from one that another role has migrated.
func TestSchemaIsCheckedWithoutBeingChanged(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name)})
	_, err := db.CheckSchema(t.Context())
	if !errors.Is(err, postgres.ErrOlder) || !strings.Contains(err.Error(), "the schema has version 0, this program needs ") {
		t.Errorf("an empty database: got %v, want ErrOlder and version 0", err)
	}
	migrated, err := db.Migrate(t.Context())
	must(t, err)
	if s, err := db.CheckSchema(t.Context()); err != nil || s != migrated || s.Version != s.Known || s.Newer() {
		t.Errorf("after Migrate: got %+v, %v, want %+v of this program", s, err, migrated)
	}
	server.Exec(t, name, fmt.Sprintf(`UPDATE basegate.schema_migrations SET version_id = -1 WHERE version_id = %d`, migrated.Version))
	if _, err := db.CheckSchema(t.Context()); !errors.Is(err, postgres.ErrOlder) {
		t.Errorf("an older schema: got %v, want ErrOlder", err)
	}
}

func TestNewerSchemaIsAcceptedUnlessItNeedsANewerProgram(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name)})
	own, err := db.Migrate(t.Context())
	must(t, err)
	added, version := nextRelease(t, "-- +goose Up\nALTER TABLE boots ADD COLUMN added bigint;")
	_, err = db.MigrateTo(t.Context(), added)
	must(t, err)
	want := postgres.Schema{Version: version, Known: own.Known, Oldest: 1}
	for what, accept := range map[string]func(context.Context) (postgres.Schema, error){"Migrate": db.Migrate, "CheckSchema": db.CheckSchema} {
		if s, err := accept(t.Context()); err != nil || s != want {
			t.Errorf("%s on a schema with more: got %+v, %v, want %+v", what, s, err, want)
		}
	}

	removed := maps.Clone(added)
	version++
	removed[fmt.Sprintf("%04d_remove.sql", version)] = &fstest.MapFile{Data: fmt.Appendf(nil,
		"-- +goose Up\nDROP TABLE boots;\nUPDATE schema_compatibility SET oldest = %d;", version-1)}
	_, err = db.MigrateTo(t.Context(), removed)
	must(t, err)
	for what, refuse := range map[string]func(context.Context) (postgres.Schema, error){"Migrate": db.Migrate, "CheckSchema": db.CheckSchema} {
		s, err := refuse(t.Context())
		if want := (postgres.Schema{Version: version, Known: own.Known, Oldest: version - 1}); !errors.Is(err, postgres.ErrNewer) || s != want {
			t.Errorf("%s on a schema with less: got %+v and %v, want ErrNewer of %+v", what, s, err, want)
		}
	}
	// The release between the two goes on.
	if s, err := db.MigrateTo(t.Context(), added); err != nil || !s.Newer() {
		t.Errorf("the release before: got %+v, %v, want a newer schema that it accepts", s, err)
	}
}

// lockObserver returns a function that reports whether a statement in a database waits for a lock.
func lockObserver(t *testing.T, server *postgrestest.Server, name string) (waiting func() bool) {
	t.Helper()
	observer, err := pgx.Connect(t.Context(), server.URL(name))
	must(t, err)
	t.Cleanup(func() { _ = observer.Close(context.WithoutCancel(t.Context())) })
	return func() bool {
		var n int
		must(t, observer.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'`, name).Scan(&n))
		return n > 0
	}
}

// CREATE SCHEMA IF NOT EXISTS fails if another transaction, which had not committed when it began, makes the schema.
func TestSchemaThatAnotherProcessMakesMeanwhileIsMigrated(t *testing.T) {
	server, name := newDatabase(t)
	waiting := lockObserver(t, server, name)
	other, err := pgx.Connect(t.Context(), server.URL(name))
	must(t, err)
	defer func() { _ = other.Close(context.WithoutCancel(t.Context())) }()
	_, err = other.Exec(t.Context(), `BEGIN; CREATE SCHEMA basegate`)
	must(t, err)
	db := open(t, postgres.Settings{URL: server.URL(name)})
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		if s, err := db.Migrate(t.Context()); err != nil || s.Version != s.Known {
			t.Errorf("got %+v, %v, want this program's version", s, err)
		}
	})
	poll.Until(t, "the migration waits", waiting)
	_, err = other.Exec(t.Context(), `COMMIT`)
	must(t, err)
}

// A migration that waits for a lock makes the requests wait that come after it. So it waits for a second, and tries again.
func TestMigrationGivesUpALockThatItWaitsForAndTriesAgain(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name), LockTimeout: time.Minute}) // not that of migrations
	_, err := db.Migrate(t.Context())
	must(t, err)
	waiting := lockObserver(t, server, name)
	holder, err := db.Pool().Begin(t.Context())
	must(t, err)
	defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = holder.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0; SELECT FROM boots`)
	must(t, err)
	files, version := nextRelease(t, "-- +goose Up\nALTER TABLE boots ADD COLUMN added bigint;")
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		if s, err := db.MigrateTo(t.Context(), files); err != nil || s.Version != version {
			t.Errorf("got %+v, %v, want version %d", s, err, version)
		}
	})
	poll.Until(t, "the migration waits", waiting)
	poll.Until(t, "the migration has given up", func() bool { return !waiting() })
	must(t, holder.Rollback(t.Context()))
}

// An index of a big table is made outside a transaction. What a failed attempt has left is made again.
func TestMigrationMakesAnIndexConcurrently(t *testing.T) {
	server, name := newDatabase(t)
	db := open(t, postgres.Settings{URL: server.URL(name)})
	_, err := db.Migrate(t.Context())
	must(t, err)
	server.Exec(t, name, `CREATE INDEX refusals_next ON basegate.refusals (time);
		UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'basegate.refusals_next'::regclass`)
	files, _ := nextRelease(t, exampleOfIndex(t))
	_, err = db.MigrateTo(t.Context(), files)
	must(t, err)
	var valid bool
	must(t, db.Pool().QueryRow(t.Context(), `SELECT indisvalid FROM pg_index WHERE indexrelid = 'refusals_next'::regclass`).Scan(&valid))
	if !valid {
		t.Error("the index is not valid")
	}
}

// exampleOfIndex returns the migration that CONTRIBUTING.md shows.
func exampleOfIndex(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../CONTRIBUTING.md")
	must(t, err)
	_, text, found := strings.Cut(string(data), "```sql\n")
	text, _, closed := strings.Cut(text, "```")
	if !found || !closed || !strings.Contains(text, "CREATE INDEX CONCURRENTLY refusals_next") {
		t.Fatal("CONTRIBUTING.md has no example of a migration that makes the index refusals_next")
	}
	return strings.ReplaceAll("\n"+text, "\n  ", "\n")
}

// firstSafe is the first migration that must not disturb gateways of the release before. The one before it makes the tables.
const firstSafe = 2

var (
	sqlComments   = regexp.MustCompile(`(?m)--.*$`)
	sqlBodies     = regexp.MustCompile(`(?s)\$(\w*)\$.*?\$\w*\$`)
	newTables     = regexp.MustCompile(`(?i)\bCREATE TABLE (?:IF NOT EXISTS )?(\w+)`)
	newIndexes    = regexp.MustCompile(`(?i)\bCREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?(?:IF NOT EXISTS )?\w+ ON (?:ONLY )?(\w+)`)
	alteredTables = regexp.MustCompile(`(?is)\bALTER TABLE (?:ONLY )?(\w+)([^;]*)`)
	newColumns    = regexp.MustCompile(`(?i)\bADD COLUMN [^,;]*\bNOT NULL\b[^,;]*`)
	hasDefault    = regexp.MustCompile(`(?i)\b(DEFAULT|GENERATED)\b`)
	newChecks     = regexp.MustCompile(`(?i)\bADD (CONSTRAINT|CHECK|FOREIGN KEY|UNIQUE|PRIMARY KEY)\b`)
	notValid      = regexp.MustCompile(`(?i)\bNOT VALID\b`)
	removals      = regexp.MustCompile(`(?i)\bDROP (TABLE|COLUMN|FUNCTION|PROCEDURE|VIEW|SEQUENCE|TYPE|DEFAULT)\b|\bRENAME\b|\bSET NOT NULL\b|` +
		`\bALTER COLUMN \w+ (SET DATA )?TYPE\b`)
	raisesOldest = regexp.MustCompile(`(?i)\bUPDATE schema_compatibility SET oldest\b`)
	grants       = regexp.MustCompile(`(?i)\bSELECT ledger_grants\(\)`)
	newObjects   = regexp.MustCompile(`(?i)\bCREATE (OR REPLACE )?(TABLE|FUNCTION|SEQUENCE|VIEW)\b`)
)

// unsafe returns what in a migration disturbs gateways of the release before.
func unsafe(text string) (found []string) {
	add := func(bad bool, what string) {
		if bad {
			found = append(found, what)
		}
	}
	noTransaction := strings.Contains(text, "+goose NO TRANSACTION")
	text = sqlBodies.ReplaceAllString(sqlComments.ReplaceAllString(text, ""), "")
	var own []string
	for _, m := range newTables.FindAllStringSubmatch(text, -1) {
		own = append(own, m[1])
	}
	for _, m := range newIndexes.FindAllStringSubmatch(text, -1) {
		add(m[1] == "" && !slices.Contains(own, m[2]), "an index that is not made CONCURRENTLY")
		add(m[1] != "" && !noTransaction, "CONCURRENTLY in a transaction")
	}
	for _, m := range alteredTables.FindAllStringSubmatch(text, -1) {
		if slices.Contains(own, m[1]) {
			continue
		}
		for _, column := range newColumns.FindAllString(m[2], -1) {
			add(!hasDefault.MatchString(column), "a column that the release before does not set, NOT NULL without DEFAULT")
		}
		add(newChecks.MatchString(m[2]) && !notValid.MatchString(m[2]), "a constraint that is not NOT VALID")
	}
	add(removals.MatchString(text) && !raisesOldest.MatchString(text), "a removal that leaves schema_compatibility as it is")
	add(newObjects.MatchString(text) && !grants.MatchString(text), "something new without SELECT ledger_grants()")
	for _, setting := range []string{"lock_timeout", "statement_timeout"} {
		add(strings.Contains(text, "SET "+setting) != strings.Contains(text, "RESET "+setting), "SET without RESET: the next migration has the same session")
	}
	return found
}

func TestMigrationsLeaveTheReleaseBeforeUndisturbed(t *testing.T) {
	names, err := fs.Glob(postgres.Migrations, "*.sql")
	must(t, err)
	for _, name := range names {
		var version int
		if _, err := fmt.Sscanf(name, "%d", &version); err != nil {
			t.Fatal(err)
		}
		data, err := fs.ReadFile(postgres.Migrations, name)
		must(t, err)
		if version < firstSafe {
			continue
		}
		for _, what := range unsafe(string(data)) {
			t.Errorf("%s: %s; see CONTRIBUTING.md", name, what)
		}
	}
	for _, safe := range []string{
		exampleOfIndex(t),
		`CREATE TABLE later (n int); CREATE INDEX later_n ON later (n); ALTER TABLE later ADD CHECK (n > 0); SELECT ledger_grants();`,
		`ALTER TABLE keys ADD COLUMN n bigint, ADD COLUMN m bigint NOT NULL DEFAULT 0;`,
		`ALTER TABLE keys ADD CONSTRAINT c CHECK (n > 0) NOT VALID;`,
		`DROP FUNCTION ledger_write_v1; UPDATE schema_compatibility SET oldest = 12;`,
		"CREATE FUNCTION ledger_v2() AS $$ DROP TABLE x $$; SELECT ledger_grants(); -- RENAME",
	} {
		if found := unsafe(safe); len(found) > 0 {
			t.Errorf("%s: got %q, want nothing", safe, found)
		}
	}
	for text, want := range map[string]string{
		`CREATE INDEX keys_n ON keys (n);`:                            "not made CONCURRENTLY",
		`CREATE UNIQUE INDEX CONCURRENTLY keys_n ON keys (n);`:        "in a transaction",
		`ALTER TABLE keys ADD COLUMN n bigint NOT NULL;`:              "NOT NULL without DEFAULT",
		`ALTER TABLE keys ADD CONSTRAINT c CHECK (n > 0);`:            "not NOT VALID",
		`ALTER TABLE keys DROP COLUMN n;`:                             "a removal",
		`ALTER TABLE keys RENAME COLUMN n TO m;`:                      "a removal",
		`ALTER TABLE keys ALTER COLUMN n TYPE text;`:                  "a removal",
		`CREATE FUNCTION ledger_v2() RETURNS void AS $$ SELECT 1 $$;`: "without SELECT ledger_grants()",
		"-- +goose NO TRANSACTION\nSET lock_timeout = 0;":             "SET without RESET",
	} {
		if found := unsafe(text); len(found) != 1 || !strings.Contains(found[0], want) {
			t.Errorf("%s: got %q, want %q", text, found, want)
		}
	}
}
