package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"basegate/budget/cluster"
)

// plan is a node of a plan that auto_explain reports.
type plan struct {
	Type    string  `json:"Node Type"`
	Table   string  `json:"Relation Name"`
	Rows    float64 `json:"Actual Rows"`
	Removed float64 `json:"Rows Removed by Filter"`
	Loops   float64 `json:"Actual Loops"`
	Hit     float64 `json:"Shared Hit Blocks"`
	Plans   []plan
}

// visit calls do with each node.
func (p *plan) visit(do func(*plan)) {
	do(p)
	for i := range p.Plans {
		p.Plans[i].visit(do)
	}
}

// A settlement and an admission visit rows and pages in proportion to their number, however many requests have ended since
// the last vacuum and however many owners there are.
func TestCallVisitsOnlyTheRowsOfItsOperations(t *testing.T) {
	db := newDatabase(t)
	db.exec(t, `ALTER TABLE inflight SET (autovacuum_enabled = off)`)
	db.exec(t, `INSERT INTO owner (id, account, enabled, day)
		SELECT format('acc%s', i), format('acc%s', i), true, now()::date FROM generate_series(1, 5000) i`)
	db.exec(t, `INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint,
			workload, user_tag, stream, details)
		SELECT format('dead%s', i), 1, 1, 'acc1', 'acc1', now()::date, 0, 0, 0, '', '', '', '', false, '' FROM generate_series(1, 20000) i`)
	db.exec(t, `DELETE FROM inflight`)
	db.exec(t, `SELECT ledger_join_v1('gateway', 'test', 1)`)

	config, err := pgx.ParseConfig(db.url + "&search_path=basegate")
	must(t, err)
	var plans []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { plans = append(plans, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, statement := range []string{
		`LOAD 'auto_explain'`, `SET auto_explain.log_min_duration = 0`, `SET auto_explain.log_nested_statements = on`,
		`SET auto_explain.log_analyze = on`, `SET auto_explain.log_buffers = on`, `SET auto_explain.log_format = json`,
		`SET auto_explain.log_level = notice`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		must(t, err)
	}
	const n = 10
	var admits, settles, accounts, ids []string
	for i := range n {
		account := fmt.Sprint("acc", 100+i)
		accounts, ids = append(accounts, account), append(ids, fmt.Sprint("r", i))
		admits = append(admits, fmt.Sprintf(`{"id":"r%d","key":"%s","account":"%s","day":20000,"time":%d,"in":1,"out":1,"model":"","endpoint":"","workload":""}`, i, account, account, time.Now().UnixMicro()))
		settles = append(settles, fmt.Sprintf(`{"id":"r%d","state":"settled","prompt":1,"completion":1}`, i))
	}
	call := func(seq int, settle, admit any) {
		t.Helper()
		var status, reply string
		must(t, conn.QueryRow(t.Context(), `SELECT status, reply FROM ledger_read_v1(1, 1, 0, $1, $2, $2, $3, NULL, 16, false, false, NULL)`,
			seq, accounts, ids).Scan(&status, &reply))
		const write = `SELECT w.status, w.reply FROM ledger_write_v1(1, 1, 0, $1, 0, (now()::date - date '1970-01-01'), $2, $2,
			(SELECT array_agg(o.xmin ORDER BY a.i) FROM unnest($2::text[]) WITH ORDINALITY a(id, i) JOIN owner o ON o.id = a.id),
			(SELECT array_agg(n) FROM generate_series(1, $5 * cardinality($2::text[])) n(n)), $4, $3, NULL, NULL, NULL, NULL, false, NULL, array_fill(''::text, ARRAY[cardinality($2::text[])])) w`
		must(t, conn.QueryRow(t.Context(), write, seq, accounts, settle, admit, cluster.NumbersPerOwner).Scan(&status, &reply))
		if status != "ok" {
			t.Fatal(status)
		}
	}
	call(1, nil, "["+strings.Join(admits, ",")+"]")
	call(2, "["+strings.Join(settles, ",")+"]", nil)

	scanned := map[string]bool{}
	for _, message := range plans {
		_, text, found := strings.Cut(message, "plan:\n")
		if !found {
			continue
		}
		var reported struct{ Plan plan }
		must(t, json.Unmarshal([]byte(text), &reported))
		reported.Plan.visit(func(p *plan) {
			if !strings.Contains(p.Type, "Scan") || p.Table != "inflight" && p.Table != "owner" || p.Loops == 0 {
				return
			}
			scanned[p.Table] = true
			// Each row is visited for its key and its account, and each visit takes a few pages.
			if rows := (p.Rows + p.Removed) * p.Loops; p.Type == "Seq Scan" || rows > 4*n || p.Hit > 60*n {
				t.Errorf("%s of %s visits %.0f rows and %.0f pages for %d operations", p.Type, p.Table, rows, p.Hit, n)
			}
		})
	}
	if !scanned["inflight"] || !scanned["owner"] {
		t.Errorf("got plans of %v, want inflight and owner", scanned)
	}
	var ended int
	db.query(t, `SELECT count(*) FROM requests`, nil, &ended)
	if ended != n {
		t.Errorf("got %d rows, want %d", ended, n)
	}
}
