//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"basegate/internal/poll"
)

// Limits that hold while all hostile users are active.
const (
	attackMemoryLimit   = 512 << 20 // GOMEMLIMIT, in bytes
	attackResident      = attackMemoryLimit * 14 / 10
	attackLatency       = 300 * time.Millisecond // the 99th percentile of an honest user's plain requests
	attackRevocation    = time.Second
	attackRevokedKeys   = 5
	heavyPause          = time.Second // after each attack that sends or receives megabytes
	attackLedgerEntries = 100_000
)

// attackDuration returns how long the hostile users are active, BASEGATE_HOSTILE or ten seconds, and whether the test
// requires times: only a machine that does nothing else keeps them.
func attackDuration(t *testing.T) (d time.Duration, requireTimes bool) {
	t.Helper()
	text := os.Getenv("BASEGATE_HOSTILE")
	if text == "" {
		return 10 * time.Second, false
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d, true
}

// hostileUser is a user with an account, a key and a session, whose attack is repeated until the load is stopped.
type hostileUser struct {
	*hostileLoad
	t       *testing.T
	secret  string
	browser *http.Client

	mu        sync.Mutex
	responses map[int]int // by status; 0: the connection was closed without one
}

// repeat runs n loops of the attack, each with a pause after it, so that the attackers leave the gateway some of the
// machine's processors.
func (u *hostileUser) repeat(n int, pause time.Duration, attack func()) {
	for range n {
		u.goroutines.Go(func() {
			tick := time.NewTimer(0)
			defer tick.Stop()
			for {
				select {
				case <-u.done:
					return
				case <-tick.C:
				}
				attack()
				tick.Reset(pause)
			}
		})
	}
}

// do sends a request and discards the response. Errors are expected: the gateway may close the connection.
func (u *hostileUser) do(ctx context.Context, method, path string, body io.Reader, length int64, set func(*http.Request)) {
	req, err := http.NewRequestWithContext(ctx, method, u.url+path, body)
	if err != nil {
		u.t.Error(err)
		return
	}
	req.ContentLength = length
	client := httpClient
	if set != nil {
		set(req)
		client = u.browser
	} else {
		req.Header.Set("Authorization", "Bearer "+u.secret)
	}
	resp, err := client.Do(req)
	status := 0
	if err == nil {
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		status = resp.StatusCode
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.responses[status]++
}

// complete sends a completion request.
func (u *hostileUser) complete(ctx context.Context, body string) {
	u.do(ctx, http.MethodPost, "/v1/completions", strings.NewReader(body), int64(len(body)), nil)
}

// page loads a page of the console, or sends it a form or JSON.
func (u *hostileUser) page(ctx context.Context, method, path, contentType, body string) {
	u.do(ctx, method, path, strings.NewReader(body), int64(len(body)), func(r *http.Request) {
		r.Header.Set("Origin", u.url)
		if contentType != "" {
			r.Header.Set("Content-Type", contentType)
		}
	})
}

// unread opens a page whose response is not read, until the gateway closes the connection.
func (u *hostileUser) unread(path string) {
	conn, err := u.dial()
	if err != nil {
		u.t.Error(err)
		return
	}
	defer conn.Close()
	req, err := pageRequest(u.url+path, u.browser.Jar)
	if err != nil {
		u.t.Error(err)
		return
	}
	req.Close = true
	req.Write(conn)
	select {
	case <-u.done:
	case <-time.After(5 * time.Second):
	}
}

// attacks are what the hostile users do until ctx ends, each with an account of its own.
func attacks(bodies map[string]string) map[string]func(ctx context.Context, u *hostileUser) {
	const form = "application/x-www-form-urlencoded"
	toGreedy := func(name string) string { return strings.Replace(bodies[name], `"model":"m"`, `"model":"g"`, 1) }
	return map[string]func(ctx context.Context, u *hostileUser){
		"downloads that are not read": func(_ context.Context, u *hostileUser) {
			u.repeat(8, heavyPause, func() { u.unread("/usage/export?what=requests") })
		},
		"pages of usage": func(ctx context.Context, u *hostileUser) {
			u.repeat(60, heavyPause/2, func() { u.page(ctx, http.MethodGet, "/usage", "", "") })
		},
		"names of members": func(ctx context.Context, u *hostileUser) {
			body := bodies["names of members"]
			u.repeat(8, heavyPause, func() { u.complete(ctx, body) })
		},
		"prompts that are counted for nobody": func(ctx context.Context, u *hostileUser) {
			body := toGreedy("texts to be counted")
			u.repeat(4, heavyPause, func() {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				u.complete(ctx, body)
			})
		},
		"unfinished uploads": func(ctx context.Context, u *hostileUser) {
			part := make([]byte, 9<<20)
			u.repeat(50, heavyPause, func() {
				body, writer := io.Pipe()
				defer context.AfterFunc(ctx, func() { body.Close() })()
				u.goroutines.Go(func() { writer.Write(part) })
				u.do(ctx, http.MethodPost, "/v1/completions", body, 10<<20, nil)
			})
		},
		"large responses": func(ctx context.Context, u *hostileUser) {
			body := toGreedy("a plain response")
			u.repeat(8, heavyPause, func() { u.complete(ctx, body) })
		},
		"streams of large indexes": func(ctx context.Context, u *hostileUser) {
			body := toGreedy("choices of a stream")
			u.repeat(4, heavyPause, func() { u.complete(ctx, body) })
		},
		"saved prompts": func(ctx context.Context, u *hostileUser) {
			body := `{"name":"n","model":"m","document":{"text":"` + strings.Repeat("x", 4<<20-1000) + `"}}`
			u.repeat(4, heavyPause, func() { u.page(ctx, http.MethodPost, "/console/api/prompts", "application/json", body) })
		},
		"sign-ins and guessed keys": func(ctx context.Context, u *hostileUser) {
			u.repeat(2, 5*attackInterval, func() {
				u.page(ctx, http.MethodPost, "/sign-in", form, "email=user3%40example.org&password=a+wrong+password")
				u.page(ctx, http.MethodPost, "/request-access", form, "email=x%40example.org&name=X&purpose=P")
			})
			guess := "acs-bm-" + strings.Repeat("A", 43)
			u.repeat(4, 5*attackInterval, func() {
				resp, err := post(u.url, guess, smallRequest)
				// On a loaded machine the database may not be read in time, so that the key may exist.
				unknown := resp.status == http.StatusServiceUnavailable && strings.Contains(resp.body, "keys cannot be looked up")
				if err == nil && resp.status != http.StatusUnauthorized && !unknown {
					u.t.Errorf("a guessed key gets %d %s", resp.status, resp.body)
				}
			})
		},
		"connections": func(_ context.Context, u *hostileUser) {
			u.slowHeaders(u.t, 300)
			u.slowBodies(u.t, 40)
			u.rapidReset(u.t)
		},
	}
}

// Hostile users attack at once, each in another way. An honest user is served and takes its turn at a full backend, uploads of
// others are not refused, keys are revoked, and the memory, the write-ahead log and the messages to a webhook stay within their
// limits.
func TestHostileUsersAtOnce(t *testing.T) {
	duration, requireTimes := attackDuration(t)
	useBinaryWithoutRaceDetector(t)
	t.Setenv("GOMEMLIMIT", fmt.Sprint(attackMemoryLimit))
	_, quick := startMockProcess(t)
	_, full := startMockProcess(t, "--max-num-seqs", fmt.Sprint(hostileRunning), "--first-delay", "500ms")
	webhook, messages := countMessages(t)
	env := newEnvironment(t, settings{
		server: `, read_header_timeout: 1m, trusted_proxies: ["127.0.0.1/32"]`,
		extra: fmt.Sprintf("upstream: {idle_timeout: 5s}\nlimits: {concurrency_per_key: %d, concurrency_per_account: %d}\nconsole: {feedback_webhook: %q}",
			hostileAtOnce, hostileKeys*hostileAtOnce, webhook),
		models: modelConfig("m", quick) + ", " + modelConfig("g", greedyBackend(t)) + ", " + modelConfig("f", full),
	})
	env.fillLedger(attackLedgerEntries)
	honest, uploading, patient := env.createKey("honest"), env.createKey("uploads"), env.createKey("at the full backend")
	var revoked []string
	for i := range attackRevokedKeys {
		revoked = append(revoked, env.createKey(fmt.Sprint("revoked ", i)))
	}
	g := env.serve()
	g.waitForRollups()
	users := map[string]*hostileUser{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	var all []*hostileUser
	list := attacks(hostileBodies())
	var keys []string
	maps.Copy(list, sharedAttacks(&keys))
	for name := range list {
		email := fmt.Sprintf("user%d@example.org", len(users)+2)
		own := *g
		own.secret = env.createKeyOf(email, name)
		switch name {
		case manyKeys:
			for i := range hostileKeys {
				keys = append(keys, env.createKeyOf(email, fmt.Sprint("one of many ", i)))
			}
		case spentTokenizer:
			env.run("key", "set", own.secret[:13], "--monthly-budget", "20")
			g.spend(own.secret)
		}
		load := &hostileLoad{gateway: &own, backend: quick, done: done, address: strings.TrimPrefix(g.url, "http://")}
		users[name] = &hostileUser{hostileLoad: load, t: t, secret: own.secret, browser: g.signInAs(email), responses: map[int]int{}}
		all = append(all, users[name])
	}
	t.Logf("before the attack: %v", startHonestClient(t, g.url, honest, time.Second)())

	log := g.watchLog(ctx)
	began := time.Now() // the first attacks flood while the last ones still open their connections
	for name, u := range users {
		list[name](ctx, u)
	}
	others := &hostileLoad{gateway: g, backend: quick, done: done}
	others.uploadWhile(t, uploading)
	turns := others.takeTurns(t, patient, users[manyKeys])
	wait := startHonestClient(t, g.url, honest, duration)
	slowest := g.revoke(t, revoked)
	latencies := wait()
	poll.Until(t, "a message of feedback has arrived", func() bool { return messages.Load() > 0 })
	close(done)
	cancel()
	for _, u := range all {
		u.goroutines.Wait()
	}

	served := turns()
	checkMessages(t, messages, began)

	for name, u := range users {
		t.Logf("%s: responses by status %v", name, u.responses)
	}
	peak, _ := g.resident()
	logSize := log()
	t.Logf("during the attack: %v; slowest revocation %v; peak %d MiB resident; write-ahead log up to %d MiB", latencies, slowest, peak>>20, logSize>>20)
	if peak > attackResident {
		t.Errorf("the peak was %d MiB resident, want at most %d", peak>>20, attackResident>>20)
	}
	if logSize > maxLog {
		t.Errorf("the write-ahead log grew to %d MiB, want at most %d", logSize>>20, maxLog>>20)
	}
	t.Logf("at the full backend: during each request of another account, so many of the hostile user were served: %v", served)
	if requireTimes && (len(served) == 0 || served[len(served)/2] >= hostileKeys*hostileAtOnce) { // as many as wait before it without turns
		t.Errorf("at the full backend, accounts do not take turns: %v of the hostile user were served during requests of another", served)
	}
	if g.metric("basegate_ledger_lost_rows_total") != 0 {
		t.Error("ledger rows are lost")
	}
	if p99 := latencies.percentile(99); requireTimes && p99 > attackLatency {
		t.Errorf("the 99th percentile of the honest user is %v, want at most %v", p99, attackLatency)
	}
	if requireTimes && slowest > attackRevocation {
		t.Errorf("the slowest revocation took %v, want at most %v", slowest, attackRevocation)
	}
	poll.Within(t, 10*time.Minute, "the batches of the attack have ended", func() bool {
		return g.metric(`basegate_batch_lines{state="running"}`) == 0 && g.metric("basegate_batch_oldest_line_seconds") == 0
	})
	g.waitIdle()
}

// revoke revokes the keys one after the other, and returns the longest time from the end of the command to the first
// refusal.
func (g *gateway) revoke(t *testing.T, secrets []string) (slowest time.Duration) {
	t.Helper()
	for _, secret := range secrets {
		g.run("key", "revoke", secret[:13])
		began := time.Now()
		poll.Until(t, "the revoked key is refused", func() bool {
			got, err := post(g.url, secret, smallRequest)
			return err == nil && got.status == http.StatusUnauthorized
		})
		slowest = max(slowest, time.Since(began))
	}
	return slowest
}

// watchLog measures the write-ahead log until ctx ends. The returned function waits for the end and returns the largest
// size, in bytes.
func (g *gateway) watchLog(ctx context.Context) (largest func() int64) {
	g.t.Helper()
	var size int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if info, err := os.Stat(g.database + "-wal"); err == nil {
				size = max(size, info.Size())
			}
			<-tick.C
		}
	}()
	return func() int64 {
		<-ended
		return size
	}
}
