//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"basegate/internal/postgrestest"
)

// leaseLimit is the number of slots of a key: limits.concurrency_per_key.
const leaseLimit = 8

// clusterLedger reads the tables of the ledger, beside the gateways.
type clusterLedger struct{ pool *pgxpool.Pool }

// openClusterLedger connects to a database directly, so that no partition concerns it. The connection has the search path of
// the gateways.
func openClusterLedger(t *testing.T, url string) *clusterLedger {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.ConnConfig.RuntimeParams["search_path"] = "basegate"
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	return &clusterLedger{pool}
}

// texts returns the rows of a query, which has one column of text.
func (l *clusterLedger) texts(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := l.pool.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// runningChecks must return no row at any moment. Lines of batches need no slot.
var runningChecks = map[string]string{
	"a key has more leases than slots": fmt.Sprintf(`SELECT key || ' has ' || count(*) FROM inflight WHERE batch_id IS NULL
		GROUP BY key HAVING count(*) > %d`, leaseLimit),
	"used and reserved tokens exceed a cap": `SELECT id || ' has ' || month_in + month_out || ' used and ' || reserved_month_in + reserved_month_out
		|| ' reserved of ' || (caps ->> 'month_total') FROM owner
		WHERE month_in + month_out + reserved_month_in + reserved_month_out > (caps ->> 'month_total')::bigint`,
}

// finalChecks must return no row when no request runs and all gateways had the time to end what failed.
var finalChecks = map[string]string{
	"a lease is left":  `SELECT request_id || ' of gateway ' || gateway FROM inflight`,
	"a waiter is left": `SELECT request_id || ' of gateway ' || gateway FROM waiter`,
	"an owner has reservations or slots": `SELECT id || ': ' || running || ' running, ' || waiting || ' waiting, reserved '
		|| reserved_month_in || ' and ' || reserved_month_out FROM owner
		WHERE running + waiting + reserved_month_in + reserved_month_out + reserved_day_in + reserved_day_out <> 0`,
	"a request has two rows": `SELECT request_id || ' has ' || count(*) FROM requests GROUP BY request_id HAVING count(*) > 1`,
	"an owner's counters are not the sums of its rows": `SELECT o.id || ': used ' || o.month_in || ' and ' || o.month_out || ', rows have '
		|| coalesce(sum(r.prompt_tokens), 0) || ' and ' || coalesce(sum(r.completion_tokens), 0)
		FROM owner o LEFT JOIN requests r ON o.id IN (r.key_id, r.account_id)
		GROUP BY o.id HAVING o.month_in <> coalesce(sum(r.prompt_tokens), 0) OR o.month_out <> coalesce(sum(r.completion_tokens), 0)`,
}

// violations runs checks and returns what they have found.
func (l *clusterLedger) violations(ctx context.Context, checks map[string]string) (found []string, err error) {
	for name, query := range checks {
		rows, err := l.texts(ctx, query)
		if err != nil {
			return found, fmt.Errorf("%s: %w", name, err)
		}
		for _, row := range rows {
			found = append(found, name+": "+row)
		}
	}
	return found, nil
}

// wholeAnswer is a response that a client has received to its last byte.
type wholeAnswer struct{ prompt, completion int64 }

// unsettled returns the whole answers that do not have exactly one settled row with their tokens.
func (l *clusterLedger) unsettled(ctx context.Context, answers map[string]wholeAnswer) (found []string, err error) {
	rows, err := l.texts(ctx, `SELECT request_id || ' ' || state || ' ' || status || ' ' || prompt_tokens || ' ' || completion_tokens FROM requests`)
	if err != nil {
		return nil, err
	}
	byID := map[string][]string{}
	for _, row := range rows {
		id, rest, _ := strings.Cut(row, " ")
		byID[id] = append(byID[id], rest)
	}
	for id, a := range answers {
		if want := fmt.Sprintf("settled 200 %d %d", a.prompt, a.completion); len(byID[id]) != 1 || byID[id][0] != want {
			found = append(found, fmt.Sprintf("a whole answer is not settled once: %s has the rows %q, want %q", id, byID[id], want))
		}
	}
	return found, nil
}

// violationLog collects violations without repeating them.
type violationLog struct {
	mu    sync.Mutex
	found map[string]bool
}

func (v *violationLog) add(all ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range all {
		v.found[one] = true
	}
}

// Each check of the run finds the violation that it is for.
func TestClusterChecksFindViolations(t *testing.T) {
	server := postgrestest.Start(t)
	name := server.Create(t, "")
	env := &environment{t: t, config: filepath.Join(t.TempDir(), "config.yaml")}
	writeFile(t, env.config, fmt.Sprintf("database: {url: %q}\nmodels: [%s]\n", server.URL(name), modelConfig("m", "http://127.0.0.1:1")))
	env.run("database", "migrate")
	ledger := openClusterLedger(t, server.URL(name))
	execute := func(statement string) {
		t.Helper()
		if _, err := ledger.pool.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%v: %s", err, statement)
		}
	}
	execute(`SELECT ledger_partitions_v1(1)`)
	execute(`INSERT INTO owner (id, account, enabled, caps, day) VALUES ('k', 'a', true, '{"month_total": 100}', now()::date)`)
	const lease = `INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint, workload,
		user_tag, stream%s) SELECT 'r' || n, 1, 1, 'a', 'k', now()::date, 0, 1, 1, 'm', '', '', '', false%s FROM generate_series(1, %d) n`
	more, values := "", ""
	if rows, err := ledger.texts(t.Context(), `SELECT attname::text FROM pg_attribute WHERE attrelid = 'inflight'::regclass AND attname = 'details'`); err != nil {
		t.Fatal(err)
	} else if len(rows) > 0 {
		more, values = ", details", ", ''"
	}
	leases := func(n int) string { return fmt.Sprintf(lease, more, values, n) }
	const row = `INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream, status, code, state,
		prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts)
		SELECT 'r', extract(epoch FROM now())::bigint * 1000000 + n, 'k', 'a', 'm', '', '', '', '', false, 200, '', 'settled', 3, 2, 0, 0, 0, 0, ''
		FROM generate_series(1, %d) n`
	const nothing = `SELECT`
	clean := []string{
		`DELETE FROM inflight`, `DELETE FROM waiter`, `DELETE FROM requests`,
		`UPDATE owner SET month_in = 0, month_out = 0, reserved_month_in = 0, reserved_month_out = 0, running = 0`,
	}
	for _, c := range []struct {
		checks   map[string]string
		breakage string
		want     string // the check that finds it; empty: none
	}{
		{runningChecks, leases(leaseLimit), ""},
		{runningChecks, leases(leaseLimit + 1), "a key has more leases than slots"},
		{runningChecks, `UPDATE owner SET month_in = 60, reserved_month_out = 40`, ""},
		{runningChecks, `UPDATE owner SET month_in = 61, reserved_month_out = 40`, "used and reserved tokens exceed a cap"},
		{finalChecks, nothing, ""},
		{finalChecks, leases(1), "a lease is left"},
		{finalChecks, `UPDATE owner SET running = 1`, "an owner has reservations or slots"},
		{finalChecks, fmt.Sprintf(row, 1) + `; UPDATE owner SET month_in = 3, month_out = 2`, ""},
		{finalChecks, fmt.Sprintf(row, 2) + `; UPDATE owner SET month_in = 6, month_out = 4`, "a request has two rows"},
		{finalChecks, fmt.Sprintf(row, 1), "an owner's counters are not the sums of its rows"},
		{finalChecks, `UPDATE owner SET month_in = 3, month_out = 2`, "an owner's counters are not the sums of its rows"},
	} {
		for _, statement := range append(clean, strings.Split(c.breakage, ";")...) {
			execute(statement)
		}
		found, err := ledger.violations(t.Context(), c.checks)
		must(t, err)
		if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || !strings.HasPrefix(found[0], c.want)) {
			t.Errorf("%s: found %q, want %q", c.breakage, found, c.want)
		}
	}
	for _, statement := range append(clean, fmt.Sprintf(row, 1)) {
		execute(statement)
	}
	for _, c := range []struct {
		answers map[string]wholeAnswer
		want    int
	}{
		{map[string]wholeAnswer{"r": {3, 2}}, 0},
		{map[string]wholeAnswer{"r": {3, 3}}, 1},
		{map[string]wholeAnswer{"r": {3, 2}, "lost": {3, 2}}, 1},
	} {
		if found, err := ledger.unsettled(t.Context(), c.answers); err != nil || len(found) != c.want {
			t.Errorf("%v: found %q (error %v), want %d", c.answers, found, err, c.want)
		}
	}
}
