package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"basegate/config"
	"basegate/proxy"
)

// A conversation and the lines of a batch that begin alike all reach one backend, and different ones reach several.
func TestPromptsThatBeginAlikeReachOneBackend(t *testing.T) {
	var last atomic.Int32
	var backends []string
	for i := range int32(4) {
		backends = append(backends, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
			last.Store(i)
			respond(http.StatusOK, "application/json", plainResponse)(w, r)
		}))
	}
	h := newHarness(t, func(o *harnessOptions) { o.model.Balance = config.BalancePrefix }, backends...)
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	line := func(body string) {
		place, reason := h.server.AcquirePlace("m", 8, false)
		if place == nil {
			t.Fatalf("no place for a line: it waits for %q", reason)
		}
		defer place.Release()
		result := h.server.ServeLine(t.Context(), proxy.Line{
			Batch: "batch_1", Account: principal.AccountID, Key: principal.KeyID, Endpoint: proxy.CompletionsPath,
			Body: []byte(body), Place: place,
		})
		defer result.Release()
		if result.State != proxy.LineEnded || result.Status != http.StatusOK {
			t.Fatalf("the line got %d %s", result.Status, result.Body)
		}
		result.Settlement.Abandon()
	}
	reached := map[int32]bool{}
	for i := range 40 {
		prompt := strings.Repeat(fmt.Sprintf("%d is a number. ", i), 20)
		body := func() string { return fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2}`, prompt) }
		if got := h.complete(body()); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		first := last.Load()
		reached[first] = true
		for turn := range 4 {
			prompt += fmt.Sprintf("Is %d prime? I do not know. ", turn)
			if turn%2 == 0 {
				line(body())
			} else if got := h.complete(body()); got.status != http.StatusOK {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if last.Load() != first {
				t.Fatalf("turn %d of conversation %d reached backend %d, the first request backend %d", turn, i, last.Load(), first)
			}
		}
	}
	if len(reached) != 4 {
		t.Errorf("40 conversations reached the backends %v, want all four", reached)
	}
}

// vLLM shares no cache between salts, so requests of one prompt reach one backend only if their cache_salt is the same.
func TestCacheSaltIsPartOfThePrefix(t *testing.T) {
	var last atomic.Int32
	var backends []string
	for i := range int32(4) {
		backends = append(backends, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
			last.Store(i)
			respond(http.StatusOK, "application/json", plainResponse)(w, r)
		}))
	}
	h := newHarness(t, func(o *harnessOptions) { o.model.Balance = config.BalancePrefix }, backends...)
	prompt := strings.Repeat("One is a number. ", 20)
	reached := map[int32]bool{}
	for salt := range 40 {
		for turn := range 2 {
			before := last.Load()
			if got := h.complete(fmt.Sprintf(`{"model":"m","cache_salt":"s%d","prompt":%q}`, salt, prompt)); got.status != http.StatusOK {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if turn > 0 && last.Load() != before {
				t.Errorf("salt %d reached backend %d and then %d", salt, before, last.Load())
			}
		}
		reached[last.Load()] = true
	}
	if len(reached) != 4 {
		t.Errorf("40 salts reached the backends %v, want all four", reached)
	}
}
