package transfer

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"basegate/database"
)

// table is copied to the one of the same name.
type table struct {
	name    string
	columns []string
	from    string // the query that returns the rows of the columns
}

// notCopied says why a table, or a column TABLE.COLUMN, of SQLite is not copied.
var notCopied = map[string]string{
	"schema_migrations": "the target has its own schema version",
	"sqlite_sequence":   "finish continues the numbers of rows",
	"keys_revision":     "triggers count the changes of the target",
	"key_changes":       "see keys_revision",
	"usage_watermark":   "see summedIn",
	"model_orders":      "orders to the gateway that runs",
	"objects.gateway":   "of a gateway that has ended",
	"objects.epoch":     "see objects.gateway",
	"inflight":          "copied as interrupted requests",
	"requests.seq":      "the order of insertion, which PostgreSQL has in xid",
}

// summedIn is the transaction of the copied requests that the rollups include: the first one of a server. Later ones are
// of the copy's own transaction.
const summedIn = 3

// requestsOf returns all requests. Those in flight were left by a gateway when it crashed: the start of one would make
// interrupted requests of them.
var requestsOf = fmt.Sprintf(`
	SELECT request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream, status, code, state,
		prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts, batch_id, run, saved_tokens,
		cached_tokens, created_tokens, engine_queue_us, engine_prefill_us, engine_between_us,
		CASE WHEN seq <= (SELECT seq FROM usage_watermark) THEN %d ELSE $1 END AS xid
	FROM requests
	UNION ALL
	SELECT request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream, 0, '', 'interrupted',
		prompt_tokens, completion_tokens, 0, 0, 0, 0, '', batch_id, run, 0, NULL, NULL, NULL, NULL, NULL, $1
	FROM inflight WHERE NOT EXISTS (SELECT 1 FROM requests r WHERE r.request_id = inflight.request_id)`, summedIn)

// tables lists the tables of the source that are copied, in an order that satisfies the foreign keys.
func (c *copier) tables(ctx context.Context) (all []table, err error) {
	err = database.Each(ctx, c.from, func(r *sql.Rows) error {
		var name, column string
		if err := r.Scan(&name, &column); err != nil {
			return err
		}
		if notCopied[name] != "" || notCopied[name+"."+column] != "" {
			return nil
		}
		if len(all) == 0 || all[len(all)-1].name != name {
			all = append(all, table{name: name})
		}
		t := &all[len(all)-1]
		t.columns = append(t.columns, column)
		return nil
	}, `SELECT s.name, c.name FROM sqlite_schema s JOIN pragma_table_info(s.name) c WHERE s.type = 'table' ORDER BY s.name, c.cid`)
	if err != nil {
		return nil, err
	}
	for i := range all {
		t := &all[i]
		if t.name == "requests" {
			t.columns = append(t.columns, "xid")
			t.from = "SELECT " + quoted(t.columns) + " FROM (" + requestsOf + ")"
			continue
		}
		t.from = "SELECT " + quoted(t.columns) + " FROM " + t.name
	}
	referenced := []string{"keys", "accounts"}
	slices.SortStableFunc(all, func(a, b table) int {
		return -cmp.Compare(slices.Index(referenced, a.name), slices.Index(referenced, b.name))
	})
	return all, nil
}

// quoted lists columns: both engines have reserved words among their names.
func quoted(columns []string) string { return `"` + strings.Join(columns, `", "`) + `"` }

// copyTable copies a table, compares the copy with what was read, and returns the number of rows.
func (c *copier) copyTable(ctx context.Context, t table) (int64, error) {
	selected := "SELECT " + quoted(t.columns) + " FROM " + t.name
	described, err := c.to.Prepare(ctx, "", selected)
	if err != nil {
		return 0, fmt.Errorf("read the columns of %s: %w", t.name, err)
	}
	var args []any
	if t.name == "requests" {
		var own int64
		if err := c.to.QueryRow(ctx, `UPDATE usage_watermark SET seq = $1 RETURNING pg_current_xact_id()::text::bigint`, summedIn).Scan(&own); err != nil {
			return 0, fmt.Errorf("begin the copy of requests: %w", err)
		}
		args = []any{own}
	}
	rows, err := c.from.QueryContext(ctx, t.from, args...)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", t.name, err)
	}
	defer rows.Close()
	read := &reader{
		rows: rows, columns: described.Fields, total: total{seed: maphash.MakeSeed()},
		progress: func(n int64) { c.say("%s: %d rows", t.name, n) },
	}
	_, err = c.to.CopyFrom(ctx, pgx.Identifier{t.name}, t.columns, read)
	if err = errors.Join(err, rows.Err()); err != nil {
		return 0, fmt.Errorf("copy %s: %w", t.name, err)
	}
	written, err := c.totalOf(ctx, selected, read.total.seed)
	if err != nil {
		return 0, fmt.Errorf("read the copy of %s: %w", t.name, err)
	}
	if written != read.total {
		return 0, fmt.Errorf("%w: %s has %d rows, want %d with the same sum of hashes", errDiffers, t.name, written.rows, read.total.rows)
	}
	if written.rows > 0 {
		c.say("%s: %d rows, complete", t.name, written.rows)
	}
	return written.rows, nil
}

// totalOf reads a table of the target.
func (c *copier) totalOf(ctx context.Context, text string, seed maphash.Seed) (total, error) {
	sum := total{seed: seed}
	rows, err := c.to.Query(ctx, text)
	if err != nil {
		return sum, err
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return sum, err
		}
		normalize(values, rows.FieldDescriptions())
		sum.add(values)
	}
	return sum, rows.Err()
}

// total is the number of rows of a table and the sum of their hashes, so that their order does not matter.
type total struct {
	rows int64
	sum  uint64
	seed maphash.Seed
}

// add counts a row of normalized values.
func (t *total) add(row []any) {
	var h maphash.Hash
	h.SetSeed(t.seed)
	for _, value := range row {
		if b, ok := value.([]byte); ok {
			value = string(b)
		}
		maphash.WriteComparable(&h, value)
	}
	t.rows++
	t.sum += h.Sum64()
}

// normalize converts the values of a row, as either driver returns them, to what both engines store.
func normalize(row []any, columns []pgconn.FieldDescription) {
	for i, value := range row {
		oid := columns[i].DataTypeOID
		switch v := value.(type) {
		case int64:
			if oid == pgtype.BoolOID {
				row[i] = v != 0
			}
		case int32:
			row[i] = int64(v)
		case uint64: // xid8
			row[i] = int64(v)
		case []byte:
			if oid == pgtype.TextOID {
				row[i] = normalizeText(string(v))
			}
		case string:
			switch oid {
			case pgtype.ByteaOID:
				row[i] = []byte(v)
			case pgtype.JSONBOID:
				row[i] = canonicalJSON(v)
			default:
				row[i] = normalizeText(v)
			}
		}
	}
}

// canonicalJSON returns JSON with the members of objects in order. PostgreSQL stores them in an order of its own.
func canonicalJSON(text string) string {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return text // the target refuses it
	}
	canonical, _ := json.Marshal(value) // it was JSON
	return string(canonical)
}

// readJSONAsText makes a connection return columns of JSON as texts.
func readJSONAsText(conn *pgx.Conn) {
	conn.TypeMap().RegisterType(&pgtype.Type{Name: "jsonb", OID: pgtype.JSONBOID, Codec: &pgtype.JSONBCodec{
		Marshal: json.Marshal,
		Unmarshal: func(text []byte, value any) error {
			if to, ok := value.(*any); ok {
				*to = string(text)
				return nil
			}
			return json.Unmarshal(text, value)
		},
	}})
}

// nulSymbol stands for U+0000, which PostgreSQL does not store in texts. The ledger writes it too.
const nulSymbol = "␀"

// normalizeText returns s in UTF-8 without U+0000.
func normalizeText(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", nulSymbol), "\uFFFD")
}

// progressRows is the number of rows between two reports on a large table.
const progressRows = 1_000_000

// reader reads rows of the source for COPY. It implements pgx.CopyFromSource.
type reader struct {
	rows     *sql.Rows
	columns  []pgconn.FieldDescription // of the target
	progress func(rows int64)
	total    total
}

// Next implements pgx.CopyFromSource.
func (r *reader) Next() bool { return r.rows.Next() }

// Err implements pgx.CopyFromSource.
func (r *reader) Err() error { return r.rows.Err() }

// Values implements pgx.CopyFromSource.
func (r *reader) Values() ([]any, error) {
	values := make([]any, len(r.columns))
	to := make([]any, len(values))
	for i := range values {
		to[i] = &values[i]
	}
	if err := r.rows.Scan(to...); err != nil {
		return nil, err
	}
	normalize(values, r.columns)
	r.total.add(values)
	if r.total.rows%progressRows == 0 {
		r.progress(r.total.rows)
	}
	return values, nil
}
