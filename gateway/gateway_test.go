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
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/database"
	"basegate/gateway"
	"basegate/identity"
	"basegate/internal/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	first = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n"
	last  = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\n"
	done  = "data: [DONE]\n\n"
)

// backend streams first, then waits for finish, then the rest.
func backend(t *testing.T, finish <-chan struct{}) *url.URL {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {}) // what probes ask
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, first)
		http.NewResponseController(w).Flush()
		select {
		case <-finish:
			io.WriteString(w, last+done)
		case <-r.Context().Done():
		}
	})
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

// configure makes a configuration on free ports with a database of its own.
func configure(t *testing.T, models ...config.Model) *config.Config {
	t.Helper()
	c := config.Default()
	c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	c.Database.Path = filepath.Join(t.TempDir(), "gateway.db")
	c.Probe.Interval = 50 * time.Millisecond
	c.Models = models
	return c
}

// newKey makes an account and a key in the configured database, and returns the secret.
func newKey(t *testing.T, c *config.Config) string {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: c.Database.Path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	if _, err := store.Accounts.Create(t.Context(), identity.NewAccount{Email: "ada@example.org"}); err != nil {
		t.Fatal(err)
	}
	_, secret, err := store.Keys.Create(t.Context(), identity.NewKey{Email: "ada@example.org", Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func built(t *testing.T, c *config.Config) *gateway.Gateway {
	t.Helper()
	g, err := gateway.New(t.Context(), c, zap.NewNop())
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

func started(t *testing.T, c *config.Config) *gateway.Gateway {
	t.Helper()
	g := built(t, c)
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a request to the API; a body makes it a POST.
func ask(t *testing.T, address net.Addr, secret, path, body string) *http.Response {
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

func whole(t *testing.T, resp *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("read answer: %v", err)
	}
	return string(text)
}

// stream begins one and reads its first event.
func stream(t *testing.T, g *gateway.Gateway, secret, id string) *http.Response {
	t.Helper()
	resp := ask(t, g.Addr(), secret, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"x","stream":true}`, id))
	got := make([]byte, len(first))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != first {
		t.Fatalf("the first event: %v %q", err, got)
	}
	return resp
}

func TestADatabaseThatCannotBeOpenedIsAnError(t *testing.T) {
	c := configure(t)
	c.Database.Path = filepath.Join(t.TempDir(), "nowhere", "gateway.db")
	g, err := gateway.New(t.Context(), c, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "database") {
		t.Errorf("got %v %v", g, err)
	}
}

func TestAStartThatFailsTakesEverythingDownAgain(t *testing.T) {
	before := goleak.IgnoreCurrent()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	c := configure(t)
	c.Server.Listen, c.Server.AdminListen = taken.Addr().String(), free.Addr().String()
	g := built(t, c)
	if err := g.Start(t.Context()); err == nil || !strings.Contains(err.Error(), taken.Addr().String()) {
		t.Fatalf("got %v", err)
	}
	goleak.VerifyNone(t, before)
	if again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", free.Addr().String()); err != nil {
		t.Errorf("the admin address is still taken: %v", err)
	} else {
		again.Close()
	}
	newKey(t, c) // the database is free
}

func TestStopMayComeWithoutAStartAndTwice(t *testing.T) {
	before := goleak.IgnoreCurrent()
	never := built(t, configure(t))
	if err := never.Stop(t.Context()); err != nil {
		t.Errorf("without a start: %v", err)
	}
	g := started(t, configure(t))
	for range 2 {
		if err := g.Stop(t.Context()); err != nil {
			t.Errorf("got %v", err)
		}
	}
	goleak.VerifyNone(t, before)
	if err := g.Start(t.Context()); err == nil {
		t.Error("what was stopped has started again, on a closed database")
	}
}

func TestAReloadAddsAndRemovesModelsUnderARunningStream(t *testing.T) {
	finish := make(chan struct{})
	address := backend(t, finish)
	c := configure(t, model("old", address))
	secret := newKey(t, c)
	g := started(t, c)
	running := stream(t, g, secret, "old")

	next := *c
	next.Models = []config.Model{model("new", address)}
	next.Server.MaxBodyBytes = 100
	g.Reload(&next)
	if got := whole(t, ask(t, g.Addr(), secret, "/v1/models", "")); !strings.Contains(got, `"id":"new"`) || strings.Contains(got, `"id":"old"`) {
		t.Errorf("the models: %s", got)
	}
	gone := ask(t, g.Addr(), secret, "/v1/completions", `{"model":"old","prompt":"x"}`)
	if text := whole(t, gone); gone.StatusCode != http.StatusBadRequest || !strings.Contains(text, "model_not_found") {
		t.Errorf("the model that went: %d %s", gone.StatusCode, text)
	}
	if got := ask(t, g.Addr(), secret, "/v1/completions", strings.Repeat(" ", 101)); got.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("past the new limit: %d", got.StatusCode)
	}
	added := stream(t, g, secret, "new")
	close(finish)
	for name, resp := range map[string]*http.Response{"old": running, "new": added} {
		if rest := whole(t, resp); rest != last+done {
			t.Errorf("the stream of %s ended with %q", name, rest)
		}
	}
}

func TestStopWaitsForARunningStreamAndIsNotReadyMeanwhile(t *testing.T) {
	finish := make(chan struct{})
	c := configure(t, model("m", backend(t, finish)))
	secret := newKey(t, c)
	g := started(t, c)
	running := stream(t, g, secret, "m")
	if ready := ask(t, g.AdminAddr(), "", "/readyz", ""); ready.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %d", ready.StatusCode)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop(context.Background()) }()
	poll.Until(t, "it says that it drains", func() bool {
		return ask(t, g.AdminAddr(), "", "/readyz", "").StatusCode == http.StatusServiceUnavailable
	})
	refused := ask(t, g.Addr(), secret, "/v1/completions", `{"model":"m","prompt":"x"}`)
	if text := whole(t, refused); refused.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, `"overloaded"`) || refused.Header.Get("Retry-After") == "" {
		t.Errorf("a new request got %d %s", refused.StatusCode, text)
	}
	close(finish)
	if rest := whole(t, running); rest != last+done {
		t.Errorf("the stream ended with %q", rest)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A client must be able to tell a stream that the gateway cut from one that is whole.
func TestAStreamThatOutlivesTheDrainEndsWithAnErrorEvent(t *testing.T) {
	c := configure(t, model("m", backend(t, nil)))
	secret := newKey(t, c)
	g := started(t, c)
	running := stream(t, g, secret, "m")
	over, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the operator is in a hurry"))
	if err := g.Stop(over); err != nil {
		t.Error(err)
	}
	rest := whole(t, running)
	if !strings.HasPrefix(rest, `data: {"error":{"code":"overloaded"`) || strings.Count(rest, "data: ") != 1 || !strings.HasSuffix(rest, "}}\n\n") {
		t.Errorf("the stream ended with %q", rest)
	}
}

// What is charged as whole must be told as whole, even where the commit takes longer than the drain may.
func TestAnAnswerThatIsBeingChargedIsBroughtToItsEndByAStop(t *testing.T) {
	finish := make(chan struct{})
	c := configure(t, model("m", backend(t, finish)))
	secret := newKey(t, c)
	g := started(t, c)
	running := stream(t, g, secret, "m")

	other, err := database.Open(t.Context(), database.Settings{Path: c.Database.Path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	locked, unlock := make(chan struct{}), make(chan struct{})
	lock := other.Submit(func(database.Tx) error {
		close(locked)
		<-unlock
		return nil
	})
	<-locked
	close(finish)
	told := make([]byte, len(last))
	if _, err := io.ReadFull(running.Body, told); err != nil || string(told) != last {
		t.Fatalf("%q, %v", told, err)
	}

	over, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop(over) }()
	poll.Until(t, "it listens no more", func() bool {
		conn, err := net.Dial("tcp", g.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(unlock)
	if rest := whole(t, running); rest != done {
		t.Errorf("the stream ended with %q", rest)
	}
	if err := errors.Join(<-stopped, lock.Wait(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestTheConsoleStandsBesideTheAPI(t *testing.T) {
	c := configure(t, model("m", backend(t, nil)))
	secret := newKey(t, c)
	g := started(t, c)
	page := ask(t, g.Addr(), "", "/sign-in", "")
	if text := whole(t, page); page.StatusCode != http.StatusOK || !strings.Contains(text, "Sign in") {
		t.Errorf("/sign-in: %d %s", page.StatusCode, text)
	}
	if page.Header.Get("Content-Security-Policy") == "" {
		t.Error("a page has no policy")
	}
	if got := ask(t, g.Addr(), "", "/admin/nowhere", ""); got.StatusCode != http.StatusNotFound || !strings.HasPrefix(got.Header.Get("Content-Type"), "text/html") {
		t.Errorf("a page that is not there: %d %v", got.StatusCode, got.Header)
	}
	models := ask(t, g.Addr(), secret, "/v1/models", "")
	if models.StatusCode != http.StatusOK || models.Header.Get("Content-Security-Policy") != "" {
		t.Errorf("/v1/models: %d %v", models.StatusCode, models.Header)
	}
	if got := ask(t, g.Addr(), "", "/nowhere", ""); got.StatusCode != http.StatusNotFound || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("beside both: %d %v", got.StatusCode, got.Header)
	}
	if got := ask(t, g.AdminAddr(), "", "/sign-in", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("on the admin listener: %d", got.StatusCode)
	}
}
