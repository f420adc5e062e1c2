//go:build containers

package containers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/exec"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"

	"basegate/internal/poll"
)

// patience bounds every wait for something that should happen soon.
const patience = 60 * time.Second

const checkpoint = "meta-llama/Llama-3.1-8B"

// site is a network and the containers on it.
type site struct {
	t   *testing.T
	net *testcontainers.DockerNetwork
}

func newSite(t *testing.T) *site {
	t.Helper()
	net, err := network.New(t.Context())
	testcontainers.CleanupNetwork(t, net)
	if err != nil {
		t.Fatal(err)
	}
	return &site{t: t, net: net}
}

// box is a running container.
type box struct {
	*testcontainers.DockerContainer
	t    *testing.T
	name string // on the network
	url  string // of its first port, on this machine
}

// run starts a container under a name on the network and waits until a path of its port answers. Its root is read-only
// and it has no privilege at all, as it should be run.
func (s *site) run(image, name, port, path string, options ...testcontainers.ContainerCustomizer) *box {
	s.t.Helper()
	options = append([]testcontainers.ContainerCustomizer{
		network.WithNetwork([]string{name}, s.net),
		testcontainers.WithExposedPorts(port),
		testcontainers.WithWaitStrategy(wait.ForHTTP(path).WithPort(port).WithPollInterval(50 * time.Millisecond).WithStartupTimeout(patience)),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.ReadonlyRootfs = true
			h.CapDrop = []string{"ALL"}
			h.SecurityOpt = []string{"no-new-privileges:true"}
		}),
	}, options...)
	c, err := testcontainers.Run(s.t.Context(), image, options...)
	b := &box{DockerContainer: c, t: s.t, name: name}
	testcontainers.CleanupContainer(s.t, c)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("%s wrote:\n%s", name, b.log())
		}
	})
	if err != nil {
		s.t.Fatalf("run %s: %v\n%s", name, err, b.log())
	}
	b.findURL(port)
	return b
}

// findURL asks under which address this machine offers the port. It is another one after each start.
func (b *box) findURL(port string) {
	b.t.Helper()
	url, err := b.PortEndpoint(b.t.Context(), port, "http")
	if err != nil {
		b.t.Fatal(err)
	}
	b.url = url
}

// log is what the container has written.
func (b *box) log() string {
	if b.DockerContainer == nil {
		return ""
	}
	r, err := b.Logs(context.Background()) // the test's own context has ended by then
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	text, _ := io.ReadAll(r)
	return string(text)
}

// mock starts a mock vLLM under a name.
func (s *site) mock(name string, args ...string) *box {
	s.t.Helper()
	args = append([]string{"mockvllm", "--listen", "0.0.0.0:8000"}, args...)
	return s.run(imageGateway, name, "8000/tcp", "/health", testcontainers.WithCmd(args...), withoutHealthCheck())
}

// withoutHealthCheck keeps Docker from asking a container that is no gateway for its configuration.
func withoutHealthCheck() testcontainers.CustomizeRequestOption {
	return testcontainers.WithConfigModifier(func(c *container.Config) {
		c.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	})
}

// asked counts the completions that a mock has been asked for.
func (b *box) asked() int {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+"/mock/requests", http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.Count(send(b.t, r).body, `"/v1/completions"`)
}

// gateway is a running gateway with a key.
type gateway struct {
	*box
	admin  string // the admin listener, on this machine
	config string // the folder of its configuration
	secret string
}

// quick are settings under which a test sees a failure soon.
const quick = `probe: {interval: 200ms, timeout: 1s}
upstream: {connect_timeout: 1s, first_byte_timeout: 4s, idle_timeout: 3s, attempts: 3}
breaker: {consecutive_failures: 1000}
limits: {concurrency_per_key: 64}
`

// configure writes a configuration with some top-level settings and models, each with its backends.
func (s *site) configure(settings string, models map[string][]*box) (dir string) {
	s.t.Helper()
	text := `server: {listen: "0.0.0.0:8080", admin_listen: "0.0.0.0:9090"}` + "\n" + settings + "models:\n"
	for _, id := range slices.Sorted(maps.Keys(models)) {
		text += fmt.Sprintf("  - id: %s\n    checkpoint: %s\n    backends:\n", id, checkpoints[id])
		for _, b := range models[id] {
			text += fmt.Sprintf("      - {name: %s, url: \"http://%s:8000\"}\n", b.name, b.name)
		}
	}
	dir = s.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o644); err != nil { // read by another user
		s.t.Fatal(err)
	}
	return dir
}

// serve starts a gateway on the configuration in a folder; it has no key yet.
func (s *site) serve(dir, name string, options ...testcontainers.ContainerCustomizer) *gateway {
	s.t.Helper()
	options = append([]testcontainers.ContainerCustomizer{
		testcontainers.WithExposedPorts("9090/tcp"),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.Binds = append(h.Binds, dir+":/etc/basegate:ro") }),
		withoutHealthCheck(),
	}, options...)
	g := &gateway{box: s.run(imageGateway, name, "8080/tcp", "/readyz", options...), config: dir}
	var err error
	if g.admin, err = g.PortEndpoint(s.t.Context(), "9090/tcp", "http"); err != nil {
		s.t.Fatal(err)
	}
	return g
}

// gateway starts a gateway in front of models and makes a key.
func (s *site) gateway(settings string, models map[string][]*box, options ...testcontainers.ContainerCustomizer) *gateway {
	s.t.Helper()
	g := s.serve(s.configure(settings, models), "gateway", options...)
	g.makeKey()
	return g
}

func (g *gateway) makeKey() {
	g.t.Helper()
	g.basegate("account", "create", "ada@example.org")
	g.secret = secretIn(g.t, g.basegate("key", "create", "--account", "ada@example.org", "--name", "e2e"))
	g.awaitKey()
}

// awaitKey waits until the gateway obeys: a running one has seen what a command wrote within a second.
func (g *gateway) awaitKey() {
	g.t.Helper()
	poll.Until(g.t, "the gateway knows the key", func() bool {
		r := g.request("")
		r.Method, r.URL.Path = http.MethodGet, "/v1/models"
		return send(g.t, r).status == http.StatusOK
	})
}

// secretIn finds the key in what key create has printed.
func secretIn(t *testing.T, printed string) string {
	t.Helper()
	secret := regexp.MustCompile(`acs-bm-\w+`).FindString(printed)
	if secret == "" {
		t.Fatalf("no key in %q", printed)
	}
	return secret
}

// metrics is the admin listener's page.
func (g *gateway) metrics() string {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.admin+"/metrics", http.NoBody)
	if err != nil {
		g.t.Fatal(err)
	}
	return send(g.t, r).body
}

// checkpoints are the models of the tests, by their short ids.
var checkpoints = map[string]string{
	"m":            checkpoint,
	"faulty":       checkpoint,
	"llama-8b":     checkpoint,
	"llama-405b":   "meta-llama/Llama-3.1-405B",
	"trinity-base": "arcee-ai/Trinity-Large-TrueBase",
}

// basegate runs a command in the gateway's container.
func (g *gateway) basegate(args ...string) string {
	g.t.Helper()
	args = append(append([]string{"basegate"}, args...), "--config", "/etc/basegate/config.yaml")
	code, out, err := g.Exec(g.t.Context(), args, exec.Multiplexed())
	if err != nil {
		g.t.Fatal(err)
	}
	text, err := io.ReadAll(out)
	if err != nil || code != 0 {
		g.t.Fatalf("%s: %v, exit code %d: %s", strings.Join(args, " "), err, code, text)
	}
	return string(text)
}

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// code is the error that a reply tells of, or empty.
func (r reply) code() string {
	var body struct{ Error struct{ Code string } }
	if json.Unmarshal([]byte(r.body), &body) != nil {
		return ""
	}
	return body.Error.Code
}

// web keeps no connection, so that each request shows what happens to a new one.
var web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func send(t *testing.T, r *http.Request) reply {
	t.Helper()
	answer, err := sendOrFail(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// sendOrFail is send for other goroutines than the test's.
func sendOrFail(r *http.Request) (reply, error) {
	resp, err := web.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(body)}, err
}

// request makes a completion request with the gateway's key.
func (g *gateway) request(body string) *http.Request {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+g.secret)
	return r
}

// complete asks for a completion of some tokens.
func (g *gateway) complete(tokens int) reply {
	g.t.Helper()
	return send(g.t, g.request(completion(tokens, false)))
}

func completion(tokens int, stream bool) string {
	return fmt.Sprintf(`{"model": "m", "prompt": "Once upon a time", "temperature": 0, "max_tokens": %d, "stream": %t}`, tokens, stream)
}

// stream is an answer that has begun.
type stream struct {
	t      *testing.T
	body   io.ReadCloser
	events *bufio.Scanner
}

// begin asks for a stream and reads its first event.
func (g *gateway) begin(tokens int) *stream {
	g.t.Helper()
	resp, err := web.Do(g.request(completion(tokens, true)))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		g.t.Fatalf("stream: %d %s", resp.StatusCode, text)
	}
	s := &stream{t: g.t, body: resp.Body, events: bufio.NewScanner(resp.Body)}
	if s.next() == "" {
		g.t.Fatal("the stream has no event")
	}
	return s
}

// next is the data of the next event, or empty at the end.
func (s *stream) next() string {
	for s.events.Scan() {
		if data, is := strings.CutPrefix(s.events.Text(), "data: "); is {
			return data
		}
	}
	return ""
}

// rest reads to the end: how many events came, and the last one. A connection that breaks is an error.
func (s *stream) rest() (events int, last string) {
	s.t.Helper()
	for data := s.next(); data != ""; data = s.next() {
		events, last = events+1, data
	}
	if err := s.events.Err(); err != nil {
		s.t.Errorf("the stream broke off after %d events: %v", events, err)
	}
	return events, last
}
