package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"basegate/internal/poll"
)

// Of two backends one fails, each time in its own way; whether the other is asked depends on what went wrong.
func TestWhatTheOtherBackendIsAskedFor(t *testing.T) {
	silent := func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }
	reset := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	short := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "999")
		io.WriteString(w, plainAnswer)
	}
	failed := `{"error":{"message":%q,"type":"x","param":null,"code":%d}}`
	wellPlain, wellStream := answers(http.StatusOK, "application/json", plainAnswer), streams(event(0, "a", `"stop"`), doneEvent)
	for _, c := range []struct {
		name      string
		bad       http.HandlerFunc
		body      string
		elsewhere bool
	}{
		{"silence", silent, streamed, true},
		{"silence, plain", silent, `{"model":"m","prompt":"x"}`, true},
		{"a reset", reset, streamed, true},
		{"an answer that is cut", short, `{"model":"m","prompt":"x"}`, true},
		{"a dead engine", answers(500, "application/json", fmt.Sprintf(failed, "EngineCore encountered an issue.", 500)), streamed, true},
		{"a dead engine under 200", answers(200, "application/json", fmt.Sprintf(failed, "EngineCore encountered an issue.", 500)), `{"model":"m","prompt":"x"}`, true},
		{"a dead engine as the first event", streams("data: "+fmt.Sprintf(failed, "EngineCore encountered an issue.", 400)+"\n\n", doneEvent), streamed, true},
		{"an abort", streams(event(0, "", `"abort"`), doneEvent), streamed, true},
		{"an abort, plain", answers(200, "application/json", `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`), `{"model":"m","prompt":"x"}`, true},
		{"a full queue", answers(503, "application/json", fmt.Sprintf(failed, "The engine is currently busy", 503)), streamed, true},
		{"an empty stream", streams(""), streamed, true},
		{"out of memory", answers(500, "application/json", fmt.Sprintf(failed, "CUDA out of memory. Tried to allocate", 500)), streamed, false},
		{"out of memory as the first event", streams("data: "+fmt.Sprintf(failed, "CUDA out of memory. Tried to allocate", 500)+"\n\n", doneEvent), streamed, false},
		{"a prompt that is too long", answers(400, "application/json", fmt.Sprintf(failed, "This model's maximum context length is 10 tokens.", 400)), streamed, false},
		{"the client's mistake", answers(400, "application/json", fmt.Sprintf(failed, "top_p must be in (0, 1], got 0.", 400)), streamed, false},
		{"a stream that has begun", streams(event(0, "a", "null")), streamed, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad, well atomic.Int64
			r := newRig(t, func(o *rigOptions) {
				o.settings.FirstByteTimeout, o.breaker.OpenFor = 100*time.Millisecond, time.Nanosecond
			}, upstream(t, func(w http.ResponseWriter, q *http.Request) {
				bad.Add(1)
				c.bad(w, q)
			}), upstream(t, func(w http.ResponseWriter, q *http.Request) {
				well.Add(1)
				if c.body == streamed {
					wellStream(w, q)
				} else {
					wellPlain(w, q)
				}
			}))
			for sent := int64(1); bad.Load() == 0 || sent < 5; sent++ {
				before := bad.Load()
				got := r.complete(c.body)
				served := got.status == http.StatusOK && !strings.Contains(got.body, `"error"`)
				if hit := bad.Load() > before; served != (c.elsewhere || !hit) {
					t.Fatalf("got %d %s", got.status, got.body)
				}
				if c.elsewhere && well.Load() != sent {
					t.Fatalf("the other one answered %d of %d requests", well.Load(), sent)
				}
				if !c.elsewhere && well.Load()+bad.Load() != sent {
					t.Fatalf("%d attempts at %d requests", well.Load()+bad.Load(), sent)
				}
				if sent == 1000 {
					t.Fatal("it was never asked")
				}
			}
		})
	}
}

func TestAClientThatLeavesBetweenTwoAttemptsEndsThem(t *testing.T) {
	var attempts atomic.Int64
	ctx, leave := context.WithCancel(t.Context())
	r := newRig(t, func(o *rigOptions) { o.settings.Attempts = 10 }, upstream(t, func(w http.ResponseWriter, q *http.Request) {
		if attempts.Add(1) == 4 {
			leave()
		}
		answers(500, "text/plain", "Internal Server Error")(w, q)
	}))
	if _, err := client.Do(r.request(ctx, http.MethodPost, "/v1/completions", streamed)); err == nil {
		t.Error("the client left, and got an answer")
	}
	poll.Until(t, "nothing is in flight", func() bool { return r.server.InFlight() == 0 })
	if n := attempts.Load(); n > 5 {
		t.Errorf("%d attempts, though the client left at the fourth", n)
	}
	poll.Until(t, "it is in the log", func() bool { return strings.Contains(r.log.String(), `"code":"client_gone"`) })
	if log := r.log.String(); strings.Contains(log, `"level":"error"`) {
		t.Errorf("the log: %s", log)
	}
}

func TestAClientThatLeavesWhileItSendsLeavesNothingBehind(t *testing.T) {
	r := newRig(t, nil, upstream(t, func(http.ResponseWriter, *http.Request) { t.Error("the backend was asked") }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n{\"model\":", r.secret)
	poll.Until(t, "it is in flight", func() bool { return r.server.InFlight() == 1 })
	conn.Close()
	poll.Until(t, "nothing is in flight", func() bool { return r.server.InFlight() == 0 })
	poll.Until(t, "it is in the log", func() bool { return strings.Contains(r.log.String(), `"code":"client_gone"`) })
}

// fuse is a transport whose answers panic behind their first event.
type fuse struct{}

func (fuse) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(io.MultiReader(strings.NewReader(event(0, "a", "null")), blast{})),
	}, nil
}

type blast struct{}

func (blast) Read([]byte) (int, error) { panic("the completion was s3cret") }

func TestAPanicInAStreamIsOneErrorEvent(t *testing.T) {
	r := newRig(t, func(o *rigOptions) { o.transport = fuse{} }, refusing(t))
	got := r.complete(streamed)
	rest, ok := strings.CutPrefix(got.body, event(0, "a", "null"))
	if !ok || !strings.HasPrefix(rest, `data: {"error":{"code":"internal_error"`) || strings.Count(rest, "data: ") != 1 || strings.Contains(rest, "s3cret") {
		t.Errorf("got %q", got.body)
	}
	if log := r.log.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, "stream.go") {
		t.Errorf("the log: %s", log)
	}
	if r.server.InFlight() != 0 {
		t.Error("it is still counted in")
	}
}

// A deadline for writes that passes between two events would end a stream of HTTP/2, though nobody is slow.
func TestAStreamOfHTTP2OutlivesItsPauses(t *testing.T) {
	const pause = 200 * time.Millisecond
	want := strings.Repeat(event(0, "a", "null"), 4) + event(0, "b", `"stop"`) + doneEvent
	r := newRig(t, func(o *rigOptions) { o.settings.IdleTimeout = pause * 3 / 2 }, upstream(t, func(w http.ResponseWriter, q *http.Request) {
		for range 4 {
			streams(event(0, "a", "null"))(w, q)
			<-time.NewTimer(pause).C
		}
		streams(event(0, "b", `"stop"`), doneEvent)(w, q)
	}))
	e := echo.New()
	r.server.Mount(e)
	front := httptest.NewUnstartedServer(e)
	front.EnableHTTP2 = true
	front.StartTLS()
	defer front.Close()
	req := r.request(t.Context(), http.MethodPost, "/v1/completions", streamed)
	req.URL.Scheme, req.URL.Host = "https", strings.TrimPrefix(front.URL, "https://")
	resp, err := front.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.ProtoMajor != 2 || string(body) != want {
		t.Errorf("got %s, %v: %q", resp.Proto, err, body)
	}
}

// net/http looks for a client that leaves only once the body has been read to its very end.
func TestAClientThatLeavesIsNoticedHoweverItsBodyCame(t *testing.T) {
	here, gone := make(chan struct{}), make(chan struct{})
	r := newRig(t, nil, upstream(t, func(_ http.ResponseWriter, q *http.Request) {
		here <- struct{}{}
		<-q.Context().Done()
		gone <- struct{}{}
	}))
	text := `{"model":"m","prompt":"x"}`
	most := text + strings.Repeat(" ", 1<<20-len(text))
	for name, c := range map[string]struct {
		body, encoding string
		chunked        bool
	}{
		"as it is": {text, "", false}, "in chunks": {text, "", true}, "packed": {gzipped(t, text), "gzip", false},
		"packed, in chunks": {gzipped(t, text), "gzip", true}, "as large as may be": {most, "", false},
		"as large as may be, in chunks": {most, "", true}, "as large as may be, packed": {gzipped(t, most), "gzip", false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			req := r.request(ctx, http.MethodPost, "/v1/completions", c.body)
			if c.chunked {
				req.ContentLength, req.Body = -1, io.NopCloser(struct{ io.Reader }{strings.NewReader(c.body)})
			}
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			left := make(chan struct{})
			go func() {
				defer close(left)
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
			<-here
			leave()
			select {
			case <-gone:
			case <-time.NewTimer(5 * time.Second).C:
				t.Fatal("the backend was not told within five seconds")
			}
			<-left
		})
	}
	poll.Until(t, "nothing is in flight", func() bool { return r.server.InFlight() == 0 })
}
