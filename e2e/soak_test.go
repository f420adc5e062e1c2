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

	"basegate/internal/poll"
	"basegate/mockvllm"
)

const (
	soakRate    = 2000 // requests a second, if the machine is fast enough
	soakClients = 200  // maximum of concurrent requests
	soakKeys    = 10   // with the default of slots per key, some of the clients have to queue
)

// soakDuration returns the duration of the load: BASEGATE_SOAK, or 8 seconds.
func soakDuration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BASEGATE_SOAK")
	if text == "" {
		return 8 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// metric returns the value of a metric without labels.
func (g *gateway) metric(name string) float64 {
	g.t.Helper()
	text := g.get(g.admin, "/metrics").body
	match := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if match == nil {
		g.t.Fatalf("/metrics has no %s", name)
	}
	value, err := strconv.ParseFloat(match[1], 64)
	must(g.t, err)
	return value
}

// soakLoad is a gateway under a load with many keys.
type soakLoad struct {
	*gateway
	mock   *mockvllm.Process
	keys   []string
	client *http.Client

	sent, served, refused, disconnected atomic.Int64
}

func newSoakLoad(t *testing.T) *soakLoad {
	t.Helper()
	s := &soakLoad{mock: startMock(t, mockvllm.Options{}), client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: soakClients,
		// As http.DefaultTransport: below the gateway's five minutes, or a request may meet the close of its connection.
		IdleConnTimeout: 90 * time.Second,
	}}}
	// The second backend responds from a prepared response, so that the mock does not take more CPU than the gateway.
	instant := startMock(t, mockvllm.Options{Instant: true})
	// The faults of the first backend must not open its breaker: it would reject the rest of the load.
	env := newEnvironment(t, settings{extra: "breaker: {consecutive_failures: 1000000}"}, s.mock.URL(), instant.URL())
	for i := range soakKeys {
		flags := []string{"--monthly-budget", "1_000_000_000_000"}
		if i == 0 {
			flags = []string{"--output-budget", "200"} // soon used up
		}
		name := fmt.Sprintf("key %d", i)
		s.keys = append(s.keys, strings.TrimSpace(env.run(append([]string{"key", "create", "--account", env.email, "--name", name}, flags...)...)))
	}
	s.gateway = env.serveWithKey(s.keys[0])
	return s
}

// send sends one request of the load, plain or streamed; one client in ten disconnects in the middle.
func (s *soakLoad) send(ctx context.Context) {
	kind := rand.IntN(10)
	// At temperature 0 the mock needs half the CPU for a token that it needs for sampling.
	body := `{"model":"m","prompt":"Once upon a time","max_tokens":8,"temperature":0`
	if kind < 5 {
		body += `,"stream":true`
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", strings.NewReader(body+"}"))
	if err != nil {
		s.t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+s.keys[rand.IntN(len(s.keys))])
	s.sent.Add(1)
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer resp.Body.Close()
	if kind == 0 {
		resp.Body.Read(make([]byte, 100)) // then the client disconnects
		s.disconnected.Add(1)
		return
	}
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		s.t.Error(err)
	case resp.StatusCode == http.StatusTooManyRequests:
		s.refused.Add(1)
	case resp.StatusCode == http.StatusOK && (kind >= 5 || strings.HasSuffix(string(text), "data: [DONE]\n\n")):
		s.served.Add(1)
	}
}

// injectFaults makes the first backend fail once in each way, with and without a retry that can help.
func (s *soakLoad) injectFaults() {
	for _, fault := range []mockvllm.Fault{
		{Kind: "oom"},
		{Kind: "nested"},
		{Kind: "reset"},
		{Kind: "reset_mid"},
		{Kind: "reset_mid", AfterEvents: 3},
		{Kind: "error_event", AfterEvents: 3},
		{Kind: "garbage"},
	} {
		s.mock.InjectFault(fault)
	}
}

// runFor sends requests at soakRate, with backend faults every second. Requests that the machine is too slow for are sent
// later.
func (s *soakLoad) runFor(duration time.Duration) {
	var wg sync.WaitGroup
	permits := make(chan struct{}, soakClients)
	for range soakClients {
		wg.Go(func() {
			for range permits {
				s.send(s.t.Context())
			}
		})
	}
	start := time.Now()
	tick, faultTick := time.NewTicker(10*time.Millisecond), time.NewTicker(time.Second)
	defer tick.Stop()
	defer faultTick.Stop()
	for due := 0; time.Since(start) < duration; {
		select {
		case <-faultTick.C:
			s.injectFaults()
		case <-tick.C:
			for now := int(soakRate * time.Since(start).Seconds()); due < now && len(permits) < soakClients; due++ {
				permits <- struct{}{}
			}
		}
	}
	close(permits)
	wg.Wait()
	s.client.CloseIdleConnections()
}

// waitIdle waits until the gateway holds nothing of a load any more, and returns its heap in use, in bytes.
func (g *gateway) waitIdle() (heap float64) {
	for _, name := range []string{
		"basegate_ledger_open_reservations", "basegate_ledger_reserved_tokens", "basegate_ledger_backlog_rows", "basegate_ledger_waiting_reservations",
		"basegate_admission_running_requests", "basegate_admission_waiting_requests", "basegate_admission_buffered_bytes", "basegate_admission_keys",
	} {
		poll.Until(g.t, name+" is 0", func() bool { return g.metric(name) == 0 })
	}
	// Idle connections to the backends are closed after four seconds.
	poll.Until(g.t, "fewer than 40 goroutines and 40 files are left", func() bool {
		return g.metric("go_goroutines") < 40 && g.metric("process_open_fds") < 40
	})
	g.get(g.admin, "/debug/pprof/heap?gc=1")
	return g.metric("go_memstats_heap_alloc_bytes")
}

// After the load nothing of it is left: no slot, reservation, goroutine, connection or memory.
func TestSoakLeavesNothingBehind(t *testing.T) {
	s := newSoakLoad(t)
	s.runFor(2 * time.Second) // fills pools and caches
	before, duration := s.waitIdle(), soakDuration(t)
	sent, served := s.sent.Load(), s.served.Load()
	start := time.Now()
	s.runFor(duration)
	took := time.Since(start)
	sent, served = s.sent.Load()-sent, s.served.Load()-served
	after := s.waitIdle()
	growth := fmt.Sprintf("heap %.1f MB, then %.1f MB", before/1e6, after/1e6)
	t.Logf("%.0f requests a second for %v; of %d requests in all %d were served, %d disconnected and %d were over budget; %s; "+
		"%.0f goroutines and %.0f open files after the load", float64(sent)/took.Seconds(), duration,
		s.sent.Load(), s.served.Load(), s.disconnected.Load(), s.refused.Load(), growth, s.metric("go_goroutines"), s.metric("process_open_fds"))
	if after > before+8e6 {
		t.Error("the heap grows: ", growth)
	}
	if served < sent/2 || s.disconnected.Load() == 0 || s.refused.Load() == 0 {
		t.Error("too few requests were served, disconnected or refused: the test has not tested enough")
	}
	if lost := s.metric("basegate_ledger_lost_rows_total"); lost != 0 {
		t.Errorf("%.0f ledger rows are lost", lost)
	}
}
