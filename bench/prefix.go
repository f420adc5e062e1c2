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

// prefix compares three ways to serve these requests: by prefix, by the fewest requests in flight, and with one replica that
// caches everything.
func prefix(o options, goals ...goal) experiment {
	scale := 1
	if o.short {
		scale = 5
	}
	l := load{
		name:        fmt.Sprintf("%d conversations, %d questions about %d prompts", conversations/scale, questions/scale, fewShots/scale),
		connections: prefixClients, path: completionsPath, goals: goals,
	}
	measure := func(ctx context.Context, b *testbed, l *load, column string) (*outcome, error) {
		replicas, balance := prefixReplicas, column
		if column == oneReplica {
			replicas, balance = 1, byPrefix
		}
		mocks, err := b.startReplicas(ctx, replicas)
		if err != nil {
			return nil, err
		}
		t, err := b.startGateway(ctx, gatewayOptions{model: ", " + balance}, mocks...)
		if err != nil {
			return nil, err
		}
		clients := t.clients(l.connections, l.events, requestTimeout+fewShotTokens*prefillDelay)
		defer closeAll(clients)
		s := send(ctx, clients, newConversations(scale, t, l).next)
		figures, err := replicaFigures(ctx, mocks)
		return &outcome{append(figures, figure{"time to first token, median, ms", micros(s.quantile(0.5)) / 1e3}), s.counts}, err
	}
	return experiment{name: "prefix", columns: []string{byPrefix, byInFlight, oneReplica}, loads: []load{l}, once: true, measure: measure}
}

// startReplicas starts mocks with prefix caches, and returns their addresses.
func (b *testbed) startReplicas(ctx context.Context, n int) ([]string, error) {
	var all []string
	for range n {
		address, err := loopback.FreeAddress(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := b.start(ctx, "replica", address, "/health", b.options.basegate, "mockvllm", "--listen", address, "--model", model,
			"--prefix-cache-blocks", strconv.Itoa(replicaBlocks*prefixReplicas/n), "--prefill-delay", prefillDelay.String()); err != nil {
			return nil, err
		}
		all = append(all, address)
	}
	return all, nil
}

// replicaFigures returns what the replicas found in their caches, and how evenly the requests were distributed.
func replicaFigures(ctx context.Context, replicas []string) ([]figure, error) {
	var hits, queries, requests, most float64
	for _, address := range replicas {
		for name, add := range map[string]func(float64){
			"vllm:prefix_cache_hits_total{":    func(n float64) { hits += n },
			"vllm:prefix_cache_queries_total{": func(n float64) { queries += n },
			"vllm:request_success_total{":      func(n float64) { requests, most = requests+n, max(most, n) },
		} {
			n, err := scrape(ctx, "http://"+address, name)
			if err != nil {
				return nil, err
			}
			add(n)
		}
	}
	return []figure{{cacheHits, 100 * hits / max(queries, 1)}, {busiest, most * float64(len(replicas)) / max(requests, 1)}}, nil
}

// conversation is a number of prompts. Each is sent when the response to the one before is complete; which conversation is next
// is drawn.
type conversation [][]int

// conversationQueue holds the conversations that have a next prompt and wait for no response.
type conversationQueue struct {
	target *target
	load   *load

	mu      sync.Mutex
	random  *rand.Rand
	waiting []conversation
	sent    []conversation // the rest of the one that each client has sent a prompt of
}

func newConversations(scale int, t *target, l *load) *conversationQueue {
	random := rand.New(rand.NewPCG(prefixSeed, 0))
	q := &conversationQueue{target: t, load: l, random: random, sent: make([]conversation, l.connections)}
	for range conversations / scale {
		var c conversation
		prompt := q.tokens(100 + q.random.IntN(300))
		for range turns {
			c = append(c, prompt)
			prompt = slices.Concat(prompt, q.tokens(100+q.random.IntN(200)))
		}
		q.waiting = append(q.waiting, c)
	}
	examples := make([][]int, fewShots/scale)
	for i := range examples {
		examples[i] = q.tokens(fewShotTokens)
	}
	for i := range questions / scale {
		q.waiting = append(q.waiting, conversation{slices.Concat(examples[i%len(examples)], q.tokens(20+q.random.IntN(60)))})
	}
	return q
}

func (q *conversationQueue) tokens(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = 20 + q.random.IntN(vocabulary)
	}
	return all
}

// next returns the request of a client for one token, so that a response takes the time to the first token.
func (q *conversationQueue) next(client int) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rest := q.sent[client]; len(rest) > 0 {
		q.waiting = append(q.waiting, rest)
	}
	q.sent[client] = nil
	if len(q.waiting) == 0 {
		return nil
	}
	drawn, last := q.random.IntN(len(q.waiting)), len(q.waiting)-1
	c := q.waiting[drawn]
	q.waiting[drawn] = q.waiting[last]
	q.waiting, q.sent[client] = q.waiting[:last], c[1:]
	body, _ := json.Marshal(map[string]any{"model": model, "prompt": c[0], "max_tokens": 1}) // cannot fail
	return q.target.request(client, q.load.path, body)
}
