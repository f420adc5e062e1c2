package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
)

// Over HTTP/2, a write deadline that expires between two events ends the stream even without a write.
func TestHTTP2StreamOutlivesPausesOfTheBackend(t *testing.T) {
	t.Parallel() // it waits for four pauses
	const pause, idleTimeout = 1500 * time.Millisecond, 5 * time.Second
	want := strings.Repeat(event(0, "a", "null"), 4) + event(0, "b", `"stop"`) + doneEvent
	h := newHarness(t, func(o *harnessOptions) { o.settings.IdleTimeout = idleTimeout }, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		for range 4 {
			respondStream(event(0, "a", "null"))(w, r)
			<-time.NewTimer(pause).C
		}
		respondStream(event(0, "b", `"stop"`), doneEvent)(w, r)
	}))
	e := echo.New()
	h.server.Mount(e)
	server := httptest.NewUnstartedServer(e)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", streamRequest)
	req.URL.Scheme, req.URL.Host = "https", strings.TrimPrefix(server.URL, "https://")
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.ProtoMajor != 2 || string(body) != want {
		t.Errorf("got %q by %s, %v", body, resp.Proto, err)
	}
}
