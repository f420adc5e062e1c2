//go:build containers

package containers_test

import (
	"net/http"
	"slices"
	"strconv"
	"testing"

	"basegate/internal/poll"
)

// A request for a model that is stopped is what starts its service: the gateway, within its container, runs Compose
// against the host's Docker. `model stop` and idling stop it again, and the same container is started the next time.
func TestARequestStartsItsModelThroughTheSocket(t *testing.T) {
	p := newProject(t)
	g := p.up()

	cold := g.ask("llama-8b")
	if cold.status != http.StatusServiceUnavailable || cold.code() != "modal_cold_boot" {
		t.Fatalf("of a model that is stopped: %d %s", cold.status, cold.body)
	}
	if wait, err := strconv.Atoi(cold.header.Get("Retry-After")); err != nil || wait < 1 || wait > 60 {
		t.Errorf("Retry-After: %q", cold.header.Get("Retry-After"))
	}
	if again := cold.header.Get("X-Should-Retry"); again != "true" {
		t.Errorf("x-should-retry: %q", again)
	}
	poll.Until(t, "the model answers", func() bool { return g.ask("llama-8b").status == http.StatusOK })
	if running := p.running(); !slices.Equal(running, []string{"gateway", "llama-8b"}) {
		t.Errorf("%v run", running)
	}
	started := p.compose("ps", "-q", "llama-8b")

	p.basegate("model", "stop", "llama-8b")
	poll.Until(t, "the service is stopped", func() bool { return slices.Equal(p.running(), []string{"gateway"}) })
	poll.Until(t, "the model answers again", func() bool { return g.ask("llama-8b").status == http.StatusOK })
	if now := p.compose("ps", "-q", "llama-8b"); now != started {
		t.Errorf("the container was made anew: %q, before %q", now, started)
	}
	if n := restarts(t, started); n != 0 {
		t.Errorf("Docker has started it %d times by itself", n)
	}
}

// With idle_after of seconds the service is stopped without anybody's asking for it.
func TestAnIdleModelIsStoppedThroughTheSocket(t *testing.T) {
	p := newProject(t, "e2e/containers/testdata/idle.override.yml")
	g := p.up()
	poll.Until(t, "the model answers", func() bool { return g.ask("llama-8b").status == http.StatusOK })
	poll.Until(t, "the service is stopped", func() bool { return slices.Equal(p.running(), []string{"gateway"}) })
	poll.Until(t, "the model answers again", func() bool { return g.ask("llama-8b").status == http.StatusOK })
}

// A service that cannot be started: its image is nowhere. The client is told so, and not to wait.
func TestALaunchThatFailsIsToldToTheClient(t *testing.T) {
	p := newProject(t, "e2e/containers/testdata/broken.override.yml")
	g := p.up()
	poll.Until(t, "the launch has failed", func() bool {
		answer := g.ask("llama-8b")
		return answer.status == http.StatusBadGateway && answer.code() == "upstream_unreachable"
	})
}
