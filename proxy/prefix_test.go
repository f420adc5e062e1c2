package proxy_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/proxy"
)

// startFour starts four backends, and returns with their addresses the number of the one that the last request reached.
func startFour(t *testing.T) (addresses []string, last *atomic.Int32) {
	t.Helper()
	last = new(atomic.Int32)
	for i := range int32(4) {
		addresses = append(addresses, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
			last.Store(i)
			respondPlain(w, r)
		}))
	}
	return addresses, last
}

// awaitIdle waits until all backends are ready and without an attempt: one whose response has ended is load until its lease is
// released.
func (h *harness) awaitIdle() {
	h.t.Helper()
	m, _ := h.fleet.Model("m")
	poll.Until(h.t, "all backends are idle", func() bool {
		return !slices.ContainsFunc(m.Backends(), func(b *fleet.Backend) bool {
			state, _ := b.State()
			return state != fleet.Ready || b.InFlight() > 0
		})
	})
}

// A conversation and the lines of a batch that begin alike all reach one backend, and different ones reach several.
func TestPromptsThatBeginAlikeReachOneBackend(t *testing.T) {
	t.Parallel()
	backends, last := startFour(t)
	h := newHarness(t, func(o *harnessOptions) { o.model.Balance = config.BalancePrefix }, backends...)
	line := func(body string) {
		result := h.serveLine(body)
		defer result.Release()
		result.Settlement.Abandon()
	}
	var places []proxy.Place
	for range backends { // a line goes to no backend whose queue has not been read
		poll.Until(t, "one more backend has a place for a line", func() bool {
			place, _ := h.server.AcquirePlace("m", 1, false)
			if place != nil {
				places = append(places, place)
			}
			return place != nil
		})
	}
	for _, place := range places {
		place.Release()
	}
	reached := map[int32]bool{}
	for i := range 40 {
		prompt := strings.Repeat(fmt.Sprintf("%d is a number. ", i), 20)
		body := func() string { return fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2}`, prompt) }
		h.awaitIdle()
		if got := h.complete(body()); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		first := last.Load()
		reached[first] = true
		for turn := range 4 {
			h.awaitIdle()
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

// What reaches a backend is counted for 40 groups of four requests each, whose prompts begin as they do in another group or as in
// no other request.
func TestKeyOfTheClientDecidesInPlaceOfThePrompt(t *testing.T) {
	t.Parallel()
	backends, last := startFour(t)
	h := newHarness(t, func(o *harnessOptions) { chats(o); o.model.Balance = config.BalancePrefix }, backends...)
	same := strings.Repeat("One is a number. ", 20)
	for name, c := range map[string]struct {
		path     string
		body     func(group, turn int) string
		together bool // each group at one backend
		spread   bool // the groups at several
	}{
		"a key for each group": {proxy.CompletionsPath, func(g, turn int) string {
			return fmt.Sprintf(`"prompt_cache_key":"k%d","prompt":"%d %s"`, g, turn, same)
		}, true, true},
		"a key for each group, one prompt": {proxy.CompletionsPath, func(g, _ int) string { return fmt.Sprintf(`"prompt_cache_key":"k%d","prompt":%q`, g, same) }, true, true},
		"a key and short prompts":          {proxy.CompletionsPath, func(g, turn int) string { return fmt.Sprintf(`"prompt_cache_key":"k%d","prompt":"%d"`, g, turn) }, true, true},
		"a key and salts": {proxy.CompletionsPath, func(g, turn int) string {
			return fmt.Sprintf(`"prompt_cache_key":"k","cache_salt":"s%d","prompt":"%d"`, g, turn)
		}, true, true},
		"an empty key": {proxy.CompletionsPath, func(int, int) string { return fmt.Sprintf(`"prompt_cache_key":"","prompt":%q`, same) }, true, false},
		"chat": {proxy.ChatPath, func(g, turn int) string {
			return fmt.Sprintf(`"prompt_cache_key":"k%d","messages":[{"role":"user","content":"%d"}]`, g, turn)
		}, true, true},
		"prompt_logprobs":    {proxy.CompletionsPath, func(int, int) string { return fmt.Sprintf(`"prompt_logprobs":0,"prompt":%q`, same) }, false, true},
		"echo with logprobs": {proxy.CompletionsPath, func(int, int) string { return fmt.Sprintf(`"echo":true,"logprobs":0,"prompt":%q`, same) }, false, true},
		"echo with logprobs, and key": {proxy.CompletionsPath, func(int, int) string {
			return fmt.Sprintf(`"echo":true,"logprobs":0,"prompt_cache_key":"k","prompt":%q`, same)
		}, false, true},
	} {
		reached, moved := map[int32]bool{}, false
		for group := range 40 {
			first := int32(-1)
			for turn := range 4 {
				h.awaitIdle()
				if got := h.post(c.path, `{"model":"m",`+c.body(group, turn)+`}`); got.status != http.StatusOK {
					t.Fatalf("%s: got %d %s", name, got.status, got.body)
				}
				moved = moved || first >= 0 && last.Load() != first
				first = last.Load()
			}
			reached[first] = true
		}
		if moved == c.together || (len(reached) > 1) != c.spread {
			t.Errorf("%s: a group has moved: %t, the groups reached %d backends", name, moved, len(reached))
		}
	}
}

// vLLM shares no cache between salts, so requests of one prompt reach one backend only if their cache_salt is the same.
func TestCacheSaltIsPartOfThePrefix(t *testing.T) {
	t.Parallel()
	backends, last := startFour(t)
	h := newHarness(t, func(o *harnessOptions) { o.model.Balance = config.BalancePrefix }, backends...)
	prompt := strings.Repeat("One is a number. ", 20)
	reached := map[int32]bool{}
	for salt := range 40 {
		for turn := range 2 {
			before := last.Load()
			h.awaitIdle()
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

// How many bytes of a prompt a token has is known from responses: with so few, the caches have no room for it, and nothing draws
// it to the backend that had it.
func TestUsageOfResponsesTellsWhatFitsIntoTheCaches(t *testing.T) {
	t.Parallel()
	prompt := strings.Repeat("One is a number. ", 100)
	for name, c := range map[string]struct {
		stream bool
		tokens int
		moves  bool
	}{"few tokens": {false, 400, false}, "many tokens": {false, 1700, true}, "few, in a stream": {true, 400, false}, "many, in a stream": {true, 1700, true}} {
		var last atomic.Int32
		var backends []string
		for i := range int32(4) {
			usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}`, c.tokens, c.tokens+1)
			answer := respond(http.StatusOK, "application/json", `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],`+usage+`}`)
			if c.stream {
				answer = respondStream(event(0, "a", `"stop"`), `data: {"choices":[],`+usage+"}\n\n", doneEvent)
			}
			backends = append(backends, startBackendOf(t, "0.33.0", func(w http.ResponseWriter, r *http.Request) {
				last.Store(i)
				answer(w, r)
			}, func(*http.Request) bool { return true }, func(mux *http.ServeMux) {
				mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprintln(w, `vllm:cache_config_info{block_size="16",num_gpu_blocks="30"} 1.0`)
				})
			}))
		}
		h := newHarness(t, func(o *harnessOptions) { o.model.Balance = config.BalancePrefix }, backends...)
		reached := map[int32]bool{}
		for range 8 {
			h.awaitIdle()
			if got := h.complete(fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2,"stream":%t}`, prompt, c.stream)); got.status != http.StatusOK {
				t.Fatalf("%s: got %d %s", name, got.status, got.body)
			}
			reached[last.Load()] = true
		}
		if moved := len(reached) > 1; moved != c.moves {
			t.Errorf("%s: a prompt reached the backends %v", name, reached)
		}
	}
}
