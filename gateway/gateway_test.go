package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/internal/loopback"
	"basegate/internal/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

const (
	first = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n"
	last  = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\n"
	done  = "data: [DONE]\n\n"
)

// asChat returns the events of a completion as those of a chat completion.
var asChat = strings.NewReplacer(`"text":"a"`, `"delta":{"content":"a"}`, `"text":"b"`, `"delta":{"content":"b"}`)

// startBackend starts a backend whose streams consist of first and, once finish is closed, last and done.
func startBackend(t *testing.T, finish <-chan struct{}) *url.URL {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {}) // for probes
	serve := func(first, last string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, first)
			http.NewResponseController(w).Flush()
			select {
			case <-finish:
				io.WriteString(w, last+done)
			case <-r.Context().Done():
			}
		}
	}
	mux.HandleFunc("POST /v1/completions", serve(first, last))
	mux.HandleFunc("POST /v1/chat/completions", serve(asChat.Replace(first), asChat.Replace(last)))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func model(id string, address *url.URL) config.Model {
	return config.Model{
		ID: id, Checkpoint: "org/" + id, MaxLogprobs: 20,
		Backends: []config.Backend{{Name: "b0", URL: address, GPU: "H100"}},
	}
}

// newConfig returns a configuration with free ports and its own database.
func newConfig(t *testing.T, models ...config.Model) *config.Config {
	t.Helper()
	c := config.Default()
	c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	c.Database.Path = filepath.Join(t.TempDir(), "gateway.db")
	databasetest.Create(t, c.Database.Path)
	c.Probe.Interval = 50 * time.Millisecond
	c.Models = models
	return c
}

// newKey creates an account and a key in the configured database, and returns the secret.
func newKey(t *testing.T, c *config.Config) string {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: c.Database.Path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	if _, err := store.Accounts.Create(t.Context(), identity.Account{Email: "ada@example.org"}); err != nil {
		t.Fatal(err)
	}
	_, secret, err := store.Keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// logState is the state of a log's writer.
type logState struct {
	failing bool
	dropped uint64
}

func (s logState) Failing() bool   { return s.failing }
func (s logState) Dropped() uint64 { return s.dropped }

// build returns a gateway that is not started. The test's cleanup stops it.
func build(t *testing.T, c *config.Config) *gateway.Gateway {
	t.Helper()
	g, err := gateway.New(t.Context(), c, "test", zap.NewNop(), logState{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return g
}

func start(t *testing.T, c *config.Config) *gateway.Gateway {
	t.Helper()
	g := build(t, c)
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// withAndWithoutFastPath runs a test for each value of server.fast_path.
func withAndWithoutFastPath(t *testing.T, test func(t *testing.T, fastPath bool)) {
	t.Helper()
	for _, fastPath := range []bool{true, false} {
		t.Run(fmt.Sprintf("fast_path=%t", fastPath), func(t *testing.T) { test(t, fastPath) })
	}
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// send sends a request and returns the response with its body unread. The method is POST if there is a body, and GET
// otherwise.
func send(t *testing.T, address net.Addr, secret, path, body string) *http.Response {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func readBody(t *testing.T, resp *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("read the response's body: %v", err)
	}
	return string(text)
}

// startStream starts a streaming completion and reads its first event.
func startStream(t *testing.T, g *gateway.Gateway, secret, id string) *http.Response {
	t.Helper()
	return startStreamOf(t, g, secret, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"x","stream":true}`, id), first)
}

// startStreamOf sends a request to a path and reads the first event, which it expects.
func startStreamOf(t *testing.T, g *gateway.Gateway, secret, path, body, want string) *http.Response {
	t.Helper()
	resp := send(t, g.Addr(), secret, path, body)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
		t.Fatalf("%s: the first event is %q, error %v, want %q", path, got, err, want)
	}
	return resp
}

func TestFastPathServesCompletionsUnlessSwitchedOff(t *testing.T) {
	withAndWithoutFastPath(t, testFastPathServesCompletions)
}

func testFastPathServesCompletions(t *testing.T, fastPath bool) {
	t.Helper()
	finish := make(chan struct{})
	m := model("m", startBackend(t, finish))
	m.Chat, m.Completions = true, true
	c := newConfig(t, m)
	c.Server.FastPath = fastPath
	secret := newKey(t, c)
	g := start(t, c)
	serving := func(want int) {
		t.Helper()
		if !fastPath || runtime.GOOS != "linux" { // other systems have no fast path
			want = 0
		}
		goroutines := readBody(t, send(t, g.AdminAddr(), "", "/debug/pprof/goroutine?debug=2", ""))
		if got := strings.Count(goroutines, "basegate/proxy/http1/server.(*conn).serve("); got != want {
			t.Errorf("goroutines of the fast path that serve a stream: got %d, want %d", got, want)
		}
	}
	completion := startStream(t, g, secret, "m")
	serving(1)
	chat := startStreamOf(t, g, secret, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}`, asChat.Replace(first))
	serving(2)
	close(finish)
	if rest := readBody(t, completion); rest != last+done {
		t.Errorf("the completion ended with %q, want %q", rest, last+done)
	}
	if rest, want := readBody(t, chat), asChat.Replace(last)+done; rest != want {
		t.Errorf("the chat completion ended with %q, want %q", rest, want)
	}
}

// A gateway whose log cannot be written serves, so a load balancer must not take it out.
func TestReadinessNotesLostLogLines(t *testing.T) {
	c := newConfig(t)
	g, err := gateway.New(t.Context(), c, "test", zap.NewNop(), logState{failing: true, dropped: 17})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop(context.Background())
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	resp := send(t, g.Addr(), "", "/readyz", "")
	if got, want := readBody(t, resp), "ready\nnote: the log cannot be written; 17 lines are lost\n"; resp.StatusCode != http.StatusOK || got != want {
		t.Errorf("/readyz: got %d %q, want 200 %q", resp.StatusCode, got, want)
	}
	if got, want := readBody(t, send(t, g.AdminAddr(), "", "/metrics", "")), "\nbasegate_log_lines_dropped_total 17\n"; !strings.Contains(got, want) {
		t.Errorf("/metrics lacks %q", want)
	}
}

func TestNewFailsIfTheDatabaseCannotBeOpened(t *testing.T) {
	c := newConfig(t)
	c.Database.Path = filepath.Join(t.TempDir(), "nowhere", "gateway.db")
	g, err := gateway.New(t.Context(), c, "test", zap.NewNop(), logState{})
	if err == nil || !strings.Contains(err.Error(), "database") {
		t.Errorf("New returned %v and error %v, want an error about the database", g, err)
	}
}

func TestFailedNewClosesEverythingOpened(t *testing.T) {
	for _, listener := range []string{"public", "admin"} {
		t.Run(listener, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			free := loopback.Address(t)
			c := newConfig(t)
			c.Server.Listen, c.Server.AdminListen = free, taken.Addr().String()
			if listener == "public" {
				c.Server.Listen, c.Server.AdminListen = c.Server.AdminListen, c.Server.Listen
			}
			if _, err := gateway.New(t.Context(), c, "test", zap.NewNop(), logState{}); err == nil || !strings.Contains(err.Error(), taken.Addr().String()) {
				t.Fatalf("New returned %v, want an error that names the address in use", err)
			}
			goleak.VerifyNone(t, before)
			if again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", free); err != nil {
				t.Errorf("the other address is still in use: %v", err)
			} else {
				again.Close()
			}
			newKey(t, c) // needs the database, which is closed
		})
	}
}

func TestStopWithoutStartAndTwice(t *testing.T) {
	before := goleak.IgnoreCurrent()
	notStarted := build(t, newConfig(t))
	if err := notStarted.Stop(t.Context()); err != nil {
		t.Errorf("Stop without Start returned %v", err)
	}
	g := start(t, newConfig(t))
	for range 2 {
		if err := g.Stop(t.Context()); err != nil {
			t.Errorf("Stop returned %v", err)
		}
	}
	goleak.VerifyNone(t, before)
	if err := g.Start(t.Context()); err == nil {
		t.Error("Start after Stop succeeded on a closed database")
	}
}

func TestReloadAddsAndRemovesModelsDuringAStream(t *testing.T) {
	withAndWithoutFastPath(t, testReloadAddsAndRemovesModelsDuringAStream)
}

func testReloadAddsAndRemovesModelsDuringAStream(t *testing.T, fastPath bool) {
	t.Helper()
	finish := make(chan struct{})
	address := startBackend(t, finish)
	c := newConfig(t, model("old", address))
	c.Server.FastPath = fastPath
	secret := newKey(t, c)
	g := start(t, c)
	running := startStream(t, g, secret, "old")

	next := *c
	next.Models = []config.Model{model("new", address)}
	next.Server.MaxBodyBytes = 100
	g.Reload(&next)
	if got := readBody(t, send(t, g.Addr(), secret, "/v1/models", "")); !strings.Contains(got, `"id":"new"`) || strings.Contains(got, `"id":"old"`) {
		t.Errorf("the models are %s, want new only", got)
	}
	removed := send(t, g.Addr(), secret, "/v1/completions", `{"model":"old","prompt":"x"}`)
	if text := readBody(t, removed); removed.StatusCode != http.StatusBadRequest || !strings.Contains(text, "model_not_found") {
		t.Errorf("the removed model: got %d %s, want 400 model_not_found", removed.StatusCode, text)
	}
	if got := send(t, g.Addr(), secret, "/v1/completions", strings.Repeat(" ", 101)); got.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body over the new limit: got %d, want 413", got.StatusCode)
	}
	added := startStream(t, g, secret, "new")
	close(finish)
	for name, resp := range map[string]*http.Response{"old": running, "new": added} {
		if rest := readBody(t, resp); rest != last+done {
			t.Errorf("the stream of %s ended with %q, want %q", name, rest, last+done)
		}
	}

	body := `{"model":"new","stream":true,"prompt":"` + strings.Repeat("x", 8<<10) + `"}`
	for _, limit := range []struct {
		bytes  int64
		status int
	}{{4 << 10, http.StatusServiceUnavailable}, {64 << 20, http.StatusOK}} {
		next := next
		next.Server.MaxBodyBytes, next.Server.MaxBufferedBytes = c.Server.MaxBodyBytes, limit.bytes
		g.Reload(&next)
		got := send(t, g.Addr(), secret, "/v1/completions", body)
		if text := readBody(t, got); got.StatusCode != limit.status || strings.Contains(text, `"overloaded"`) != (limit.status != http.StatusOK) {
			t.Errorf("8 KiB with a memory of %d: got %d %s, want %d", limit.bytes, got.StatusCode, text, limit.status)
		}
	}
}

func TestReloadNamesTheSettingsThatNeedARestart(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	c := newConfig(t)
	g, err := gateway.New(t.Context(), c, "test", zap.New(core), logState{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop(context.Background())
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := *c
	next.Log.Level = "debug"
	g.Reload(&next)
	var named []any
	for _, line := range logged.FilterMessage("this setting changes only with a restart").All() {
		named = append(named, line.ContextMap()["setting"])
	}
	if diff := cmp.Diff([]any{"log"}, named); diff != "" {
		t.Errorf("the log names (-want +got):\n%s", diff)
	}
}

func TestStopWaitsForAStreamAndReportsNotReady(t *testing.T) {
	withAndWithoutFastPath(t, testStopWaitsForAStreamAndReportsNotReady)
}

func testStopWaitsForAStreamAndReportsNotReady(t *testing.T, fastPath bool) {
	t.Helper()
	finish := make(chan struct{})
	c := newConfig(t, model("m", startBackend(t, finish)))
	c.Server.FastPath = fastPath
	secret := newKey(t, c)
	g := start(t, c)
	running := startStream(t, g, secret, "m")
	if ready := send(t, g.AdminAddr(), "", "/readyz", ""); ready.StatusCode != http.StatusOK {
		t.Errorf("/readyz: got %d, want 200", ready.StatusCode)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop(context.Background()) }()
	poll.Until(t, "/readyz reports the drain", func() bool {
		return send(t, g.AdminAddr(), "", "/readyz", "").StatusCode == http.StatusServiceUnavailable
	})
	refused := send(t, g.Addr(), secret, "/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := readBody(t, refused); refused.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, `"overloaded"`) || refused.Header.Get("Retry-After") == "" {
		t.Errorf("a new request got %d %s, want 503 overloaded with Retry-After", refused.StatusCode, text)
	}
	close(finish)
	if rest := readBody(t, running); rest != last+done {
		t.Errorf("the stream ended with %q, want %q", rest, last+done)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A client must be able to distinguish a stream that the gateway has cancelled from a complete one.
func TestStreamCancelledByStopEndsWithAnErrorEvent(t *testing.T) {
	withAndWithoutFastPath(t, testStreamCancelledByStopEndsWithAnErrorEvent)
}

func testStreamCancelledByStopEndsWithAnErrorEvent(t *testing.T, fastPath bool) {
	t.Helper()
	c := newConfig(t, model("m", startBackend(t, nil)))
	c.Server.FastPath = fastPath
	secret := newKey(t, c)
	g := start(t, c)
	running := startStream(t, g, secret, "m")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the test allows no drain"))
	if err := g.Stop(ended); err != nil {
		t.Error(err)
	}
	rest := readBody(t, running)
	if !strings.HasPrefix(rest, `data: {"error":{"code":"overloaded"`) || strings.Count(rest, "data: ") != 1 || !strings.HasSuffix(rest, "}}\n\n") {
		t.Errorf("the stream ended with %q, want one error event", rest)
	}
}

// An interrupted plain request has received no byte yet, so it gets an error response and not a broken connection.
func TestPlainRequestCancelledByStopGetsAnErrorResponse(t *testing.T) {
	withAndWithoutFastPath(t, testPlainRequestCancelledByStopGetsAnErrorResponse)
}

func testPlainRequestCancelledByStopGetsAnErrorResponse(t *testing.T, fastPath bool) {
	t.Helper()
	arrived := make(chan struct{}, 1)
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost { // others are probes
			io.Copy(io.Discard, r.Body)
			arrived <- struct{}{}
			<-r.Context().Done()
		}
	}))
	t.Cleanup(backend.Close)
	address, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := newConfig(t, model("m", address))
	c.Server.FastPath = fastPath
	secret := newKey(t, c)
	g := start(t, c)
	stopped := make(chan error, 1)
	go func() {
		<-arrived
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		stopped <- g.Stop(ended)
	}()
	got := send(t, g.Addr(), secret, "/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := readBody(t, got); got.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, `"overloaded"`) || got.Header.Get("Retry-After") == "" {
		t.Fatalf("got %d %v %s, want 503 overloaded with Retry-After", got.StatusCode, got.Header, text)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A response that is charged as complete must be sent completely, even if its commit takes longer than the drain.
func TestStopCompletesAResponseThatIsBeingSettled(t *testing.T) {
	withAndWithoutFastPath(t, testStopCompletesAResponseThatIsBeingSettled)
}

func testStopCompletesAResponseThatIsBeingSettled(t *testing.T, fastPath bool) {
	t.Helper()
	finish := make(chan struct{})
	c := newConfig(t, model("m", startBackend(t, finish)))
	c.Server.FastPath = fastPath
	secret := newKey(t, c)
	g := start(t, c)
	running := startStream(t, g, secret, "m")

	locked, unlock := make(chan struct{}), make(chan struct{})
	lock := g.Database().Submit(func(database.Tx) error {
		close(locked)
		<-unlock
		return nil
	})
	<-locked
	close(finish)
	got := make([]byte, len(last))
	if _, err := io.ReadFull(running.Body, got); err != nil || string(got) != last {
		t.Fatalf("the last event is %q, error %v, want %q", got, err, last)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop(ended) }()
	poll.Until(t, "the public listener is closed", func() bool {
		conn, err := net.Dial("tcp", g.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(unlock)
	if rest := readBody(t, running); rest != done {
		t.Errorf("the stream ended with %q, want %q", rest, done)
	}
	if err := errors.Join(<-stopped, lock.Wait(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestPublicListenerServesTheAPIAndTheConsole(t *testing.T) {
	withAndWithoutFastPath(t, testPublicListenerServesTheAPIAndTheConsole)
}

func testPublicListenerServesTheAPIAndTheConsole(t *testing.T, fastPath bool) {
	t.Helper()
	c := newConfig(t, model("m", startBackend(t, nil)))
	c.Server.FastPath, c.Server.AdminHosts = fastPath, []string{"metrics.example.org"}
	secret := newKey(t, c)
	g := start(t, c)
	page := send(t, g.Addr(), "", "/sign-in", "")
	if text := readBody(t, page); page.StatusCode != http.StatusOK || !strings.Contains(text, "Sign in") {
		t.Errorf("/sign-in: got %d %s, want the sign-in page", page.StatusCode, text)
	}
	if page.Header.Get("Content-Security-Policy") == "" {
		t.Error("/sign-in has no Content-Security-Policy")
	}
	if got := send(t, g.Addr(), "", "/admin/nowhere", ""); got.StatusCode != http.StatusNotFound || !strings.HasPrefix(got.Header.Get("Content-Type"), "text/html") {
		t.Errorf("an unknown page of the console: got %d %v, want 404 in HTML", got.StatusCode, got.Header)
	}
	models := send(t, g.Addr(), secret, "/v1/models", "")
	if models.StatusCode != http.StatusOK || models.Header.Get("Content-Security-Policy") != "" {
		t.Errorf("/v1/models: got %d %v, want 200 without a Content-Security-Policy", models.StatusCode, models.Header)
	}
	if got := send(t, g.Addr(), "", "/nowhere", ""); got.StatusCode != http.StatusNotFound || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("an unknown path: got %d %v, want 404 in JSON", got.StatusCode, got.Header)
	}
	if got := send(t, g.AdminAddr(), "", "/sign-in", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("/sign-in on the admin listener: got %d, want 404", got.StatusCode)
	}
	// A page in a browser can let its own name resolve to the address of the admin listener (DNS rebinding).
	for _, request := range []struct {
		to         net.Addr
		host, path string
		status     int
	}{
		{g.AdminAddr(), "metrics.example.org", "/metrics", http.StatusOK},
		{g.AdminAddr(), "evil.example.org", "/metrics", http.StatusMisdirectedRequest},
		{g.AdminAddr(), "evil.example.org", "/debug/pprof/goroutine", http.StatusMisdirectedRequest},
		{g.Addr(), "any.example.org", "/healthz", http.StatusOK},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+request.to.String()+request.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = request.host
		got, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if got.StatusCode != request.status {
			t.Errorf("Host %s, %s: got %d, want %d", request.host, request.path, got.StatusCode, request.status)
		}
	}
}
