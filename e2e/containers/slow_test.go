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

// throttle limits what the container sends to a rate, by the kernel's token bucket, until the test ends.
func (b *box) throttle(rate string) {
	b.t.Helper()
	c, err := testcontainers.Run(b.t.Context(), imageOf(b.t, "scratch", "tc"),
		testcontainers.WithCmd(strings.Fields("qdisc replace dev eth0 root tbf latency 10s burst 2kb rate "+rate)...),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.NetworkMode = container.NetworkMode("container:" + b.ID)
			h.CapAdd = []string{"NET_ADMIN"}
		}),
		testcontainers.WithWaitStrategy(wait.ForExit()),
	)
	testcontainers.CleanupContainer(b.t, c)
	if err != nil {
		b.t.Fatal(err)
	}
	if state, err := c.State(b.t.Context()); err != nil || state.ExitCode != 0 {
		b.t.Fatalf("tc: %v, exit code %d: %s", err, state.ExitCode, (&box{DockerContainer: c}).log())
	}
}

// A stream may take as long as it likes as long as something comes: over a line on which it lasts several times
// upstream.idle_timeout it arrives whole, byte for byte, from the one attempt that was made.
func TestASlowLineDelaysAStreamAndChangesNothing(t *testing.T) {
	s := newSite(t)
	slow := s.mock("slow")
	g := s.gateway("upstream: {idle_timeout: 2s}\n", map[string][]*box{"m": {slow}})
	const wordy = `{"model": "m", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 300, "logprobs": 20, "stream": true}`
	identity := regexp.MustCompile(`"(id|created)":("[^"]*"|\d+),`)
	fast := send(t, g.request(wordy))
	if fast.status != http.StatusOK || !strings.HasSuffix(fast.body, "data: [DONE]\n\n") || len(fast.body) < 60_000 {
		t.Fatalf("the fast line: %d, %d bytes", fast.status, len(fast.body))
	}
	slow.throttle("96kbit")
	before := slow.asked()
	throttled := send(t, g.request(wordy))
	if identity.ReplaceAllString(throttled.body, "") != identity.ReplaceAllString(fast.body, "") {
		t.Errorf("the slow line: %d, %d bytes; the fast one: %d bytes", throttled.status, len(throttled.body), len(fast.body))
	}
	if n := slow.asked() - before; n != 1 {
		t.Errorf("asked the backend %d times", n)
	}
}

// An answer that does not come through in upstream.first_byte_timeout is asked of another backend, and the client sees
// none of it.
func TestAPlainAnswerThatIsTooSlowComesFromAnotherBackend(t *testing.T) {
	s := newSite(t)
	slow, other := s.mock("slow"), s.mock("other")
	// No further probe, or the slow backend would be found out before a request is.
	g := s.gateway("probe: {interval: 1h}\nupstream: {first_byte_timeout: 4s}\n", map[string][]*box{"m": {slow, other}})
	slow.throttle("16kbit")
	const big = `{"model": "m", "prompt": "Once upon a time", "max_tokens": 300, "temperature": 0, "logprobs": 20}`
	for range 20 { // both are as idle, so either may be taken first
		if answer := send(t, g.request(big)); answer.status != http.StatusOK {
			t.Fatalf("%d %s", answer.status, answer.body)
		}
		if strings.Contains(g.metrics(), `basegate_attempts_total{backend="slow",class="timed_out",model="m"}`) {
			return
		}
	}
	t.Error("the slow backend was never too slow")
}
