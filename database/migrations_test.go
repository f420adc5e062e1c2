package database_test

import (
	"database/sql"
	"os"
	"strconv"
	"strings"
	"testing"

	"basegate/database"
)

// createOlderDatabase creates a database to which only the given first migrations have been applied.
func createOlderDatabase(t *testing.T, path string, migrations ...string) {
	t.Helper()
	raw, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	defer raw.Close()
	_, err = raw.Exec(`CREATE TABLE goose_db_version (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL, tstamp TIMESTAMP DEFAULT (datetime('now')));
		INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1)`)
	must(t, err)
	for i, file := range migrations {
		text, err := os.ReadFile("migrations/" + file)
		must(t, err)
		_, up, _ := strings.Cut(string(text), "-- +goose Up")
		_, err = raw.Exec(up)
		must(t, err)
		_, err = raw.Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, 1)", i+1)
		must(t, err)
	}
}

func revision(t *testing.T, db *database.DB) (n int) {
	t.Helper()
	must(t, db.Read().QueryRow("SELECT revision FROM keys_revision").Scan(&n))
	return n
}

func TestMigrationAddsCapsToAnOlderDatabase(t *testing.T) {
	path := t.TempDir() + "/base.db"
	createOlderDatabase(t, path, "0001_accounts_and_keys.sql")
	raw, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	_, err = raw.Exec(`
		INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ('a', 'ada@example.org', 'Ada', 0, 'active', 1);
		INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at) VALUES ('k', 'a', 'laptop', 'acs', x'00', 'active', 1)`)
	must(t, err)
	must(t, raw.Close())
	db := open(t, path)
	for _, table := range []string{"accounts", "keys"} {
		for _, column := range []string{"month_total", "day_total", "month_input", "month_output"} {
			var unbounded bool
			must(t, db.Read().QueryRow("SELECT "+column+" IS NULL FROM "+table).Scan(&unbounded))
			if !unbounded {
				t.Errorf("%s.%s is not NULL after the migration", table, column)
			}
			before := revision(t, db)
			must(t, db.WriteGrouped(t.Context(), execute("UPDATE "+table+" SET "+column+" = 100")))
			if revision(t, db) != before+1 {
				t.Errorf("a change of %s.%s does not increment keys_revision", table, column)
			}
			if db.WriteGrouped(t.Context(), execute("UPDATE "+table+" SET "+column+" = -1")) == nil {
				t.Errorf("%s.%s accepts a negative value", table, column)
			}
		}
	}
}

func TestMigrationDerivesTheLastUseOfKeysFromRequests(t *testing.T) {
	path := t.TempDir() + "/base.db"
	createOlderDatabase(t, path, "0001_accounts_and_keys.sql", "0002_requests.sql", "0003_fleet.sql", "0004_console.sql", "0005_prompts.sql")
	raw, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	for i, key := range []string{"k1", "k2", "k1"} {
		_, err = raw.Exec(`INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint,
			workload, user_tag, stream, status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
			VALUES ($1, $2, $3, 'a', '', '', '', '', '', false, 200, '', 'settled', 0, 0, 0, 0, 0)`, i, 100+i, key)
		must(t, err)
	}
	must(t, raw.Close())
	db := open(t, path)
	for key, want := range map[string]int64{"k1": 102, "k2": 101} {
		var last int64
		must(t, db.Read().QueryRow("SELECT time FROM key_uses WHERE key_id = $1", key).Scan(&last))
		if last != want {
			t.Errorf("%s was last used at %d, want %d", key, last, want)
		}
	}
}

// A crash of the version before has left a request in flight.
func TestMigrationMovesRequestsInFlight(t *testing.T) {
	path := t.TempDir() + "/base.db"
	createOlderDatabase(t, path, "0001_accounts_and_keys.sql", "0002_requests.sql", "0003_fleet.sql", "0004_console.sql",
		"0005_prompts.sql", "0006_key_uses.sql")
	raw, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	for i, state := range []string{"settled", "in_flight", "interrupted", "settled"} {
		_, err = raw.Exec(`INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint,
			workload, user_tag, stream, status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
			VALUES ($1, $2, 'k', 'a', 'm', 'gpu1', '/v1/completions', 'batch', 'u', true, 200, '', $3, $4, 5, 1, 2, 3)`,
			"r"+strconv.Itoa(i), 100-i, state, 10+i)
		must(t, err)
	}
	must(t, raw.Close())
	db := open(t, path)
	const ended = `SELECT group_concat(request_id || ' ' || state || ' ' || prompt_tokens || ' ' || total_us, ', ')
		FROM (SELECT * FROM requests ORDER BY seq)`
	const inFlight = `SELECT group_concat(request_id || ' ' || prompt_tokens || '+' || completion_tokens || ' ' || backend) FROM inflight`
	for query, want := range map[string]string{
		ended:    "r0 settled 10 3, r2 interrupted 12 3, r3 settled 13 3",
		inFlight: "r1 11+5 gpu1",
		`SELECT group_concat(seq) FROM usage_watermark`: "0",
	} {
		var got string
		must(t, db.Read().QueryRow(query).Scan(&got))
		if got != want {
			t.Errorf("got %q, want %q from %s", got, want, query)
		}
	}
}
