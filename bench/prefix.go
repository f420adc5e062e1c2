package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"basegate/internal/loopback"
)

// The requests share the beginnings of their prompts: conversations that grow by turns, and questions about long prompts. The
// replicas together cache all of it, and each alone a part.
const (
	prefixReplicas = 4
	prefixClients  = 16
	conversations  = 200
	turns          = 5
	fewShots       = 50
	fewShotTokens  = 3000
	questions      = 1000
	replicaBlocks  = 9000                   // of 16 tokens, in the cache of a replica
	prefillDelay   = 100 * time.Microsecond // for each token that is not cached
	prefixSeed     = 20
	vocabulary     = 200 // token ids from 20 to below 220, which the mock's model has
)

func prefixLoad(o options) load {
	l := load{connections: prefixClients, path: completionsPath, scale: 1}
	if o.short {
		l.scale = 5
	}
	l.name = fmt.Sprintf("%d conversations, %d questions about %d prompts", conversations/l.scale, questions/l.scale, fewShots/l.scale)
	return l
}

// measurePrefix measures three ways to serve these requests: by prefix, by the fewest requests in flight, and with one replica
// that caches everything.
func measurePrefix(ctx context.Context, b *testbed, l *load, column string) *outcome {
	replicas, balance := prefixReplicas, column
	if column == oneReplica {
		replicas, balance = 1, byPrefix
	}
	var mocks []string
	for range replicas {
		address := must(loopback.FreeAddress(ctx))
		b.start(ctx, "replica", address, "/health", b.options.basegate, "mockvllm", "--listen", address, "--model", model,
			"--prefix-cache-blocks", strconv.Itoa(replicaBlocks*prefixReplicas/replicas), "--prefill-delay", prefillDelay.String())
		mocks = append(mocks, address)
	}
	t := b.startGateway(ctx, gatewayOptions{model: ", " + balance}, mocks...)
	clients := t.clients(l.connections, l.events, requestTimeout+fewShotTokens*prefillDelay)
	defer closeAll(clients)
	s := send(ctx, clients, nextPrompts(t, l))
	return &outcome{append(replicaFigures(ctx, mocks), figure{"time to first token, median, ms", micros(s.quantile(0.5)) / 1e3}), s.counts}
}

// replicaFigures returns what the replicas found in their caches, and how evenly the requests, which generate a token each, were
// distributed.
func replicaFigures(ctx context.Context, replicas []string) []figure {
	var hits, queries, requests, most float64
	for _, address := range replicas {
		metric := func(name string) float64 { return scrape(ctx, "http://"+address, "vllm:"+name+"_total{") }
		hits, queries = hits+metric("prefix_cache_hits"), queries+metric("prefix_cache_queries")
		n := metric("generation_tokens")
		requests, most = requests+n, max(most, n)
	}
	return []figure{{cacheHits, 100 * hits / queries}, {busiest, most * float64(len(replicas)) / requests}}
}

// conversation is a number of prompts. Each is sent when the response to the one before is complete; which conversation is next
// is drawn.
type conversation [][]int

// nextPrompts returns the function that returns the next request of a client: for one token, so that a response takes the time
// to the first token.
func nextPrompts(t *target, l *load) func(client int) []byte {
	random := rand.New(rand.NewPCG(prefixSeed, 0))
	tokens := func(n int) []int {
		all := make([]int, n)
		for i := range all {
			all[i] = 20 + random.IntN(vocabulary)
		}
		return all
	}
	var mu sync.Mutex
	var waiting []conversation                  // those that have a next prompt and wait for no response
	sent := make([]conversation, l.connections) // the rest of the one that each client has sent a prompt of
	for range conversations / l.scale {
		var c conversation
		prompt := tokens(100 + random.IntN(300))
		for range turns {
			c = append(c, prompt)
			prompt = slices.Concat(prompt, tokens(100+random.IntN(200)))
		}
		waiting = append(waiting, c)
	}
	examples := make([][]int, fewShots/l.scale)
	for i := range examples {
		examples[i] = tokens(fewShotTokens)
	}
	for i := range questions / l.scale {
		waiting = append(waiting, conversation{slices.Concat(examples[i%len(examples)], tokens(20+random.IntN(60)))})
	}
	return func(client int) []byte {
		mu.Lock()
		defer mu.Unlock()
		if rest := sent[client]; len(rest) > 0 {
			waiting = append(waiting, rest)
		}
		sent[client] = nil
		if len(waiting) == 0 {
			return nil
		}
		drawn, last := random.IntN(len(waiting)), len(waiting)-1
		c := waiting[drawn]
		waiting[drawn] = waiting[last]
		waiting, sent[client] = waiting[:last], c[1:]
		body, _ := json.Marshal(map[string]any{"model": model, "prompt": c[0], "max_tokens": 1}) // cannot fail
		return t.request(client, l.path, body)
	}
}
