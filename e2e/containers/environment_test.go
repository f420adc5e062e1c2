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
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	dockernetwork "github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/exec"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"

	"basegate/internal/poll"
)

// waitTimeout limits every wait for an event that should happen soon, also on a machine whose disk stalls.
const waitTimeout = 5 * time.Minute

const checkpoint = "meta-llama/Llama-3.1-8B"

// environment is a Docker network and the containers on it.
type environment struct {
	t   *testing.T
	net *testcontainers.DockerNetwork
}

// newEnvironment lets the test run beside others, since tests mostly wait for containers.
func newEnvironment(t *testing.T) *environment {
	t.Helper()
	t.Parallel()
	net, err := network.New(t.Context())
	testcontainers.CleanupNetwork(t, net)
	if err != nil {
		t.Fatal(err)
	}
	return &environment{t: t, net: net}
}

// service is a running container.
type service struct {
	*testcontainers.DockerContainer
	t    *testing.T
	name string // host name on the network
	url  string // of its first port, as published on this machine
}

// run starts a container with a host name on the network and waits until a path of its port responds. As in production,
// the container has a read-only root and no capabilities.
func (e *environment) run(image, name, port, path string, options ...testcontainers.ContainerCustomizer) *service {
	e.t.Helper()
	options = append([]testcontainers.ContainerCustomizer{
		network.WithNetwork([]string{name}, e.net),
		published(port),
		waitingFor(wait.ForHTTP(path).WithPort(port).WithPollInterval(50 * time.Millisecond).WithStartupTimeout(waitTimeout)),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.ReadonlyRootfs = true
			h.CapDrop = []string{"ALL"}
			h.SecurityOpt = []string{"no-new-privileges:true"}
		}),
	}, options...)
	c, err := testcontainers.Run(e.t.Context(), image, options...)
	svc := &service{DockerContainer: c, t: e.t, name: name}
	testcontainers.CleanupContainer(e.t, c)
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.t.Logf("%s wrote:\n%s", name, svc.log())
		}
	})
	if err != nil {
		e.t.Fatalf("run %s: %v\n%s", name, err, svc.log())
	}
	svc.updateURL(port)
	return svc
}

// waitingFor makes the start of a container wait for a condition. testcontainers' own option gives up after a minute, which
// a start takes on a disk that others write to.
func waitingFor(strategy wait.Strategy) testcontainers.CustomizeRequestOption {
	return testcontainers.WithWaitStrategyAndDeadline(waitTimeout, strategy)
}

// published makes a port of a container one of this machine's loopback address, as the Compose files do. Docker counts
// the ports of each address by itself, so that one of all addresses may be one that a project of Compose has already.
func published(port string) testcontainers.CustomizeRequestOption {
	return func(req *testcontainers.GenericContainerRequest) error {
		if err := testcontainers.WithExposedPorts(port)(req); err != nil {
			return err
		}
		return testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			if h.PortBindings == nil {
				h.PortBindings = dockernetwork.PortMap{}
			}
			h.PortBindings[dockernetwork.MustParsePort(port)] = []dockernetwork.PortBinding{{HostIP: netip.MustParseAddr("127.0.0.1")}}
		})(req)
	}
}

// updateURL sets the URL of the published port, which changes with each start.
func (s *service) updateURL(port string) {
	s.t.Helper()
	url, err := s.PortEndpoint(s.t.Context(), port, "http")
	if err != nil {
		s.t.Fatal(err)
	}
	s.url = url
}

// log returns the container's output.
func (s *service) log() string {
	if s.DockerContainer == nil {
		return ""
	}
	r, err := s.Logs(context.Background()) // t.Context has ended during the cleanup
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	text, _ := io.ReadAll(r)
	return string(text)
}

// mock starts a mock vLLM with a host name.
func (e *environment) mock(name string, args ...string) *service {
	e.t.Helper()
	args = append([]string{"mockvllm", "--listen", "0.0.0.0:8000"}, args...)
	return e.run(imageGateway, name, "8000/tcp", "/health", testcontainers.WithCmd(args...), withoutHealthCheck())
}

// withoutHealthCheck disables the image's health check, which works only for a gateway.
func withoutHealthCheck() testcontainers.CustomizeRequestOption {
	return testcontainers.WithConfigModifier(func(c *container.Config) {
		c.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	})
}

// completionRequests counts the completion requests that a mock has received.
func (s *service) completionRequests() int {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/mock/requests", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Count(send(s.t, r).body, `"/v1/completions"`)
}

// gateway is a running gateway and the secret of a key.
type gateway struct {
	*service
	admin  string // URL of the admin listener, as published on this machine
	config string // folder of its configuration
	secret string
}

// fastFailureSettings are short timeouts, so that tests see a failure soon, but none of a backend that only stalls.
const fastFailureSettings = `probe: {interval: 200ms, timeout: 5s}
upstream: {connect_timeout: 5s, first_byte_timeout: 15s, idle_timeout: 10s, attempts: 3}
breaker: {consecutive_failures: 1000}
limits: {concurrency_per_key: 64}
`

// writeConfig writes a configuration of top-level settings and models with their backends, and returns its folder.
func (e *environment) writeConfig(settings string, models map[string][]*service) (dir string) {
	e.t.Helper()
	text := `server: {listen: "0.0.0.0:8080", admin_listen: "0.0.0.0:9090"}` + "\n" + settings + "models:\n"
	for _, id := range slices.Sorted(maps.Keys(models)) {
		text += fmt.Sprintf("  - id: %s\n    checkpoint: %s\n    chat: %t\n    backends:\n", id, checkpoints[id], id == chatModel)
		for _, svc := range models[id] {
			text += fmt.Sprintf("      - {name: %s, url: \"http://%s:8000\"}\n", svc.name, svc.name)
		}
	}
	dir = e.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o644); err != nil { // the container runs as another user
		e.t.Fatal(err)
	}
	return dir
}

// databaseFolder is where the image has its database.
const databaseFolder = "/var/lib/basegate"

// serve starts a gateway with the configuration in a folder, without a key. Its database is in memory: see
// e2e/in-memory.
func (e *environment) serve(dir, name string, options ...testcontainers.ContainerCustomizer) *gateway {
	e.t.Helper()
	options = append([]testcontainers.ContainerCustomizer{
		published("9090/tcp"),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.Binds = append(h.Binds, dir+":/etc/basegate:ro") }),
		testcontainers.WithTmpfs(map[string]string{databaseFolder: "uid=65532,gid=65532"}),
		withoutHealthCheck(),
	}, options...)
	g := &gateway{service: e.run(imageGateway, name, "8080/tcp", "/readyz", options...), config: dir}
	var err error
	if g.admin, err = g.PortEndpoint(e.t.Context(), "9090/tcp", "http"); err != nil {
		e.t.Fatal(err)
	}
	return g
}

// gateway starts a gateway for models and creates a key.
func (e *environment) gateway(settings string, models map[string][]*service, options ...testcontainers.ContainerCustomizer) *gateway {
	e.t.Helper()
	g := e.serve(e.writeConfig(settings, models), "gateway", options...)
	g.createKey()
	return g
}

func (g *gateway) createKey() {
	g.t.Helper()
	g.basegate("account", "create", "ada@example.org")
	g.secret = parseSecret(g.t, g.basegate("key", "create", "--account", "ada@example.org", "--name", "e2e"))
	g.waitForKey()
}

// waitForKey waits until the gateway accepts the key: a running gateway sees changes by commands within a second.
func (g *gateway) waitForKey() {
	g.t.Helper()
	poll.Until(g.t, "the gateway accepts the key", func() bool {
		r := g.request("")
		r.Method, r.URL.Path = http.MethodGet, "/v1/models"
		return send(g.t, r).status == http.StatusOK
	})
}

// parseSecret returns the secret in the output of key create.
func parseSecret(t *testing.T, output string) string {
	t.Helper()
	secret := regexp.MustCompile(`acs-bm-\w+`).FindString(output)
	if secret == "" {
		t.Fatalf("no key in %q", output)
	}
	return secret
}

// metrics returns /metrics of the admin listener.
func (g *gateway) metrics() string {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.admin+"/metrics", http.NoBody)
	if err != nil {
		g.t.Fatal(err)
	}
	return send(g.t, r).body
}

// chatModel is the ID of the model that has a chat template.
const chatModel = "llama-8b-instruct"

// checkpoints maps the model IDs of the tests to checkpoints.
var checkpoints = map[string]string{
	chatModel:      "meta-llama/Llama-3.1-8B-Instruct",
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

// response is a complete HTTP response.
type response struct {
	status int
	header http.Header
	body   string
}

// errorCode returns the code of an error response, or "".
func (r response) errorCode() string {
	var body struct{ Error struct{ Code string } }
	if json.Unmarshal([]byte(r.body), &body) != nil {
		return ""
	}
	return body.Error.Code
}

// httpClient opens a connection for each request.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// send sends a request, which must get a response.
func send(t *testing.T, r *http.Request) response {
	t.Helper()
	got, err := trySend(r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// trySend is send for goroutines other than the test's.
func trySend(r *http.Request) (response, error) {
	resp, err := httpClient.Do(r)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, string(body)}, err
}

// request returns a completion request with the gateway's key.
func (g *gateway) request(body string) *http.Request {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+g.secret)
	return r
}

// complete requests a completion of up to some tokens.
func (g *gateway) complete(tokens int) response {
	g.t.Helper()
	return send(g.t, g.request(completion(tokens, false)))
}

func completion(tokens int, stream bool) string {
	return fmt.Sprintf(`{"model": "m", "prompt": "Once upon a time", "temperature": 0, "max_tokens": %d, "stream": %t}`, tokens, stream)
}

// stream is a streamed response whose first event has been read.
type stream struct {
	t      *testing.T
	body   io.ReadCloser
	events *bufio.Scanner
}

// startStream requests a stream and reads its first event.
func (g *gateway) startStream(tokens int) *stream {
	g.t.Helper()
	return g.startStreamOf("m", tokens)
}

// startStreamOf is startStream for any model.
func (g *gateway) startStreamOf(model string, tokens int) *stream {
	g.t.Helper()
	resp, err := httpClient.Do(g.request(strings.Replace(completion(tokens, true), `"m"`, strconv.Quote(model), 1)))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		g.t.Fatalf("start a stream: got %d %s, want 200", resp.StatusCode, text)
	}
	s := &stream{t: g.t, body: resp.Body, events: bufio.NewScanner(resp.Body)}
	if s.nextEvent() == "" {
		g.t.Fatal("the stream has no event")
	}
	return s
}

// nextEvent returns the data of the next event, or "" at the end.
func (s *stream) nextEvent() string {
	for s.events.Scan() {
		if data, is := strings.CutPrefix(s.events.Text(), "data: "); is {
			return data
		}
	}
	return ""
}

// readAll reads to the end and returns the number of events and the last one. A broken connection fails the test.
func (s *stream) readAll() (events int, last string) {
	s.t.Helper()
	for data := s.nextEvent(); data != ""; data = s.nextEvent() {
		events, last = events+1, data
	}
	if err := s.events.Err(); err != nil {
		s.t.Errorf("the connection broke after %d events: %v", events, err)
	}
	return events, last
}
