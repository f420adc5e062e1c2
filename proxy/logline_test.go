package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

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
