package proxy_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"basegate/mockvllm"
)

// versions are one for each way in which vLLM has spoken.
var versions = []string{"0.6.6", "0.8.5", "0.10.0", "0.10.1", "0.14.0", "0.19.0", "0.27.0"}

// mock starts a vLLM of a version behind a rig.
func startMock(t *testing.T, version string) (*harness, *mockvllm.Process) {
	t.Helper()
	p, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{
		Models: []string{"org/Model-8B"}, APIKey: "backend-key", Version: version, TokenDelay: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	forgiving := func(o *harnessOptions) { o.breaker.OpenFor = time.Nanosecond }
	return newHarness(t, forgiving, p.URL()), p
}

// What every version says of a prompt that is too long, a GPU out of memory, a dead engine and a full queue has one
// code, whatever its words and the way it comes.
func TestFailuresOfEveryVersionHaveOneCode(t *testing.T) {
	type failure struct {
		name  string
		fault mockvllm.Fault
		code  string
	}
	failures := []failure{
		{"out of memory", mockvllm.Fault{Kind: "oom"}, "vllm_oom"},
		{"a dead engine", mockvllm.Fault{Kind: "engine_dead"}, "vllm_engine_dead"},
		{"a full queue", mockvllm.Fault{Kind: "overloaded"}, "upstream_server_error"},
		{"an abort", mockvllm.Fault{Kind: "abort"}, "upstream_server_error"},
		{"too long", mockvllm.Fault{Kind: "context_length"}, "vllm_context_length"},
	}
	for wording := 1; wording <= 12; wording++ {
		failures = append(failures, failure{fmt.Sprint("too long, wording ", wording), mockvllm.Fault{Kind: "context_length", Wording: wording}, "vllm_context_length"})
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, p := startMock(t, version)
			for _, f := range failures {
				for _, body := range []string{plainRequest, streamRequest} {
					p.ClearFaults()
					f.fault.Times = -1
					p.InjectFault(f.fault)
					got := h.complete(body)
					if got.status != http.StatusBadGateway || !strings.Contains(got.body, `"code":"`+f.code+`"`) {
						t.Errorf("%s, %.60s: got %d %s", f.name, body, got.status, got.body)
					}
					if kind := got.header.Get("X-Acs-Upstream-Error-Kind"); kind != f.code {
						t.Errorf("%s: X-Acs-Upstream-Error-Kind is %q", f.name, kind)
					}
				}
			}
		})
	}
}

// In the middle of a stream the same failures are one error event; a version that just cuts the stream gives no more
// than that away.
func TestFailuresOfEveryVersionEndAStreamWithOneErrorEvent(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, p := startMock(t, version)
			for _, c := range []struct {
				fault mockvllm.Fault
				codes []string
			}{
				{mockvllm.Fault{Kind: "engine_dead", AfterEvents: 2}, []string{"vllm_engine_dead", "upstream_server_error"}},
				{mockvllm.Fault{Kind: "reset_mid", AfterEvents: 2}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "cut", AfterEvents: 2, Clean: true}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "abort", AfterTokens: 2}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "no_finish", AfterTokens: 2}, []string{"upstream_server_error"}},
				{mockvllm.Fault{Kind: "garbage", AfterEvents: 2}, []string{"upstream_server_error"}},
			} {
				p.ClearFaults()
				p.InjectFault(c.fault)
				got := h.complete(`{"model":"m","prompt":"The capital of France is","max_tokens":20,"seed":1,"stream":true}`)
				events := strings.SplitAfter(strings.TrimSuffix(got.body, "\n\n"), "\n\n")
				ending := events[len(events)-1]
				fits := slices.ContainsFunc(c.codes, func(code string) bool { return strings.HasPrefix(ending, `data: {"error":{"code":"`+code+`"`) })
				if got.status != http.StatusOK || len(events) < 2 || !fits || strings.Contains(got.body, "[DONE]") || strings.Count(got.body, `"error"`) != 1 {
					t.Errorf("%s: got %d %s", c.fault.Kind, got.status, got.body)
				}
			}
		})
	}
}

// Versions 0.7 to 0.13 call every exception in a stream the client's error 400, and earlier ones just cut the stream.
func TestOutOfMemoryInAStreamIsNotAClientError(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, p := startMock(t, version)
			for _, after := range []int{0, 2} {
				p.InjectFault(mockvllm.Fault{Kind: "oom", InStream: true, AfterEvents: after})
				got := h.complete(`{"model":"m","prompt":"The capital of France is","max_tokens":20,"seed":1,"stream":true}`)
				if version == "0.6.6" {
					continue
				}
				if !strings.Contains(got.body, `"code":"vllm_oom"`) || strings.Contains(got.body, "[DONE]") {
					t.Errorf("after %d events: got %d %s", after, got.status, got.body)
				}
			}
		})
	}
}

func TestEveryVersionCompletesPlainAndStreamed(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			h, _ := startMock(t, version)
			if got := h.complete(`{"model":"m","prompt":["a","b"],"n":2,"max_tokens":4,"echo":true,"logprobs":2}`); got.status != http.StatusOK || strings.Count(got.body, `"index":`) != 4 {
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
