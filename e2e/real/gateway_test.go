//go:build real

package real_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"basegate/internal/loopback"
	"basegate/internal/poll"
)

// httpClient uses each connection once: vLLM closes idle ones after 5 seconds.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// gateway is a running `basegate serve` in front of vLLM servers.
type gateway struct {
	t      *testing.T
	config string
	url    string
	secret string
}

// startGateway starts a gateway with the backends, and waits until the model is warm.
func startGateway(t *testing.T, extra string, backends ...*vllm) *gateway {
	t.Helper()
	var list []string
	for _, b := range backends {
		list = append(list, fmt.Sprintf("{name: %s, url: %q, gpu: cpu}", b.name, b.url))
	}
	g := startGatewayWith(t, extra, strings.Join(list, ", "))
	g.waitStatus("warm")
	return g
}

// startGatewayWith starts a gateway whose model has backends in YAML flow style. extra are further top-level lines.
func startGatewayWith(t *testing.T, extra, backends string) *gateway {
	t.Helper()
	return startGatewayOf(t, extra, "", backends)
}

// startGatewayOf is startGatewayWith for a model with further members, each followed by a comma.
func startGatewayOf(t *testing.T, extra, members, backends string) *gateway {
	t.Helper()
	dir := t.TempDir()
	g := &gateway{t: t, config: filepath.Join(dir, "config.yaml")}
	listen := loopback.Address(t)
	g.url = "http://" + listen
	must(t, os.WriteFile(g.config, []byte(fmt.Sprintf(`server: {listen: %q, admin_listen: "127.0.0.1:0", public_url: %q}
database: {path: %q}
probe: {interval: 500ms, timeout: 2s}
%s
models: [{id: %s, checkpoint: %s, %sbackends: [%s]}]
`, listen, g.url, filepath.Join(dir, "basegate.db"), extra, modelID, checkpoint, members, backends)), 0o600))
	g.run("account", "create", "ada@example.org")
	g.secret = strings.TrimSpace(g.run("key", "create", "--account", "ada@example.org", "--name", "real"))
	g.serve()
	return g
}

func (g *gateway) serve() {
	g.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(binary, "serve", "--config", g.config)
	cmd.Stderr = &log
	must(g.t, cmd.Start())
	g.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if g.t.Failed() {
			g.t.Logf("the end of the gateway's log:\n%s", log.String()[max(0, log.Len()-8000):])
		}
	})
	poll.Until(g.t, "the gateway answers", func() bool {
		response, err := httpClient.Get(g.url + "/healthz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// run runs a command with the gateway's configuration, which must succeed, and returns its stdout.
func (g *gateway) run(args ...string) string {
	g.t.Helper()
	stdout, stderr, err := g.try(args...)
	if err != nil {
		g.t.Fatalf("basegate %s: %v\n%s\n%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

func (g *gateway) try(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(g.t.Context(), binary, append(args, "--config", g.config)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// ledgerRow is one request in the ledger.
type ledgerRow struct {
	ID         string `json:"request_id"`
	Backend    string `json:"backend"`
	State      string `json:"state"`
	Status     int    `json:"status"`
	Code       string `json:"code"`
	Prompt     int64  `json:"prompt_tokens"`
	Completion int64  `json:"completion_tokens"`
}

// ledger returns the ledger's rows by request id.
func (g *gateway) ledger() map[string]ledgerRow {
	g.t.Helper()
	var rows []ledgerRow
	must(g.t, json.Unmarshal([]byte(g.run("usage", "--json")), &rows))
	byID := map[string]ledgerRow{}
	for _, row := range rows {
		byID[row.ID] = row
	}
	return byID
}

// response is a complete HTTP response.
type response struct {
	status int
	header http.Header
	body   string
}

// post sends a request to a path and reads the whole response.
func (g *gateway) post(path, body string) response {
	g.t.Helper()
	return readAll(g.t, openPath(g.t.Context(), g.t, g.url+path, g.secret, body))
}

// open sends a completion request and returns as soon as the headers of the response have arrived.
func (g *gateway) open(ctx context.Context, body string) *http.Response {
	g.t.Helper()
	return open(ctx, g.t, g.url, g.secret, body)
}

func open(ctx context.Context, t *testing.T, url, secret, body string) *http.Response {
	t.Helper()
	return openPath(ctx, t, url+"/v1/completions", secret, body)
}

func openPath(ctx context.Context, t *testing.T, url, secret, body string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	must(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+secret)
	r, err := httpClient.Do(request)
	must(t, err)
	return r
}

// complete sends a completion request and reads the whole response.
func (g *gateway) complete(body string) response {
	g.t.Helper()
	return readAll(g.t, g.open(g.t.Context(), body))
}

func readAll(t *testing.T, r *http.Response) response {
	t.Helper()
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("read response: %v", err)
	}
	return response{r.StatusCode, r.Header, string(body)}
}

// waitStatus waits until GET /v1/models reports a status of the model.
func (g *gateway) waitStatus(want string) {
	g.t.Helper()
	poll.Within(g.t, bootTimeout, "the model is "+want, func() bool {
		request, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.url+"/v1/models/"+modelID, http.NoBody)
		must(g.t, err)
		request.Header.Set("Authorization", "Bearer "+g.secret)
		r, err := httpClient.Do(request)
		must(g.t, err)
		return strings.Contains(readAll(g.t, r).body, `"status":"`+want+`"`)
	})
}

// waitBackend waits until the gateway reports a state of the backend.
func (g *gateway) waitBackend(b *vllm, state string) {
	g.t.Helper()
	poll.Until(g.t, "backend "+b.name+" is "+state, func() bool {
		return strings.Contains(g.run("model", "list"), b.name+": "+state)
	})
}
