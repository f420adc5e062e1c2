package proxy_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"basegate/internal/poll"
)

// logLineOf returns the fields of the one log line of a request that has ended.
func (h *harness) logLineOf(r response) map[string]any {
	h.t.Helper()
	poll.Until(h.t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
	var found []map[string]any
	for text := range strings.Lines(h.log.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			h.t.Fatalf("%v: %s", err, text)
		}
		if line["msg"] == "request" && line["request_id"] == r.header.Get("X-Request-Id") {
			found = append(found, line)
		}
	}
	if len(found) != 1 {
		h.t.Fatalf("a request has %d log lines, want 1: %v", len(found), found)
	}
	return found[0]
}

func TestEachRequestHasOneLogLine(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(200, "application/json", plainResponse)))
	send := func(method, path, workload, body string) map[string]any {
		req := h.newRequest(t.Context(), method, path, body)
		req.Header.Set("X-Acs-Workload", workload)
		req.Header.Set("X-Request-Id", "of-the-client")
		got := h.do(req)
		if id := got.header.Get("X-Request-Id"); id == "" || id == "of-the-client" {
			t.Errorf("%s: X-Request-Id is %q", path, id)
		}
		return h.logLineOf(got)
	}
	served := send(http.MethodPost, "/v1/completions", "batch", `{"model":"m","prompt":"a"}`)
	if served["prompt_tokens"] == 0.0 || served["total_ms"] == 0.0 {
		t.Errorf("prompt_tokens or total_ms is 0: %v", served)
	}
	of := func(status float64, code, workload, endpoint, model, backend string, completion float64) map[string]any {
		return map[string]any{
			"key": h.secret[:13], "email": "ada@example.org", "address": "127.0.0.1", "endpoint": endpoint, "model": model, "backend": backend,
			"completion_tokens": completion, "status": status, "code": code, "workload": workload,
		}
	}
	unknown := of(404, "not_found", "", "GET /v1/nothing", "", "", 0)
	delete(unknown, "key") // which nobody has looked up
	delete(unknown, "email")
	for _, c := range []struct{ got, want map[string]any }{
		{served, of(200, "", "batch", "POST /v1/completions", "m", "b0", 2)},
		{
			send(http.MethodPost, "/v1/completions", "urgent", `{"model":"m","prompt":"x","temperature":3}`),
			of(400, "invalid_request", "", "POST /v1/completions", "", "", 0),
		},
		{send(http.MethodGet, "/v1/nothing", "", ""), unknown},
	} {
		for name, want := range c.want {
			if c.got[name] != want {
				t.Errorf("%v: %s is %v, want %v", c.got["endpoint"], name, c.got[name], want)
			}
		}
	}
}

// The log, the metrics and the database contain nothing of prompts, completions, vLLM's error texts and secrets.
func TestPromptsAreNotWrittenAnywhere(t *testing.T) {
	t.Parallel()
	const marker = "m4rk3r"
	backend := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch text := string(body); {
		case strings.Contains(text, "fail400"):
			respond(400, "application/json", `{"error":{"message":"it says `+marker+`"}}`)(w, r)
		case strings.Contains(text, "fail500"):
			respond(500, "text/plain", marker)(w, r)
		case strings.Contains(text, "cut"):
			respondStream(event(0, marker, "null"))(w, r)
		case strings.Contains(text, "garbage"):
			respondStream(event(0, "a", "null"), "data: {"+marker+"\n\n")(w, r)
		case strings.Contains(text, `"stream"`):
			respondStream(event(0, marker, `"stop"`), doneEvent)(w, r)
		default:
			respond(200, "application/json", strings.ReplaceAll(plainResponse, "caf", marker))(w, r)
		}
	})
	h := newHarness(t, nil, backend, refusingBackend(t))
	for _, body := range []string{
		`{"model":"m","prompt":"` + marker + `"}`,
		`{"model":"m","prompt":"` + marker + `","stream":true}`,
		`{"model":"m","prompt":"` + marker + ` fail400"}`,
		`{"model":"m","prompt":"` + marker + ` fail500"}`,
		`{"model":"m","prompt":"` + marker + ` cut","stream":true}`,
		`{"model":"m","prompt":"` + marker + ` garbage","stream":true}`,
		`{"model":"m","prompt":"` + marker + `","` + marker + `":1}`,
		`{"model":"` + marker + `","prompt":"x"}`,
		`{"model":"m","prompt":"` + marker,
		`{"model":"m","prompt":"` + strings.Repeat(marker+" ", 5000) + `"}`,
	} {
		h.complete(body)
	}
	for path, body := range map[string]string{
		"/v1/tokenize":   `{"model":"m","prompt":"` + marker + `"}`,
		"/v1/detokenize": `{"model":"m","tokens":[1],"` + marker + `":1}`,
		"/v1/estimate":   `{"model":"m","prompt":"` + strings.Repeat(marker+" ", 5000) + `"}`,
	} {
		h.post(path, body)
	}
	unauthorized := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", "")
	unauthorized.Header.Set("Authorization", "Bearer acs-bm-"+marker+strings.Repeat("x", 37))
	h.do(unauthorized)

	metrics := httptest.NewRecorder()
	promhttp.HandlerFor(h.registry, promhttp.HandlerOpts{}).ServeHTTP(metrics, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	written := map[string]string{"the log": h.log.String(), "the metrics": metrics.Body.String()}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		text, _ := os.ReadFile(h.database + suffix) // -shm may not exist
		written["the database"+suffix] = string(text)
	}
	for where, text := range written {
		if strings.Contains(text, marker) || strings.Contains(text, h.secret) {
			t.Errorf("%s contains a prompt, a completion, an error text or a secret", where)
		}
	}
	if n := strings.Count(h.log.String(), `"msg":"request"`); n != 14 {
		t.Errorf("got %d log lines for 14 requests:\n%s", n, h.log)
	}
}
