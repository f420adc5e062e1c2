package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"basegate/internal/poll"
)

func TestDrainCompletesStreamsAndRefusesNewRequests(t *testing.T) {
	t.Parallel()
	finish := make(chan struct{})
	h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		respondStream(event(0, "a", "null"))(w, r)
		<-finish
		respondStream(event(0, "b", `"stop"`), doneEvent)(w, r)
	}))
	resp, err := client.Do(h.newRequest(t.Context(), http.MethodPost, "/v1/completions", streamRequest))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	drained := make(chan error, 1)
	go func() { drained <- h.server.Drain(t.Context()) }()
	poll.Until(t, "the server is draining", h.server.Draining)
	if got := h.complete(streamRequest); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"overloaded"`) {
		t.Errorf("a new request: got %d %s, want 503 overloaded", got.status, got.body)
	}
	close(finish)
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(body), doneEvent) {
		t.Errorf("the stream in flight: got %q, %v", body, err)
	}
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
}
