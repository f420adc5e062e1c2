//go:build e2e

package e2e_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"basegate/internal/loopback"
	"basegate/internal/postgrestest"
	"basegate/internal/s3test"
	"basegate/mockvllm"
)

const checkpoint = "meta-llama/Llama-3.1-8B"

// environment is a folder with a configuration and a database, and an account in it.
type environment struct {
	t      *testing.T
	dir    string
	config string
	email  string

	database    string // path of the database file
	postgres    *postgrestest.Server
	postgresURL string         // of the PostgreSQL database; empty: the database is the file
	bucket      *s3test.Server // of its files; nil: a folder beside the database
}

// filesInS3 makes every environment keep its files in a bucket of its own, so that the tests of files and batches run with
// both kinds of storage.
var filesInS3 = os.Getenv("BASEGATE_TEST_FILES") == "s3"

// settings are the parts of the configuration that tests set; all may be empty.
type settings struct {
	server string // members of server, in YAML flow style, each with a comma before it
	extra  string // further top-level lines
	models string // the list under models, in YAML flow style; empty: one model m with the given backends

	database    string // path of the file; empty: one in the environment's folder
	flush       string // of database.flush; empty: commit
	adminListen string // address of the admin listener; empty: a free port
	bucket      bool   // the files are in a bucket of an S3 server

	probeTimeout string // of a backend; empty: 1s

	postgres *postgrestest.Server // the server of the database; nil: the engine that the tests run on
}

// newEnvironment writes a configuration whose one model, m, has the given backends, and creates an account.
func newEnvironment(t *testing.T, s settings, backends ...string) *environment {
	t.Helper()
	dir := t.TempDir()
	env := &environment{t: t, dir: dir, config: filepath.Join(dir, "config.yaml"), email: "ada@example.org"}
	if s.bucket || filesInS3 {
		env.bucket = s3test.Start(t)
	}
	if s.postgres == nil && onPostgres && s.database == "" && (s.flush == "" || s.flush == "commit") {
		s.postgres = postgrestest.Shared(t)
	}
	if s.postgres != nil {
		env.usePostgres(s.postgres)
	}
	env.writeConfig(s, backends...)
	env.run("account", "create", env.email)
	return env
}

// modelConfig returns an element of models, in YAML flow style.
func modelConfig(id string, backends ...string) string {
	var all []string
	for i, url := range backends {
		all = append(all, fmt.Sprintf(`{name: b%d, url: "%s", gpu: H100}`, i, url))
	}
	return fmt.Sprintf(`{id: %s, checkpoint: %s, backends: [%s]}`, id, checkpoint, strings.Join(all, ", "))
}

// writeConfig writes the configuration file.
func (e *environment) writeConfig(s settings, backends ...string) {
	e.t.Helper()
	e.database = cmp.Or(s.database, filepath.Join(e.dir, "basegate.db"))
	if s.models == "" {
		s.models = modelConfig("m", backends...)
	}
	if e.bucket != nil {
		s.extra = withFiles(s.extra, fmt.Sprintf("url: %q", e.bucket.URL("lab/one")))
	}
	section, extra := e.databaseConfig(s)
	writeFile(e.t, e.config, fmt.Sprintf(`server: {listen: "127.0.0.1:0", admin_listen: %q%s}
%s
probe: {interval: 100ms, timeout: %s}
%s
models: [%s]
`, cmp.Or(s.adminListen, "127.0.0.1:0"), s.server, section, cmp.Or(s.probeTimeout, "1s"), extra, s.models))
}

// run runs a command with the environment's configuration, which must succeed, and returns its stdout.
func (e *environment) run(args ...string) string {
	e.t.Helper()
	stdout, stderr, code := runCommand(e.t, append(args, "--config", e.config)...)
	if code != 0 {
		e.t.Fatalf("basegate %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// createKey creates a key of the environment's account and returns its secret.
func (e *environment) createKey(name string) string {
	e.t.Helper()
	return e.createKeyOf(e.email, name)
}

// createKeyOf creates a key of an account and returns its secret.
func (e *environment) createKeyOf(email, name string) string {
	e.t.Helper()
	return strings.TrimSpace(e.run("key", "create", "--account", email, "--name", name))
}

// usageRows returns the ledger's rows as `basegate usage` lists them.
func (e *environment) usageRows() (rows []ledgerRow) {
	e.t.Helper()
	if err := json.Unmarshal([]byte(e.run("usage", "--json")), &rows); err != nil {
		e.t.Fatal(err)
	}
	return rows
}

// ledgerRow is one request in the ledger.
type ledgerRow struct {
	ID         string `json:"request_id"`
	Key        string `json:"key"`
	State      string `json:"state"`
	Status     int    `json:"status"`
	Code       string `json:"code"`
	User       string `json:"user"`
	Prompt     int64  `json:"prompt_tokens"`
	Completion int64  `json:"completion_tokens"`
	ChainID    string `json:"chain_id"`
}

// gateway is a running `basegate serve` and the secret of a key.
type gateway struct {
	*process
	*environment
	t      *testing.T
	url    string
	admin  string
	secret string
}

// serve creates a key, starts the gateway and waits until it listens.
func (e *environment) serve() *gateway {
	e.t.Helper()
	return e.serveWithKey(e.createKey("test"))
}

// serveWithKey starts the gateway for an existing key.
func (e *environment) serveWithKey(secret string) *gateway {
	e.t.Helper()
	g := &gateway{environment: e, t: e.t, secret: secret}
	g.process = startProcess(e.t, "serve", "--config", e.config)
	addresses := g.waitForOutput(g.stderr, `"listening","public":"([^"]+)","admin":"([^"]+)"`)
	g.url, g.admin = "http://"+addresses[1], "http://"+addresses[2]
	return g
}

// startGateway starts a mock and a gateway with the mock as its backend.
func startGateway(t *testing.T, s settings, options mockvllm.Options) (*gateway, *mockvllm.Process) {
	t.Helper()
	mock := startMock(t, options)
	return newEnvironment(t, s, mock.URL()).serve(), mock
}

// startMock starts a mock within the test's process.
func startMock(t *testing.T, options mockvllm.Options) *mockvllm.Process {
	t.Helper()
	if options.Models == nil {
		options.Models = []string{checkpoint}
	}
	mock, err := mockvllm.Start(t.Context(), loopback.Address(t), options) // it may close its port and listen again
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

// httpClient opens a connection for each request, so that each request shows how the gateway serves a new connection.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// response is a complete HTTP response.
type response struct {
	status int
	header http.Header
	body   string
}

// apiError is the error object of an error response.
type apiError struct {
	Code, Message, Type, Param, Suggestion string
}

func (r response) apiError(t *testing.T) apiError {
	t.Helper()
	var body struct{ Error apiError }
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("not an API error: %v: %s", err, r.body)
	}
	return body.Error
}

// request returns a request with the gateway's key.
func (g *gateway) request(ctx context.Context, method, url, body string) *http.Request {
	g.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+g.secret)
	return r
}

// do sends a request and reads the complete response.
func (g *gateway) do(r *http.Request) response {
	g.t.Helper()
	resp, err := httpClient.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatalf("read response: %v", err)
	}
	return response{resp.StatusCode, resp.Header, string(body)}
}

// complete sends a completion request.
func (g *gateway) complete(body string) response {
	g.t.Helper()
	return g.do(g.request(g.t.Context(), http.MethodPost, g.url+"/v1/completions", body))
}

// get requests a path of either listener.
func (g *gateway) get(base, path string) response {
	g.t.Helper()
	return g.do(g.request(g.t.Context(), http.MethodGet, base+path, ""))
}

// logLineOf waits for the log line of a request and returns its fields.
func (g *gateway) logLineOf(id string) map[string]any {
	g.t.Helper()
	text := g.waitForOutput(g.stderr, `(?m)^(\{.*"msg":"request","request_id":"`+id+`".*\})$`)[1]
	var line map[string]any
	if err := json.Unmarshal([]byte(text), &line); err != nil {
		g.t.Fatal(err)
	}
	return line
}

// smallRequest is a completion request that a mock completes at once, with two tokens.
const smallRequest = `{"model": "m", "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}`
