package proxy_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// versions contains one version of vLLM for each form of its responses.
var versions = []string{"0.8.5", "0.11.0", "0.32.0", "0.33.0"}

// startMock starts a mock of a version of vLLM, and a harness in front of it whose breaker never stays open.
func startMock(t *testing.T, version string) (*harness, *mockvllm.Process) {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{
		Models: []string{"org/Model-8B"}, APIKey: "backend-key", Version: version, TokenDelay: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	closeAtOnce := func(o *harnessOptions) { o.breaker.OpenFor = time.Nanosecond }
	return newHarness(t, closeAtOnce, mock.URL()), mock
}

// Each failure has one code, whatever its wording and form in a version of vLLM.
func TestFailuresOfEveryVersionHaveOneCode(t *testing.T) {
	t.Parallel()
	type failure struct {
		name  string
		fault mockvllm.Fault
		code  string
	}
	failures := []failure{
		{"out of memory", mockvllm.Fault{Kind: "oom"}, "vllm_oom"},
		{"a dead engine", mockvllm.Fault{Kind: "engine_dead"}, "vllm_engine_dead"},
		{"a full queue", mockvllm.Fault{Kind: "overloaded"}, "overloaded"},
		{"an abort", mockvllm.Fault{Kind: "abort"}, "upstream_server_error"},
		{"an error with status 200", mockvllm.Fault{Kind: "ok_error", Message: "EngineCore encountered an issue."}, "vllm_engine_dead"},
		{"too long", mockvllm.Fault{Kind: "context_length"}, "vllm_context_length"},
	}
	for wording := 1; wording <= 16; wording++ {
		failures = append(failures, failure{fmt.Sprint("too long, wording ", wording), mockvllm.Fault{Kind: "context_length", Wording: wording}, "vllm_context_length"})
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, mock := startMock(t, version)
			for _, f := range failures {
				for _, body := range []string{plainRequest, streamRequest} {
					mock.ClearFaults()
					f.fault.Times = -1
					mock.InjectFault(f.fault)
					// Each has a prompt of its own: two engines that die beside one request would have it refused.
					got := h.complete(strings.Replace(body, `"x"`, strconv.Quote(f.name), 1))
					status := http.StatusBadGateway
					if f.code == "overloaded" {
						status = http.StatusServiceUnavailable
					}
					if got.status != status || !strings.Contains(got.body, `"code":"`+f.code+`"`) {
						t.Errorf("%s, %.60s: got %d %s, want %d %s", f.name, body, got.status, got.body, status, f.code)
					}
					if kind := got.header.Get("X-Acs-Upstream-Error-Kind"); kind != f.code {
						t.Errorf("%s: X-Acs-Upstream-Error-Kind is %q, want %s", f.name, kind, f.code)
					}
				}
			}
			poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
			if n := h.metric(`basegate_overloaded_total{reason="backends"}`); n != 2 {
				t.Errorf("overloaded for lack of backends %d times, want 2", n)
			}
		})
	}
}

// A failure after the first event ends the stream with one error event. Some versions cut the stream off without a
// reason, so its code may be less specific.
func TestFailuresOfEveryVersionEndAStreamWithOneErrorEvent(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h, mock := startMock(t, version)
			for _, c := range []struct {
				fault mockvllm.Fault
				codes []string // any of which is right
			}{
				{mockvllm.Fault{Kind: "engine_dead", AfterEvents: 2}, []string{"vllm_engine_dead", "upstream_server_error"}},
				{mockvllm.Fault{Kind: "reset_mid", AfterEvents: 2}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "cut", AfterEvents: 2, Clean: true}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "abort", AfterTokens: 2}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "no_finish", AfterTokens: 2}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "garbage", AfterEvents: 2}, []string{"upstream_server_error"}},
			} {
				mock.ClearFaults()
				mock.InjectFault(c.fault)
				got := h.complete(`{"model":"m","prompt":"The capital of France is","max_tokens":20,"seed":1,"stream":true}`)
				events := strings.SplitAfter(strings.TrimSuffix(got.body, "\n\n"), "\n\n")
				last := events[len(events)-1]
				expected := slices.ContainsFunc(c.codes, func(code string) bool { return strings.HasPrefix(last, `data: {"error":{"code":"`+code+`"`) })
				if got.status != http.StatusOK || len(events) < 2 || !expected || strings.Contains(got.body, "[DONE]") || strings.Count(got.body, `"error"`) != 1 {
					t.Errorf("%s: got %d %s, want events and one error event of %v", c.fault.Kind, got.status, got.body, c.codes)
				}
			}
		})
	}
}

// Versions 0.7 to 0.13 report every exception in a stream as client error 400.
func TestOutOfMemoryInAStreamIsNotAClientError(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, mock := startMock(t, version)
			for _, after := range []int{0, 2} {
				mock.InjectFault(mockvllm.Fault{Kind: "oom", InStream: true, AfterEvents: after})
				// Version 0.8 says that its engine is dead. A request that meets a second dead engine gets another code.
				body := `{"model":"m","prompt":"The capital of France is","max_tokens":20,"seed":%d,"stream":true}`
				got := h.complete(fmt.Sprintf(body, after))
				if !strings.Contains(got.body, `"code":"vllm_oom"`) || strings.Contains(got.body, "[DONE]") {
					t.Errorf("after %d events: got %d %s, want vllm_oom", after, got.status, got.body)
				}
			}
		})
	}
}

func TestEveryVersionCompletesPlainAndStreamed(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, _ := startMock(t, version)
			echo := "true"
			if version == "0.8.5" { // its V0 engine fails at echo with logprobs and n
				echo = "false"
			}
			if got := h.complete(`{"model":"m","prompt":["a","b"],"n":2,"max_tokens":4,"echo":` + echo + `,"logprobs":2}`); got.status != http.StatusOK || strings.Count(got.body, `"index":`) != 4 {
				t.Errorf("plain: got %d %s", got.status, got.body)
			}
			for body, withUsage := range map[string]bool{streamRequest: false, streamRequestWithUsage: true} {
				got := h.complete(body)
				if got.status != http.StatusOK || !strings.HasSuffix(got.body, doneEvent) || strings.Contains(got.body, `"choices":[]`) != withUsage {
					t.Errorf("%s: got %d %s", body, got.status, got.body)
				}
			}
		})
	}
}
