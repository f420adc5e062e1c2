//go:build e2e

package e2e_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"basegate/mockvllm"
)

const checkpoint = "meta-llama/Llama-3.1-8B"

// site is a folder with a configuration, and the commands that work on it.
type site struct {
	t      *testing.T
	dir    string
	config string
	email  string

	database string // its file
}

// settings are what a test may want in its configuration; all may be empty.
type settings struct {
	server string // members of server, in YAML's flow style, each with a comma before it
	rest   string // further top-level lines
	models string // the list under models, in flow style; empty: one model m of the backends

	database string // the file; empty: one in the site's folder
	admin    string // where the admin listener listens; empty: at a free port
}

// newSite writes a configuration whose one model, m, has the given backends, and creates an account.
func newSite(t *testing.T, s settings, backends ...string) *site {
	t.Helper()
	dir := t.TempDir()
	place := &site{t: t, dir: dir, config: filepath.Join(dir, "config.yaml"), email: "ada@example.org"}
	place.configure(s, backends...)
	place.run("account", "create", place.email)
	return place
}

// model is an element of models, in YAML's flow style.
func model(id string, backends ...string) string {
	var all []string
	for i, url := range backends {
		all = append(all, fmt.Sprintf(`{name: b%d, url: "%s", gpu: H100}`, i, url))
	}
	return fmt.Sprintf(`{id: %s, checkpoint: %s, backends: [%s]}`, id, checkpoint, strings.Join(all, ", "))
}

func (s *site) configure(o settings, backends ...string) {
	s.t.Helper()
	s.database = cmp.Or(o.database, filepath.Join(s.dir, "basegate.db"))
	if o.models == "" {
		o.models = model("m", backends...)
	}
	write(s.t, s.config, fmt.Sprintf(`server: {listen: "127.0.0.1:0", admin_listen: %q%s}
database: {path: %q}
probe: {interval: 100ms, timeout: 1s}
%s
models: [%s]
`, cmp.Or(o.admin, "127.0.0.1:0"), o.server, s.database, o.rest, o.models))
}

// run runs a command that must succeed on the site's configuration, and returns its stdout.
func (s *site) run(args ...string) string {
	s.t.Helper()
	stdout, stderr, code := command(s.t, append(args, "--config", s.config)...)
	if code != 0 {
		s.t.Fatalf("basegate %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// key creates a key and returns its secret.
func (s *site) key(name string) string {
	s.t.Helper()
	return strings.TrimSpace(s.run("key", "create", "--account", s.email, "--name", name))
}

// usage reads the ledger by the command.
func (s *site) usage() (rows []ledgerRow) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.run("usage", "--json")), &rows); err != nil {
		s.t.Fatal(err)
	}
	return rows
}

// ledgerRow is one request, as the usage command tells it.
type ledgerRow struct {
	ID         string `json:"request_id"`
	Key        string `json:"key"`
	State      string `json:"state"`
	Status     int    `json:"status"`
	Code       string `json:"code"`
	User       string `json:"user"`
	Prompt     int64  `json:"prompt_tokens"`
	Completion int64  `json:"completion_tokens"`
}

// gateway is a running serve, with a key.
type gateway struct {
	*process
	*site
	t      *testing.T
	url    string
	admin  string
	secret string
}

// serve starts the gateway with a key of its own and waits until it listens.
func (s *site) serve() *gateway {
	s.t.Helper()
	return s.serveTo(s.key("test"))
}

// serveTo starts the gateway for somebody who has a key already.
func (s *site) serveTo(secret string) *gateway {
	s.t.Helper()
	g := &gateway{site: s, t: s.t, secret: secret}
	g.process = start(s.t, "serve", "--config", s.config)
	found := g.says(g.stderr, `"listening","public":"([^"]+)","admin":"([^"]+)"`)
	g.url, g.admin = "http://"+found[1], "http://"+found[2]
	return g
}

// gatewayOf is a running serve in front of one mock.
func gatewayOf(t *testing.T, s settings, o mockvllm.Options) (*gateway, *mockvllm.Process) {
	t.Helper()
	mock := startMock(t, o)
	return newSite(t, s, mock.URL()).serve(), mock
}

// startMock starts a mock in the test's own process.
func startMock(t *testing.T, o mockvllm.Options) *mockvllm.Process {
	t.Helper()
	if o.Models == nil {
		o.Models = []string{checkpoint}
	}
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mock.Close(); err != nil {
			t.Error(err)
		}
	})
	return mock
}

// client keeps no connection, so that each request shows what the gateway does with a new one.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// fault is what an error answer says.
type fault struct {
	Code, Message, Type, Param, Suggestion string
}

func (r reply) fault(t *testing.T) fault {
	t.Helper()
	var body struct{ Error fault }
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("not an error of the API: %v: %s", err, r.body)
	}
	return body.Error
}

// request makes one with the gateway's key.
func (g *gateway) request(ctx context.Context, method, url, body string) *http.Request {
	g.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+g.secret)
	return r
}

// do sends a request and reads the whole answer.
func (g *gateway) do(r *http.Request) reply {
	g.t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatalf("read answer: %v", err)
	}
	return reply{resp.StatusCode, resp.Header, string(body)}
}

// complete posts a completion request.
func (g *gateway) complete(body string) reply {
	g.t.Helper()
	return g.do(g.request(g.t.Context(), http.MethodPost, g.url+"/v1/completions", body))
}

// get asks for a path of either listener.
func (g *gateway) get(base, path string) reply {
	g.t.Helper()
	return g.do(g.request(g.t.Context(), http.MethodGet, base+path, ""))
}

// small is a completion request that any mock answers at once, with two tokens.
const small = `{"model": "m", "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}`
