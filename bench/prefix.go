package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"basegate/internal/loopback"
	"basegate/internal/prefixload"
)

// The requests share the beginnings of their prompts: conversations that grow by turns, and questions about long prompts. All
// prompts fill a part of what the replicas together cache, or more than that.
const (
	prefixReplicas = 4
	prefixClients  = 16
	conversations  = 200
	fewShots       = 50
	questions      = 20                     // about each of them
	blockTokens    = 16                     // of a block of the mock's cache
	prefillDelay   = 100 * time.Microsecond // for each token that is not cached
	prefillTime    = 300 * time.Millisecond // of the longest prompts
)

// prefixLoads returns the loads, by how much of the caches they fill, in percent. The goals are the least cached tokens as a part
// of those of one replica, which is the limit of the one by the other.
func prefixLoads(o options) (all []load) {
	for _, c := range []struct {
		fill  int
		least float64
	}{{40, 0.95}, {73, 0.9}, {120, 0.75}} {
		l := load{connections: prefixClients, path: completionsPath, scale: 1, fill: c.fill}
		if o.short {
			l.scale = 5
		}
		l.name = fmt.Sprintf("%d conversations, %d questions about %d prompts, which fill %d %% of the caches",
			conversations/l.scale, questions*fewShots/l.scale, fewShots/l.scale, c.fill)
		all = append(all, l.with(goal{cacheHits, oneReplica, 1 / c.least, 1 / c.least}, goal{busiest, byPrefix, 1.3, 1.3}))
	}
	return all
}

func measurePrefix(ctx context.Context, b *testbed, l *load, column string) *outcome {
	replicas, g := prefixReplicas, gatewayColumns[column]
	g.model = ", " + byPrefix
	switch column {
	case byInFlight:
		g.model = ", " + byInFlight
	case oneReplica:
		replicas = 1
	}
	queue := prefixload.New(conversations/l.scale, fewShots/l.scale, questions)
	blocks := queue.Blocks(blockTokens) * 100 / l.fill / replicas
	var mocks []string
	for range replicas {
		address := must(loopback.FreeAddress(ctx))
		b.start(ctx, "replica", address, "/health", b.options.basegate, "mockvllm", "--listen", address, "--model", model,
			"--prefix-cache-blocks", strconv.Itoa(blocks), "--prefill-delay", prefillDelay.String())
		mocks = append(mocks, address)
	}
	t := b.startGateway(ctx, g, mocks...)
	defer t.process.stop()
	clients := t.clients(l.connections, l.events, requestTimeout+prefillTime)
	defer closeAll(clients)
	cpu, _ := t.cpu()
	s := send(ctx, clients, nextPrompts(t, l, queue))
	s.cpu, _ = t.cpu()
	s.cpu -= cpu
	return &outcome{append(replicaFigures(ctx, mocks),
		figure{"time to first token, median, ms", micros(s.quantile(0.5)) / 1e3},
		figure{"time to first token, p90, ms", micros(s.quantile(0.9)) / 1e3},
		figure{cpuPerRequest, s.perRequest(s.cpu)}), s.counts}
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

// nextPrompts returns the function that returns the next request of a client: for one token, so that a response takes the time
// to the first token. Those of the queue wait for no response.
func nextPrompts(t *target, l *load, queue *prefixload.Queue) func(client int) []byte {
	sent := make([]prefixload.Conversation, l.connections) // the rest of the one that each client has sent a prompt of
	return func(client int) []byte {
		queue.Return(sent[client])
		sent[client] = nil
		c := queue.Next()
		if c == nil {
			return nil
		}
		sent[client] = c[1:]
		body, _ := json.Marshal(map[string]any{"model": model, "prompt": c[0], "max_tokens": 1}) // cannot fail
		return t.request(client, l.path, body)
	}
}
