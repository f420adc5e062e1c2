package cluster_test

import (
	"cmp"
	"context"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/database/postgres"
	"basegate/internal/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgrestest.Main{M: m}) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// template is the name of a migrated database of the shared server.
var template struct {
	sync.Mutex
	name string
}

// testDatabase is a migrated database on the shared server, and a connection to it.
type testDatabase struct {
	url   string
	conn  *pgx.Conn
	clock bool // setClock has been called
}

func newDatabase(tb testing.TB) *testDatabase {
	tb.Helper()
	server := postgrestest.Shared(tb)
	template.Lock()
	defer template.Unlock()
	if template.name == "" {
		name := server.Create(tb, "")
		db := open(tb, server.URL(name))
		_, err := db.Migrate(tb.Context())
		must(tb, err)
		db.Close()
		if postgrestest.Newer() {
			server.Expand(tb, name)
		}
		template.name = name
	}
	return connect(tb, server.URL(server.Create(tb, template.name)))
}

// connect returns the database at a URL.
func connect(tb testing.TB, url string) *testDatabase {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url+"&search_path=basegate")
	must(tb, err)
	tb.Cleanup(func() { _ = conn.Close(context.WithoutCancel(tb.Context())) })
	return &testDatabase{url: url, conn: conn}
}

func open(tb testing.TB, url string) *postgres.DB {
	tb.Helper()
	db, err := postgres.Open(tb.Context(), postgres.Settings{URL: url})
	must(tb, err)
	return db
}

// through returns the address of a database through a proxy.
func through(tb testing.TB, p *postgrestest.Proxy, d *testDatabase) string {
	tb.Helper()
	u, err := url.Parse(d.url)
	must(tb, err)
	return p.URL(strings.TrimPrefix(u.Path, "/"))
}

// start starts the ledger of a gateway, which is closed at the end of the test.
func start(tb testing.TB, d *testDatabase, s cluster.Settings) *cluster.Ledger {
	tb.Helper()
	db := open(tb, d.url)
	tb.Cleanup(db.Close)
	s.AdmitTimeout = cmp.Or(s.AdmitTimeout, time.Minute)
	l := cluster.New(db, zap.NewNop(), s)
	must(tb, l.Start(tb.Context()))
	tb.Cleanup(l.Close)
	return l
}

// query runs a query that returns one row.
func (d *testDatabase) query(tb testing.TB, text string, args []any, into ...any) {
	tb.Helper()
	must(tb, d.conn.QueryRow(tb.Context(), text, args...).Scan(into...))
}

// exec executes a statement.
func (d *testDatabase) exec(tb testing.TB, text string, args ...any) {
	tb.Helper()
	_, err := d.conn.Exec(tb.Context(), text, args...)
	must(tb, err)
}

// setClock makes the database's functions show a time, until the next call.
func (d *testDatabase) setClock(tb testing.TB, now time.Time) {
	tb.Helper()
	if !d.clock { // once: a changed function makes every plan invalid that calls it
		d.clock = true
		d.exec(tb, `CREATE TABLE test_clock (micros bigint)`)
		d.exec(tb, `INSERT INTO test_clock VALUES (0)`)
		d.exec(tb, `CREATE OR REPLACE FUNCTION ledger_now() RETURNS bigint LANGUAGE sql VOLATILE
			AS 'SELECT micros FROM basegate.test_clock'`)
	}
	d.exec(tb, `UPDATE test_clock SET micros = $1`, now.UnixMicro())
	d.exec(tb, `SELECT ledger_partitions_v1(3)`)
}

var lastID atomic.Int64

func newRequest() budget.Request {
	return budget.Request{
		ID: "req_" + strconv.FormatInt(lastID.Add(1), 10), Model: "llama-8b", Endpoint: "/v1/completions", Workload: "interactive",
	}
}

// demand returns an exact demand for one candidate.
func demand(prompt, maxTokens int64) budget.Demand {
	return budget.Demand{PromptTokens: prompt, Exact: true, Candidates: 1, MaxTokens: maxTokens}
}
