package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/internal/ssetest"
)

// The events with data are relayed unchanged, except for the usage event that the client did not ask for, and nothing else is,
// however the network splits the stream: in two, byte by byte, and not at all. Package stream tests the split at every offset; over sockets, offsets
// around the ends of events and a sample of the others are enough.
func TestStreamIsUnchangedHoweverItIsSplit(t *testing.T) {
	t.Parallel()
	for _, s := range ssetest.Streams() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			var writes []string
			h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) { respondStream(writes...)(w, r) }))
			check := func(split string) {
				t.Helper()
				for usage, want := range map[string]string{`,"stream_options":{"include_usage":true}`: s.Passed(true), "": s.Passed(false)} {
					got := h.complete(fmt.Sprintf(`{"model":"m",%s,"stream":true%s}`, s.Request, usage))
					if got.body != want {
						t.Fatalf("%s, usage %q (-want +got):\n%s", split, usage, cmp.Diff(want, got.body))
					}
				}
			}
			sent := s.Text()
			for _, at := range splitOffsets(s.Events) {
				writes = []string{sent[:at], sent[at:]}
				check(fmt.Sprint("split at ", at))
			}
			writes = strings.Split(sent, "")
			check("byte by byte")
			writes = []string{sent}
			check("not split")
		})
	}
}

// splitOffsets returns the offsets up to two bytes around the end of each event, and every 41st offset between them.
func splitOffsets(events []string) []int {
	total := len(strings.Join(events, ""))
	end := 0
	var offsets []int
	for _, e := range events {
		for at := end; at < end+len(e); at += 41 {
			offsets = append(offsets, at)
		}
		end += len(e)
		for at := end - 2; at <= min(end+2, total); at++ {
			offsets = append(offsets, at)
		}
	}
	slices.Sort(offsets)
	return slices.Compact(offsets)
}

func TestEventsAreRelayedImmediately(t *testing.T) {
	t.Parallel()
	received := make(chan struct{}) // one value for each event that the client has received
	h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 20 {
			finish := "null"
			if i == 19 {
				finish = `"length"`
			}
			io.WriteString(w, event(0, "a", finish))
			http.NewResponseController(w).Flush()
			select {
			case <-received: // the next event is sent only then
			case <-r.Context().Done():
				return
			}
		}
		io.WriteString(w, doneEvent)
	}))
	resp, err := client.Do(h.newRequest(t.Context(), http.MethodPost, "/v1/completions", streamRequest))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for i := range 20 {
		want := event(0, "a", "null")
		if i == 19 {
			want = event(0, "a", `"length"`)
		}
		one := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, one); err != nil || string(one) != want {
			t.Fatalf("event %d: got %q, %v", i, one, err)
		}
		received <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != doneEvent {
		t.Fatalf("the stream ends with %q, %v", rest, err)
	}
}

func TestEventOfMegabytesIsRelayed(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1 << 20, 8 << 20} {
		long := event(0, strings.Repeat("word ", size/5), `"length"`) + doneEvent
		h := newHarness(t, nil, startBackend(t, respondStream(long)))
		if got := h.complete(streamRequest); got.body != long {
			t.Errorf("got %d bytes that differ from the %d bytes sent", len(got.body), len(long))
		}
	}
}

// Whatever the backend does, a stream that has begun ends with [DONE], or with one error event and nothing after it.
func TestStreamNeverEndsAmbiguously(t *testing.T) {
	t.Parallel()
	begun := event(0, "a", "null") + event(0, "b", "null")
	finished := event(0, "c", `"length"`)
	vllmError := "data: {\"error\": {\"message\": \"%s\", \"type\": \"BadRequestError\", \"param\": null, \"code\": 400}}\n\n" + doneEvent
	abort := func(w http.ResponseWriter, _ *http.Request) {
		respondStream(begun)(w, nil)
		panic(http.ErrAbortHandler)
	}
	for _, c := range []struct {
		name    string
		backend http.HandlerFunc
		code    string // of the error event; empty: [DONE]
	}{
		{"complete", respondStream(begun, finished, doneEvent), ""},
		{"no [DONE] after the finish", respondStream(begun, finished), ""},
		{"no finish and no [DONE]", respondStream(begun), "upstream_server_error"},
		{"the connection breaks", abort, "upstream_server_error"},
		{"the end is inside an event", respondStream(begun, finished[:20]), "upstream_server_error"},
		{"[DONE] without a finish", respondStream(begun, doneEvent), "upstream_server_error"},
		{"comments and no end", respondStream(begun, ": ping\n\n", ": ping\n"), "upstream_server_error"},
		{"an event of a choice that was not asked for", respondStream(begun, event(1, "c", "null"), finished, doneEvent), "upstream_server_error"},
		{"a choice is aborted", respondStream(begun, event(0, "", `"abort"`), doneEvent), "upstream_server_error"},
		{"a choice ends in an error", respondStream(begun, event(0, "", `"error"`), doneEvent), "upstream_server_error"},
		{"an error event", respondStream(begun, fmt.Sprintf(vllmError, "Internal server error")), "invalid_request"},
		{"a dead engine, reported as client error 400", respondStream(begun, fmt.Sprintf(vllmError, "EngineCore encountered an issue. See stack trace (above) for the root cause.")), "vllm_engine_dead"},
		{"out of memory", respondStream(begun, "data: {\"error\": {\"object\": \"error\", \"message\": \"CUDA out of memory. Tried to allocate\", \"code\": 500}}\n\n"), "vllm_oom"},
		{"garbage in an event", respondStream(begun, "data: {\"choices\":[nonsense]}\n\n"), "upstream_server_error"},
		{"garbage between events", respondStream(begun, "<html>\n\n"), "upstream_server_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, nil, startBackend(t, c.backend))
			got := h.complete(streamRequest)
			rest, ok := strings.CutPrefix(got.body, begun)
			if !ok || got.status != http.StatusOK {
				t.Fatalf("got %d %q; want it to begin with the events before the failure", got.status, got.body)
			}
			if c.code == "" {
				if rest != finished+doneEvent {
					t.Errorf("the stream ends with %q, want %q", rest, finished+doneEvent)
				}
				return
			}
			if strings.Count(rest, "data: ") != 1 || strings.Contains(rest, "[DONE]") ||
				!strings.HasPrefix(rest, `data: {"error":{"code":"`+c.code+`"`) || !strings.HasSuffix(rest, "}}\n\n") {
				t.Errorf("the stream ends with %q, want one error event %s", rest, c.code)
			}
		})
	}
}

// What comes before the first event with data does not decide the status.
func TestStatusWaitsForAnEventWithData(t *testing.T) {
	t.Parallel()
	refused := "data: {\"error\": {\"message\": \"boom\", \"code\": 500}}\n\n"
	h := newHarness(t, nil, startBackend(t, respondStream(": ping\n\n", "retry: 5\n\n", "event: ping\n\n", ": receipt {}\n", "data:\n\n", refused)))
	if got := h.complete(streamRequest); got.status != http.StatusBadGateway {
		t.Errorf("got %d %s, want 502", got.status, got.body)
	}
}

func TestReusedBuffersDoNotAffectTheNextStream(t *testing.T) {
	t.Parallel()
	whole := event(0, "a", `"stop"`) + doneEvent
	h := newHarness(t, nil, startBackend(t, respondStream(whole)))
	for range 50 {
		if got := h.complete(streamRequest); got.body != whole {
			t.Fatalf("got %q", got.body)
		}
	}
}

// The status is sent with the first event, so a failure before it is a plain error.
func TestFailureBeforeTheFirstEventIsAPlainError(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]http.HandlerFunc{
		"an error in the stream": respondStream("data: {\"error\": {\"message\": \"boom\", \"code\": 500}}\n\n" + doneEvent),
		"an abort":               respondStream(event(0, "", `"abort"`) + doneEvent),
		"an empty stream":        respondStream(""),
		"[DONE] alone":           respondStream(doneEvent),
		"a plain error":          respond(http.StatusOK, "application/json", `{"error":{"message":"boom","code":500}}`),
		"something else":         respond(http.StatusOK, "text/html", `<html>`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, nil, startBackend(t, backend))
			if got := h.complete(streamRequestWithUsage); got.status != http.StatusBadGateway || !strings.Contains(got.body, "upstream_server_error") {
				t.Errorf("got %d %s, want 502 upstream_server_error", got.status, got.body)
			}
		})
	}
}
