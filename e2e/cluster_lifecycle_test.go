//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	env := newEnvironment(t, settings{postgres: postgrestest.Shared(t), models: models})
	first = env.serve()
	return first, env.another("second").serveWithKey(first.secret)
}

// backendState returns the state of the only backend at a gateway.
func (g *gateway) backendState() string {
	return gjson.Get(g.get(g.admin, "/models").body, "0.backends.0.state").Str
}

func TestModelIsLaunchedAndStoppedOnceByTwoGateways(t *testing.T) {
	t.Parallel() // it waits for an idle model
	l := newLaunchedModel(t, time.Second)
	first, second := serveTwo(t, l.config("m", ", boot_estimate: 1s, idle_after: 3s", ", cold_wait: 60s"))
	both := []*gateway{first, second}
	var clients sync.WaitGroup
	for i := range 12 {
		clients.Go(func() {
			got, err := post(both[i%2].url, first.secret, smallRequest)
			if err != nil || got.status != http.StatusOK {
				t.Errorf("a request for the cold model: got %d %s, error %v", got.status, got.body, err)
			}
		})
	}
	clients.Wait()
	if got := l.ranCommands(); !slices.Equal(got, []string{"started"}) {
		t.Errorf("12 requests at two gateways ran %q, want one start", got)
	}
	for began := time.Now(); time.Since(began) < 6*time.Second; { // only the second gateway is used
		if got, err := post(second.url, first.secret, smallRequest); err != nil || got.status != http.StatusOK {
			t.Fatalf("got %d %s, error %v", got.status, got.body, err)
		}
		pause := time.NewTimer(200 * time.Millisecond)
		<-pause.C
	}
	if got := l.ranCommands(); !slices.Equal(got, []string{"started"}) {
		t.Errorf("while the second gateway uses the model: got %q, want no stop", got)
	}
	for _, g := range both {
		poll.Until(t, "the idle model is stopped", func() bool { return g.backendState() == "stopped" })
	}
	first.run("model", "warm", "m")
	poll.Until(t, "the model is ready at both", func() bool { return first.backendState() == "ready" && second.backendState() == "ready" })
	// A loaded machine may leave it idle for so long that it is stopped again.
	if got := l.ranCommands(); len(got) < 3 || !slices.Equal(got[:3], []string{"started", "stopped", "started"}) || slices.Contains(got[3:], "started") {
		t.Errorf("got %q, want a start, a stop and a start", got)
	}
}

func TestGatewayListShowsWhichGatewaysAreAlive(t *testing.T) {
	first, second := serveTwo(t, modelConfig("m", startMock(t, mockvllm.Options{}).URL()))
	states := func() string {
		return gjson.Get(first.run("gateway", "list", "--json"), "#.state").Raw
	}
	if got := gjson.Get(first.run("gateway", "list", "--json"), "#.name").Raw; got != `["first","second"]` {
		t.Errorf("got gateways %s, want first and second", got)
	}
	if got := states(); got != `["alive","alive"]` {
		t.Errorf("got states %s, want both alive", got)
	}
	text := first.run("gateway", "list")
	if !strings.HasPrefix(text, "GATEWAY ") || strings.Count(text, " alive ") != 2 {
		t.Errorf("got %s", text)
	}
	second.signal(syscall.SIGTERM)
	<-second.exited
	if got := states(); got != `["alive","ended"]` {
		t.Errorf("after the second has stopped: got states %s", got)
	}
}

// The model's program runs on when the gateway that has launched it is killed, so the other one waits for it and launches
// nothing.
func TestBootOfAKilledGatewayIsNotRepeated(t *testing.T) {
	t.Parallel() // it waits for a slow boot
	l := newLaunchedModel(t, 20*time.Second)
	first, second := serveTwo(t, l.config("m", ", boot_estimate: 20s", ", cold_wait: 2m"))
	first.sendAsync(t.Context(), first.secret, smallRequest)
	poll.Until(t, "the model is launched", func() bool { return len(l.ranCommands()) == 1 })
	poll.Until(t, "the other gateway knows", func() bool { return second.backendState() == "starting" })
	waiting := second.sendAsync(t.Context(), first.secret, smallRequest)
	first.signal(syscall.SIGKILL)
	<-first.exited
	poll.Within(t, takeoverLimit, "the other gateway takes over", func() bool {
		return strings.Contains(second.stderr.String(), "this one takes over")
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
