//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/internal/wait"
	"basegate/mockvllm"
)

const (
	faultClients = 32
	// The gateway's timeouts for a backend are shorter than the longest time for which the networks block traffic.
	faultSettings = `upstream: {connect_timeout: 2s, first_byte_timeout: 3s, idle_timeout: 2s}
breaker: {consecutive_failures: 5, open_for: 500ms}`
	// A drain ends soon, and a test machine that stalls for seconds costs no client its connection.
	faultServer = ", drain_timeout: 1s, read_header_timeout: 1m"
	// capGrowth is added to the shared account's cap at each start of the gateway, in tokens.
	capGrowth = 1000
)

// chaosRun is a gateway between two faulty networks, with clients, backends and everything that the clients received.
type chaosRun struct {
	t             *testing.T
	seed          uint64
	env           *environment
	clientRelay   *relay    // between the clients and the gateway
	backendRelays [2]*relay // between the gateway and each backend
	backends      [2]*backendProcess
	gateways      []*gatewayProcess
	requests      []requestSpec
	longRequests  []requestSpec // their responses exceed the socket buffers on the way
	uncappedKey   string        // secret of the key without a cap
	caps          []tokenCap
	activeKeys    atomic.Pointer[[]string] // secrets that clients use at present

	sent     atomic.Int64 // number of requests
	mu       sync.Mutex
	outcomes []outcome
}

type backendProcess struct {
	*process
	instance *instance
}

type gatewayProcess struct {
	*gateway
	instance *instance
}

// tokenCap is a cap and the keys that it limits together.
type tokenCap struct {
	kind    capKind
	limit   int64
	secrets []string
}

// faultDuration returns the duration of the chaos run: BASEGATE_FAULTS, or 15 seconds.
func faultDuration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BASEGATE_FAULTS")
	if text == "" {
		return 15 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// faultSeed returns the seed of all random decisions of the run: BASEGATE_FAULTS_SEED, or a random one. The seed fixes the
// sequence of faults, not which requests they hit.
func faultSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("BASEGATE_FAULTS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("BASEGATE_FAULTS_SEED=%d", seed)
	return seed
}

func newChaosRun(t *testing.T) *chaosRun {
	t.Helper()
	c := &chaosRun{t: t, seed: faultSeed(t)}
	mock := startMock(t, mockvllm.Options{})
	c.requests = requestMix(t, 400, mock)
	text, choices := strings.Repeat("It was the best of times. ", 800), int64(8)
	for _, stream := range []bool{false, true} {
		c.longRequests = append(c.longRequests, requestSpec{
			body:   fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2,"n":%d,"echo":true,"stream":%t}`, text, choices, stream),
			stream: stream, n: choices, maxTokens: 2, prompt: int64(len(encode(t, mock, text, true))),
		})
	}
	c.clientRelay = newRelay(t, c.rng("client relay"))
	for i := range c.backendRelays {
		c.backendRelays[i] = newRelay(t, c.rng(fmt.Sprint("backend relay ", i)))
		c.startBackend(i)
	}
	c.env = newEnvironment(t, settings{server: faultServer, extra: faultSettings}, c.backendRelays[0].url(), c.backendRelays[1].url())
	c.uncappedKey = c.env.createKey("uncapped")
	c.env.run("account", "create", "bob@example.org")
	sharedCap := tokenCap{kind: capKinds[0]}
	for _, name := range []string{"one", "two"} {
		sharedCap.secrets = append(sharedCap.secrets, strings.TrimSpace(c.env.run("key", "create", "--account", "bob@example.org", "--name", name)))
	}
	c.caps = []tokenCap{sharedCap}
	c.startGateway()
	return c
}

// rng returns a random number generator that depends on the seed and the purpose alone.
func (c *chaosRun) rng(purpose string) *rand.Rand {
	stream := uint64(0)
	for _, b := range []byte(purpose) {
		stream = stream*31 + uint64(b)
	}
	return rand.New(rand.NewPCG(c.seed, stream))
}

// startBackend starts a mock process and points backend relay i to it.
func (c *chaosRun) startBackend(i int) {
	c.t.Helper()
	p, url := startMockProcess(c.t, "--token-delay", "2ms")
	c.backends[i] = &backendProcess{process: p, instance: &instance{address: strings.TrimPrefix(url, "http://")}}
	c.backendRelays[i].setServer(c.backends[i].instance)
}

func (c *chaosRun) killBackend(i int) {
	c.t.Helper()
	c.backends[i].instance.recordExit(killed, nil)
	c.backendRelays[i].setServer(nil)
	c.backends[i].signal(syscall.SIGKILL)
	<-c.backends[i].exited
}

// startGateway starts a gateway process on the same database, with one more key that has a small cap, and raises the cap
// of the shared account.
func (c *chaosRun) startGateway() {
	c.t.Helper()
	kind := capKinds[len(c.gateways)%len(capKinds)]
	capped := tokenCap{kind: kind, limit: kind.limit / 20}
	capped.secrets = []string{strings.TrimSpace(c.env.run("key", "create", "--account", c.env.email,
		"--name", fmt.Sprint("capped ", len(c.gateways)), kind.flag, fmt.Sprint(capped.limit)))}
	c.caps[0].limit += capGrowth
	c.env.run("account", "set", "bob@example.org", c.caps[0].kind.flag, fmt.Sprint(c.caps[0].limit))
	c.caps = append(c.caps, capped)

	gw := &gatewayProcess{gateway: c.env.serveWithKey(c.uncappedKey)}
	gw.instance = &instance{address: strings.TrimPrefix(gw.url, "http://")}
	c.gateways = append(c.gateways, gw)
	c.activeKeys.Store(&[]string{
		c.uncappedKey, c.uncappedKey, c.uncappedKey, c.uncappedKey,
		capped.secrets[0], c.caps[0].secrets[0], c.caps[0].secrets[1],
	})
	c.clientRelay.setServer(gw.instance)
}

// gateway returns the gateway process that was started last.
func (c *chaosRun) gateway() *gatewayProcess { return c.gateways[len(c.gateways)-1] }

func (c *chaosRun) killGateway() {
	c.t.Helper()
	gw := c.gateway()
	ended := c.endedAt(gw.instance)
	poll.Until(c.t, "the log has the requests that have ended", func() bool {
		text := gw.stderr.String()
		for id := range ended {
			if !strings.Contains(text, `"msg":"request","request_id":"`+id+`"`) {
				return false
			}
		}
		return true
	})
	gw.instance.recordExit(killed, ended)
	c.clientRelay.setServer(nil)
	gw.signal(syscall.SIGKILL)
	<-gw.exited
}

// stopGateway drains the gateway, for at most its drain_timeout, and checks that no row is left in flight.
func (c *chaosRun) stopGateway() {
	c.t.Helper()
	gw := c.gateway()
	gw.instance.recordExit(stopped, nil)
	gw.signal(syscall.SIGTERM)
	gw.waitStop()
	c.clientRelay.setServer(nil)
	rows, err := c.env.ledgerRows(c.t.Context())
	must(c.t, err)
	for _, row := range rows {
		if row.State == "in_flight" {
			c.t.Errorf("a row is in flight after the stop: %+v", row)
		}
	}
}

// killProcesses kills, stops and restarts processes until ctx ends, and counts what it did: first it kills the gateway,
// then a backend, then whichever rng selects.
func (c *chaosRun) killProcesses(ctx context.Context, rng *rand.Rand) (count map[string]int) {
	c.t.Helper()
	count = map[string]int{}
	for i := 0; wait.For(ctx, time.Second+randomUpTo(rng, 3*time.Second)); i++ {
		which, down := rng.IntN(6), randomUpTo(rng, time.Second)
		if i < 2 {
			which = 3 - 3*i
		}
		switch which {
		case 0, 1:
			count["backend killed"]++
			c.killBackend(which)
			wait.For(ctx, down)
			c.startBackend(which)
			continue
		case 2:
			count["gateway stopped"]++
			c.stopGateway()
		default:
			count["gateway killed"]++
			c.killGateway()
		}
		wait.For(ctx, down/4)
		c.startGateway()
	}
	return count
}

// sendRequests is one client: it sends requests one after another until ctx ends.
func (c *chaosRun) sendRequests(ctx context.Context, rng *rand.Rand, client *http.Client) {
	for interval := time.Duration(0); wait.For(ctx, randomUpTo(rng, interval)); {
		keys := *c.activeKeys.Load()
		spec, secret := c.requests[rng.IntN(len(c.requests))], keys[rng.IntN(len(keys))]
		if rng.IntN(60) == 0 {
			spec, secret = c.longRequests[rng.IntN(len(c.longRequests))], c.uncappedKey
		}
		spec.client = client
		timeout := longTimeout
		if rng.IntN(10) == 0 {
			timeout = randomUpTo(rng, 2*time.Second)
		}
		got := c.send(spec, secret, timeout)
		c.record(got)
		if interval = 60 * time.Millisecond; got.kind == connectionLost {
			interval = time.Second
		}
	}
}

// startLoad starts all clients, half of them with kept connections. The returned function stops them and waits.
func (c *chaosRun) startLoad() (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	for i := range faultClients {
		rng := c.rng(fmt.Sprint("client ", i))
		wg.Go(func() {
			if i%2 == 0 {
				c.sendRequests(ctx, rng, nil)
				return
			}
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			c.sendRequests(ctx, rng, client)
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// injectNetworkFaults makes all networks fail until ctx ends. The returned function waits for the end.
func (c *chaosRun) injectNetworkFaults(ctx context.Context) (wait func()) {
	relays := append(c.backendRelays[:], c.clientRelay)
	counts := make([]map[string]int, len(relays))
	var wg sync.WaitGroup
	for i, r := range relays {
		wg.Go(func() { counts[i] = r.injectFaults(ctx, c.rng(fmt.Sprint("faults of relay ", i))) })
	}
	return func() {
		c.t.Helper()
		wg.Wait()
		all, sum := map[string]int{}, 0
		for _, count := range counts {
			for name, n := range count {
				all[name] += n
				sum += n
			}
		}
		c.t.Logf("%d network faults: %v", sum, all)
	}
}

// run injects network faults and kills processes under load for the given duration, and returns when all has stopped.
func (c *chaosRun) run(duration time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), duration)
	defer c.startLoad()()
	defer c.injectNetworkFaults(ctx)()
	defer cancel()
	// No process is killed in the last quarter: the last gateway must run long enough to show a leak.
	killing, stopKilling := context.WithTimeout(ctx, duration*3/4)
	defer stopKilling()
	c.t.Logf("process exits: %v", c.killProcesses(killing, c.rng("process kills")))
	<-ctx.Done()
}

// Under load, the networks on both sides of the gateway fail in every known way and processes are killed. Every client
// gets an unambiguous outcome, the ledger has each completed response once with its usage, no cap is exceeded, nothing
// leaks, and the log explains each failure.
func TestFaultsOnBothSidesLeaveNoOutcomeAmbiguous(t *testing.T) {
	t.Parallel() // it runs for a given time
	c := newChaosRun(t)
	c.run(faultDuration(t))
	g := c.gateway()
	poll.Until(t, "a request completes", func() bool {
		spec := c.requests[0]
		spec.disconnects = false
		got := c.send(spec, g.secret, longTimeout)
		c.record(got)
		return got.kind == completeResponse || got.kind == completeStream
	})
	g.waitIdle()
	t.Logf("%.0f goroutines and %.0f open files after the run", g.metric("go_goroutines"), g.metric("process_open_fds"))
	if lost := g.metric("basegate_ledger_lost_rows_total"); lost != 0 {
		t.Errorf("%.0f ledger rows are lost", lost)
	}
	g.signal(syscall.SIGTERM)
	g.waitStop()
	rows, err := c.env.ledgerRows(t.Context())
	must(t, err)
	c.verify(rows)
}
