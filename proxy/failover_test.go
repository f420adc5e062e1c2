package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestHealthyBackendHidesAFailingOne(t *testing.T) {
	well := startBackend(t, respond(http.StatusOK, "application/json", plainResponse))
	dying := func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	for name, other := range map[string]string{
		"it refuses": refusingBackend(t),
		"it resets":  startBackend(t, dying),
		"it fails":   startBackend(t, respond(500, "text/plain", "Internal Server Error")),
		"it is busy": startBackend(t, respond(503, "application/json", `{"error":{"message":"The engine is currently busy"}}`)),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, other, well)
			for range 100 {
				if got := h.complete(plainRequest); got.status != http.StatusOK {
					t.Fatalf("got %d %s", got.status, got.body)
				}
			}
		})
	}
}

// Of two backends one fails, each time in its own way; whether the other is asked depends on what went wrong.
func TestFailoverDependsOnTheFailure(t *testing.T) {
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	reset := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	short := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "999")
		io.WriteString(w, plainResponse)
	}
	failed := `{"error":{"message":%q,"type":"x","param":null,"code":%d}}`
	wellPlain, wellStream := respond(http.StatusOK, "application/json", plainResponse), respondStream(event(0, "a", `"stop"`), doneEvent)
	for _, c := range []struct {
		name      string
		bad       http.HandlerFunc
		body      string
		elsewhere bool
	}{
		{"silence", silent, streamRequest, true},
		{"silence, plain", silent, plainRequest, true},
		{"a reset", reset, streamRequest, true},
		{"an answer that is cut", short, plainRequest, true},
		{"a dead engine", respond(500, "application/json", fmt.Sprintf(failed, "EngineCore encountered an issue.", 500)), streamRequest, true},
		{"a dead engine under 200", respond(200, "application/json", fmt.Sprintf(failed, "EngineCore encountered an issue.", 500)), plainRequest, true},
		{"a dead engine as the first event", respondStream("data: "+fmt.Sprintf(failed, "EngineCore encountered an issue.", 400)+"\n\n", doneEvent), streamRequest, true},
		{"an abort", respondStream(event(0, "", `"abort"`), doneEvent), streamRequest, true},
		{"an abort, plain", respond(200, "application/json", `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`), plainRequest, true},
		{"a full queue", respond(503, "application/json", fmt.Sprintf(failed, "The engine is currently busy", 503)), streamRequest, true},
		{"an empty stream", respondStream(""), streamRequest, true},
		{"out of memory", respond(500, "application/json", fmt.Sprintf(failed, "CUDA out of memory. Tried to allocate", 500)), streamRequest, false},
		{"out of memory as the first event", respondStream("data: "+fmt.Sprintf(failed, "CUDA out of memory. Tried to allocate", 500)+"\n\n", doneEvent), streamRequest, false},
		{"a prompt that is too long", respond(400, "application/json", fmt.Sprintf(failed, "This model's maximum context length is 10 tokens.", 400)), streamRequest, false},
		{"the client's mistake", respond(400, "application/json", fmt.Sprintf(failed, "top_p must be in (0, 1], got 0.", 400)), streamRequest, false},
		{"a stream that has begun", respondStream(event(0, "a", "null")), streamRequest, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad, well atomic.Int64
			h := newHarness(t, func(o *harnessOptions) {
				o.settings.FirstByteTimeout, o.breaker.OpenFor = 100*time.Millisecond, time.Nanosecond
			}, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				bad.Add(1)
				c.bad(w, r)
			}), startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				well.Add(1)
				if c.body == streamRequest {
					wellStream(w, r)
				} else {
					wellPlain(w, r)
				}
			}))
			for sent := int64(1); bad.Load() == 0 || sent < 5; sent++ {
				before := bad.Load()
				got := h.complete(c.body)
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
