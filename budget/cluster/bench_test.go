package cluster_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"basegate/internal/postgrestest"
)

// BenchmarkCall measures calls of ledger_v1 on one connection, with commits that wait for the disk: each iteration admits
// a number of requests by one call and settles them by another. It reports the median of each, requests a second, and the
// processor time of all of PostgreSQL's processes for each request.
func BenchmarkCall(b *testing.B) {
	server := postgrestest.Start(b, postgrestest.Durable)
	for _, accounts := range []int{1, 100} {
		for _, n := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("accounts=%d/requests=%d", accounts, n), func(b *testing.B) { benchmarkCall(b, server, accounts, n) })
		}
	}
}

// BenchmarkRow measures commits of one updated row on one connection, as a measure of the machine.
func BenchmarkRow(b *testing.B) {
	server := postgrestest.Start(b, postgrestest.Durable)
	d := connect(b, server.URL(server.Create(b, "")))
	d.exec(b, `CREATE TABLE public.counter (id bigint PRIMARY KEY, n bigint) WITH (fillfactor = 20)`)
	d.exec(b, `INSERT INTO public.counter VALUES (1, 0)`)
	cpu, began := server.CPU(b), time.Now()
	rows := 0
	for b.Loop() {
		d.exec(b, `UPDATE public.counter SET n = n + 1 WHERE id = 1`)
		rows++
	}
	b.ReportMetric(float64(rows)/time.Since(began).Seconds(), "rows/s")
	b.ReportMetric(float64((server.CPU(b)-cpu).Microseconds())/float64(rows), "µs-postgres/row")
	b.ReportMetric(0, "ns/op")
}

type benchOperation struct {
	ID         string `json:"id"`
	Key        string `json:"key,omitempty"`
	Account    string `json:"account,omitempty"`
	Prompt     int64  `json:"prompt"`
	Candidates int64  `json:"candidates,omitempty"`
	Max        int64  `json:"max,omitempty"`
	Output     int64  `json:"output,omitempty"`
	Exact      bool   `json:"exact,omitempty"`
	Model      string `json:"model,omitempty"`
	Endpoint   string `json:"endpoint,omitempty"`
	Workload   string `json:"workload,omitempty"`
	State      string `json:"state,omitempty"`
	Completion int64  `json:"completion,omitempty"`
	Status     int    `json:"status,omitempty"`
	Backend    string `json:"backend,omitempty"`
	Total      int64  `json:"total,omitempty"`
	Age        int64  `json:"age"`
}

func benchmarkCall(b *testing.B, server *postgrestest.Server, accounts, n int) {
	b.Helper()
	url := server.URL(server.Create(b, ""))
	db := open(b, url)
	_, err := db.Migrate(b.Context())
	must(b, err)
	db.Close()
	d := connect(b, url)
	d.exec(b, `SELECT ledger_join_v1('gateway', 'bench', 1)`)
	d.exec(b, `INSERT INTO owner (id, account, enabled, month_total, slots, day, month)
		SELECT format('%s%s', kind, i), format('acc%s', i), true, 1000000000000, CASE kind WHEN 'key' THEN 1000 END,
			now()::date, date_trunc('month', now())::date
		FROM generate_series(0, $1 - 1) i, (VALUES ('acc'), ('key')) k(kind)`, accounts)
	seq, request := 0, 0
	call := func(owners, keys []string, settle, admit []benchOperation) time.Duration {
		texts := make([]any, 2)
		for i, operations := range [][]benchOperation{settle, admit} {
			if operations != nil {
				text, err := json.Marshal(operations)
				must(b, err)
				texts[i] = string(text)
			}
		}
		seq++
		began := time.Now()
		var status, reply string
		must(b, d.conn.QueryRow(b.Context(), `SELECT status, reply FROM ledger_v1(1, 1, 0, $1, $2, $3, $4, NULL, NULL, $5, false, NULL)`,
			seq, owners, keys, texts[0], texts[1]).Scan(&status, &reply))
		if status != "ok" {
			b.Fatal(status)
		}
		return time.Since(began)
	}
	var admitted, settled []time.Duration
	cpu, began := server.CPU(b), time.Now()
	for b.Loop() {
		var admits, settles []benchOperation
		seen := map[string]bool{}
		var owners, keys []string
		for range n {
			request++
			id, i := fmt.Sprintf("req_%s_%012d", b.Name()[len(b.Name())-6:], request), request*7%accounts
			account, key := fmt.Sprint("acc", i), fmt.Sprint("key", i)
			admits = append(admits, benchOperation{
				ID: id, Key: key, Account: account, Prompt: 100, Candidates: 1, Max: 200, Output: 200, Exact: true, Age: 100,
				Model: "llama-8b", Endpoint: "/v1/completions", Workload: "interactive",
			})
			settles = append(settles, benchOperation{
				ID: id, Prompt: 100, State: "settled", Completion: 150, Status: 200, Backend: "gpu1", Total: 900_000,
			})
			if !seen[account] {
				seen[account] = true
				owners, keys = append(owners, account), append(keys, key)
			}
		}
		admitted = append(admitted, call(owners, keys, nil, admits))
		settled = append(settled, call(owners, keys, settles, nil))
	}
	took, used := time.Since(began), server.CPU(b)-cpu
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(admitted), "ms-admit")
	b.ReportMetric(median(settled), "ms-settle")
	b.ReportMetric(float64(request)/took.Seconds(), "requests/s")
	b.ReportMetric(float64(used.Microseconds())/float64(request), "µs-postgres/request")
	b.ReportMetric(0, "ns/op")
	var rows, left int
	d.query(b, `SELECT (SELECT count(*) FROM requests), (SELECT sum(running) FROM owner)`, nil, &rows, &left)
	if rows != request || left != 0 {
		b.Fatalf("got %d rows and %d requests in flight, want %d and 0", rows, left, request)
	}
}
