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
// PostgreSQL. By make pages, the test also requires that no page takes 300 ms of CPU time with up to ten million, that of PostgreSQL's
// server included, nor 100 ms with a million on SQLite. Files with a line for each request are measured without a limit.
func TestPages(t *testing.T) {
	useBinaryWithoutRaceDetector(t)
	rows := pagesRows(t)
	env := newEnvironment(t, settings{}, startMock(t, mockvllm.Options{}).URL())
	env.run("account", "set", env.email, "--admin")
	began := time.Now()
	env.fillLedgerWithRollups(rows)
	t.Logf("%d requests and their rollups are made in %v", rows, time.Since(began).Round(time.Millisecond))
	if rows <= 100_000 { // the figures are those of a ledger that a gateway could have made
		env.run("database", "check")
	}
	g := env.serve()
	g.waitForRollups()
	browser := g.signIn()
	limit := 300 * time.Millisecond
	if rows <= 1_000_000 && g.postgresURL == "" {
		limit = 100 * time.Millisecond
	}
	for _, path := range measuredPages() {
		if used := g.measurePage(browser, path, rows); os.Getenv("BASEGATE_PAGES") != "" && rows <= 10_000_000 && used > limit {
			t.Errorf("%s takes %v of CPU time, want at most %v", path, used, limit)
		}
	}
	g.measurePage(browser, "/usage/export?what=requests&"+pastMonth(), rows)
	g.measurePage(browser, "/usage/export?what=requests&account=all&"+pastMonth(), rows)
}

// pastMonth returns the query for the usage of the month that has the day 30 days ago.
func pastMonth() string {
	first := time.Now().UTC().AddDate(0, 0, -30)
	first = first.AddDate(0, 0, 1-first.Day())
	return "from=" + first.Format(time.DateOnly) + "&to=" + first.AddDate(0, 1, -1).Format(time.DateOnly)
}

// measurePage reads a page again and again, logs its figures, and returns the CPU time that the gateway and PostgreSQL have
// used for it, which is exact enough from a million rows on.
func (g *gateway) measurePage(browser *http.Client, path string, rows int) time.Duration {
	g.t.Helper()
	most := 5
	if rows >= 1_000_000 {
		most = 50
	}
	used := func() time.Duration { return g.cpuTime() + g.serverTime() }
	before, n := used(), 0
	var size int64
	shortest := time.Hour
	for n < most && used()-before < time.Second {
		began := time.Now()
		status, bytes, err := fetch(g.t.Context(), browser, g.url+path)
		if err != nil || status != http.StatusOK {
			g.t.Fatalf("%s: %v, status %d", path, err, status)
		}
		size, n, shortest = bytes, n+1, min(shortest, time.Since(began))
	}
	each := (used() - before) / time.Duration(n)
	g.t.Logf("%8.1f ms of CPU time, at least %8.1f ms, %9d bytes: %s", float64(each.Microseconds())/1000,
		float64(shortest.Microseconds())/1000, size, path)
	return each
}

// measuredPages returns the pages, and the files that they link to, of an administrator who has usage.
func measuredPages() []string {
	month := pastMonth()
	day := func(ago int) string { return time.Now().UTC().AddDate(0, 0, -ago).Format(time.DateOnly) }
	return []string{
		"/dashboard", "/account", "/keys/new", "/keys/key_0000000000001", "/workbench", "/files", "/batches", "/tutorial", "/feedback",
		"/console/api/palette", "/console/api/workbench", "/console/api/prompts",

		"/usage", "/usage?" + month, "/usage?account=all", "/usage?account=all&" + month, "/usage?account=acc_0000000000005&" + month,
		"/usage/requests", "/usage/requests?q=nothing", "/usage/requests?ending=failed",
		"/usage/requests?account=all", "/usage/requests?account=all&q=nothing", "/usage/requests?account=all&ending=failed",
		"/usage/requests?key=key_0000000000002", "/usage/requests?key=key_0000000000009",
		"/usage/requests/req_00000000000000000000000100", "/usage/requests.csv",

		"/usage?by=key&interval=hour&from=" + day(6), "/usage?by=user&from=" + day(89),
		"/usage?account=all&by=account", "/usage?account=all&by=key&from=" + day(30),
		"/usage?account=all&by=user", "/usage?account=all&by=user&from=" + day(89),
		"/usage?account=all&by=key&from=" + day(89), "/usage?account=all&by=endpoint&interval=hour&from=" + day(3),
		"/usage?account=all&by=key&interval=hour&from=" + day(3), "/usage?account=all&model=model-1&by=key",
		"/usage/export?by=key&what=groups&from=" + day(89), "/usage/export?what=intervals&format=json&from=" + day(89),
		"/usage/export?account=all&by=key&what=groups&from=" + day(30), "/usage/export?account=all&by=user&what=groups",
		"/usage/export?account=all&by=key&what=intervals&from=" + day(89),

		"/usage/export?by=model&" + month, "/usage/export?by=user&" + month,
		"/usage/export?by=user&account=all&" + month, "/usage/export?by=key&account=all&" + month,

		"/admin/overview", "/admin/accounts", "/admin/accounts/acc_0000000000005", "/admin/keys/key_0000000000004", "/admin/models",
		"/admin/batches", "/admin/settings", "/admin/feedback", "/admin/audit",
	}
}

// No page of the console reads or shows all keys of an account that has very many: 100,000 by make pages.
func TestPagesOfAnAccountWithManyKeys(t *testing.T) {
	useBinaryWithoutRaceDetector(t)
	keys := 2_000
	if os.Getenv("BASEGATE_PAGES") != "" {
		keys = 100_000
	}
	env := newEnvironment(t, settings{}, startMock(t, mockvllm.Options{}).URL())
	env.run("account", "set", env.email, "--admin")
	g := env.serve()
	db, numbers, hash := env.openLedger(), `WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d)`, `randomblob(32)`
	if env.postgresURL != "" {
		numbers, hash = `WITH s (n) AS (SELECT generate_series(1, %d))`, `sha256(n::text::bytea)`
	}
	_, err := db.ExecContext(t.Context(), fmt.Sprintf(numbers, keys)+`
		INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at)
		SELECT 'many_' || n, a.id, 'n', 'acs-bm-000000', `+hash+`, 'active', n FROM s, accounts a WHERE a.email = $1`, env.email)
	must(t, err)
	var account string
	must(t, db.QueryRowContext(t.Context(), `SELECT id FROM accounts WHERE email = $1`, env.email).Scan(&account))
	other := env.newAccount("eve@example.org")
	before, began := g.cpuTime(), time.Now()
	secret := env.createKeyOf(other, "k")
	g.waitForKey(secret)
	t.Logf("a key of another account works %v after the start of its command", time.Since(began))
	env.run("key", "revoke", secret[:13])
	withinASecond(t, "the key is refused", func() bool {
		got, err := postTo(g.url+"/v1/chat/completions", secret, "{}")
		return err == nil && got.status == http.StatusUnauthorized
	})
	t.Logf("both changes took %v of CPU time, with reading what was inserted", g.cpuTime()-before)

	browser := g.signIn()
	for _, path := range []string{
		"/dashboard", "/dashboard?after=400", "/keys/many_9", "/console/api/palette", "/console/api/workbench", "/tutorial", "/files",
		"/batches", "/usage", "/usage?account=all", "/usage/requests", "/usage/requests?account=all", "/usage/requests?key=many_9",
		"/admin/accounts", "/admin/accounts/" + account,
		"/admin/accounts/" + account + "?after=400", "/admin/keys/many_9", "/admin/overview", "/admin/audit",
	} {
		used := g.measurePage(browser, path, 0)
		if limit := 300 * time.Millisecond; keys >= 100_000 && used > limit {
			t.Errorf("%s takes %v of CPU time, want at most %v", path, used, limit)
		}
		if text := g.page(browser, path); len(text) > 1<<20 {
			t.Errorf("%s has %d bytes, want at most 1 MiB", path, len(text))
		}
	}
	next := g.page(browser, "/dashboard")
	for _, part := range []string{`href="/dashboard?after=200#keys"`, `/keys/many_200"`} {
		if !strings.Contains(next, part) {
			t.Errorf("the dashboard lacks %s", part)
		}
	}
	if strings.Contains(next, `/keys/many_201"`) {
		t.Error("the dashboard shows more than 200 keys")
	}
	if second := g.page(browser, "/dashboard?after=200"); !strings.Contains(second, `/keys/many_201"`) || !strings.Contains(second, `href="/dashboard#keys"`) {
		t.Error("the second page lacks the 201st key or the link to the first page")
	}
}
