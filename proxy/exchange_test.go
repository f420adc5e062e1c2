package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// streamPanic is a transport whose streams panic after their first event.
type streamPanic struct{}

func (streamPanic) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(io.MultiReader(strings.NewReader(event(0, "a", "null")), readPanic{})),
	}, nil
}

// readPanic is a reader that panics.
type readPanic struct{}

func (readPanic) Read([]byte) (int, error) { panic("the completion was s3cret") }

func TestPanicInAStreamIsOneErrorEvent(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.transport = streamPanic{} }, refusingBackend(t))
	got := h.complete(streamRequest)
	rest, ok := strings.CutPrefix(got.body, event(0, "a", "null"))
	if !ok || !strings.HasPrefix(rest, `data: {"error":{"code":"internal_error"`) || strings.Count(rest, "data: ") != 1 || strings.Contains(rest, "s3cret") {
		t.Errorf("got %q, want one event and one error event", got.body)
	}
	if log := h.log.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, "stream.go") {
		t.Errorf("the log must name the frames and not the value of the panic: %s", log)
	}
	if h.server.InFlight() != 0 {
		t.Error("the request still counts as in flight")
	}
}

// roundTripPanic is a transport that panics.
type roundTripPanic struct{}

func (roundTripPanic) RoundTrip(*http.Request) (*http.Response, error) {
	panic("the prompt was s3cret")
}

func TestPanicIsAnInternalErrorWithoutItsValue(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.transport = roundTripPanic{} }, refusingBackend(t))
	if got := h.complete(plainRequest); got.status != http.StatusInternalServerError || !strings.Contains(got.body, "internal_error") {
		t.Errorf("got %d %s, want 500 internal_error", got.status, got.body)
	}
	if log := h.log.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, "attempt.go") {
		t.Errorf("the log must name the frames and not the value of the panic: %s", log)
	}
}
