package proxy_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"basegate/internal/poll"
)

// gzipText returns text compressed with gzip.
func gzipText(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

// Bodies count as buffered memory while they arrive, because many clients may send bodies, or small bodies that
// decompress to the size limit, at the same time.
func TestMemoryOfArrivingBodiesIsLimited(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.maxBuffered = 512 << 10 }, startBackend(t, respond(200, "application/json", plainResponse)))
	large := `{"model":"m","prompt":"` + strings.Repeat("x", 400<<10) + `"}`
	for _, encoding := range []string{"", "gzip"} {
		body := large
		if encoding != "" {
			body = gzipText(t, large)
		}
		req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", body)
		req.Header.Set("Content-Encoding", encoding)
		if got := h.do(req); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"code":"overloaded"`) {
			t.Errorf("encoding %q: got %d %s, want 503 overloaded", encoding, got.status, got.body)
		}
	}
	poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
	if s := h.memory.Stats(); s.BufferedBytes != 0 || s.Refused != 2 {
		t.Errorf("got %+v, want nothing buffered and 2 requests refused", s)
	}
	// The advice of the alert BasegateOverloaded depends on the reason.
	if memory, backends := h.metric(`basegate_overloaded_total{reason="memory"}`), h.metric(`basegate_overloaded_total{reason="backends"}`); memory != 2 || backends != 0 {
		t.Errorf("overloaded for lack of memory %d times, of backends %d, want 2 and 0", memory, backends)
	}
	if got := h.do(h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x", 30<<10)+`"}`)); got.status != http.StatusOK {
		t.Errorf("a body that fits: got %d %s", got.status, got.body)
	}
}
