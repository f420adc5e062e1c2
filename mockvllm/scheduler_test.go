package mockvllm_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// simulation sends requests to a mock in a bubble of testing/synctest, so that the times are exact.
type simulation struct {
	t    *testing.T
	mock *mockvllm.Server
}

func simulate(t *testing.T, o mockvllm.Options, run func(*simulation)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{t: t, mock: mockvllm.New(o)}
		defer s.mock.Close()
		run(s)
	})
}

// complete requests a completion of one token and returns how long it took.
func (s *simulation) complete(fields map[string]any) time.Duration {
	s.t.Helper()
	all := map[string]any{"max_tokens": 1}
	maps.Copy(all, fields)
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, completions, strings.NewReader(body(s.t, all)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	began := time.Now()
	s.mock.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		s.t.Errorf("got %d, want 200: %s", w.Code, w.Body)
	}
	return time.Since(began)
}

// metric returns the value of a metric of the newest version.
func (s *simulation) metric(name string) string {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.mock.ServeHTTP(w, httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(line, "vllm:"+name+`{engine="0",model_name="mock-model"} `); ok {
			return strings.TrimSpace(value)
		}
	}
	s.t.Errorf("/metrics has no vllm:%s", name)
	return ""
}

func TestRequestsBeyondTheLimitWait(t *testing.T) {
	for _, instant := range []bool{false, true} {
		options := mockvllm.Options{MaxNumSeqs: 2, FirstDelay: time.Second, Instant: instant}
		simulate(t, options, func(s *simulation) {
			took := make(chan time.Duration, 5)
			for range 5 {
				go func() { took <- s.complete(nil) }()
			}
			synctest.Wait()
			if running, waiting := s.metric("num_requests_running"), s.metric("num_requests_waiting"); running != "2" || waiting != "3" {
				t.Errorf("instant %v: got %s running and %s waiting, want 2 and 3", instant, running, waiting)
			}
			var all []time.Duration
			for range 5 {
				all = append(all, <-took)
			}
			want := []time.Duration{time.Second, time.Second, 2 * time.Second, 2 * time.Second, 3 * time.Second}
			if !slices.Equal(all, want) {
				t.Errorf("instant %v: requests took %v, want %v", instant, all, want)
			}
			if running, waiting := s.metric("num_requests_running"), s.metric("num_requests_waiting"); running != "0" || waiting != "0" {
				t.Errorf("instant %v, at the end: got %s running and %s waiting, want none", instant, running, waiting)
			}
		})
	}
}

func TestPriorityOrdersTheQueueOnlyIfEnabled(t *testing.T) {
	for policy, want := range map[string][]string{
		mockvllm.PolicyFCFS:     {"first", "late", "soon", "sooner", "also soon"},
		mockvllm.PolicyPriority: {"first", "sooner", "soon", "also soon", "late"},
	} {
		options := mockvllm.Options{MaxNumSeqs: 1, FirstDelay: time.Second, SchedulingPolicy: policy}
		simulate(t, options, func(s *simulation) {
			finished := make(chan string, len(want))
			for _, r := range []struct {
				name     string
				priority int
			}{{"first", 9}, {"late", 5}, {"soon", 0}, {"sooner", -1}, {"also soon", 0}} {
				go func() {
					s.complete(map[string]any{"priority": r.priority})
					finished <- r.name
				}()
				synctest.Wait()
			}
			var got []string
			for range want {
				got = append(got, <-finished)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: requests ended in the order %q, want %q", policy, got, want)
			}
		})
	}
}

func TestDisconnectedClientLeavesTheQueue(t *testing.T) {
	p := start(t, mockvllm.Options{MaxNumSeqs: 1, TokenDelay: time.Hour})
	_, disconnectFirst := open(t, p, map[string]any{"stream": true, "ignore_eos": true})
	awaitLoad(t, p, "1", "0")
	ctx, disconnectSecond := context.WithCancel(t.Context())
	var second sync.WaitGroup
	defer second.Wait()
	second.Go(func() {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, completions, strings.NewReader(body(t, nil)))
		r.Header.Set("Content-Type", "application/json")
		defer func() { _ = recover() }() // ends with http.ErrAbortHandler, since the recorder has no connection to close
		p.ServeHTTP(httptest.NewRecorder(), r)
	})
	awaitLoad(t, p, "1", "1")
	disconnectSecond()
	awaitLoad(t, p, "1", "0")
	disconnectFirst()
	awaitLoad(t, p, "0", "0")
}

// awaitLoad waits until the mock's gauges have these values.
func awaitLoad(t *testing.T, p *mockvllm.Process, running, waiting string) {
	t.Helper()
	s := &simulation{t: t, mock: p.Server}
	poll.Until(t, "running "+running+", waiting "+waiting, func() bool {
		return s.metric("num_requests_running") == running && s.metric("num_requests_waiting") == waiting
	})
}

// tokenPrompt returns a prompt of n token ids that begin with first.
func tokenPrompt(first, n int) []int {
	tokens := []int{first}
	for len(tokens) < n {
		tokens = append(tokens, 100+len(tokens))
	}
	return tokens
}

func TestPrefixCacheSavesThePrefillOfCachedBlocks(t *testing.T) {
	options := mockvllm.Options{PrefixCacheBlocks: 100, PrefillDelay: time.Millisecond}
	simulate(t, options, func(s *simulation) {
		queries, hits := 0, 0
		for _, step := range []struct {
			what    string
			prompt  []int
			fields  map[string]any
			cached  int
			uncount bool
		}{
			{what: "a new prompt", prompt: tokenPrompt(1, 100)},
			{what: "the same prompt: whole blocks only", prompt: tokenPrompt(1, 100), cached: 96},
			{what: "a shorter one: its last token is computed", prompt: tokenPrompt(1, 48), cached: 32},
			{what: "a longer one", prompt: tokenPrompt(1, 200), cached: 96},
			{what: "another first token", prompt: tokenPrompt(2, 100)},
			{what: "another salt", prompt: tokenPrompt(1, 100), fields: map[string]any{"cache_salt": "x"}},
			{what: "log-probabilities of the prompt", prompt: tokenPrompt(1, 100), fields: map[string]any{"prompt_logprobs": 0}, uncount: true},
		} {
			fields := map[string]any{"prompt": step.prompt}
			maps.Copy(fields, step.fields)
			if !step.uncount {
				queries, hits = queries+len(step.prompt), hits+step.cached
			}
			want := time.Duration(len(step.prompt)-step.cached) * time.Millisecond
			if took := s.complete(fields); took != want {
				t.Errorf("%s took %v, want %v", step.what, took, want)
			}
			if got, want := s.metric("prefix_cache_queries_total"), fmt.Sprint(queries); got != want {
				t.Errorf("%s: got %s queried tokens, want %s", step.what, got, want)
			}
			if got, want := s.metric("prefix_cache_hits_total"), fmt.Sprint(hits); got != want {
				t.Errorf("%s: got %s hits, want %s", step.what, got, want)
			}
		}
	})
}

func TestPrefixCacheEvictsTheLeastRecentlyUsedBlocks(t *testing.T) {
	options := mockvllm.Options{PrefixCacheBlocks: 10, PrefillDelay: time.Millisecond}
	simulate(t, options, func(s *simulation) {
		a, b, c := map[string]any{"prompt": tokenPrompt(1, 65)}, map[string]any{"prompt": tokenPrompt(2, 65)}, map[string]any{"prompt": tokenPrompt(3, 65)}
		const cached, partly, uncached = 1 * time.Millisecond, 33 * time.Millisecond, 65 * time.Millisecond
		for i, step := range []struct {
			prompt map[string]any
			want   time.Duration
		}{
			{a, uncached},
			{b, uncached},
			{a, cached},
			{c, uncached}, // evicts the last half of b
			{b, partly},
			{c, cached},
		} {
			if took := s.complete(step.prompt); took != step.want {
				t.Errorf("request %d took %v, want %v", i, took, step.want)
			}
		}
	})
}
