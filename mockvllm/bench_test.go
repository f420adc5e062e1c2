package mockvllm_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"basegate/mockvllm"
)

// BenchmarkToken measures one token of a sampled stream, without a socket.
func BenchmarkToken(b *testing.B) {
	s := mockvllm.New(mockvllm.Options{})
	defer s.Close()
	const tokens = 500
	body := `{"prompt":"Once upon a time","stream":true,"ignore_eos":true,"seed":1,"top_p":0.95,"max_tokens":500}`
	for range b.N {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, completions, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != http.StatusOK || strings.Count(w.Body.String(), "\n\n") != tokens+1 {
			b.Fatalf("got %d, want 200 with %d events: %s", w.Code, tokens+1, w.Body.String())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/tokens, "µs/token")
}
