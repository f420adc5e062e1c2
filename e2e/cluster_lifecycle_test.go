//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// serveTwo starts two gateways on one PostgreSQL database with a model that they launch.
func serveTwo(t *testing.T, models string) (first, second *gateway) {
	t.Helper()
	env := newEnvironment(t, settings{postgres: postgrestest.Shared(t), probeTimeout: "20s", models: models})
	first = env.serve()
	return first, env.another("second").serveWithKey(first.secret)
}

// backendState returns the state of the only backend at a gateway.
func (g *gateway) backendState() string {
	return gjson.Get(g.get(g.admin, "/models").body, "0.backends.0.state").Str
}

func TestGatewayListShowsWhichGatewaysAreAlive(t *testing.T) {
	first, second := serveTwo(t, modelConfig("m", startMock(t, mockvllm.Options{}).URL()))
	states := func() string {
		return gjson.Get(first.run("gateway", "list", "--json"), "#.state").Raw
	}
	if got := gjson.Get(first.run("gateway", "list", "--json"), "#.name").Raw; got != `["first","second"]` {
		t.Errorf("got gateways %s, want first and second", got)
	}
	poll.Until(t, "both are alive", func() bool { return states() == `["alive","alive"]` })
	poll.Until(t, "the table has both", func() bool {
		text := first.run("gateway", "list")
		return strings.HasPrefix(text, "GATEWAY ") && strings.Count(text, " alive ") == 2
	})
	second.signal(syscall.SIGTERM)
	<-second.exited
	poll.Until(t, "the second has ended", func() bool { return states() == `["alive","ended"]` })
}

// The model's program runs on when the gateway that has launched it is killed, so the other one waits for it and launches
// nothing.
func TestBootOfAKilledGatewayIsNotRepeated(t *testing.T) {
	t.Parallel() // it waits for a slow boot
	l := newLaunchedModel(t, 40*time.Second)
	models := l.config("m", ", boot_estimate: 40s", ", cold_wait: 2m")
	first, second := serveTwo(t, models)
	first.sendAsync(t.Context(), first.secret, smallRequest)
	poll.Until(t, "the model is launched", func() bool { return len(l.ranCommands()) == 1 })
	poll.Until(t, "the other gateway knows", func() bool { return second.backendState() == "starting" })
	waiting := second.sendAsync(t.Context(), first.secret, smallRequest)
	first.signal(syscall.SIGKILL)
	<-first.exited
	poll.Until(t, "the other gateway takes over", func() bool {
		return strings.Contains(second.stderr.String(), "this gateway takes over the lead")
	})
	if got := <-waiting; got.status != http.StatusOK {
		t.Errorf("the request that waited: got %d %s, want 200", got.status, got.body)
	}
	if got := l.ranCommands(); !slices.Equal(got, []string{"started"}) {
		t.Errorf("got %q, want one start", got)
	}
	second.run("model", "stop", "m")
	poll.Until(t, "the model is stopped", func() bool { return fmt.Sprint(l.ranCommands()) == "[started stopped]" })
}
