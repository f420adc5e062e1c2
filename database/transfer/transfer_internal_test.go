package transfer

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/database/postgres"
	"basegate/internal/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main{M: m}.Run() }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a SQLite database until the end of the test.
func open(t *testing.T, path string) *database.DB {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

// connect opens and migrates a PostgreSQL database until the end of the test.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	db, err := postgres.Open(t.Context(), postgres.Settings{URL: url, StatementTimeout: time.Minute})
	must(t, err)
	_, err = db.Migrate(t.Context())
	must(t, err)
	conn, err := db.Connect(t.Context())
	must(t, err)
	readJSONAsText(conn)
	t.Cleanup(func() {
		must(t, conn.Close(context.WithoutCancel(t.Context())))
		db.Close()
	})
	return conn
}

// newServer returns the URL of an empty database.
func newServer(t *testing.T) string {
	t.Helper()
	server := postgrestest.Shared(t)
	return server.URL(server.Create(t, ""))
}

// column is one of SQLite.
type column struct {
	table, name, kind string
	pk, nullable      bool
}

// columnsOf returns the columns of the tables in a SQLite database.
func columnsOf(t *testing.T, db *database.DB) (all []column) {
	t.Helper()
	rows, err := db.Read().QueryContext(t.Context(), `SELECT s.name, c.name, c.type, c.pk > 0, NOT c."notnull" AND c.pk = 0
		FROM sqlite_schema s JOIN pragma_table_info(s.name) c WHERE s.type = 'table' ORDER BY s.rowid, c.cid`)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var c column
		must(t, rows.Scan(&c.table, &c.name, &c.kind, &c.pk, &c.nullable))
		all = append(all, c)
	}
	must(t, rows.Err())
	return all
}

func TestWhatIsNotCopiedExists(t *testing.T) {
	unused := maps.Clone(notCopied)
	for _, c := range columnsOf(t, open(t, filepath.Join(t.TempDir(), "schema.db"))) {
		delete(unused, c.table)
		delete(unused, c.table+"."+c.name)
	}
	if len(unused) > 0 {
		t.Errorf("SQLite has no %v, which are listed as not copied", slices.Sorted(maps.Keys(unused)))
	}
}

// generator makes content of all tables.
type generator struct {
	random *rand.Rand
	rows   int // of each table
	latest time.Time
}

// value returns a value of a column in row n of a table whose key has keys columns.
func (g *generator) value(c column, keys, n int) any {
	unique := fmt.Sprintf("%s-%d", c.name, n)
	ofRequest := c.table == "requests" || c.table == "inflight"
	switch {
	case c.name == "state" && c.table == "accounts":
		return []string{"active", "pending", "disabled"}[n%3]
	case c.name == "state" && c.table == "keys":
		return []string{"active", "paused", "revoked"}[n%3]
	case c.name == "state" && c.table == "objects":
		return []string{"writing", "kept", "deleted"}[n%3]
	case c.name == "state":
		return []string{"settled", "interrupted", "replayed"}[n%3]
	case c.name == "id" && (c.table == "accounts" || c.table == "keys"):
		return fmt.Sprintf("%s_%05d", c.table, n)
	case c.name == "account_id":
		return fmt.Sprintf("accounts_%05d", n%g.rows)
	case c.name == "key_id" && c.table != "key_uses":
		return fmt.Sprintf("keys_%05d", n%g.rows)
	case c.name == "request_id" && ofRequest:
		return fmt.Sprintf("%s-%d", c.table, n)
	case c.name == "time" && ofRequest:
		return g.latest.Add(-time.Duration(n) * 41 * time.Minute).UnixMicro()
	case strings.HasSuffix(c.name, "concurrency"):
		return 1 + g.random.Int64N(64)
	case c.name == "begins_at":
		return int64(n)
	case c.name == "ends_at":
		return int64(n) + 1
	case strings.HasSuffix(c.name, "_tokens"):
		return g.random.Int64N(5000)
	case c.name == "parent":
		return nil // of the keys, each of which has an account of its own
	case c.name == "caps" || c.name == "operator_caps":
		return fmt.Sprintf(`{"month_total":%d,"day_total":9223372036854775807}`, n)
	case c.name == "only":
		return int64(1)
	}
	switch {
	case c.kind == "BOOLEAN":
		return n%2 == 0
	case c.kind == "BLOB":
		b := make([]byte, g.random.IntN(2000))
		for i := range b {
			b[i] = byte(g.random.Uint32())
		}
		return append([]byte(unique), b...)
	case c.kind == "TEXT":
		return unique + []string{"", " žluťoučký kůň", " nul\x00nul", " \xff\xfe", "\n\"\\", "␀"}[g.random.IntN(6)]
	case c.pk && keys == 1 || c.name == "seq":
		return int64(n) + 1
	case c.pk:
		return int64(n/(1+keys))*7 + int64(n)
	default:
		return 1 + g.random.Int64N(1<<40)
	}
}

// fill inserts rows into all tables of a SQLite database that are copied.
func fill(t *testing.T, path string, rows, requests int) {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	defer func() { must(t, db.Close()) }()
	tables := map[string][]column{}
	var names []string
	for _, c := range columnsOf(t, db) {
		if notCopied[c.table] != "" && c.table != "inflight" {
			continue
		}
		if tables[c.table] == nil {
			names = append(names, c.table)
		}
		tables[c.table] = append(tables[c.table], c)
	}
	g := &generator{random: rand.New(rand.NewPCG(1, 2)), rows: rows, latest: time.Now()}
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		for _, name := range names {
			count := map[string]int{"requests": requests, "receipt_log": 1, "replay_secret": 1}[name]
			if count == 0 {
				count = rows
			}
			for n := range count {
				if err := g.insert(t.Context(), tx, tables[name], n); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		_, err := tx.ExecContext(t.Context(), `UPDATE usage_watermark SET seq = $1`, requests*2/3)
		return err
	}))
}

func (g *generator) insert(ctx context.Context, tx database.Tx, columns []column, n int) error {
	names, parameters, values := make([]string, len(columns)), make([]string, len(columns)), make([]any, len(columns))
	keys := 0
	for _, c := range columns {
		if c.pk {
			keys++
		}
	}
	for i, c := range columns {
		names[i], parameters[i], values[i] = c.name, fmt.Sprint("$", i+1), g.value(c, keys, n)
		if c.nullable && c.name != "sha256" && g.random.IntN(3) == 0 { // sha256 is NULL while a batch writes results
			values[i] = nil
		}
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO "+columns[0].table+" ("+quoted(names)+") VALUES ("+strings.Join(parameters, ", ")+")", values...)
	return err
}

// fromSource returns the rows of a query on SQLite as texts, sorted, with texts as PostgreSQL stores them.
func fromSource(t *testing.T, db *database.DB, text string) (all []string) {
	t.Helper()
	rows, err := db.Read().QueryContext(t.Context(), text)
	must(t, err)
	defer rows.Close()
	columns, err := rows.ColumnTypes()
	must(t, err)
	described := make([]pgconn.FieldDescription, len(columns))
	for i, c := range columns {
		described[i].DataTypeOID = map[string]uint32{"BOOLEAN": pgtype.BoolOID, "BLOB": pgtype.ByteaOID, "TEXT": pgtype.TextOID}[c.DatabaseTypeName()]
		if c.Name() == "caps" || c.Name() == "operator_caps" {
			described[i].DataTypeOID = pgtype.JSONBOID
		}
	}
	read := &reader{rows: rows, columns: described, total: total{seed: maphash.MakeSeed()}}
	for rows.Next() {
		values, err := read.Values()
		must(t, err)
		all = append(all, fmt.Sprintf("%#v", values))
	}
	must(t, rows.Err())
	slices.Sort(all)
	return all
}

// fromTarget returns the rows of a query on PostgreSQL as texts, sorted.
func fromTarget(t *testing.T, conn *pgx.Conn, text string) (all []string) {
	t.Helper()
	rows, err := conn.Query(t.Context(), text)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		must(t, err)
		normalize(values, rows.FieldDescriptions())
		all = append(all, fmt.Sprintf("%#v", values))
	}
	must(t, rows.Err())
	slices.Sort(all)
	return all
}

func TestEveryTableIsCopied(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 150, 4500)
	must(t, Copy(t.Context(), path, url, io.Discard))
	db, conn := open(t, path), connect(t, url)
	queries := map[string][2]string{} // of the source and of the target
	columns := map[string][]string{}
	for _, c := range columnsOf(t, db) {
		if notCopied[c.table] == "" && notCopied[c.table+"."+c.name] == "" {
			columns[c.table] = append(columns[c.table], c.name)
		}
	}
	for table, columns := range columns {
		text := "SELECT " + quoted(columns) + " FROM " + table
		queries[table] = [2]string{text, text}
	}
	const ended = `SELECT request_id, prompt_tokens FROM requests `
	queries["requests"] = [2]string{queries["requests"][0], queries["requests"][1] + " WHERE request_id LIKE 'requests-%'"}
	queries["requests in the rollups"] = [2]string{
		ended + `WHERE seq <= (SELECT seq FROM usage_watermark)`,
		ended + `WHERE xid <= (SELECT seq::text::xid8 FROM usage_watermark)`,
	}
	queries["requests in flight"] = [2]string{
		`SELECT request_id, time, prompt_tokens, completion_tokens FROM inflight`,
		`SELECT request_id, time, prompt_tokens, completion_tokens FROM requests WHERE state = 'interrupted' AND total_us = 0 AND request_id LIKE 'inflight-%'`,
	}
	for name, q := range queries {
		want, got := fromSource(t, db, q[0]), fromTarget(t, conn, q[1])
		if len(want) == 0 {
			t.Errorf("the test has no %s", name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%.2000s", name, diff)
		}
	}
}

func TestCountersAreTheSumsOfTheRequests(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 20, 3000)
	must(t, Copy(t.Context(), path, url, io.Discard))
	conn := connect(t, url)
	var owners, differences int
	var used, spent int64
	must(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM owner`).Scan(&owners))
	if owners != 40 {
		t.Errorf("%d owners, want 20 accounts and 20 keys", owners)
	}
	must(t, conn.QueryRow(t.Context(), `
		SELECT count(*) FROM generate_series(date_trunc('month', now() - interval '150 days'), now(), '1 month') m, ledger_differences_v1(m::date)`).Scan(&differences))
	must(t, conn.QueryRow(t.Context(), `SELECT sum(prompt_tokens + completion_tokens) FROM requests
		WHERE ledger_month(ledger_day(time)) = (SELECT max(ledger_month(day)) FROM owner)`).Scan(&used))
	must(t, conn.QueryRow(t.Context(), `SELECT sum(month_in + month_out) FROM owner`).Scan(&spent))
	if differences > 0 || spent != 2*used || used == 0 {
		t.Errorf("%d counters differ; owners have used %d tokens, want twice %d", differences, spent, used)
	}
	var next int64
	must(t, conn.QueryRow(t.Context(), `INSERT INTO files (id, account_id, key_id, purpose, filename, bytes, created_at, expires_at)
		VALUES ('new', '', '', '', '', 0, 0, 0) RETURNING seq`).Scan(&next))
	if next != 21 {
		t.Errorf("the next file has the number %d, want 21", next)
	}
}

func TestSourceCannotChangeWhileItIsCopied(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 5, 5)
	db, err := database.Open(t.Context(), database.Settings{Path: path, LockWait: time.Millisecond}, zap.NewNop())
	must(t, err)
	defer func() { must(t, db.Close()) }()
	var written error
	must(t, Copy(t.Context(), path, url, writerFunc(func() {
		written = db.WriteExclusive(t.Context(), func(database.Tx) error { return nil })
	})))
	if !database.IsBusy(written) && !errors.Is(written, database.ErrUnavailable) {
		t.Errorf("a write during the copy: %v, want that the database is locked", written)
	}
}

// writerFunc is called by the copy for each line that it reports.
type writerFunc func()

func (w writerFunc) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "complete") {
		w()
	}
	return len(p), nil
}

func TestFailedCopyLeavesTheTargetEmpty(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 5, 5)
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped by the test")
	if err := Copy(ctx, path, url, writerFunc(func() { cancel(stopped) })); err == nil {
		t.Fatal("a copy whose context ended succeeded")
	}
	must(t, Copy(t.Context(), path, url, io.Discard)) // which refuses a target with rows
}

func TestCopyRefusesATargetWithRows(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 3, 3)
	must(t, Copy(t.Context(), path, url, io.Discard))
	if err := Copy(t.Context(), path, url, io.Discard); !errors.Is(err, errNotEmpty) || !strings.Contains(err.Error(), "accounts") {
		t.Errorf("got %v, want errNotEmpty and the tables", err)
	}
}

func TestCopyRefusesWhileAGatewayServes(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 3, 3)
	lock, err := database.Acquire(t.Context(), path, "serves as a gateway")
	must(t, err)
	if err := Copy(t.Context(), path, url, io.Discard); !errors.Is(err, errServing) || !strings.Contains(err.Error(), "serves as a gateway") {
		t.Errorf("got %v, want errServing and the gateway", err)
	}
	must(t, lock.Release())
	conn := connect(t, url)
	_, err = conn.Exec(t.Context(), `SELECT ledger_join_v1('east', 'v2', 1)`)
	must(t, err)
	if err := Copy(t.Context(), path, url, io.Discard); !errors.Is(err, errServing) || !strings.Contains(err.Error(), "east") {
		t.Errorf("got %v, want errServing and the gateway", err)
	}
	_, err = conn.Exec(t.Context(), `UPDATE gateway SET beat_at = beat_at - 40000000`)
	must(t, err)
	must(t, Copy(t.Context(), path, url, io.Discard))
}

func TestDifferencesOfTheCopyAreNoticed(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 5, 5)
	conn := connect(t, url)
	_, err := conn.Exec(t.Context(), `
		CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.detail := NEW.detail || '!'; RETURN NEW; END $$;
		CREATE TRIGGER spoil BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION spoil()`)
	must(t, err)
	if err := Copy(t.Context(), path, url, io.Discard); !errors.Is(err, errDiffers) || !strings.Contains(err.Error(), "audit has 5 rows") {
		t.Errorf("got %v, want errDiffers and the table", err)
	}
}

func TestCopyGoesFromSQLiteToPostgreSQL(t *testing.T) {
	for from, to := range map[string]string{"a.db": "b.db", "postgres://x/a": "postgresql://x/b", "postgres://x/c": "c.db"} {
		if err := Copy(t.Context(), from, to, io.Discard); err == nil || !strings.Contains(err.Error(), "pg_dump") {
			t.Errorf("from %s to %s: %v, want what to use instead", from, to, err)
		}
	}
}
