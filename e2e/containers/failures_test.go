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

// What becomes of a backend here becomes of a whole container: its process stops answering without a word, its address
// goes away, its port moves. What clients must see of it is in docs/api.md.

func (b *box) pause() {
	b.t.Helper()
	if _, err := docker.ContainerPause(b.t.Context(), b.ID, client.ContainerPauseOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) unpause() {
	b.t.Helper()
	if _, err := docker.ContainerUnpause(b.t.Context(), b.ID, client.ContainerUnpauseOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) kill() {
	b.t.Helper()
	if _, err := docker.ContainerKill(b.t.Context(), b.ID, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		b.t.Fatal(err)
	}
}

// restart stops the container as an operator would, and starts it again.
func (b *box) restart() {
	b.t.Helper()
	if err := b.Stop(b.t.Context(), nil); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Start(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	b.findURL("8000/tcp")
}

// cutOff takes the container off its network: what was under way gets neither an answer nor a reset.
func (b *box) cutOff(net *testcontainers.DockerNetwork) {
	b.t.Helper()
	if _, err := docker.NetworkDisconnect(b.t.Context(), net.ID, client.NetworkDisconnectOptions{Container: b.ID}); err != nil {
		b.t.Fatal(err)
	}
}

// join puts it back, by its old name.
func (b *box) join(net *testcontainers.DockerNetwork) {
	b.t.Helper()
	_, err := docker.NetworkConnect(b.t.Context(), net.ID, client.NetworkConnectOptions{
		Container: b.ID, EndpointConfig: &network.EndpointSettings{Aliases: []string{b.name}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// load is clients that send plain requests one after another, each of which must be answered.
type load struct {
	answered atomic.Int64
	enough   chan struct{}
	clients  sync.WaitGroup
}

func (g *gateway) load(clients int) *load {
	l := &load{enough: make(chan struct{})}
	for range clients {
		l.clients.Go(func() {
			for {
				select {
				case <-l.enough:
					return
				default:
				}
				answer, err := sendOrFail(g.request(completion(8, false)))
				if err != nil || answer.status != http.StatusOK {
					g.t.Errorf("a client saw %v, %d %s", err, answer.status, answer.body)
				}
				l.answered.Add(1)
			}
		})
	}
	return l
}

// more waits for as many further answers.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	from := l.answered.Load()
	poll.Until(t, "further answers", func() bool { return l.answered.Load() >= from+n })
}

func (l *load) stop() {
	close(l.enough)
	l.clients.Wait()
}

// isError tells whether a stream's last event is an error of the API with the code.
func isError(event, code string) bool {
	return reply{body: event}.code() == code && json.Valid([]byte(event))
}

func TestNoClientSeesOneOfTwoBackendsKilled(t *testing.T) {
	s := newSite(t)
	doomed, other := s.mock("doomed", "--token-delay", "5ms"), s.mock("other", "--token-delay", "5ms")
	g := s.gateway(quick, map[string][]*box{"m": {doomed, other}})
	clients := g.load(8)
	clients.more(t, 50)
	if doomed.asked() == 0 || other.asked() == 0 {
		t.Error("one of the backends had no request, so its death proves nothing")
	}
	doomed.kill()
	clients.more(t, 200)
	clients.stop()
}

// A stream that has begun cannot move to another backend: it ends with an error event, and never as if it were whole.
func TestAStreamOfAKilledBackendEndsWithAnError(t *testing.T) {
	s := newSite(t)
	doomed := s.mock("doomed", "--token-delay", "20ms")
	g := s.gateway(quick, map[string][]*box{"m": {doomed}})
	begun := g.begin(2000)
	doomed.kill()
	_, last := begun.rest() // the kernel of the dead may say that the connection was reset, or that it is over
	if !isError(last, "upstream_unreachable") && !isError(last, "upstream_server_error") {
		t.Errorf("the stream ends with %s", last)
	}
	if answer := g.complete(2); answer.status != http.StatusBadGateway || answer.code() != "upstream_unreachable" {
		t.Errorf("without a backend: %d %s", answer.status, answer.body)
	}
}

func TestBackendsAreRestartedOneAfterTheOtherUnderLoad(t *testing.T) {
	s := newSite(t)
	first, second := s.mock("first", "--token-delay", "5ms"), s.mock("second", "--token-delay", "5ms")
	g := s.gateway(quick, map[string][]*box{"m": {first, second}})
	clients := g.load(8)
	for _, b := range []*box{first, second} {
		clients.more(t, 50)
		b.restart()
		poll.Until(t, b.name+" gets requests again", func() bool { return b.asked() > 0 })
	}
	clients.more(t, 50)
	clients.stop()
}

// A paused container accepts connections, since the kernel does that, and then says nothing.
func TestABackendThatIsPausedIsLeftForAnother(t *testing.T) {
	s := newSite(t)
	paused, other := s.mock("paused", "--token-delay", "20ms"), s.mock("other", "--token-delay", "20ms")
	g := s.gateway(quick, map[string][]*box{"m": {paused, other}})
	clients := g.load(8)
	clients.more(t, 20)
	paused.pause()
	clients.more(t, 100)
	paused.unpause()
	before := paused.asked()
	poll.Until(t, "the backend gets requests again", func() bool { return paused.asked() > before })
	clients.stop()
}

func TestTheOnlyBackendIsPaused(t *testing.T) {
	s := newSite(t)
	only := s.mock("only", "--token-delay", "20ms")
	g := s.gateway(quick, map[string][]*box{"m": {only}})
	begun := g.begin(2000)
	only.pause()
	if _, last := begun.rest(); !isError(last, "upstream_unreachable") {
		t.Errorf("a stream that had begun ends with %s", last)
	}
	answer := g.complete(2)
	if answer.status != http.StatusBadGateway || answer.code() != "upstream_unreachable" {
		t.Errorf("a new request: %d %s", answer.status, answer.body)
	}
	only.unpause()
	poll.Until(t, "the backend serves again", func() bool { return g.complete(2).status == http.StatusOK })
}

func TestABackendIsCutOffFromTheNetwork(t *testing.T) {
	s := newSite(t)
	lost, other := s.mock("lost", "--token-delay", "20ms"), s.mock("other", "--token-delay", "20ms")
	alone := s.gateway(quick, map[string][]*box{"m": {lost}, "llama-8b": {lost, other}})
	begun := alone.begin(2000)
	lost.cutOff(s.net)
	if _, last := begun.rest(); !isError(last, "upstream_unreachable") {
		t.Errorf("a stream that had begun ends with %s", last)
	}
	if answer := alone.complete(2); answer.status != http.StatusBadGateway || answer.code() != "upstream_unreachable" {
		t.Errorf("without another backend: %d %s", answer.status, answer.body)
	}
	r := alone.request(`{"model": "llama-8b", "prompt": "Once upon a time", "max_tokens": 2}`)
	if answer := send(t, r); answer.status != http.StatusOK {
		t.Errorf("with another backend: %d %s", answer.status, answer.body)
	}
	lost.join(s.net)
	poll.Until(t, "the backend serves again", func() bool { return alone.complete(2).status == http.StatusOK })
}
