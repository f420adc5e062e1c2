package proxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"basegate/batch/storage"
	"basegate/breaker"
	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/receipt"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/internal/loopback"
	"basegate/proxy"
	connections "basegate/proxy/http1/client"
	"basegate/proxy/http1/server"
	"basegate/proxy/http1/strict"
	"basegate/proxy/replay"
)

var fastPath = flag.Bool("fastpath", true, "serve completions by http1/server; false: by net/http")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// harness is a gateway's API on a socket, with its own database, in front of the test's backends.
type harness struct {
	t        *testing.T
	url      string
	secret   string
	log      *lockedBuffer
	registry *prometheus.Registry
	server   *proxy.Server
	fleet    *fleet.Fleet
	keys     *identity.Keys
	accounts *identity.Accounts
	memory   *admission.Memory
	ledger   *budget.Ledger
	usage    *usage.Store
	db       *database.DB
	database string
	receipts *receipt.Log // nil unless the options have receipts

	restartFleet func() *fleet.Fleet // returns another fleet of the same models
}

// harnessOptions are the options that a test can change.
type harnessOptions struct {
	settings    proxy.Settings
	breaker     breaker.Settings
	transport   http.RoundTripper
	maxBuffered int64 // bytes
	model       config.Model
	models      []config.Model // further ones
	probes      time.Duration  // interval of the probes
	refusals    proxy.RefusalRecorder
	ended       func(proxy.Ended)
	receipts    bool
	replays     bool
	storage     func(storage.Store) storage.Store // wraps that of the responses that are kept; nil: nothing does
	tracer      oteltrace.Tracer                  // nil: none
	adapters    bool                              // the fleet has the database
}

// newHarness starts a gateway whose only model, m, has the given backends. change may be nil.
func newHarness(t *testing.T, change func(*harnessOptions), backends ...string) *harness {
	t.Helper()
	o := harnessOptions{
		settings: proxy.Settings{
			MaxBodyBytes: 1 << 20, MaxAnswerBytes: 64 << 20, FirstByteTimeout: 5 * time.Minute, IdleTimeout: 5 * time.Minute, Attempts: 3,
			ConcurrencyPerKey: 1000,
			ClientAddress:     echo.ExtractIPDirect(),
		},
		maxBuffered: 1 << 30, probes: time.Hour,
		model:   config.Model{ID: "m", Checkpoint: "org/Model-8B", Precision: "bf16", MaxLogprobs: 20},
		breaker: breaker.Settings{ConsecutiveFailures: 1000, OpenFor: time.Minute, HalfOpenRequests: 1},
	}
	transport := connections.New(connections.Settings{ConnectTimeout: time.Minute, IdleTimeout: 4 * time.Second})
	t.Cleanup(transport.CloseIdleConnections)
	o.transport = transport
	if change != nil {
		change(&o)
	}
	h := &harness{t: t, log: new(lockedBuffer), registry: prometheus.NewRegistry(), database: filepath.Join(t.TempDir(), "test.db")}
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(h.log), zap.DebugLevel))

	db, err := database.Open(t.Context(), databasetest.SQLite(t, h.database), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	h.db = db
	h.ledger = budget.New(db, log, budget.Settings{Payer: h.payer})
	store := identity.New(db, log, identity.Settings{Changed: h.ledger.RefreshCaps})
	h.keys, h.accounts = store.Keys, store.Accounts
	if _, err := h.accounts.Create(t.Context(), identity.Account{Email: "ada@example.org"}); err != nil {
		t.Fatal(err)
	}
	if _, h.secret, err = h.keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: "test"}); err != nil {
		t.Fatal(err)
	}
	if err := h.keys.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.keys.Close)

	model := o.model
	for i, b := range backends {
		address, err := url.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		model.Backends = append(model.Backends, config.Backend{
			Name: "b" + string(rune('0'+i)), URL: address, GPU: "H100", APIKey: config.NewSecret("backend-key"),
		})
	}
	h.restartFleet = func() *fleet.Fleet {
		fleetDB := db
		if !o.adapters {
			fleetDB = nil
		}
		models := fleet.New(append([]config.Model{model}, o.models...), fleet.Settings{
			Breaker: o.breaker, ProbeInterval: o.probes, ProbeTimeout: 10 * time.Second,
		}, transport, fleetDB, log)
		if err := models.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(models.Close)
		return models
	}
	models := h.restartFleet()
	h.fleet = models

	h.usage = usage.New(db, log)
	if err := h.ledger.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.ledger.Close)
	h.registry.MustRegister(h.ledger.Collectors()...)
	h.memory = admission.NewMemory(o.maxBuffered)

	if o.receipts {
		h.receipts, err = receipt.Open(t.Context(), receipt.Settings{Folder: h.database + ".receipts", Key: h.database + ".receipts/key", Origin: "log.example.org"}, db, log)
		if err != nil {
			t.Fatal(err)
		}
		h.receipts.Start(t.Context())
		t.Cleanup(h.receipts.Close)
	}
	var replays *replay.Store
	if o.settings.Replays = o.replays; o.replays {
		replays = newReplays(t, h, o.storage)
	}
	h.server = proxy.New(o.settings, proxy.Deps{
		Keys: h.keys, Fleet: models, Memory: h.memory, Ledger: h.ledger, Transport: o.transport, Registry: h.registry, Log: log, Refusals: o.refusals,
		Ended: o.ended, Receipts: h.receipts, Replays: replays, Replayed: budget.NewReplays(db), Tracer: o.tracer,
	})
	e := echo.New()
	h.server.Mount(e)
	h.url = serve(t, e)
	return h
}

// payer returns the payer of a key, as the gateway does.
func (h *harness) payer(key string) (budget.Payer, error) {
	i, err := h.keys.Lookup(key)
	return h.server.Payer(&i), err
}

// serve serves h as the gateway does: completions by the fast path unless -fastpath=false, everything else by net/http.
func serve(t *testing.T, h http.Handler) (address string) {
	t.Helper()
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	standard := &http.Server{Handler: h}
	var public interface {
		Serve(listener net.Listener) error
		Shutdown(ctx context.Context) error
	} = standard
	if !*fastPath {
		socket = strict.NewListener(socket)
	} else {
		public = server.New(context.Background(), []string{proxy.CompletionsPath, proxy.ChatPath}, standard)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := public.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		if err := public.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return "http://" + socket.Addr().String()
}

// lockedBuffer is a buffer that can be read while it is written to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// response is a whole response.
type response struct {
	status int
	header http.Header
	body   string
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// newRequest returns a request with the harness's key.
func (h *harness) newRequest(ctx context.Context, method, path, body string) *http.Request {
	h.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+h.secret)
	return req
}

// do sends a request and reads the whole response.
func (h *harness) do(req *http.Request) response {
	h.t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatalf("read the response: %v", err)
	}
	return response{resp.StatusCode, resp.Header, string(body)}
}

// complete posts a completion request.
func (h *harness) complete(body string) response {
	h.t.Helper()
	return h.do(h.newRequest(h.t.Context(), http.MethodPost, "/v1/completions", body))
}

// startBackend starts a backend that passes completion requests to complete and responds to health checks itself. In
// its tokenizer, each word is a token, and a prompt has one special token more.
func startBackend(t *testing.T, complete http.HandlerFunc) string {
	t.Helper()
	return startBackendWithout(t, "", complete)
}

// startBackendCounting starts a backend that counts the requests to its tokenizer.
func startBackendCounting(t *testing.T, tokenizeCalls *int, complete http.HandlerFunc) string {
	t.Helper()
	var mu sync.Mutex
	return startFilteredBackend(t, complete, func(r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/tokenize" {
			*tokenizeCalls++
		}
		return true
	})
}

// startBackendWithout starts a backend without a path.
func startBackendWithout(t *testing.T, path string, complete http.HandlerFunc) string {
	t.Helper()
	return startFilteredBackend(t, complete, func(r *http.Request) bool { return r.URL.Path != path })
}

// startBackendWithTokenizer starts a backend with another tokenizer, which completes every request with plainResponse.
func startBackendWithTokenizer(t *testing.T, tokenize http.HandlerFunc) string {
	t.Helper()
	intact := startBackend(t, respond(200, "application/json", plainResponse))
	address, err := url.Parse(intact)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/tokenize", tokenize)
	mux.Handle("/", httputil.NewSingleHostReverseProxy(address))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// startVersion starts a backend that reports a version of vLLM.
func startVersion(t *testing.T, version string, complete http.HandlerFunc) string {
	t.Helper()
	return startBackendOf(t, version, complete, func(*http.Request) bool { return true })
}

// startFilteredBackend starts a backend that responds with 404 to the requests for which exists returns false.
func startFilteredBackend(t *testing.T, complete http.HandlerFunc, exists func(*http.Request) bool) string {
	t.Helper()
	return startBackendOf(t, "0.27.0", complete, exists)
}

func startBackendOf(t *testing.T, version string, complete http.HandlerFunc, exists func(*http.Request) bool, more ...func(*http.ServeMux)) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"org/Model-8B","max_model_len":4096}]}`)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"version":%q}`, version) })
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		count := len(strings.Fields(gjson.GetBytes(body, "prompt").Str))
		for _, content := range gjson.GetBytes(body, "messages.#.content").Array() {
			count += 1 + len(strings.Fields(content.Str))
		}
		if gjson.GetBytes(body, "add_special_tokens").Bool() {
			count++
		}
		fmt.Fprintf(w, `{"count":%d,"max_model_len":4096,"tokens":[]}`, count)
	})
	generate := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // net/http notices a client disconnect only after the body has been read
		r.Body = io.NopCloser(bytes.NewReader(body))
		complete(w, r)
	}
	mux.HandleFunc("POST /v1/completions", generate)
	mux.HandleFunc("POST /v1/chat/completions", generate)
	for _, add := range more {
		add(mux)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !exists(r) {
			http.NotFound(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// tokenize returns the number of tokens that a backend counts in a text.
func (h *harness) tokenize(backend, text string) (int64, error) {
	h.t.Helper()
	payload, err := json.Marshal(map[string]string{"prompt": text})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, backend+"/tokenize", bytes.NewReader(payload))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	got := h.do(req)
	return gjson.Get(got.body, "count").Int(), nil
}

// respondStream returns a handler that sends events, flushing each element of writes separately.
func respondStream(writes ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, text := range writes {
			io.WriteString(w, text)
			http.NewResponseController(w).Flush()
		}
	}
}

// respond returns a handler that sends a status and a body.
func respond(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// refusingBackend returns the URL of a backend that refuses connections.
func refusingBackend(t *testing.T) string {
	t.Helper()
	return "http://" + loopback.Address(t)
}
