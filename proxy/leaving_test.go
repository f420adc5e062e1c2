package proxy_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"basegate/internal/poll"
)

// 200 clients leave, in the middle of a stream, before its first event, and waiting for a plain answer; vLLM must be
// told at once.
func TestVLLMIsToldAtOnceThatAClientLeft(t *testing.T) {
	var mu sync.Mutex
	closed := map[string]time.Time{} // by prompt
	here := make(chan struct{}, 200)
	backend := upstream(t, func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if strings.Contains(string(body), "begin") {
			streams(event(0, "a", "null"))(w, q)
		}
		here <- struct{}{}
		<-q.Context().Done()
		mu.Lock()
		closed[string(body)] = time.Now()
		mu.Unlock()
	})
	r := newRig(t, nil, backend)
	left := make(chan time.Time, 200)
	var clients sync.WaitGroup
	leave := make(chan struct{})
	for i := range 200 {
		what := []string{`begin","stream":true`, `wait","stream":true`, `plain"`}[i%3]
		ctx, cancel := context.WithCancel(t.Context())
		req := r.request(ctx, http.MethodPost, "/v1/completions", `{"model":"m","user":"`+string(rune('a'+i%26))+time.Duration(i).String()+`","prompt":"`+what+`}`)
		clients.Go(func() {
			resp, err := client.Do(req)
			if err == nil {
				defer resp.Body.Close()
				io.Copy(io.Discard, resp.Body)
			}
		})
		clients.Go(func() {
			<-leave
			cancel()
			left <- time.Now()
		})
	}
	for range 200 {
		<-here
	}
	began := time.Now()
	close(leave)
	clients.Wait()
	poll.Until(t, "every backend request is closed", func() bool { mu.Lock(); defer mu.Unlock(); return len(closed) == 200 })
	var slowest time.Duration
	for _, at := range closed {
		slowest = max(slowest, at.Sub(began))
	}
	t.Logf("the slowest of 200 was closed %v after all began to leave", slowest)
	if slowest > 2*time.Second {
		t.Error("that is no \"at once\" on any machine")
	}
	poll.Until(t, "nothing is in flight", func() bool { return r.server.InFlight() == 0 })
}

// What a prompt, a completion, an error text of vLLM's or a key says must be in nothing that is written.
func TestNothingThatIsWrittenHoldsAPrompt(t *testing.T) {
	const marker = "m4rk3r"
	backend := upstream(t, func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		switch text := string(body); {
		case strings.Contains(text, "fail400"):
			answers(400, "application/json", `{"error":{"message":"it says `+marker+`"}}`)(w, q)
		case strings.Contains(text, "fail500"):
			answers(500, "text/plain", marker)(w, q)
		case strings.Contains(text, "cut"):
			streams(event(0, marker, "null"))(w, q)
		case strings.Contains(text, "garbage"):
			streams(event(0, "a", "null"), "data: {"+marker+"\n\n")(w, q)
		case strings.Contains(text, `"stream"`):
			streams(event(0, marker, `"stop"`), doneEvent)(w, q)
		default:
			answers(200, "application/json", strings.ReplaceAll(plainAnswer, "caf", marker))(w, q)
		}
	})
	r := newRig(t, nil, backend, refusing(t))
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
		r.complete(body)
	}
	wrong := r.request(t.Context(), http.MethodPost, "/v1/completions", "")
	wrong.Header.Set("Authorization", "Bearer acs-bm-"+marker+strings.Repeat("x", 37))
	r.do(wrong)

	metrics := httptest.NewRecorder()
	promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{}).ServeHTTP(metrics, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	written := map[string]string{"the log": r.log.String(), "the metrics": metrics.Body.String()}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		text, _ := os.ReadFile(r.database + suffix) // -shm may not be there
		written["the database"+suffix] = string(text)
	}
	for where, text := range written {
		if strings.Contains(text, marker) || strings.Contains(text, r.secret) {
			t.Errorf("%s holds it", where)
		}
	}
	if strings.Count(r.log.String(), `"msg":"request"`) != 11 {
		t.Errorf("not one line a request:\n%s", r.log)
	}
}

type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("the prompt was s3cret") }

func TestAPanicIsAnInternalErrorWithoutItsValue(t *testing.T) {
	r := newRig(t, func(o *rigOptions) { o.transport = panicking{} }, refusing(t))
	if got := r.complete(`{"model":"m","prompt":"x"}`); got.status != http.StatusInternalServerError || !strings.Contains(got.body, "internal_error") {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if log := r.log.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, "attempt.go") {
		t.Errorf("the log: %s", log)
	}
}

func TestDrainingLetsAStreamEndAndRefusesTheRest(t *testing.T) {
	finish := make(chan struct{})
	r := newRig(t, nil, upstream(t, func(w http.ResponseWriter, q *http.Request) {
		streams(event(0, "a", "null"))(w, q)
		<-finish
		streams(event(0, "b", `"stop"`), doneEvent)(w, q)
	}))
	resp, err := client.Do(r.request(t.Context(), http.MethodPost, "/v1/completions", streamed))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	drained := make(chan error, 1)
	go func() { drained <- r.server.Drain(t.Context()) }()
	poll.Until(t, "it drains", r.server.Draining)
	if got := r.complete(streamed); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"overloaded"`) {
		t.Errorf("a new request got %d %s", got.status, got.body)
	}
	close(finish)
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(body), doneEvent) {
		t.Errorf("the stream: %v %q", err, body)
	}
	if err := <-drained; err != nil {
		t.Errorf("drain: %v", err)
	}
}
