package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"basegate/internal/loopback"
)

// The work whose requests share the beginnings of their prompts: conversations that grow by turns, and questions about
// long prompts. The replicas together cache all of it, and each alone a part.
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
	prefixTimeout  = 5 * time.Minute
	prefixSeed     = 20
	vocabulary     = 200 // token ids from 20 to below 220, which the mock's model has
)

// prefixFigures compare three ways to serve the work: by prefix, by the fewest requests in flight, and with one replica
// that caches everything.
type prefixFigures struct{ byPrefix, leastInFlight, oneReplica prefixResult }

// prefixResult is what one of them reached.
type prefixResult struct {
	hits   float64       // tokens of the prompts that were cached
	median time.Duration // time to first token
	load   float64       // of the busiest backend over the mean, in requests
}

// String returns the figures as a sentence.
func (f *prefixFigures) String() string {
	return fmt.Sprintf("%d replicas, %d conversations of %d turns and %d questions about %d prompts of %d tokens: "+
		"with balance: prefix %s; with least_inflight %s; one replica with all the cache: %s",
		prefixReplicas, conversations, turns, questions, fewShots, fewShotTokens, f.byPrefix, f.leastInFlight, f.oneReplica)
}

// String returns the result as a part of a sentence.
func (r prefixResult) String() string {
	return fmt.Sprintf("%.1f %% of the prompts' tokens are cached, the median time to first token is %.1f ms, the busiest backend has %.2f of the mean",
		100*r.hits, float64(r.median.Microseconds())/1000, r.load)
}

var errPrefix = errors.New("a request of the prefix work failed")

// measurePrefix serves the work in each of the three ways.
func measurePrefix(ctx context.Context, p programs, short bool) (*prefixFigures, error) {
	ctx, cancel := context.WithTimeout(ctx, prefixTimeout)
	defer cancel()
	f := &prefixFigures{}
	for _, way := range []struct {
		balance  string
		replicas int
		to       *prefixResult
	}{
		{"prefix", prefixReplicas, &f.byPrefix},
		{"least_inflight", prefixReplicas, &f.leastInFlight},
		{"prefix", 1, &f.oneReplica},
	} {
		work := newPrefixWork(short)
		var err error
		if *way.to, err = work.serve(ctx, p, way.balance, way.replicas); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// prefixWork is a set of chains of requests. The requests of a chain run one after another; which chain is next is drawn.
type prefixWork struct {
	mu       sync.Mutex
	random   *rand.Rand
	chains   [][][]int // of prompts
	backends map[string]int
	times    []time.Duration
}

func newPrefixWork(short bool) *prefixWork {
	w := &prefixWork{random: rand.New(rand.NewPCG(prefixSeed, 0)), backends: map[string]int{}} //nolint:gosec // repeatable load
	scale := 1
	if short {
		scale = 5
	}
	for range conversations / scale {
		var chain [][]int
		prompt := w.tokens(100 + w.random.IntN(300))
		for range turns {
			chain = append(chain, prompt)
			prompt = slices.Concat(prompt, w.tokens(100+w.random.IntN(200)))
		}
		w.chains = append(w.chains, chain)
	}
	examples := make([][]int, fewShots/scale)
	for i := range examples {
		examples[i] = w.tokens(fewShotTokens)
	}
	for i := range questions / scale {
		w.chains = append(w.chains, [][]int{slices.Concat(examples[i%len(examples)], w.tokens(20+w.random.IntN(60)))})
	}
	return w
}

func (w *prefixWork) tokens(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = 20 + w.random.IntN(vocabulary)
	}
	return all
}

// next draws a chain and returns its next prompt; put puts back what is left of the chain.
func (w *prefixWork) next() (prompt []int, put func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.chains) == 0 {
		return nil, nil
	}
	at, last := w.random.IntN(len(w.chains)), len(w.chains)-1
	chain := w.chains[at]
	w.chains[at] = w.chains[last]
	w.chains = w.chains[:last]
	return chain[0], func() {
		if len(chain) > 1 {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.chains = append(w.chains, chain[1:])
		}
	}
}

// serve starts the replicas and a gateway, sends the work and returns what was reached.
func (w *prefixWork) serve(ctx context.Context, p programs, balance string, replicas int) (r prefixResult, err error) {
	b, err := newTestbed(p)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	var backends []string
	blocks := replicaBlocks * prefixReplicas / replicas
	for i := range replicas {
		address, err := loopback.FreeAddress(ctx)
		if err != nil {
			return r, err
		}
		name := fmt.Sprint("replica", i)
		if _, err := b.start(ctx, name, address, "/health", p.basegate, "mockvllm", "--listen", address, "--model", model,
			"--prefix-cache-blocks", strconv.Itoa(blocks), "--prefill-delay", prefillDelay.String()); err != nil {
			return r, err
		}
		backends = append(backends, address)
	}
	g, _, err := b.startGatewayOf(ctx, gatewayOptions{name: gateway, program: p.basegate, concurrency: unlimited, balance: balance, backends: backends})
	if err != nil {
		return r, err
	}
	if err := w.send(ctx, g); err != nil {
		return r, err
	}
	slices.Sort(w.times)
	r.median = quantile(w.times, 0.5)
	most := 0
	for _, n := range w.backends {
		most = max(most, n)
	}
	r.load = float64(most*replicas) / float64(len(w.times))
	r.hits, err = cachedShare(ctx, backends)
	return r, err
}

// send sends the work with all clients.
func (w *prefixWork) send(ctx context.Context, g target) error {
	var clients sync.WaitGroup
	failed := make([]error, prefixClients)
	for i := range failed {
		clients.Go(func() {
			for failed[i] == nil {
				prompt, put := w.next()
				if prompt == nil {
					return
				}
				failed[i] = w.complete(ctx, g, prompt)
				put()
			}
		})
	}
	clients.Wait()
	return errors.Join(failed...)
}

// complete sends one streamed request and records its backend and its time to first token.
func (w *prefixWork) complete(ctx context.Context, g target, prompt []int) error {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 2, "stream": true})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.address+completionsPath, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+g.key)
	began := time.Now()
	resp, err := http.DefaultClient.Do(req) //nolint:forbidigo // a client of the benchmark
	if err != nil {
		return fmt.Errorf("%w: %w", errPrefix, err)
	}
	defer resp.Body.Close()
	reader := bufio.NewReader(resp.Body)
	first, err := reader.ReadString('\n')
	took := time.Since(began)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %d %.300s %w", errPrefix, resp.StatusCode, first, err)
	}
	if _, err := io.Copy(io.Discard, reader); err != nil {
		return fmt.Errorf("%w: %w", errPrefix, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backends[resp.Header.Get("X-Acs-Upstream-Gpu")]++
	w.times = append(w.times, took)
	return nil
}

// cachedShare returns how many of the prompts' tokens the replicas found in their caches.
func cachedShare(ctx context.Context, replicas []string) (float64, error) {
	var hits, queries float64
	for _, address := range replicas {
		text, err := fetch(ctx, "http://"+address+"/metrics")
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			switch {
			case strings.HasPrefix(line, "vllm:prefix_cache_hits_total{"):
				hits += value
			case strings.HasPrefix(line, "vllm:prefix_cache_queries_total{"):
				queries += value
			}
		}
	}
	return hits / max(queries, 1), nil
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req) //nolint:forbidigo // a client of the benchmark
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", url, err)
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, 1<<20)) //nolint:forbidigo,wrapcheck // bounded; the caller's request
}
