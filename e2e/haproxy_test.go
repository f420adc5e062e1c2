//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// haproxyProcess is HAProxy with deploy/haproxy/haproxy.cfg in front of gateways.
type haproxyProcess struct {
	t       *testing.T
	url     string
	metrics string // the address of its metrics
	log     *output
}

// startHAProxy starts HAProxy in front of two gateways, as the file has them.
func startHAProxy(t *testing.T, gateways [2]string) *haproxyProcess {
	t.Helper()
	return startHAProxyFor(t, gateways[:]...)
}

// startHAProxyFor starts HAProxy. Gateways beyond the second one are added to both backends as the file says. If HAProxy is
// not installed, the test is skipped, or fails if CI is set.
func startHAProxyFor(t *testing.T, gateways ...string) *haproxyProcess {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		program = "/usr/sbin/haproxy" // which PATH lacks for users other than root
	}
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("HAProxy is not installed: apt-get install haproxy")
		}
		t.Skip("HAProxy is not installed: apt-get install haproxy")
	}
	text, err := os.ReadFile("../deploy/haproxy/haproxy.cfg")
	must(t, err)
	listen, metrics := loopback.Address(t), loopback.Address(t)
	env := append(os.Environ(), "LISTEN="+listen, "METRICS="+metrics)
	second, lines := regexp.MustCompile(`(?m)^ +server gateway-2 .*\n`).FindString(string(text)), ""
	for i, address := range gateways {
		env = append(env, fmt.Sprintf("GATEWAY_%d=%s", i+1, address))
		if i >= 2 {
			lines += strings.NewReplacer("gateway-2", fmt.Sprint("gateway-", i+1), "GATEWAY_2", fmt.Sprint("GATEWAY_", i+1)).Replace(second)
		}
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	writeFile(t, file, strings.ReplaceAll(string(text), second, second+lines))
	h := &haproxyProcess{t: t, url: "http://" + listen, metrics: "http://" + metrics + "/metrics", log: newOutput(t)}
	cmd := exec.Command(program, "-db", "-f", file)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, h.log, h.log
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			last, _ := h.log.last(4 << 10)
			t.Logf("HAProxy wrote:\n%s", last)
		}
	})
	poll.Until(t, "HAProxy listens", func() bool {
		conn, err := net.Dial("tcp", listen)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	return h
}

// waitForServers waits until HAProxy's health checks have found what each gateway is in a backend: up or down.
func (h *haproxyProcess) waitForServers(backend string, up ...bool) {
	h.t.Helper()
	names := []string{"gateway-1", "gateway-2"}
	poll.Until(h.t, "HAProxy has checked the gateways", func() bool {
		resp, err := httpClient.Get(h.metrics)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		for i, name := range names {
			line := `haproxy_server_status{proxy="` + backend + `",server="` + name + `",state="UP"} `
			want := map[bool]string{true: "1", false: "0"}[up[i]]
			if !strings.Contains(string(text), line+want+"\n") {
				return false
			}
		}
		return err == nil
	})
}

// answers returns how many of n requests each gateway answered, by the body of its response.
func (h *haproxyProcess) answers(n int) map[string]int {
	h.t.Helper()
	counts := map[string]int{}
	for range n {
		resp, err := httpClient.Get(h.url + "/")
		must(h.t, err)
		body, err := io.ReadAll(resp.Body)
		must(h.t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			h.t.Errorf("got %d %s", resp.StatusCode, body)
		}
		counts[string(body)]++
	}
	return counts
}

// fakeGateway answers the probes as its test says, and everything else with its name.
type fakeGateway struct {
	notReady, notAlive atomic.Bool
	server             *httptest.Server
}

func startFakeGateway(t *testing.T, name string) *fakeGateway {
	t.Helper()
	g := &fakeGateway{}
	g.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && g.notReady.Load() || r.URL.Path == "/healthz" && g.notAlive.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, name)
	}))
	t.Cleanup(g.server.Close)
	return g
}

func (g *fakeGateway) address() string { return g.server.Listener.Addr().String() }

// Traffic follows /readyz. When no gateway is ready, it goes to those that are alive.
func TestHAProxyFollowsReadyzAndFallsBackToHealthz(t *testing.T) {
	t.Parallel() // it waits for HAProxy's checks
	one, two := startFakeGateway(t, "one"), startFakeGateway(t, "two")
	h := startHAProxy(t, [2]string{one.address(), two.address()})
	h.waitForServers("ready", true, true)
	if got := h.answers(20); got["one"] == 0 || got["two"] == 0 || len(got) != 2 {
		t.Errorf("both are ready: got %v, want both", got)
	}
	one.notReady.Store(true)
	h.waitForServers("ready", false, true)
	if got := h.answers(20); got["two"] != 20 {
		t.Errorf("one is not ready: got %v, want the other one only", got)
	}
	two.notReady.Store(true)
	h.waitForServers("ready", false, false)
	if got := h.answers(20); got["one"] == 0 || got["two"] == 0 || len(got) != 2 {
		t.Errorf("none is ready: got %v, want both", got)
	}
	two.notAlive.Store(true)
	h.waitForServers("alive", true, false)
	if got := h.answers(20); got["one"] != 20 {
		t.Errorf("none is ready and one is not alive: got %v, want the one that is alive", got)
	}
	two.notReady.Store(false)
	h.waitForServers("ready", false, true)
	if got := h.answers(20); got["two"] != 20 {
		t.Errorf("one is ready again: got %v, want that one only", got)
	}
}

// A gateway that was killed refuses connections before a health check notices it. No request fails for that.
func TestHAProxySendsRequestsOfAKilledGatewayToTheOther(t *testing.T) {
	one, two := startFakeGateway(t, "one"), startFakeGateway(t, "two")
	h := startHAProxy(t, [2]string{one.address(), two.address()})
	h.waitForServers("ready", true, true)
	one.server.Close()
	if got := h.answers(20); got["two"] != 20 {
		t.Errorf("got %v, want 20 responses of the gateway that runs", got)
	}
}

// startPair starts two gateways that know the same key, behind HAProxy.
func startPair(t *testing.T, mock *mockvllm.Process) (h *haproxyProcess, pair [2]*gateway) {
	t.Helper()
	first := newEnvironment(t, settings{}, mock.URL())
	secret := first.createKey("pair")
	copied := filepath.Join(t.TempDir(), "basegate.db")
	first.run("backup", copied)
	second := &environment{t: t, dir: t.TempDir(), email: first.email}
	second.config = filepath.Join(second.dir, "config.yaml")
	second.writeConfig(settings{database: copied}, mock.URL())
	pair = [2]*gateway{first.serveWithKey(secret), second.serveWithKey(secret)}
	h = startHAProxy(t, [2]string{strings.TrimPrefix(pair[0].url, "http://"), strings.TrimPrefix(pair[1].url, "http://")})
	h.waitForServers("ready", true, true)
	return h, pair
}

// stream opens a stream through HAProxy that the mock holds after n events.
func (h *haproxyProcess) stream(g *gateway, mock *mockvllm.Process, n int) (events *bufio.Reader, disconnect func()) {
	h.t.Helper()
	mock.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: n})
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	h.t.Cleanup(cancel)
	resp, err := httpClient.Do(g.request(ctx, http.MethodPost, h.url+"/v1/completions",
		`{"model": "m", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": true}`))
	must(h.t, err)
	h.t.Cleanup(func() { resp.Body.Close() })
	return bufio.NewReader(resp.Body), cancel
}

// readEvents reads n events, each a line and an empty line.
func readEvents(t *testing.T, r *bufio.Reader, n int) {
	t.Helper()
	for i := range n {
		line, err := r.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "data: {") {
			t.Fatalf("event %d: %v: %q", i+1, err, line)
		}
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
}

// Each event reaches the client while the backend holds the rest of its response; HAProxy and the gateway hold back one
// event at most, which is the gateway's. A client that disconnects ends its request at the backend.
func TestHAProxyPassesOnEventsAndDisconnects(t *testing.T) {
	t.Parallel() // it waits for HAProxy's checks
	mock := startMock(t, mockvllm.Options{})
	h, pair := startPair(t, mock)
	events, disconnect := h.stream(pair[0], mock, 5)
	readEvents(t, events, 4)
	poll.Until(t, "the stream alone runs at the backend", func() bool { return mock.Running() == 1 }) // its prompt has been counted
	disconnect()
	poll.Until(t, "the backend's request ends", func() bool { return mock.Running() == 0 })
}

// A gateway that drains completes its streams through HAProxy. New requests go to the other one, without an error.
func TestHAProxyFailsNoRequestWhileAGatewayDrains(t *testing.T) {
	t.Parallel() // it waits for HAProxy's checks
	mock := startMock(t, mockvllm.Options{})
	h, pair := startPair(t, mock)
	events, _ := h.stream(pair[0], mock, 5)
	readEvents(t, events, 4)
	draining, other := pair[0], pair[1]
	if other.sample(metricRunning) != "0" {
		draining, other = other, draining
	}
	draining.signal(syscall.SIGTERM)
	draining.waitForOutput(draining.stderr, `"draining"`)
	h.waitForServers("ready", draining != pair[0], draining != pair[1])
	through := *other
	through.url = h.url
	mock.ClearFaults()
	for range 10 {
		if r := through.complete(smallRequest); r.status != http.StatusOK {
			t.Errorf("got %d %s, want no failed request", r.status, r.body)
		}
	}
	rest, err := io.ReadAll(events)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream of the draining gateway: %v, it ended with %q", err, rest)
	}
	draining.waitStop()
}
