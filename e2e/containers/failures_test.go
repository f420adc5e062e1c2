//go:build containers

package containers_test

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"basegate/internal/poll"
)

// The tests in this file fail whole containers: a process that stops responding, an address that disappears, a port that
// changes. docs/api.md says what clients must see then.

func (s *service) pause() {
	s.t.Helper()
	if _, err := docker.ContainerPause(s.t.Context(), s.ID, client.ContainerPauseOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *service) unpause() {
	s.t.Helper()
	if _, err := docker.ContainerUnpause(s.t.Context(), s.ID, client.ContainerUnpauseOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *service) kill() {
	s.t.Helper()
	if _, err := docker.ContainerKill(s.t.Context(), s.ID, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		s.t.Fatal(err)
	}
}

// restart stops the container as an operator would, and starts it.
func (s *service) restart() {
	s.t.Helper()
	if err := s.Stop(s.t.Context(), nil); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.updateURL("8000/tcp")
}

// disconnect removes the container from its network: running requests get neither a response nor a reset.
func (s *service) disconnect(net *testcontainers.DockerNetwork) {
	s.t.Helper()
	if _, err := docker.NetworkDisconnect(s.t.Context(), net.ID, client.NetworkDisconnectOptions{Container: s.ID}); err != nil {
		s.t.Fatal(err)
	}
}

// reconnect adds the container to its network again, with its old host name.
func (s *service) reconnect(net *testcontainers.DockerNetwork) {
	s.t.Helper()
	_, err := docker.NetworkConnect(s.t.Context(), net.ID, client.NetworkConnectOptions{
		Container: s.ID, EndpointConfig: &network.EndpointSettings{Aliases: []string{s.name}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// load is clients that send plain requests one after another. Every request must succeed.
type load struct {
	completed atomic.Int64
	done      chan struct{}
	clients   sync.WaitGroup
}

func (g *gateway) startLoad(clients int) *load {
	l := &load{done: make(chan struct{})}
	for range clients {
		l.clients.Go(func() {
			for {
				select {
				case <-l.done:
					return
				default:
				}
				got, err := trySend(g.request(completion(8, false)))
				if err != nil || got.status != http.StatusOK {
					g.t.Errorf("got %v, %d %s, want 200", err, got.status, got.body)
				}
				l.completed.Add(1)
			}
		})
	}
	return l
}

// waitForMore waits for n more responses.
func (l *load) waitForMore(t *testing.T, n int64) {
	t.Helper()
	from := l.completed.Load()
	poll.Until(t, "more requests are completed", func() bool { return l.completed.Load() >= from+n })
}

func (l *load) stop() {
	close(l.done)
	l.clients.Wait()
}

// isError reports whether event is an API error with the code.
func isError(event, code string) bool {
	return response{body: event}.errorCode() == code && json.Valid([]byte(event))
}

func TestNoRequestFailsWhenOneOfTwoBackendsIsKilled(t *testing.T) {
	env := newEnvironment(t)
	victim, other := env.mock("doomed", "--token-delay", "5ms"), env.mock("other", "--token-delay", "5ms")
	g := env.gateway(fastFailureSettings, map[string][]*service{"m": {victim, other}})
	clients := g.startLoad(8)
	clients.waitForMore(t, 50)
	if victim.completionRequests() == 0 || other.completionRequests() == 0 {
		t.Error("a backend got no request, so its death tests nothing")
	}
	victim.kill()
	clients.waitForMore(t, 200)
	clients.stop()
}

// A stream that has started cannot move to another backend: it ends with an error event and never looks complete.
func TestStreamOfAKilledBackendEndsWithAnError(t *testing.T) {
	env := newEnvironment(t)
	victim := env.mock("doomed", "--token-delay", "200ms")
	g := env.gateway(fastFailureSettings, map[string][]*service{"m": {victim}})
	started := g.startStream(2000)
	victim.kill()
	_, last := started.readAll() // the backend's kernel may send a reset or a FIN
	if !isError(last, "upstream_unreachable") && !isError(last, "upstream_server_error") {
		t.Errorf("the stream ended with %s", last)
	}
	if got := g.complete(2); got.status != http.StatusBadGateway || got.errorCode() != "upstream_unreachable" {
		t.Errorf("without a backend: got %d %s, want 502 upstream_unreachable", got.status, got.body)
	}
}

func TestNoRequestFailsDuringARollingRestartOfBackends(t *testing.T) {
	env := newEnvironment(t)
	first, second := env.mock("first", "--token-delay", "5ms"), env.mock("second", "--token-delay", "5ms")
	g := env.gateway(fastFailureSettings, map[string][]*service{"m": {first, second}})
	clients := g.startLoad(8)
	for _, svc := range []*service{first, second} {
		clients.waitForMore(t, 50)
		svc.restart()
		poll.Until(t, svc.name+" has requests after its restart", func() bool { return svc.completionRequests() > 0 })
	}
	clients.waitForMore(t, 50)
	clients.stop()
}

// The kernel accepts connections for a paused container, which then does not respond.
func TestRequestsMoveFromAPausedBackendToAnother(t *testing.T) {
	env := newEnvironment(t)
	paused, other := env.mock("paused", "--token-delay", "20ms"), env.mock("other", "--token-delay", "20ms")
	g := env.gateway(fastFailureSettings, map[string][]*service{"m": {paused, other}})
	clients := g.startLoad(8)
	clients.waitForMore(t, 20)
	paused.pause()
	clients.waitForMore(t, 100)
	paused.unpause()
	before := paused.completionRequests()
	poll.Until(t, "the backend has requests again", func() bool { return paused.completionRequests() > before })
	clients.stop()
}

func TestPausedOnlyBackendIsUnreachable(t *testing.T) {
	env := newEnvironment(t)
	only := env.mock("only", "--token-delay", "200ms")
	g := env.gateway(fastFailureSettings, map[string][]*service{"m": {only}})
	started := g.startStream(2000)
	only.pause()
	if _, last := started.readAll(); !isError(last, "upstream_unreachable") {
		t.Errorf("a stream that had started ended with %s", last)
	}
	got := g.complete(2)
	if got.status != http.StatusBadGateway || got.errorCode() != "upstream_unreachable" {
		t.Errorf("a new request: got %d %s, want 502 upstream_unreachable", got.status, got.body)
	}
	only.unpause()
	poll.Until(t, "a request is served again", func() bool { return g.complete(2).status == http.StatusOK })
}

func TestBackendOffTheNetworkIsUnreachable(t *testing.T) {
	env := newEnvironment(t)
	lost, other := env.mock("lost", "--token-delay", "200ms"), env.mock("other")
	g := env.gateway(fastFailureSettings, map[string][]*service{"m": {lost}, "llama-8b": {lost, other}})
	started := g.startStream(2000)
	lost.disconnect(env.net)
	if _, last := started.readAll(); !isError(last, "upstream_unreachable") {
		t.Errorf("a stream that had started ended with %s", last)
	}
	if got := g.complete(2); got.status != http.StatusBadGateway || got.errorCode() != "upstream_unreachable" {
		t.Errorf("without another backend: got %d %s, want 502 upstream_unreachable", got.status, got.body)
	}
	r := g.request(`{"model": "llama-8b", "prompt": "Once upon a time", "max_tokens": 2}`)
	if got := send(t, r); got.status != http.StatusOK {
		t.Errorf("with another backend: got %d %s, want 200", got.status, got.body)
	}
	lost.reconnect(env.net)
	poll.Until(t, "a request is served again", func() bool { return g.complete(2).status == http.StatusOK })
}
