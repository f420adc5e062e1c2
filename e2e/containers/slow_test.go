//go:build containers

package containers_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

// throttle limits the container's egress to a rate until the test ends, by the kernel's token bucket filter.
func (s *service) throttle(rate string) {
	s.t.Helper()
	c, err := testcontainers.Run(s.t.Context(), buildToolImage(s.t, "scratch", "tc"),
		testcontainers.WithCmd(strings.Fields("qdisc replace dev eth0 root tbf latency 60s burst 2kb rate "+rate)...),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.NetworkMode = container.NetworkMode("container:" + s.ID)
			h.CapAdd = []string{"NET_ADMIN"}
		}),
		waitingFor(wait.ForExit().WithExitTimeout(waitTimeout)),
	)
	testcontainers.CleanupContainer(s.t, c)
	if err != nil {
		s.t.Fatal(err)
	}
	if state, err := c.State(s.t.Context()); err != nil || state.ExitCode != 0 {
		s.t.Fatalf("tc: %v, exit code %d: %s", err, state.ExitCode, (&service{DockerContainer: c}).log())
	}
}

// A stream may last any time as long as data arrives: on a connection so slow that it takes several times
// upstream.idle_timeout, it arrives complete, byte for byte, in one attempt.
func TestSlowNetworkDelaysAStreamAndChangesNothing(t *testing.T) {
	env := newEnvironment(t)
	slow := env.mock("slow")
	g := env.gateway("upstream: {idle_timeout: 5s}\n", map[string][]*service{"m": {slow}})
	const longRequest = `{"model": "m", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 300, "logprobs": 20, "stream": true}`
	identity := regexp.MustCompile(`"(id|created)":("[^"]*"|\d+),`)
	fast := send(t, g.request(longRequest))
	if fast.status != http.StatusOK || !strings.HasSuffix(fast.body, "data: [DONE]\n\n") || len(fast.body) < 60_000 {
		t.Fatalf("the fast network: got %d, %d bytes", fast.status, len(fast.body))
	}
	slow.throttle("40kbit")
	before := slow.completionRequests()
	throttled := send(t, g.request(longRequest))
	if identity.ReplaceAllString(throttled.body, "") != identity.ReplaceAllString(fast.body, "") {
		t.Errorf("the slow network: %d, %d bytes; the fast one: %d bytes", throttled.status, len(throttled.body), len(fast.body))
	}
	if n := slow.completionRequests() - before; n != 1 {
		t.Errorf("%d requests to the backend, want 1", n)
	}
}

// A response that does not start within upstream.first_byte_timeout is requested from another backend, and the client
// sees only the other response.
func TestTooSlowPlainResponseComesFromAnotherBackend(t *testing.T) {
	env := newEnvironment(t)
	slow, other := env.mock("slow"), env.mock("other")
	// A probe must not find the slow backend before a request does.
	g := env.gateway("probe: {interval: 1h}\nupstream: {first_byte_timeout: 12s}\n", map[string][]*service{"m": {slow, other}})
	slow.throttle("16kbit")
	const big = `{"model": "m", "prompt": "Once upon a time", "max_tokens": 300, "temperature": 0, "logprobs": 20}`
	for range 20 { // both are idle, so either may be selected first
		if got := send(t, g.request(big)); got.status != http.StatusOK {
			t.Fatalf("got %d %s, want 200", got.status, got.body)
		}
		if strings.Contains(g.metrics(), `basegate_attempts_total{backend="slow",class="timed_out",model="m"}`) {
			return
		}
	}
	t.Error("no attempt at the slow backend timed out")
}
