package proxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"basegate/admission"
	"basegate/breaker"
	"basegate/budget"
	"basegate/config"
	"basegate/database"
	"basegate/fleet"
	connections "basegate/http1/client"
	"basegate/http1/server"
	"basegate/identity"
	"basegate/proxy"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// rig is a gateway's API on a socket, with its own database, in front of the test's backends.
type rig struct {
	t        *testing.T
	url      string
	secret   string
	log      *lockedBuffer
	registry *prometheus.Registry
	server   *proxy.Server
	keys     *identity.Keys
	accounts *identity.Accounts
	queue    *admission.Queue
	ledger   *budget.Ledger
	db       *database.DB
	database string
}

// rigOptions are what a test may want otherwise.
type rigOptions struct {
	settings    proxy.Settings
	breaker     breaker.Settings
	transport   http.RoundTripper
	maxBuffered int64
	model       config.Model
}

// newRig starts a gateway whose one model, m, has the given backends.
func newRig(t *testing.T, change func(*rigOptions), backends ...string) *rig {
	t.Helper()
	o := rigOptions{
		settings: proxy.Settings{
			MaxBodyBytes: 1 << 20, FirstByteTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second, Attempts: 3,
			ConcurrencyPerKey: 1000,
			ClientAddress:     echo.ExtractIPDirect(),
		},
		maxBuffered: 1 << 30,
		model:       config.Model{ID: "m", Checkpoint: "org/Model-8B", Precision: "bf16", MaxLogprobs: 20},
		breaker:     breaker.Settings{ConsecutiveFailures: 1000, OpenFor: time.Minute, HalfOpenRequests: 1},
	}
	transport := connections.New(connections.Settings{ConnectTimeout: 10 * time.Second, IdleTimeout: 4 * time.Second})
	t.Cleanup(transport.CloseIdleConnections)
	o.transport = transport
	if change != nil {
		change(&o)
	}
	r := &rig{t: t, log: new(lockedBuffer), registry: prometheus.NewRegistry(), database: filepath.Join(t.TempDir(), "test.db")}
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(r.log), zap.DebugLevel))

	db, err := database.Open(t.Context(), database.Settings{Path: r.database}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	r.db = db
	store := identity.New(db, log, identity.Settings{})
	r.keys, r.accounts = store.Keys, store.Accounts
	if _, err := r.accounts.Create(t.Context(), identity.NewAccount{Email: "ada@example.org"}); err != nil {
		t.Fatal(err)
	}
	if _, r.secret, err = r.keys.Create(t.Context(), identity.NewKey{Email: "ada@example.org", Name: "test"}); err != nil {
		t.Fatal(err)
	}
	if err := r.keys.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.keys.Close)

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
	models := fleet.New([]config.Model{model}, fleet.Settings{
		Breaker: o.breaker, ProbeInterval: time.Hour, ProbeTimeout: time.Second,
	}, transport, nil, log)
	if err := models.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(models.Close)

	r.ledger = budget.New(db, log, budget.Settings{})
	if err := r.ledger.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.ledger.Close)
	r.registry.MustRegister(budget.NewCollector(r.ledger))
	r.queue = admission.New(admission.Settings{MaxBufferedBytes: o.maxBuffered})

	r.server = proxy.New(o.settings, proxy.Deps{
		Keys: r.keys, Fleet: models, Queue: r.queue, Ledger: r.ledger, Transport: o.transport, Registry: r.registry, Log: log,
	})
	e := echo.New()
	r.server.Mount(e)
	r.url = serve(t, e)
	return r
}

// serve has h answer as it does in the gateway: completions before net/http's server, the rest by that.
func serve(t *testing.T, h http.Handler) (address string) {
	t.Helper()
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := server.New(context.Background(), proxy.CompletionsPath, &http.Server{Handler: h})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return "http://" + socket.Addr().String()
}

// lockedBuffer is a log that can be read while it is written.
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

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   string
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// request makes one with the rig's key.
func (r *rig) request(ctx context.Context, method, path, body string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.secret)
	return req
}

// do sends a request and reads the answer to its end.
func (r *rig) do(req *http.Request) reply {
	r.t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("read answer: %v", err)
	}
	return reply{resp.StatusCode, resp.Header, string(body)}
}

// complete posts a completion request.
func (r *rig) complete(body string) reply {
	r.t.Helper()
	return r.do(r.request(r.t.Context(), http.MethodPost, "/v1/completions", body))
}

// upstream is a scripted backend: it answers what a probe asks, takes words for tokens, with one special token before a
// prompt, and hands completions to the test.
func upstream(t *testing.T, complete http.HandlerFunc) string {
	t.Helper()
	return upstreamWithout(t, "", complete)
}

// upstreamCounting counts the questions to the tokenizer besides.
func upstreamCounting(t *testing.T, asked *int, complete http.HandlerFunc) string {
	t.Helper()
	var mu sync.Mutex
	return scripted(t, complete, func(q *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if q.URL.Path == "/tokenize" {
			*asked++
		}
		return true
	})
}

// upstreamWithout has no such path.
func upstreamWithout(t *testing.T, path string, complete http.HandlerFunc) string {
	t.Helper()
	return scripted(t, complete, func(q *http.Request) bool { return q.URL.Path != path })
}

// scripted serves the requests that serves agrees to.
func scripted(t *testing.T, complete http.HandlerFunc, serves func(*http.Request) bool) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"org/Model-8B","max_model_len":4096}]}`)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"version":"0.27.0"}`) })
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		count := len(strings.Fields(gjson.GetBytes(body, "prompt").Str))
		if gjson.GetBytes(body, "add_special_tokens").Bool() {
			count++
		}
		fmt.Fprintf(w, `{"count":%d,"max_model_len":4096,"tokens":[]}`, count)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body) // only then does net/http notice a client that leaves
		q.Body = io.NopCloser(bytes.NewReader(body))
		complete(w, q)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if !serves(q) {
			http.NotFound(w, q)
			return
		}
		mux.ServeHTTP(w, q)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// tokenize asks a backend how many tokens a prompt has.
func (r *rig) tokenize(backend, text string) (int64, error) {
	r.t.Helper()
	question, err := json.Marshal(map[string]string{"prompt": text})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, backend+"/tokenize", bytes.NewReader(question))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	got := r.do(req)
	return gjson.Get(got.body, "count").Int(), nil
}

// streams answers with the given writes, each flushed by itself.
func streams(writes ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, text := range writes {
			io.WriteString(w, text)
			http.NewResponseController(w).Flush()
		}
	}
}

// answers answers with a status and a body.
func answers(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// refusing is the address of a backend that refuses connections.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}
