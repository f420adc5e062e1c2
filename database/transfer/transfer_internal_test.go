package transfer

import (
	"context"
	"errors"
	"fmt"
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
	db, err := postgres.Open(t.Context(), postgres.Settings{URL: url, Unfinished: true, StatementTimeout: time.Minute})
	must(t, err)
	_, err = db.Migrate(t.Context())
	must(t, err)
	conn, err := db.Connect(t.Context())
	must(t, err)
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

// columnsOf lists TABLE.COLUMN of both schemas, without partitions.
func columnsOf(t *testing.T) (inSQLite, inPostgres []string) {
	t.Helper()
	db := open(t, filepath.Join(t.TempDir(), "schema.db"))
	rows, err := db.Read().QueryContext(t.Context(),
		`SELECT s.name || '.' || c.name FROM sqlite_schema s JOIN pragma_table_info(s.name) c WHERE s.type = 'table' ORDER BY 1`)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		must(t, rows.Scan(&name))
		inSQLite = append(inSQLite, name)
	}
	must(t, rows.Err())
	found, err := connect(t, newServer(t)).Query(t.Context(), `
		SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relnamespace = 'basegate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
			AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1`)
	must(t, err)
	inPostgres, err = pgx.CollectRows(found, pgx.RowTo[string])
	must(t, err)
	return inSQLite, inPostgres
}

func TestEveryTableAndColumnIsMapped(t *testing.T) {
	inSQLite, inPostgres := columnsOf(t)
	for engine, c := range map[string]struct {
		columns []string
		not     map[string]string
		source  func(*table) *source
	}{
		"SQLite":     {inSQLite, notFromSQLite, func(t *table) *source { return &t.sqlite }},
		"PostgreSQL": {inPostgres, notFromPostgres, func(t *table) *source { return &t.postgres }},
	} {
		mapped := map[string]bool{}
		for _, table := range tables {
			if table.name == unsummed {
				continue
			}
			s := c.source(&table)
			for _, column := range table.columns {
				expression := s.expressions[column.name]
				switch {
				case expression == "", slices.Contains(c.columns, table.name+"."+column.name) && strings.Contains(expression, column.name):
					mapped[table.name+"."+column.name] = true
				case slices.Contains(c.columns, table.name+"."+expression): // it has another name in this engine
					mapped[table.name+"."+expression] = true
				}
			}
		}
		unused := maps.Clone(c.not)
		for _, name := range c.columns {
			table, _, _ := strings.Cut(name, ".")
			_, excluded := c.not[table]
			_, excludedColumn := c.not[name]
			delete(unused, table)
			delete(unused, name)
			if !mapped[name] && !excluded && !excludedColumn {
				t.Errorf("%s: %s is neither copied nor listed as not copied", engine, name)
			}
			if mapped[name] && (excluded || excludedColumn) {
				t.Errorf("%s: %s is copied, and listed as not copied", engine, name)
			}
			delete(mapped, name)
		}
		if len(mapped) > 0 {
			t.Errorf("%s has no %v, which are copied", engine, slices.Sorted(maps.Keys(mapped)))
		}
		if len(unused) > 0 {
			t.Errorf("%s has no %v, which are listed as not copied", engine, slices.Sorted(maps.Keys(unused)))
		}
	}
}

// generator makes content of all tables.
type generator struct {
	random   *rand.Rand
	accounts int
	keys     int
	latest   time.Time
}

// value returns a value of a column in row n of a table.
func (g *generator) value(t *table, c column, n int) any {
	unique := fmt.Sprintf("%s-%d", c.name, n)
	switch {
	case c.name == "state" && t.name == "accounts":
		return []string{"active", "pending", "disabled"}[n%3]
	case c.name == "state" && t.name == "keys":
		return []string{"active", "paused", "revoked"}[n%3]
	case c.name == "state" && t.name == "objects":
		return []string{"writing", "kept", "deleted"}[n%3]
	case c.name == "state":
		return []string{"settled", "interrupted"}[n%2]
	case c.name == "id" && c.kind == text && (t.name == "accounts" || t.name == "keys"):
		return fmt.Sprintf("%s_%05d", t.name, n)
	case c.name == "account_id" && slices.Contains([]string{"passwords", "invitations", "access_requests"}, t.name):
		return fmt.Sprintf("accounts_%05d", n)
	case c.name == "account_id":
		return fmt.Sprintf("accounts_%05d", n%g.accounts)
	case c.name == "key_id" && t.name != "key_uses":
		return fmt.Sprintf("keys_%05d", n%g.keys)
	case c.name == "time" && (t.into == summed):
		return g.latest.Add(-time.Duration(n) * 41 * time.Minute).UnixMicro()
	case strings.HasSuffix(c.name, "concurrency"):
		return 1 + g.random.Int64N(64)
	case c.name == "begins_at":
		return int64(n)
	case c.name == "ends_at":
		return int64(n) + 1
	case strings.HasSuffix(c.name, "_tokens"):
		return g.random.Int64N(5000)
	case c.name == "boot_us" && t.into == summed, c.name == "attempts" && t.into == summed:
		if n%7 != 0 {
			return map[kind]any{integer: int64(0), text: ""}[c.kind]
		}
	}
	if c.name == "only" {
		return int64(1)
	}
	isKey := slices.ContainsFunc(t.sqlite.key, func(k column) bool { return k.name == c.name })
	switch c.kind {
	case boolean:
		return n%2 == 0
	case integer:
		if isKey && len(t.sqlite.key) == 1 || c.name == "seq" {
			return int64(n) + 1
		}
		if isKey {
			return int64(n/(1+len(t.sqlite.key)))*7 + int64(n)
		}
		return 1 + g.random.Int64N(1<<40)
	case bytes:
		b := make([]byte, g.random.IntN(2000))
		for i := range b {
			b[i] = byte(g.random.Uint32())
		}
		return append([]byte(unique), b...)
	case text, address:
	}
	return unique + []string{"", " žluťoučký kůň", " nul\x00nul", " \xff\xfe", "\n\"\\", "␀"}[g.random.IntN(6)]
}

// nullable lists the columns that may be NULL, as TABLE.COLUMN.
func nullable(t *testing.T, db *database.DB) map[string]bool {
	t.Helper()
	rows, err := db.Read().QueryContext(t.Context(),
		`SELECT s.name || '.' || c.name FROM sqlite_schema s JOIN pragma_table_info(s.name) c WHERE s.type = 'table' AND NOT c."notnull" AND NOT c.pk`)
	must(t, err)
	defer rows.Close()
	found := map[string]bool{}
	for rows.Next() {
		var name string
		must(t, rows.Scan(&name))
		found[name] = name != "files.sha256" // which is NULL while a batch writes results
	}
	must(t, rows.Err())
	return found
}

// fill inserts rows into all tables of a SQLite database.
func fill(t *testing.T, path string, rows, requestRows int) {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	defer func() { must(t, db.Close()) }()
	g := &generator{random: rand.New(rand.NewPCG(1, 2)), accounts: rows, keys: rows, latest: time.Now()}
	mayBeNull := nullable(t, db)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		for i := range tables {
			table := &tables[i]
			count := rows
			switch table.name {
			case unsummed:
				continue
			case summed:
				count = requestRows
			case "receipt_log":
				count = 1
			}
			for n := range count {
				if err := insert(t.Context(), tx, g, table, n, mayBeNull); err != nil {
					return fmt.Errorf("%s: %w", table.name, err)
				}
			}
		}
		_, err := tx.ExecContext(t.Context(), `UPDATE usage_watermark SET seq = $1`, requestRows*2/3)
		return err
	}))
}

func insert(ctx context.Context, tx database.Tx, g *generator, t *table, n int, mayBeNull map[string]bool) error {
	columns, values := []column{}, []any{}
	row := make([]any, len(t.columns))
	for i, c := range t.columns {
		row[i] = g.value(t, c, n)
		if mayBeNull[t.name+"."+c.name] && g.random.IntN(3) == 0 {
			row[i] = nil
		}
		if t.into == summed && (c.name == "boot_us" || c.name == "attempts") || t.name == "inflight" && t.sqlite.expressions[c.name] != "" {
			continue
		}
		columns, values = append(columns, c), append(values, row[i])
	}
	if _, err := tx.ExecContext(ctx, insertText(t.name, columns), values...); err != nil {
		return err
	}
	if t.name == summed {
		return insertDetails(ctx, tx, row)
	}
	return nil
}

// dump returns the rows of all tables that are copied, normalized, sorted, with requests in flight as interrupted ones.
func dump(t *testing.T, path string) map[string][]string {
	t.Helper()
	f := &file{path: path, db: open(t, path)}
	found := map[string][]string{}
	for i := range tables {
		var after []any
		for {
			rows, last, err := readPage(t.Context(), f, &tables[i], after)
			must(t, err)
			for _, row := range rows {
				found[tables[i].into] = append(found[tables[i].into], fmt.Sprintf("%#v", row))
			}
			if len(rows) < tables[i].page {
				break
			}
			after = last
		}
		slices.Sort(found[tables[i].into])
	}
	must(t, f.query(t.Context(), `SELECT request_id FROM requests WHERE seq <= (SELECT seq FROM usage_watermark) ORDER BY 1`, nil,
		func(values []any) error {
			found["rows in the rollups"] = append(found["rows in the rollups"], fmt.Sprint(values[0]))
			return nil
		}))
	slices.Sort(found["rows in the rollups"])
	return found
}

func TestRoundTripLeavesEveryTableEqual(t *testing.T) {
	folder, url := t.TempDir(), newServer(t)
	from, back := filepath.Join(folder, "from.db"), filepath.Join(folder, "back.db")
	fill(t, from, 150, 4500)
	must(t, Copy(t.Context(), from, url, io.Discard))
	must(t, Copy(t.Context(), url, back, io.Discard))
	want, got := dump(t, from), dump(t, back)
	for name, rows := range want {
		if len(rows) == 0 {
			t.Errorf("the test has no rows of %s", name)
		}
		want := rows
		if name == "rows in the rollups" { // PostgreSQL has no U+0000
			want = nil
			for _, id := range rows {
				clean, err := normalize(id, text)
				must(t, err)
				want = append(want, fmt.Sprint(clean))
			}
			slices.Sort(want)
		}
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s after a round trip (-want +got):\n%.2000s", name, diff)
		}
	}
}

func TestSQLiteGatewayDeletesTheObjectThatMarksTheStorage(t *testing.T) {
	url, back := newServer(t), filepath.Join(t.TempDir(), "back.db")
	_, err := connect(t, url).Exec(t.Context(), `WITH marker AS (INSERT INTO storage_marker ("only", object) VALUES (1, 'marker'))
		INSERT INTO objects (name, state) VALUES ('marker', 'kept'), ('file', 'kept')`)
	must(t, err)
	must(t, Copy(t.Context(), url, back, io.Discard))
	states := map[string]string{}
	must(t, (&file{path: back, db: open(t, back)}).query(t.Context(), `SELECT name, state FROM objects`, nil, func(row []any) error {
		states[fmt.Sprint(row[0])] = fmt.Sprint(row[1])
		return nil
	}))
	if diff := cmp.Diff(map[string]string{"marker": "deleted", "file": "kept"}, states); diff != "" {
		t.Errorf("objects after the copy (-want +got):\n%s", diff)
	}
}

func TestCountersAreTheSumsOfTheRequests(t *testing.T) {
	path, url := filepath.Join(t.TempDir(), "from.db"), newServer(t)
	fill(t, path, 20, 3000)
	must(t, Copy(t.Context(), path, url, io.Discard))
	conn := connect(t, url)
	var owners, enabled, differences int
	var used, spent int64
	must(t, conn.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE enabled) FROM owner`).Scan(&owners, &enabled))
	if owners != 40 {
		t.Errorf("%d owners, want 20 accounts and 20 keys", owners)
	}
	must(t, conn.QueryRow(t.Context(), `
		SELECT count(*) FROM generate_series(date_trunc('month', now() - interval '150 days'), now(), '1 month') m, ledger_differences_v1(m::date)`).Scan(&differences))
	must(t, conn.QueryRow(t.Context(), `SELECT sum(prompt_tokens + completion_tokens) FROM requests`).Scan(&used))
	must(t, conn.QueryRow(t.Context(), `
		SELECT (SELECT sum(day_in + day_out) FROM owner) + (SELECT sum(input + output) FROM spend)`).Scan(&spent))
	if differences > 0 || spent != 2*used || used == 0 {
		t.Errorf("%d counters differ; owners have used %d tokens, want twice %d", differences, spent, used)
	}
	var next int64
	must(t, conn.QueryRow(t.Context(), `INSERT INTO files (id, account_id, key_id, purpose, filename, object, bytes, created_at, expires_at)
		VALUES ('new', '', '', '', '', '', 0, 0, 0) RETURNING seq`).Scan(&next))
	if next != 21 {
		t.Errorf("the next file has the number %d, want 21", next)
	}
}

// interrupting is a target that fails after some pages, as if the process had been killed.
type interrupting struct {
	side

	pages int
}

var errKilled = errors.New("killed")

func (i *interrupting) write(ctx context.Context, t *table, rows [][]any, p progress) error {
	if i.pages--; i.pages < 0 {
		return errKilled
	}
	return i.side.write(ctx, t, rows, p)
}

// copyPages runs a copy that ends after a number of pages.
func copyPages(t *testing.T, from, to string, pages int) error {
	t.Helper()
	source, target, err := openSides(t.Context(), from, to)
	must(t, err)
	defer func() { must(t, errors.Join(source.close(), target.close())) }()
	c := &copier{source: source, target: &interrupting{target, pages}, log: io.Discard}
	return c.run(t.Context())
}

func TestInterruptedCopyContinues(t *testing.T) {
	folder := t.TempDir()
	from := filepath.Join(folder, "from.db")
	fill(t, from, 30, 9000)
	url := newServer(t)
	interrupt := func(from, to string) {
		t.Helper()
		interrupted := 0
		for errors.Is(copyPages(t, from, to, 3), errKilled) {
			if interrupted++; interrupted > 50 {
				t.Fatal("a copy that is continued begins again")
			}
		}
		if interrupted < 5 {
			t.Errorf("the copy was interrupted %d times, want at least 5", interrupted)
		}
	}
	interrupt(from, url)
	back := filepath.Join(folder, "back.db")
	interrupt(url, back)
	want, got := dump(t, from), dump(t, back)
	for name := range want {
		if len(want[name]) != len(got[name]) {
			t.Errorf("%s has %d rows, want %d", name, len(got[name]), len(want[name]))
		}
	}
}

func TestUnfinishedCopyIsNotServed(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from.db")
	fill(t, from, 5, 5)
	url := newServer(t)
	if err := copyPages(t, from, url, 2); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if _, err := postgres.Open(t.Context(), postgres.Settings{URL: url}); !errors.Is(err, postgres.ErrUnfinished) {
		t.Errorf("opening a part of a copy: %v, want ErrUnfinished", err)
	}
	must(t, Copy(t.Context(), from, url, io.Discard))
	db, err := postgres.Open(t.Context(), postgres.Settings{URL: url})
	must(t, err)
	db.Close()

	back := filepath.Join(t.TempDir(), "back.db")
	if err := copyPages(t, url, back, 2); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if found, err := filepath.Glob(back); err != nil || len(found) > 0 {
		t.Errorf("a part of a copy is at %s already", back)
	}
}

func TestCopyRefusesASourceThatHasChanged(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from.db")
	fill(t, from, 5, 5)
	url := newServer(t)
	if err := copyPages(t, from, url, 2); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	db := open(t, from)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE keys SET name = 'other' WHERE id = 'keys_00001'`)
		return err
	}))
	if err := Copy(t.Context(), from, url, io.Discard); !errors.Is(err, ErrChanged) {
		t.Errorf("got %v, want ErrChanged", err)
	}
	other := filepath.Join(t.TempDir(), "other.db")
	fill(t, other, 5, 5)
	if err := Copy(t.Context(), other, url, io.Discard); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), from) {
		t.Errorf("a copy of another source: %v, want ErrNotEmpty and the source", err)
	}
}

func TestCopyRefusesATargetWithRows(t *testing.T) {
	folder, url := t.TempDir(), newServer(t)
	from, other := filepath.Join(folder, "from.db"), filepath.Join(folder, "other.db")
	fill(t, from, 3, 3)
	fill(t, other, 3, 3)
	must(t, Copy(t.Context(), from, url, io.Discard))
	for to, from := range map[string]string{url: from, other: url} {
		if err := Copy(t.Context(), from, to, io.Discard); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), "accounts") {
			t.Errorf("got %v, want ErrNotEmpty and the tables", err)
		}
	}
}

func TestCopyRefusesWhileAGatewayServes(t *testing.T) {
	folder, url := t.TempDir(), newServer(t)
	path := filepath.Join(folder, "from.db")
	fill(t, path, 3, 3)
	lock, err := database.Acquire(t.Context(), path, "serves as a gateway")
	must(t, err)
	for from, to := range map[string]string{path: url, url: path} {
		if err := Copy(t.Context(), from, to, io.Discard); !errors.Is(err, ErrServing) || !strings.Contains(err.Error(), "serves as a gateway") {
			t.Errorf("got %v, want ErrServing and the gateway", err)
		}
	}
	must(t, lock.Release())
	conn := connect(t, url)
	_, err = conn.Exec(t.Context(), `SELECT ledger_join_v1('east', 'v2', 1)`)
	must(t, err)
	for from, to := range map[string]string{path: url, url: filepath.Join(folder, "new.db")} {
		if err := Copy(t.Context(), from, to, io.Discard); !errors.Is(err, ErrServing) || !strings.Contains(err.Error(), "east") {
			t.Errorf("got %v, want ErrServing and the gateway", err)
		}
	}
	_, err = conn.Exec(t.Context(), `UPDATE gateway SET beat_at = beat_at - 40000000`)
	must(t, err)
	must(t, Copy(t.Context(), path, url, io.Discard))
}

func TestDifferencesOfTheCopyAreNoticed(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from.db")
	fill(t, from, 5, 5)
	url := newServer(t)
	conn := connect(t, url)
	_, err := conn.Exec(t.Context(), `
		CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.detail := NEW.detail || '!'; RETURN NEW; END $$;
		CREATE TRIGGER spoil BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION spoil()`)
	must(t, err)
	if err := Copy(t.Context(), from, url, io.Discard); !errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), "audit has 5 rows") {
		t.Errorf("got %v, want ErrDiffers and the table", err)
	}
}

func TestCopyNeedsTwoEngines(t *testing.T) {
	for from, to := range map[string]string{"a.db": "b.db", "postgres://x/a": "postgresql://x/b"} {
		if err := Copy(t.Context(), from, to, io.Discard); err == nil || !strings.Contains(err.Error(), "pg_dump") {
			t.Errorf("from %s to %s: %v, want what to use instead", from, to, err)
		}
	}
}

func TestCopyRefusesFilesThatGrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "from.db")
	fill(t, path, 3, 3)
	db := open(t, path)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE files SET sha256 = NULL WHERE seq = 1`)
		return err
	}))
	if err := Copy(t.Context(), path, newServer(t), io.Discard); err == nil || !strings.Contains(err.Error(), "1 files of results") {
		t.Errorf("got %v, want the files", err)
	}
}

func FuzzKeyOfAPage(f *testing.F) {
	f.Add(`["i1","tYQ=="]`)
	f.Add(`["x"]`)
	f.Fuzz(func(t *testing.T, encoded string) {
		key, err := decodeKey(encoded)
		if err != nil || key == nil {
			return
		}
		again, err := encodeKey(key)
		must(t, err)
		decoded, err := decodeKey(again)
		must(t, err)
		if diff := cmp.Diff(key, decoded); diff != "" {
			t.Error(diff)
		}
	})
}
