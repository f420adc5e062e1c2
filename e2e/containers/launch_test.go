//go:build containers

package containers_test

import (
	"net/http"
	"slices"
	"strconv"
	"testing"

	"basegate/internal/poll"
)

// A request for a stopped model starts its service: the gateway runs Compose in its container, on the host's Docker.
// `model stop` stops the service, and the next request starts the same container.
func TestRequestStartsItsModelThroughTheSocket(t *testing.T) {
	p := newSocketProject(t)
	g := p.up()

	cold := g.completeModel("llama-8b")
	if cold.status != http.StatusServiceUnavailable || cold.errorCode() != "modal_cold_boot" {
		t.Fatalf("a stopped model: got %d %s, want 503 modal_cold_boot", cold.status, cold.body)
	}
	if wait, err := strconv.Atoi(cold.header.Get("Retry-After")); err != nil || wait < 1 || wait > 59 {
		t.Errorf("got Retry-After %q, want 1 to 59", cold.header.Get("Retry-After"))
	}
	if again := cold.header.Get("X-Should-Retry"); again != "true" {
		t.Errorf("got X-Should-Retry %q, want true", again)
	}
	poll.Until(t, "the model serves a request", func() bool { return g.completeModel("llama-8b").status == http.StatusOK })
	if running := p.running(); !slices.Equal(running, []string{"gateway", "llama-8b"}) {
		t.Errorf("%v are running, want gateway and llama-8b", running)
	}
	started := p.compose("ps", "-q", "llama-8b")

	p.basegate("model", "stop", "llama-8b")
	poll.Until(t, "the service is stopped", func() bool { return slices.Equal(p.running(), []string{"gateway"}) })
	poll.Until(t, "the model serves a request again", func() bool { return g.completeModel("llama-8b").status == http.StatusOK })
	if now := p.compose("ps", "-q", "llama-8b"); now != started {
		t.Errorf("the container was recreated: %q, before %q", now, started)
	}
	if n := restartCount(t, started); n != 0 {
		t.Errorf("Docker restarted it %d times, want 0", n)
	}
}

// An idle service is stopped after idle_after.
func TestIdleModelIsStoppedThroughTheSocket(t *testing.T) {
	p := newSocketProject(t, "e2e/containers/testdata/idle.override.yml")
	g := p.up()
	poll.Until(t, "the model serves a request", func() bool { return g.completeModel("llama-8b").status == http.StatusOK })
	poll.Until(t, "the service is stopped", func() bool { return slices.Equal(p.running(), []string{"gateway"}) })
	poll.Until(t, "the model serves a request again", func() bool { return g.completeModel("llama-8b").status == http.StatusOK })
}

// If a service cannot be started because its image does not exist, the client gets an error instead of a cold boot.
func TestFailedLaunchIsReportedToTheClient(t *testing.T) {
	p := newSocketProject(t, "e2e/containers/testdata/broken.override.yml")
	g := p.up()
	poll.Until(t, "the failed launch is reported", func() bool {
		got := g.completeModel("llama-8b")
		return got.status == http.StatusBadGateway && got.errorCode() == "upstream_unreachable"
	})
}
