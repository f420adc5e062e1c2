package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// fuse is a transport whose answers panic behind their first event.
type panickingTransport struct{}

func (panickingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(io.MultiReader(strings.NewReader(event(0, "a", "null")), panickingReader{})),
	}, nil
}

type panickingReader struct{}

func (panickingReader) Read([]byte) (int, error) { panic("the completion was s3cret") }

func TestPanicInAStreamIsOneErrorEvent(t *testing.T) {
	h := newHarness(t, func(o *harnessOptions) { o.transport = panickingTransport{} }, refusingBackend(t))
	got := h.complete(streamRequest)
	rest, ok := strings.CutPrefix(got.body, event(0, "a", "null"))
	if !ok || !strings.HasPrefix(rest, `data: {"error":{"code":"internal_error"`) || strings.Count(rest, "data: ") != 1 || strings.Contains(rest, "s3cret") {
		t.Errorf("got %q", got.body)
	}
	if log := h.log.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, "stream.go") {
		t.Errorf("the log: %s", log)
	}
	if h.server.InFlight() != 0 {
		t.Error("it is still counted in")
	}
}

type panickingRoundTripper struct{}

func (panickingRoundTripper) RoundTrip(*http.Request) (*http.Response, error) {
	panic("the prompt was s3cret")
}

func TestPanicIsAnInternalErrorWithoutItsValue(t *testing.T) {
	h := newHarness(t, func(o *harnessOptions) { o.transport = panickingRoundTripper{} }, refusingBackend(t))
	if got := h.complete(plainRequest); got.status != http.StatusInternalServerError || !strings.Contains(got.body, "internal_error") {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if log := h.log.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, "attempt.go") {
		t.Errorf("the log: %s", log)
	}
}
