//go:build e2e

package e2e_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"basegate/mockvllm"
)

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

func TestServedRequestHasOneLogLine(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	r := g.request(t.Context(), http.MethodPost, g.url+"/v1/completions", smallRequest)
	r.Header.Set("X-Acs-Workload", "batch")
	r.Header.Set("X-Request-Id", "of-the-client")
	got := g.do(r)
	id := got.header.Get("X-Request-Id")
	if id == "" || id == "of-the-client" {
		t.Errorf("X-Request-Id %q", id)
	}
	line := g.logLineOf(id)
	for name, want := range map[string]any{
		"key": g.secret[:13], "email": g.email, "address": "127.0.0.1", "endpoint": "POST /v1/completions", "model": "m",
		"backend": "b0", "completion_tokens": 2.0, "status": 200.0, "code": "", "workload": "batch",
	} {
		if line[name] != want {
			t.Errorf("%s is %v, want %v", name, line[name], want)
		}
	}
	if line["prompt_tokens"] == 0.0 || line["total_ms"] == 0.0 {
		t.Errorf("prompt_tokens or total_ms is 0: %v", line)
	}
	if n := strings.Count(g.stderr.String(), id); n != 1 {
		t.Errorf("%d log lines, want 1", n)
	}
}

func TestRefusedRequestHasOneLogLine(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	r := g.request(t.Context(), http.MethodPost, g.url+"/v1/completions", `{"model": "m", "prompt": "x", "temperature": 3}`)
	r.Header.Set("X-Acs-Workload", "urgent")
	line := g.logLineOf(g.do(r).header.Get("X-Request-Id"))
	if line["status"] != 400.0 || line["code"] != "invalid_request" || line["workload"] != "" || line["email"] != g.email {
		t.Errorf("wrong log line of a refused request: %v", line)
	}
	line = g.logLineOf(g.get(g.url, "/v1/nothing").header.Get("X-Request-Id"))
	if line["status"] != 404.0 || line["code"] != "not_found" {
		t.Errorf("wrong log line of an unknown path: %v", line)
	}
}
