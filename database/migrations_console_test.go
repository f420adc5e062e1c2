package database_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
)

// createDatabaseOfConsole creates a database as it was before keys had limits of the operator, sessions a generation and
// saved prompts chunks, with two accounts, the second an administrator.
func createDatabaseOfConsole(t *testing.T) (path string, raw *sql.DB) {
	t.Helper()
	path = t.TempDir() + "/base.db"
	createOlderDatabase(t, path, "0001_accounts_and_keys.sql", "0002_requests.sql", "0003_fleet.sql", "0004_console.sql",
		"0005_prompts.sql", "0006_key_uses.sql")
	raw, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	t.Cleanup(func() { raw.Close() })
	_, err = raw.Exec(`INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES
		('a', 'ada@example.org', 'Ada', false, 'active', 1), ('b', 'boss@example.org', 'Boss', true, 'active', 1)`)
	must(t, err)
	return path, raw
}

// Limits and pauses of existing keys are the operator's, unless the audit log says that the holder has set them last.
func TestMigrationFindsWhoHasSetTheLimitsOfKeys(t *testing.T) {
	path, raw := createDatabaseOfConsole(t)
	const key = `INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, concurrency, created_at, day_total)
		VALUES ($1, $2, 'k', 'p', $1, 'paused', 5, 1, 100)`
	const entry = `INSERT INTO audit (id, time, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5, '')`
	want := map[string]string{}
	add := func(id, account string, pausedByOperator, limitsOfOperator bool, entries ...string) {
		t.Helper()
		_, err := raw.Exec(key, id, account)
		must(t, err)
		for i, e := range entries {
			actor, action, _ := strings.Cut(e, ": ")
			_, err := raw.Exec(entry, fmt.Sprint(id, i), i, actor, action, id)
			must(t, err)
		}
		want[id] = fmt.Sprint(pausedByOperator, limitsOfOperator)
	}
	add("unrecorded", "a", true, true)
	add("holder", "a", false, false, "ada@example.org: create key", "ada@example.org: pause key")
	add("admin", "a", true, true, "boss@example.org: create key", "boss@example.org: pause key")
	add("command line", "a", true, true, "command line: create key", "command line: pause key")
	add("own key of an administrator", "b", true, true, "boss@example.org: create key", "boss@example.org: pause key")
	add("changed by the holder", "a", true, false, "command line: create key", "boss@example.org: pause key", "ada@example.org: change key")
	add("changed by an admin", "a", false, true, "ada@example.org: create key", "ada@example.org: pause key", "boss@example.org: change key")
	must(t, raw.Close())

	db := open(t, path)
	rows, err := db.Read().Query(`SELECT id, paused_by_operator, operator_concurrency IS 5 AND operator_day_total IS 100,
		operator_month_total IS NULL FROM keys`)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		var paused, limits, unset bool
		must(t, rows.Scan(&id, &paused, &limits, &unset))
		if got := fmt.Sprint(paused, limits); got != want[id] || !unset {
			t.Errorf("key %q: got paused and limited by the operator %s, want %s", id, got, want[id])
		}
		delete(want, id)
	}
	must(t, rows.Err())
	if len(want) > 0 {
		t.Errorf("these keys are missing: %v", want)
	}
}

func TestMigrationKeepsSessions(t *testing.T) {
	path, raw := createDatabaseOfConsole(t)
	_, err := raw.Exec(`INSERT INTO passwords (account_id, hash, changed_at) VALUES ('a', 'h', 1);
		INSERT INTO sessions (token_hash, account_id, created_at, expires_at) VALUES (x'01', 'a', 1, 2)`)
	must(t, err)
	must(t, raw.Close())
	var valid bool
	must(t, open(t, path).Read().QueryRow(`SELECT s.password_generation = p.generation
		FROM sessions s JOIN passwords p ON p.account_id = s.account_id`).Scan(&valid))
	if !valid {
		t.Error("the session is of another generation than the password")
	}
}

func TestMigrationKeepsSavedPrompts(t *testing.T) {
	path, raw := createDatabaseOfConsole(t)
	type prompt struct{ document, words string }
	prompts := map[string]prompt{
		"small": {`{"a":"é"}`, "wörds"},
		"even":  {strings.Repeat("d", 64<<10), ""},
		"large": {strings.Repeat("document é ", 100_000), strings.Repeat("words ž ", 50_000)},
	}
	for id, p := range prompts {
		_, err := raw.Exec(`INSERT INTO prompts (id, account_id, name, model, version, updated_at, words, document)
			VALUES ($1, 'a', 'n', 'm', 3, 4, $2, $3)`, id, p.words, p.document)
		must(t, err)
	}
	must(t, raw.Close())
	db := open(t, path)
	for id, p := range prompts {
		var documentBytes, size, version int
		var object string
		var document, words []byte
		must(t, db.Read().QueryRow(`SELECT object, document, words, document_bytes, bytes, version FROM prompts WHERE id = $1`, id).
			Scan(&object, &document, &words, &documentBytes, &size, &version))
		found := p.words[:min(len(p.words), 64<<10)]
		if object != "" || string(document) != p.document || string(words) != found || size != len(document)+len(words) ||
			documentBytes != len(p.document) || version != 3 {
			t.Errorf("%s: got the object %q, %d bytes, a document of %d bytes, which is %d long, and %d of words; want %d and %d, and the same texts",
				id, object, size, documentBytes, len(document), len(words), len(p.document), len(found))
		}
	}
}
