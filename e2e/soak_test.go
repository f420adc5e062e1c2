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
	soakRate    = 2000 // requests a second, where the machine can
	soakClients = 200  // at a time, at the most
	soakKeys    = 10   // with the default of slots they are too few for all the clients, so some wait
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

// soak is a load on a gateway, by many keys.
type soak struct {
	*gateway
	mock *mockvllm.Process
	keys []string
	pool *http.Client

	asked, served, refused, left atomic.Int64
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{mock: startMock(t, mockvllm.Options{}), pool: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: soakClients}}}
	// The second backend answers at once, or the mock would take more of the machine than the gateway.
	quick := startMock(t, mockvllm.Options{Instant: true})
	// The breaker would refuse everything else for as long as the backend's faults make it open.
	place := newSite(t, settings{rest: "breaker: {consecutive_failures: 1000000}"}, s.mock.URL(), quick.URL())
	for i := range soakKeys {
		flags := []string{"--monthly-budget", "1_000_000_000_000"}
		if i == 0 {
			flags = []string{"--output-budget", "200"} // is spent soon
		}
		name := fmt.Sprintf("key %d", i)
		s.keys = append(s.keys, strings.TrimSpace(place.run(append([]string{"key", "create", "--account", place.email, "--name", name}, flags...)...)))
	}
	s.gateway = place.serveTo(s.keys[0])
	return s
}

// ask makes one request of the load: plain or streamed, stayed for or left.
func (s *soak) ask(ctx context.Context) {
	kind := rand.IntN(10)
	// At a temperature of 0 the mock chooses a token for half of what it costs it by chance.
	body := `{"model":"m","prompt":"Once upon a time","max_tokens":8,"temperature":0`
	if kind < 5 {
		body += `,"stream":true`
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", strings.NewReader(body+"}"))
	if err != nil {
		s.t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+s.keys[rand.IntN(len(s.keys))])
	s.asked.Add(1)
	resp, err := s.pool.Do(req)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer resp.Body.Close()
	if kind == 0 {
		resp.Body.Read(make([]byte, 100)) // it leaves in the middle
		s.left.Add(1)
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

// hurt has the backend fail in every way that a request can survive or not.
func (s *soak) hurt() {
	for _, fault := range []mockvllm.Fault{
		{Kind: "oom"}, {Kind: "nested"}, {Kind: "reset"}, {Kind: "reset_mid"}, {Kind: "reset_mid", AfterEvents: 3}, {Kind: "error_event", AfterEvents: 3}, {Kind: "garbage"},
	} {
		s.mock.InjectFault(fault)
	}
}

// load asks at the rate, with some failures every second. What the machine could not take in time it asks for later.
func (s *soak) load(span time.Duration) {
	var all sync.WaitGroup
	tickets := make(chan struct{}, soakClients)
	for range soakClients {
		all.Go(func() {
			for range tickets {
				s.ask(s.t.Context())
			}
		})
	}
	began := time.Now()
	beat, failure := time.NewTicker(10*time.Millisecond), time.NewTicker(time.Second)
	defer beat.Stop()
	defer failure.Stop()
	for due := 0; time.Since(began) < span; {
		select {
		case <-failure.C:
			s.hurt()
		case <-beat.C:
			for now := int(soakRate * time.Since(began).Seconds()); due < now && len(tickets) < soakClients; due++ {
				tickets <- struct{}{}
			}
		}
	}
	close(tickets)
	all.Wait()
	s.pool.CloseIdleConnections()
}

// rest waits until nothing of a load is held any more, and returns the memory in use.
func (g *gateway) rest() (heap float64) {
	for _, name := range []string{
		"basegate_ledger_open_reservations", "basegate_ledger_reserved_tokens", "basegate_ledger_backlog_rows", "basegate_ledger_waiting_reservations",
		"basegate_admission_running_requests", "basegate_admission_waiting_requests", "basegate_admission_buffered_bytes", "basegate_admission_keys",
	} {
		poll.Until(g.t, name+" is 0", func() bool { return g.metric(name) == 0 })
	}
	// An idle connection to the backend lasts four seconds.
	poll.Until(g.t, "the goroutines and files are as few as before", func() bool {
		return g.metric("go_goroutines") < 40 && g.metric("process_open_fds") < 40
	})
	g.get(g.admin, "/debug/pprof/heap?gc=1")
	return g.metric("go_memstats_heap_alloc_bytes")
}

// After the load nothing is left of it: no slot, reservation, goroutine, connection or byte.
func TestSoakLeavesNothingBehind(t *testing.T) {
	s := newSoak(t)
	s.load(2 * time.Second) // pools and caches fill
	before, span := s.rest(), soakFor(t)
	asked, served := s.asked.Load(), s.served.Load()
	began := time.Now()
	s.load(span)
	took := time.Since(began)
	asked, served = s.asked.Load()-asked, s.served.Load()-served
	after := s.rest()
	grown := fmt.Sprintf("heap %.1f MB, then %.1f MB", before/1e6, after/1e6)
	t.Logf("%.0f requests a second for %v; of %d in all %d were served, %d left and %d were over budget; %s; %.0f goroutines and %.0f files in the end",
		float64(asked)/took.Seconds(), span, s.asked.Load(), s.served.Load(), s.left.Load(), s.refused.Load(), grown, s.metric("go_goroutines"), s.metric("process_open_fds"))
	if after > before+8e6 {
		t.Error("memory grows: ", grown)
	}
	if served < asked/2 || s.left.Load() == 0 || s.refused.Load() == 0 {
		t.Error("the load was not what it should be, so this has shown nothing")
	}
	if lost := s.metric("basegate_ledger_lost_rows_total"); lost != 0 {
		t.Errorf("%.0f rows are lost", lost)
	}
}
