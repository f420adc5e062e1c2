//go:build e2e

package e2e_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// The ledger on which TestPages measures, beside its number of rows.
const (
	pagesMonths   = 3
	pagesAccounts = 20
	pagesKeys     = 3 // of each account
	pagesTags     = 1000
)

// pagesRows returns the number of rows in the ledger: BASEGATE_PAGES, or 20,000.
func pagesRows(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BASEGATE_PAGES")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// openLedger opens the environment's database for direct access.
func (e *environment) openLedger() *sql.DB {
	e.t.Helper()
	if e.postgresURL != "" {
		db, err := e.openDatabase()
		must(e.t, err)
		e.t.Cleanup(func() { must(e.t, db.Close()) })
		return db
	}
	db, err := sql.Open("sqlite3", "file:"+e.database+"?_busy_timeout=10000&_journal_mode=WAL&_synchronous=NORMAL")
	must(e.t, err)
	e.t.Cleanup(func() { must(e.t, db.Close()) })
	return db
}

// fillLedger adds accounts, keys, and the given number of requests, which end now and began pagesMonths ago. The first
// account is the environment's own.
func (e *environment) fillLedger(rows int) {
	e.t.Helper()
	if e.postgresURL != "" {
		e.fillPostgres(rows)
		return
	}
	db := e.openLedger()
	const (
		accounts = `
			WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
			INSERT INTO accounts (id, email, name, admin, state, created_at)
			SELECT printf('acc_%013d', i), printf('user%d@example.org', i), '', 0, 'active', 0 FROM n`
		keys = `
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
			INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at)
			SELECT printf('key_%013d', row_number() OVER (ORDER BY a.created_at DESC, a.id, i)), a.id, printf('key %d', i),
				printf('acs-bm-%s%d', substr(a.id, -5), i), randomblob(32), 'active', 0
			FROM accounts a, n`
		// Rows are scattered over keys, models, workloads and tags by multiplicative hashes of their number.
		requests = `
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1),
			ranked AS (SELECT id, account_id, row_number() OVER (ORDER BY id) - 1 AS rank FROM keys)
			INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
				status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
			SELECT printf('req_%026d', i), ?2 + i * (?3 / ?1), k.id, k.account_id,
				'model-' || (i * 40503 / 8 % 3), 'gpu' || (i % 4), iif(i * 48271 / 32 % 4, '/v1/completions', '/v1/chat/completions'),
				iif(i * 69621 / 16 % 3, 'interactive', 'batch'), 'user-' || (i * 7919 % ?5), i % 2,
				iif(i % 97, 200, 502), iif(i % 97, '', 'upstream_unreachable'), 'settled', 100 + i % 900, 20 + i % 300,
				i % 1000, (i % 2) * (20000 + i * 7919 % 500000), 100000 + i * 7919 % 20000000
			FROM n JOIN ranked k ON k.rank = i * 16807 / 4 % ?4`
	)
	execute := func(text string, args ...any) {
		_, err := db.ExecContext(e.t.Context(), text, args...)
		must(e.t, err)
	}
	span := time.Duration(pagesMonths) * 30 * 24 * time.Hour
	execute(accounts, pagesAccounts)
	execute(keys, pagesKeys)
	execute(requests, rows, time.Now().Add(-span).UnixMicro(), span.Microseconds(), pagesAccounts*pagesKeys, pagesTags)
}

// rowsAtOnce is the number of rows that one transaction adds: those of one are added to the rollups together.
const rowsAtOnce = 10_000

// fillPostgres is fillLedger on PostgreSQL.
func (e *environment) fillPostgres(rows int) {
	e.t.Helper()
	db := e.openLedger()
	const (
		accounts = `
			INSERT INTO accounts (id, email, name, admin, state, created_at)
			SELECT 'acc_' || lpad(i::text, 13, '0'), 'user' || i || '@example.org', '', false, 'active', 0
			FROM generate_series(2, $1::int) i`
		keys = `
			INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at)
			SELECT 'key_' || lpad((row_number() OVER (ORDER BY a.created_at DESC, a.id, i))::text, 13, '0'), a.id, 'key ' || i,
				'acs-bm-' || right(a.id, 5) || i, sha256((a.id || i)::bytea), 'active', 0
			FROM accounts a, generate_series(1, $1::int) i`
		requests = `
			INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
				status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
			SELECT 'req_' || lpad(i::text, 26, '0'), $2::bigint + i * $3::bigint, k.id, k.account_id,
				'model-' || (i * 40503 / 8 % 3), 'gpu' || (i % 4),
				CASE WHEN i * 48271 / 32 % 4 <> 0 THEN '/v1/completions' ELSE '/v1/chat/completions' END,
				CASE WHEN i * 69621 / 16 % 3 <> 0 THEN 'interactive' ELSE 'batch' END, 'user-' || (i * 7919 % $4::bigint), i % 2 = 1,
				CASE WHEN i % 97 <> 0 THEN 200 ELSE 502 END, CASE WHEN i % 97 <> 0 THEN '' ELSE 'upstream_unreachable' END, 'settled',
				100 + i % 900, 20 + i % 300, i % 1000, (i % 2) * (20000 + i * 7919 % 500000), 100000 + i * 7919 % 20000000
			FROM generate_series($5::bigint, $6::bigint) i
			JOIN (SELECT id, account_id, row_number() OVER (ORDER BY id) - 1 AS rank FROM keys) k ON k.rank = i * 16807 / 4 % $7::bigint`
	)
	execute := func(text string, args ...any) {
		_, err := db.ExecContext(e.t.Context(), text, args...)
		must(e.t, err)
	}
	span := time.Duration(pagesMonths) * 30 * 24 * time.Hour
	begin := time.Now().Add(-span)
	for at := begin; !at.After(time.Now()); at = at.AddDate(0, 0, 28) {
		execute(`SELECT ledger_partition_v1($1)`, at.UnixMicro())
	}
	execute(accounts, pagesAccounts)
	execute(keys, pagesKeys)
	for first := 1; first <= rows; first += rowsAtOnce {
		execute(requests, rows, begin.UnixMicro(), span.Microseconds()/int64(rows), pagesTags, first, min(first+rowsAtOnce-1, rows),
			pagesAccounts*pagesKeys)
	}
	execute(`VACUUM (ANALYZE) requests`) // autovacuum does it within minutes
}

// waitForRollups waits until the gateway has added all rows to the rollups.
func (g *gateway) waitForRollups() {
	g.t.Helper()
	db := g.openLedger()
	unsummed := `SELECT EXISTS (SELECT 1 FROM requests WHERE seq > (SELECT seq FROM usage_watermark))`
	if g.postgresURL != "" {
		unsummed = `SELECT EXISTS (SELECT FROM requests WHERE xid > (SELECT seq::text::xid8 FROM usage_watermark))`
	}
	poll.Within(g.t, 30*time.Minute, "the rollups are built", func() bool {
		var left bool
		err := db.QueryRowContext(g.t.Context(), unsummed).Scan(&left)
		return err == nil && !left
	})
}

// signIn returns a browser with a session of the environment's account.
func (g *gateway) signIn() *http.Client {
	g.t.Helper()
	return g.signInAs(g.email)
}

// signInAs sets the password of an account with an invitation, and returns a browser with its session.
func (g *gateway) signInAs(email string) *http.Client {
	g.t.Helper()
	invitation, err := url.Parse(strings.TrimSpace(g.run("account", "invite", email)))
	must(g.t, err)
	jar, err := cookiejar.New(nil)
	must(g.t, err)
	browser := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	const password = "correct horse battery staple"
	resp, err := browser.PostForm(g.url+invitation.Path, url.Values{"password": {password}, "repeated": {password}})
	must(g.t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Request.URL.Path != "/dashboard" {
		g.t.Fatalf("the invitation leads to %s with status %d", resp.Request.URL.Path, resp.StatusCode)
	}
	return browser
}

// cpuTime returns the user and system time that the process has used.
func (p *process) cpuTime() time.Duration {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	must(p.t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		must(p.t, err)
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100)
}

// fetch reads a page and returns its size.
func fetch(ctx context.Context, browser *http.Client, address string) (status int, size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	resp, err := browser.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	size, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, size, err
}

// serverTime returns the user and system time of all processes of the PostgreSQL server; 0 on
// SQLite.
func (e *environment) serverTime() time.Duration {
	e.t.Helper()
	if e.postgres == nil {
		return 0
	}
	return e.postgres.CPU(e.t)
}

// The console's pages show a ledger of as many requests as BASEGATE_PAGES says (a million by make pages), on SQLite or on
// PostgreSQL. With a million the test also requires that no page takes 100 ms of CPU time on SQLite, and with ten million
// that none takes 300 ms on either engine, that of PostgreSQL's server included.
func TestPages(t *testing.T) {
	useBinaryWithoutRaceDetector(t)
	rows := pagesRows(t)
	env := newEnvironment(t, settings{}, startMock(t, mockvllm.Options{}).URL())
	env.run("account", "set", env.email, "--admin")
	env.fillLedger(rows)
	g := env.serve()
	began := time.Now()
	if os.Getenv("BASEGATE_PAGES_WITHOUT_ROLLUPS") == "" { // a binary from before the rollups has none to wait for
		g.waitForRollups()
	}
	t.Logf("%d rows are in the rollups after %v and %v of CPU time", rows, time.Since(began).Round(time.Millisecond), g.cpuTime())
	browser := g.signIn()
	month := time.Now().UTC().AddDate(0, 0, -30).Format("2006-01")
	day := func(ago int) string { return time.Now().UTC().AddDate(0, 0, -ago).Format(time.DateOnly) }
	measure := func(path string, limited bool) {
		const most = 50
		used := func() time.Duration { return g.cpuTime() + g.serverTime() }
		before, n := used(), 0
		var size int64
		shortest := time.Hour
		for n < most && used()-before < time.Second {
			began := time.Now()
			status, bytes, err := fetch(t.Context(), browser, g.url+path)
			if err != nil || status != http.StatusOK {
				t.Fatalf("%s: %v, status %d", path, err, status)
			}
			size, n, shortest = bytes, n+1, min(shortest, time.Since(began))
		}
		each := (used() - before) / time.Duration(n)
		t.Logf("%8.1f ms of CPU time, at least %8.1f ms, %9d bytes: %s", float64(each.Microseconds())/1000,
			float64(shortest.Microseconds())/1000, size, path)
		limit := 300 * time.Millisecond
		if rows <= 1_000_000 && g.postgresURL == "" {
			limit = 100 * time.Millisecond
		}
		if limited && rows <= 10_000_000 && each > limit {
			t.Errorf("%s takes %v of CPU time, want at most %v", path, each, limit)
		}
	}
	for _, path := range []string{
		"/dashboard", "/usage", "/usage?month=" + month, "/usage?account=all&month=" + month,
		"/usage/requests", "/usage/requests?q=nothing", "/usage/requests?failed=1",
		"/usage/requests?key=key_0000000000002", "/usage/requests?key=key_0000000000009",
		"/usage/explore", "/usage/explore?by=key&interval=hour&from=" + day(6), "/usage/explore?by=user&from=" + day(89),
		"/usage/explore?account=all&by=account", "/usage/explore?account=all&by=key&from=" + day(89),
		"/usage/explore/export?by=key&what=groups&from=" + day(89), "/usage/explore/export?what=intervals&format=json&from=" + day(89),
		"/usage/requests/req_00000000000000000000000100",
		"/usage/csv?by=model&month=" + month, "/usage/csv?by=user&month=" + month,
		"/usage/csv?by=user&account=all&month=" + month, "/usage/csv?by=request",
		"/admin/accounts", "/admin/accounts/acc_0000000000005", "/admin/keys/key_0000000000004", "/admin/models", "/admin/audit",
	} {
		measure(path, true)
	}
	measure("/usage/csv?by=request&month="+month, false)
	measure("/usage/csv?by=request&account=all&month="+month, false)
}
