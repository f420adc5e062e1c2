//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"basegate/mockvllm"
)

const (
	soakRate    = 2000 // requests a second, where the machine can
	soakClients = 200  // at a time, at the most
)

// soakFor is how long the load lasts: what BASEGATE_SOAK says, or some seconds.
func soakFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BASEGATE_SOAK")
	if text == "" {
		return 8 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// metric reads one figure of the gateway.
func (g *gateway) metric(name string) float64 {
	g.t.Helper()
	text := g.get(g.admin, "/metrics").body
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		g.t.Fatalf("there is no %s", name)
	}
	value, err := strconv.ParseFloat(found[1], 64)
	must(g.t, err)
	return value
}

// soakRequest is one request of the load: plain or streamed, stayed for or left.
func soakRequest(ctx context.Context, g *gateway, pool *http.Client) {
	kind := rand.IntN(10)
	body := `{"model":"m","prompt":"Once upon a time","max_tokens":8`
	if kind < 5 {
		body += `,"stream":true`
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/completions", strings.NewReader(body+"}"))
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+g.secret)
	resp, err := pool.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if kind == 0 {
		resp.Body.Read(make([]byte, 100)) // it leaves in the middle
		return
	}
	io.Copy(io.Discard, resp.Body) // a fault is on its way out too
}

// After the load nothing is left of it: no slot, reservation, goroutine, connection or byte.
func TestSoakLeavesNothingBehind(t *testing.T) {
	g, mock := gatewayOf(t, settings{rest: "limits: {concurrency_per_key: 100}"}, mockvllm.Options{})
	for _, kind := range []string{"oom", "reset_mid", "nested"} {
		mock.InjectFault(mockvllm.Fault{Kind: kind, Times: 50, Path: "/v1/completions"})
	}
	pool := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: soakClients}}
	load := func(span time.Duration) (requests int64) {
		var all sync.WaitGroup
		var count atomic.Int64
		tickets := make(chan struct{}, soakClients)
		for range soakClients {
			all.Go(func() {
				for range tickets {
					soakRequest(t.Context(), g, pool)
					count.Add(1)
				}
			})
		}
		until := time.Now().Add(span)
		beat := time.NewTicker(10 * time.Millisecond)
		defer beat.Stop()
		for time.Now().Before(until) {
			<-beat.C
			for range soakRate / 100 {
				select {
				case tickets <- struct{}{}:
				default: // the machine is slower
				}
			}
		}
		close(tickets)
		all.Wait()
		pool.CloseIdleConnections()
		return count.Load()
	}
	still := func() {
		for _, name := range []string{
			"basegate_ledger_open_reservations", "basegate_ledger_reserved_tokens", "basegate_ledger_backlog_rows", "basegate_ledger_waiting_reservations",
			"basegate_admission_running_requests", "basegate_admission_waiting_requests", "basegate_admission_buffered_bytes", "basegate_admission_keys",
		} {
			eventually(t, name+" is 0", func() bool { return g.metric(name) == 0 })
		}
	}
	load(2 * time.Second) // pools and caches fill
	still()
	g.get(g.admin, "/debug/pprof/heap?gc=1")
	before := g.metric("go_memstats_heap_alloc_bytes")
	span := soakFor(t)
	requests := load(span)
	still()
	// An idle connection to the backend lasts four seconds.
	eventually(t, "the goroutines and files are as few as before", func() bool {
		return g.metric("go_goroutines") < 40 && g.metric("process_open_fds") < 40
	})
	g.get(g.admin, "/debug/pprof/heap?gc=1")
	after := g.metric("go_memstats_heap_alloc_bytes")
	grown := fmt.Sprintf("heap %.1f MB, then %.1f MB", before/1e6, after/1e6)
	t.Logf("%d requests in %v, %.0f a second; %s", requests, span, float64(requests)/span.Seconds(), grown)
	if after > before+8e6 {
		t.Error("memory grows: ", grown)
	}
	if requests < 100 {
		t.Error("hardly anything was asked, so this has shown nothing")
	}
}
