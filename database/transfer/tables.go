package transfer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// kind is the type of a column, which has other names in each engine.
type kind string

// The kinds of columns.
const (
	text    kind = "text"
	integer kind = "integer"
	boolean kind = "boolean"
	bytes   kind = "bytes"    // BLOB, BYTEA
	address kind = "physical" // the place of a row that has no key: rowid, ctid
)

type column struct {
	name string
	kind kind
}

// table says how the rows of one table are read from either engine and written to the other.
type table struct {
	name    string
	into    string // the table that is written
	columns []column
	page    int // rows that are read and written together

	sqlite, postgres source

	identity string // the column that numbers rows; PostgreSQL's sequence is set after the copy
}

// source is how an engine reads the rows of a table: in the order of a key that is unique.
type source struct {
	from        string
	key         []column
	expressions map[string]string // of columns that are not read by their names
	where       string
}

// unlessOtherwise are the rows of a page. Tables with large values have smaller pages, so that memory is bounded.
const unlessOtherwise = 2000

// define returns a table that both engines have with the same columns. The columns are a list of name:kind; a * marks
// those of the key.
func define(name, columns string) table {
	t := table{name: name, into: name, page: unlessOtherwise}
	s := source{from: name}
	for field := range strings.FieldsSeq(columns) {
		column := parseColumn(strings.TrimPrefix(field, "*"))
		if strings.HasPrefix(field, "*") {
			s.key = append(s.key, column)
		}
		t.columns = append(t.columns, column)
	}
	t.sqlite, t.postgres = s, s
	return t
}

func parseColumn(field string) column {
	name, short, _ := strings.Cut(field, ":")
	k, ok := map[string]kind{"t": text, "i": integer, "b": boolean, "x": bytes}[short]
	if !ok {
		panic(fmt.Sprintf("transfer: column %q has no kind", field)) // a defect of this file
	}
	return column{name, k}
}

func (t table) pages(rows int) table { t.page = rows; return t }

// numbered marks a table whose key numbers the rows.
func (t table) numbered() table { t.identity = t.sqlite.key[0].name; return t }

// unkeyed is for a table whose rows may be equal.
func (t table) unkeyed() table {
	t.sqlite.key, t.postgres.key = []column{{"rowid", address}}, []column{{"ctid", address}}
	return t
}

const requestColumns = `request_id:t time:i key_id:t account_id:t model:t backend:t endpoint:t workload:t user_tag:t stream:b
	status:i code:t state:t prompt_tokens:i completion_tokens:i queue_us:i first_token_us:i total_us:i boot_us:i attempts:t batch_id:t`

// requests are in the order of their ends in SQLite, and by time in PostgreSQL. SQLite has a table of its own for the
// columns that few of them have. Those that the rollups include are copied first, so that they are the first ones in
// the target too.
func requests(name, condition string) table {
	t := define(name, requestColumns)
	t.into = summed
	t.sqlite = source{
		from:        "requests LEFT JOIN request_details USING (request_id)",
		key:         []column{{"seq", integer}},
		expressions: map[string]string{"boot_us": "coalesce(boot_us, 0)", "attempts": "coalesce(attempts, '')"},
		where:       "seq " + condition + " (SELECT seq FROM usage_watermark)",
	}
	t.postgres.from = summed
	t.postgres.key = []column{{"time", integer}, {"request_id", text}}
	t.postgres.where = "xid " + condition + " (SELECT seq::text::xid8 FROM usage_watermark)"
	return t
}

// inFlight are requests that a gateway has left when it crashed. They are copied as interrupted requests, which the start
// of a gateway would make of them.
func inFlight() table {
	t := define("inflight", requestColumns)
	t.into = "requests"
	t.sqlite.key = []column{{"request_id", text}}
	t.sqlite.expressions = map[string]string{
		"status": "0", "code": "''", "state": "'interrupted'", "queue_us": "0", "first_token_us": "0", "total_us": "0",
		"boot_us": "0", "attempts": "''",
	}
	t.sqlite.where = "NOT EXISTS (SELECT 1 FROM requests r WHERE r.request_id = inflight.request_id)"
	t.postgres = t.sqlite
	t.postgres.where = "NOT EXISTS (SELECT 1 FROM requests r WHERE r.request_id = inflight.request_id AND r.time = inflight.time)"
	t.postgres.expressions = map[string]string{"key_id": "key", "account_id": "account"}
	maps.Copy(t.postgres.expressions, t.sqlite.expressions)
	t.postgres.expressions["attempts"] = "details"
	return t
}

// tables lists what is copied, in an order that satisfies the foreign keys.
var tables = []table{
	define("accounts", `*id:t email:t name:t admin:b state:t created_at:i month_total:i day_total:i month_input:i month_output:i
		concurrency:i`),
	define("keys", `*id:t account_id:t name:t prefix:t secret_hash:x state:t concurrency:i created_at:i month_total:i day_total:i
		month_input:i month_output:i paused_by_operator:b operator_concurrency:i operator_month_total:i operator_day_total:i
		operator_month_input:i operator_month_output:i expires_at:i operator_expires_at:i models:t operator_models:t`),
	define("replaced_secrets", `*secret_hash:x key_id:t prefix:t valid_until:i`),
	keyUses(),
	define("passwords", `*account_id:t hash:t changed_at:i generation:i`),
	define("invitations", `*token_hash:x account_id:t expires_at:i`),
	define("sessions", `*token_hash:x account_id:t created_at:i expires_at:i password_generation:i`),
	define("known_browsers", `*token_hash:x account_id:t password_generation:i used_at:i`),
	define("access_requests", `*account_id:t purpose:t created_at:i network:t`),
	define("audit", `*id:t time:i actor:t action:t subject:t detail:t`),
	define("feedback", `*id:t time:i account_id:t page:t request_id:t message:t status:t reply:t replied_by:t replied_at:i
		reply_read:b`).pages(200),
	define("boots", `model:t backend:t ended_at:i took_us:i`).unkeyed(),
	define("model_windows", `*id:i model:t begins_at:i ends_at:i`).numbered(),
	define("known_models", `*id:t first_seen_at:i`),
	define("backend_reports", `*model:t *backend:t source:x max_model_len:i version:t special_tokens:i`),
	define("prompts", `*id:t account_id:t name:t model:t version:i updated_at:i content_id:t document_bytes:i bytes:i share_id:t`),
	define("prompt_chunks", `*content_id:t *n:i data:x`).pages(64), // of 64 KiB
	define("prompt_leftovers", `*content_id:t delete_after:i`),
	history(),
	define("refusals", `*seq:i request_id:t time:i key_id:t account_id:t model:t backend:t endpoint:t workload:t user_tag:t stream:b
		status:i code:t queue_us:i boot_us:i total_us:i`).numbered(),
	define("refusal_hours", `*account_id:t *period:i *code:t requests:i`),
	objects(),
	define("files", `*seq:i id:t account_id:t key_id:t purpose:t filename:t object:t bytes:i sha256:x created_at:i expires_at:i
		lines:i`).numbered(),
	define("batches", `*seq:i id:t account_id:t key_id:t endpoint:t completion_window:t input_file_id:t output_file_id:t
		error_file_id:t output_keep:i status:t errors:t metadata:t models:t created_at:i expires_at:i in_progress_at:i
		finalizing_at:i completed_at:i failed_at:i expired_at:i cancelling_at:i cancelled_at:i total:i completed:i failed:i
		input_tokens:i cached_tokens:i output_tokens:i reasoning_tokens:i waits_for:t resets_at:i parked_at:i parked_caps:i`).numbered().pages(100),
	define("batch_lines", `*batch:i *model:i *position:i offset:i length:i attempts:i`),
	define("idempotency", `*key_id:t *token:t digest:x object_id:t expires_at:i`),
	define("usage_series", `*id:i account_id:t key_id:t model:t endpoint:t workload:t`).numbered(),
	define("usage_hours", `*series:i *period:i `+counts+` latency:x`),
	define("usage_days", `*series:i *period:i `+counts+` latency:x`),
	define("usage_keys", `*id:i account_id:t key_id:t`).numbered(),
	define("usage_tags", `*id:i tag:t`).numbered(),
	define("usage_tag_days", `*key:i *period:i *tag:i `+counts),
	define("usage_tag_months", `*key:i *period:i *tag:i `+counts),
	define("receipts", `*seq:i leaf_hash:x entry:x nonce:x key_id:t`).pages(500),
	define("receipt_tiles", `*level:i *number:i hashes:x`).pages(200), // of 8 KiB
	define("receipt_log", `*only:i verifier_key:t size:i checkpoint:t`),
	requests(summed, "<="),
	requests(unsummed, ">"),
	inFlight(),
}

// summed are the requests that the rollups include, and unsummed the later ones.
const (
	summed   = "requests"
	unsummed = "requests that are not in the rollups yet"
)

const counts = `requests:i errors:i streams:i prompt_tokens:i completion_tokens:i`

// keyUses are in two places in PostgreSQL: the ledger notes them in its counters.
func keyUses() table {
	t := define("key_uses", `*key_id:t time:i`)
	t.postgres.from = `(SELECT coalesce(u.key_id, o.id) AS key_id, greatest(u.time, o.last_use) AS time FROM key_uses u
		FULL JOIN (SELECT id, last_use FROM owner WHERE id <> account AND last_use > 0) o ON o.id = u.key_id) key_uses`
	return t
}

// history has a row of each gateway in PostgreSQL. SQLite gets the last one of each hour.
func history() table {
	t := define("history_hours", `*hour:i data:x`).pages(8)
	t.postgres.where = `NOT EXISTS (SELECT 1 FROM history_hours h
		WHERE h.hour = history_hours.hour AND (h.saved_at, h.gateway) > (history_hours.saved_at, history_hours.gateway))`
	return t
}

// objects has the one by which gateways on PostgreSQL recognize their storage. SQLite has no use for it, so its gateway
// deletes it.
func objects() table {
	t := define("objects", `*name:t state:t`)
	t.postgres.expressions = map[string]string{
		"state": `CASE WHEN name IN (SELECT object FROM storage_marker) THEN 'deleted' ELSE state END`,
	}
	return t
}

// Tables and columns that are not copied, with the reason. A name with a dot is a column.
var (
	notFromSQLite = map[string]string{
		"goose_db_version":            "the target has its own schema version",
		"sqlite_sequence":             "the numbers of rows are copied",
		"keys_revision":               "triggers count the changes of the target",
		"key_changes":                 "see keys_revision",
		"request_details":             "read with requests",
		"requests.seq":                "the order of insertion, which PostgreSQL has in xid",
		"usage_watermark.only":        "the table has one row",
		"usage_watermark.seq":         "set after the requests up to it",
		"usage_watermark.corrections": "changes that concern a running gateway",
		"model_orders":                "orders to the gateway that runs",
		"usage_tag_day_sums":          "triggers of the target sum up usage_tag_days",
		"usage_tag_month_sums":        "triggers of the target sum up usage_tag_months",
	}
	notFromPostgres = map[string]string{
		"goose_db_version":            "the target has its own schema version",
		"schema_compatibility":        "see goose_db_version",
		"keys_revision":               "triggers count the changes of the target",
		"key_changes":                 "see keys_revision",
		"gateway":                     "gateways join again",
		"lane":                        "see gateway",
		"waiter":                      "requests that waited at a gateway that has ended",
		"usage_tag_day_sums":          "triggers of the target sum up usage_tag_days",
		"usage_tag_month_sums":        "triggers of the target sum up usage_tag_months",
		"decided":                     "see waiter",
		"owner":                       "computed from requests",
		"spend":                       "computed from requests",
		"request_details":             "requests has its columns",
		"requests.xid":                "the transaction that inserted the row",
		"inflight.gateway":            "of a gateway that has ended",
		"inflight.epoch":              "see inflight.gateway",
		"inflight.day":                "requests are charged by their time",
		"inflight.reserved_in":        "the reservation ends",
		"inflight.reserved_out":       "the reservation ends",
		"usage_watermark.only":        "the table has one row",
		"usage_watermark.seq":         "set after the requests up to it",
		"usage_watermark.corrections": "changes that concern a running gateway",
		"usage_watermark.kept_since":  "SQLite keeps all requests",
		"history_hours.gateway":       "one gateway serves from SQLite",
		"history_hours.saved_at":      "see history_hours.gateway",
		"model_orders":                "orders to the gateways that run",
		"sign_in_failures":            "a crash may forget them",
		"backend_leases":              "of gateways that have ended",
		"backend_uses":                "see backend_leases",
		"alarm":                       "for the gateways that run",
		"batch_leases":                "of gateways that have ended",
		"batch_runners":               "see batch_leases",
		"batch_places":                "see batch_leases",
		"file_parts":                  "of files that grow, with which no copy begins",
		"object_writers":              "SQLite has one gateway, which deletes what was half-written at its start",
		"storage_marker":              "one gateway serves from SQLite",
		"settling":                    "rows end with their transactions",
		"ledger_setting":              "of the gateways' configuration",
		"pending_receipts":            "a copy begins when there are none",
		"receipt_log.holder":          "of gateways that have ended",
		"receipt_log.lease_until":     "see receipt_log.holder",
	}
)

// columnNames returns the quoted names of columns: both engines have reserved words among them.
func columnNames(columns []column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = quote(c.name)
	}
	return names
}

func quote(name string) string { return `"` + name + `"` }

// query returns that for the rows that follow a key, or the first ones. The columns of the key come after those of the
// table.
func (t *table) query(s *source, first bool) string {
	selected := make([]string, 0, len(t.columns)+len(s.key))
	for _, c := range t.columns {
		expression := s.expressions[c.name]
		if expression == "" {
			expression = quote(c.name)
		}
		selected = append(selected, expression)
	}
	keys := make([]string, len(s.key))
	parameters := make([]string, len(s.key))
	for i, c := range s.key {
		keys[i], parameters[i] = quote(c.name), fmt.Sprint("$", i+1)
		if c.kind == address {
			keys[i] = c.name
		}
		if c.name == "ctid" {
			parameters[i] += "::text::tid"
			selected = append(selected, "ctid::text")
			continue
		}
		selected = append(selected, keys[i])
	}
	var conditions []string
	if s.where != "" {
		conditions = append(conditions, s.where)
	}
	if !first {
		conditions = append(conditions, fmt.Sprintf("(%s) > (%s)", strings.Join(keys, ", "), strings.Join(parameters, ", ")))
		if len(keys) > 1 { // by which PostgreSQL finds the partitions
			conditions = append(conditions, keys[0]+" >= "+parameters[0])
		}
	}
	text := "SELECT " + strings.Join(selected, ", ") + " FROM " + s.from
	if len(conditions) > 0 {
		text += " WHERE " + strings.Join(conditions, " AND ")
	}
	return text + " ORDER BY " + strings.Join(keys, ", ") + fmt.Sprintf(" LIMIT %d", t.page)
}

// names returns the tables that are read, each once.
func names() (all []string) {
	for _, t := range tables {
		if t.name != unsummed {
			all = append(all, t.name)
		}
	}
	return all
}

// targets returns the tables that are written, each once, with all their rows.
func targets() []table {
	all := slices.DeleteFunc(slices.Clone(tables), func(t table) bool { return t.into != t.name })
	for i := range all {
		if all[i].name == summed {
			all[i].sqlite.where, all[i].postgres.where = "", ""
		}
	}
	return all
}
