//go:build real

package real_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/internal/loratest"
	"basegate/internal/poll"
)

// TestAdapters loads adapters of random weights, replaces one under load, and restarts the server.
func TestAdapters(t *testing.T) {
	s := newVLLM(t, "lora")
	s.lora = true
	s.start(t)
	t.Cleanup(s.kill)
	s.waitReady(t)
	dir := t.TempDir()
	g := startGatewayOf(t, "limits: {concurrency_per_key: 50}", fmt.Sprintf("adapters_dir: %q, ", dir), fmt.Sprintf("{name: lora, url: %q, max_loaded: 2}", s.url))
	g.waitStatus("warm")
	add := func(id string, rank int, seed uint64) (name string) {
		path := loratest.Write(t, fmt.Sprintf("%s/%s-%d", dir, id, seed), rank, seed)
		g.run("adapter", "add", modelID, id, "--path", path)
		poll.Until(t, "the gateway sees the adapter", func() bool {
			return g.complete(fmt.Sprintf(`{"model": %q, "prompt": "x", "max_tokens": 1}`, id)).status != http.StatusBadRequest
		})
		all := gjson.Parse(g.run("adapter", "list", "--json"))
		return fmt.Sprintf("%s@%d", id, all.Get(fmt.Sprintf("#(id=%q).version", id)).Int())
	}
	ask := func(id string) (name, text string) {
		r := g.complete(fmt.Sprintf(`{"model": %q, "prompt": "The quick brown fox", "max_tokens": 12, "temperature": 0, %s}`, id, noEOS))
		if r.status != http.StatusOK {
			t.Errorf("%s: %d %s", id, r.status, r.body)
		}
		return gjson.Get(r.body, "model").Str, gjson.Get(r.body, "choices.0.text").Str
	}
	until := func(id, name string) (text string) {
		for {
			got, text := ask(id)
			if got == name || t.Failed() {
				return text
			}
		}
	}
	_, base := ask(modelID)
	old := add("a", 8, 1)
	texts := map[string]string{modelID: base, old: until("a", old)}
	var clients sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]map[string]int{}
	for i := range 50 {
		clients.Go(func() {
			for range 2 {
				name, text := ask("a")
				mu.Lock()
				if seen[name] == nil {
					seen[name] = map[string]int{}
				}
				seen[name][text]++
				mu.Unlock()
			}
		})
		if i == 25 {
			clients.Go(func() { add("a", 8, 2) })
		}
	}
	clients.Wait()
	current := gjson.Parse(g.run("adapter", "list", "--json")).Get("0.version").Int()
	name := fmt.Sprintf("a@%d", current)
	texts[name] = until("a", name)
	if texts[old] == base || texts[name] == base || texts[old] == texts[name] {
		t.Errorf("the versions are alike: %q", texts)
	}
	for name, all := range seen {
		if len(all) != 1 || all[texts[name]] == 0 {
			t.Errorf("%s gave %v, want %q alone", name, all, texts[name])
		}
	}
	if wide := add("wide", 64, 3); !strings.Contains(refusal(t, g, "wide"), "rank 64") {
		t.Errorf("%s: got %s", wide, refusal(t, g, "wide"))
	}
	s.kill()
	s.start(t)
	s.waitReady(t)
	g.waitStatus("warm")
	if _, text := ask("a"); text != texts[name] {
		t.Errorf("after a restart: got %q, want %q", text, texts[name])
	}
}

// refusal returns the message of a 502 adapter_unavailable.
func refusal(t *testing.T, g *gateway, id string) string {
	t.Helper()
	r := g.complete(fmt.Sprintf(`{"model": %q, "prompt": "x"}`, id))
	if r.status != http.StatusBadGateway || gjson.Get(r.body, "error.code").Str != "adapter_unavailable" {
		t.Errorf("%s: got %d %s", id, r.status, r.body)
	}
	return gjson.Get(r.body, "error.message").Str
}
