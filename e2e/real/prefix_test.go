//go:build real

package real_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"basegate/internal/blockcache"
	"basegate/internal/poll"
	"basegate/internal/prefixload"
)

const (
	prefixBlockTokens = 32   // the fewest that vLLM has on the CPU
	prefixCacheBlocks = 1160 // of each server
	prefixClients     = 8
	prefixQuestions   = 10 // about each of the examples
	prefixGain        = 1.03
)

// TestPrefixRoutingHasMoreFromTheCachesOfVLLM sends the same requests with each setting of balance, and has vLLM count what it
// finds in its caches. BASEGATE_OLD is another binary to compare with.
func TestPrefixRoutingHasMoreFromTheCachesOfVLLM(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends thousands of long prompts")
	}
	var pair []*vllm
	for _, name := range []string{"left", "right"} {
		s := newVLLM(t, name)
		s.more = []string{
			"--block-size", strconv.Itoa(prefixBlockTokens), "--num-gpu-blocks-override", strconv.Itoa(prefixCacheBlocks),
			"--enable-prompt-tokens-details", "--max-model-len", "4096",
		}
		s.start(t)
		t.Cleanup(s.kill)
		pair = append(pair, s)
	}
	for _, s := range pair {
		s.waitReady(t)
	}
	for _, load := range []struct{ conversations, examples int }{{16, 4}, {30, 7}, {48, 12}} { // 40, 73 and 120 % of both caches
		fill := prefixload.New(load.conversations, load.examples, prefixQuestions).Blocks(prefixBlockTokens) * 100 / (2 * prefixCacheBlocks)
		hits := func(name, balance, program string) (percent float64) {
			t.Run(fmt.Sprintf("%d %%, %s", fill, name), func(t *testing.T) {
				defer func(before string) { binary = before }(binary)
				binary = program
				percent = prefixHits(t, prefixload.New(load.conversations, load.examples, prefixQuestions), pair, balance)
			})
			return percent
		}
		least, now := hits("fewest in flight", "least_inflight", binary), hits("prefix", "prefix", binary)
		if old := os.Getenv("BASEGATE_OLD"); old != "" {
			hits("prefix, old", "prefix", old)
		}
		if now < prefixGain*least {
			t.Errorf("at %d %% of the caches, %.1f %% of the prompts were cached, want %.2f of the %.1f %% with the fewest in flight", fill, now, prefixGain, least)
		}
	}
}

// prefixHits returns how much of the prompts the servers found in their caches, in percent. The salt keeps what they had before
// from being found.
func prefixHits(t *testing.T, queue *prefixload.Queue, servers []*vllm, balance string) float64 {
	g := startGatewayOf(t, fmt.Sprintf("limits: {concurrency_per_key: %d}", prefixClients), "balance: "+balance+", ",
		fmt.Sprintf("{name: left, url: %q}, {name: right, url: %q}", servers[0].url, servers[1].url))
	g.waitStatus("warm")
	for _, s := range servers {
		g.waitBackend(s, "ready")
	}
	counted := func(metric string) (n float64) {
		for _, s := range servers {
			n += s.metric(t, "vllm:prefix_cache_"+metric+"_total", "")
		}
		return n
	}
	salt, queries, hits := strings.ReplaceAll(t.Name(), "/", " "), counted("queries"), counted("hits")
	one := blockcache.New(len(servers)*prefixCacheBlocks, prefixBlockTokens)
	var tokens, ideal int
	var mu sync.Mutex
	next := func() prefixload.Conversation {
		mu.Lock()
		defer mu.Unlock()
		c := queue.Next()
		if c != nil {
			tokens, ideal = tokens+len(c[0]), ideal+one.Use(c[0], "")
		}
		return c
	}
	var clients sync.WaitGroup
	for range prefixClients {
		clients.Go(func() {
			for c := next(); c != nil; c = next() {
				prompt, err := json.Marshal(c[0])
				must(t, err)
				if r := g.complete(fmt.Sprintf(`{"model": %q, "prompt": %s, "max_tokens": 1, "cache_salt": %q}`, modelID, prompt, salt)); r.status != http.StatusOK {
					t.Errorf("%d %s", r.status, r.body)
				}
				queue.Return(c[1:])
			}
		})
	}
	clients.Wait()
	poll.Until(t, "vLLM has counted all tokens", func() bool { return int(counted("queries")-queries) >= tokens })
	percent := 100 * (counted("hits") - hits) / (counted("queries") - queries)
	t.Logf("%.1f %% of %d tokens; one cache has %.1f %%", percent, tokens, 100*float64(ideal)/float64(tokens))
	return percent
}
