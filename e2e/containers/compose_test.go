//go:build containers

package containers_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
	"github.com/tidwall/gjson"

	"basegate/internal/poll"
)

// project is the repository's vllm-compose.yml with testdata/compose.override.yml and optional further overrides, under a
// Compose project name of its own.
type project struct {
	t     *testing.T
	env   []string
	stdin io.Reader // of docker-compose; may be nil
}

// newSocketProject is newProject with a gateway that has Docker's socket, for launch commands.
func newSocketProject(t *testing.T, overrides ...string) *project {
	t.Helper()
	socket, err := os.Stat("/var/run/docker.sock")
	if err != nil {
		t.Fatal(err)
	}
	p := newProject(t, append([]string{"deploy/docker-socket/compose.yml", "e2e/containers/testdata/socket.override.yml"}, overrides...)...)
	p.env = append(p.env, fmt.Sprint("DOCKER_GID=", socket.Sys().(*syscall.Stat_t).Gid))
	return p
}

// newProject lets the test run beside others, since tests mostly wait for containers.
func newProject(t *testing.T, overrides ...string) *project {
	t.Helper()
	t.Parallel()
	files := append([]string{"vllm-compose.yml", "e2e/containers/testdata/compose.override.yml"}, overrides...)
	p := &project{t: t, env: append(os.Environ(),
		"COMPOSE_FILE="+strings.Join(files, ":"),
		fmt.Sprintf("COMPOSE_PROJECT_NAME=%s-%d", strings.ToLower(t.Name()), os.Getpid()), // not that of a run that was killed
		"COMPOSE_DISABLE_ENV_FILE=1",
		"COMPOSE_PROGRESS=plain",
		"BASEGATE_ADDRESS=127.0.0.1:0",
	)}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := p.tryCompose("--profile", "*", "logs", "--no-color")
			t.Logf("the services wrote:\n%s", logs)
		}
		if out, err := p.tryCompose("--profile", "*", "down", "--volumes", "--timeout", "1"); err != nil {
			t.Errorf("down: %v: %s", err, out)
		}
	})
	return p
}

// tryCompose runs the docker-compose binary of the image.
func (p *project) tryCompose(args ...string) (stdout string, err error) {
	compose, err := filepath.Abs("../../bin/image/docker-compose")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(compose, args...) // without t.Context, which has ended when the cleanup takes the project down
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = "../..", p.env, p.stdin, &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("docker-compose %s: %w\n%s%s", strings.Join(args, " "), err, &out, &errs)
	}
	return out.String(), nil
}

// compose runs docker-compose, which must succeed, and returns its trimmed stdout.
func (p *project) compose(args ...string) string {
	p.t.Helper()
	out, err := p.tryCompose(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// running returns the names of the running services, sorted.
func (p *project) running() []string {
	p.t.Helper()
	services := strings.Fields(p.compose("--profile", "*", "ps", "--services", "--status", "running"))
	slices.Sort(services)
	return services
}

// basegate runs a command in the gateway's container.
func (p *project) basegate(args ...string) string {
	p.t.Helper()
	return p.basegateAt("gateway", args...)
}

// basegateAt runs a command in the container of one of several gateways.
func (p *project) basegateAt(service string, args ...string) string {
	p.t.Helper()
	return p.compose(append([]string{"exec", "-T", service, "basegate"}, args...)...)
}

// up starts the gateway's service and creates a key.
func (p *project) up() *gateway {
	p.t.Helper()
	p.compose("up", "-d", "--wait")
	p.basegate("account", "create", "ada@example.org")
	g := &gateway{service: &service{t: p.t, name: "gateway", url: "http://" + p.compose("port", "gateway", "8080")}}
	g.secret = parseSecret(p.t, p.basegate("key", "create", "--account", "ada@example.org", "--name", "e2e"))
	g.waitForKey()
	return g
}

// completeModel requests two tokens from a model.
func (g *gateway) completeModel(model string) response {
	g.t.Helper()
	return send(g.t, g.request(fmt.Sprintf(`{"model": %q, "prompt": "Once upon a time", "max_tokens": 2}`, model)))
}

// `up` starts the gateway alone. What its launch commands need works within its container: the socket, Compose, and the
// same project, so that Compose starts the existing containers instead of recreating them.
func TestComposeStartsTheGatewayAndReachesItsModels(t *testing.T) {
	p := newSocketProject(t)
	g := p.up()
	if running := p.running(); !slices.Equal(running, []string{"gateway"}) {
		t.Errorf("up started %v, want the gateway only", running)
	}
	for _, model := range []string{"llama-8b", "llama-405b", "trinity-base", "qwen-cpu"} {
		p.compose("create", model)
		created := p.compose("ps", "-aq", model)
		p.compose("exec", "-T", "gateway", "docker-compose", "up", "-d", model)
		if started := p.compose("ps", "-q", model); started != created {
			t.Errorf("%s: created the container %q, started %q", model, created, started)
		}
		poll.Until(t, model+" serves a request", func() bool { return g.completeModel(model).status == http.StatusOK })
		p.compose("exec", "-T", "gateway", "docker-compose", "stop", model)
	}
	if running := p.running(); !slices.Equal(running, []string{"gateway"}) {
		t.Errorf("after the stops %v are running, want the gateway only", running)
	}
}

// vLLM exits with code 0 when its engine has died, so Docker must restart a process that exits by itself. A service that
// was stopped on purpose stays stopped.
func TestComposeRestartsAModelThatExitsWithCodeZero(t *testing.T) {
	p := newProject(t)
	g := p.up()
	p.compose("up", "-d", "llama-8b")
	poll.Until(t, "the model serves a request", func() bool { return g.completeModel("llama-8b").status == http.StatusOK })
	id := p.compose("ps", "-q", "llama-8b")
	terminateProcess(t, id)
	poll.Until(t, "Docker has restarted the model", func() bool {
		return restartCount(t, id) > 0 && p.compose("ps", "-q", "--status", "running", "llama-8b") == id && g.completeModel("llama-8b").status == http.StatusOK
	})
	if n := restartCount(t, id); n != 1 {
		t.Errorf("%d restarts, want 1", n)
	}
}

// terminateProcess ends a container's process from another container: Docker would take `docker kill` for a manual stop.
func terminateProcess(t *testing.T, id string) {
	t.Helper()
	c, err := testcontainers.Run(t.Context(), buildToolImage(t, "scratch", "kill"), // the container's image has no kill
		testcontainers.WithCmd("-TERM", "1"),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.PidMode = container.PidMode("container:" + id) }),
		waitingFor(wait.ForExit().WithExitTimeout(waitTimeout)))
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		t.Fatal(err)
	}
}

// The reload command of docs/gpu-box.md must not make Docker believe that the gateway was stopped manually.
func TestComposeRestartsAGatewayThatWasReloaded(t *testing.T) {
	p := newProject(t)
	p.up()
	id := p.compose("ps", "-q", "gateway")
	p.compose("kill", "-s", "HUP", "gateway")
	poll.Until(t, "the gateway reloads", func() bool { return strings.Contains(p.compose("logs", "gateway"), "configuration reloaded") })
	terminateProcess(t, id)
	poll.Until(t, "Docker has restarted the gateway", func() bool { return restartCount(t, id) == 1 })
	p.compose("up", "-d", "--wait")
	if now := p.compose("ps", "-q", "gateway"); now != id {
		t.Errorf("the gateway's container changed from %s to %s", id, now)
	}
}

// restartCount returns how often Docker has restarted a container.
func restartCount(t *testing.T, id string) int {
	t.Helper()
	state, err := docker.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return state.Container.RestartCount
}

// The worker on the second node cannot serve without its head and may not notice that the head has stopped: its health
// check must.
func TestComposeRestartsTheWorkerWhenItsHeadStops(t *testing.T) {
	p := newProject(t)
	p.env = append(p.env, "LLAMA_405B_HEAD=llama-405b") // its name on the project's network
	buildToolImage(t, imageGateway, "/bin/sh", "curl", "touch")
	p.compose("up", "-d", "llama-405b", "llama-405b-worker")
	worker := p.compose("ps", "-q", "llama-405b-worker")
	healthy := func() bool { return p.compose("ps", "--format", "{{.Health}}", "llama-405b-worker") == "healthy" }
	poll.Until(t, "the worker is healthy", healthy)
	if n := restartCount(t, worker); n != 0 {
		t.Errorf("%d restarts of the worker while its head was healthy, want 0", n)
	}
	p.compose("stop", "llama-405b")
	poll.Until(t, "Docker has restarted the worker", func() bool { return restartCount(t, worker) == 1 })
	p.compose("start", "llama-405b")
	poll.Until(t, "the worker is healthy again", healthy)
	if n := restartCount(t, worker); n != 1 {
		t.Errorf("%d restarts of the worker, want 1: it must wait while its head is stopped", n)
	}
}

// A Prometheus on the project's network scrapes the targets of prometheus.yaml and loads the alerts.
func TestPrometheusScrapesTheComposeProject(t *testing.T) {
	p := newProject(t)
	buildToolImage(t, "scratch", "prometheus")
	p.up()
	p.compose("up", "-d", "llama-8b", "prometheus")
	base := "http://" + p.compose("port", "prometheus", "9090")
	get := func(path string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := trySend(r)
		if err != nil {
			return err.Error() // Prometheus may not listen yet
		}
		return resp.body
	}
	for _, query := range []string{`up{job="basegate"}`, `up{job="vllm",model="llama-8b"}`, `basegate_backend_ready{model="llama-8b"}`} {
		poll.Until(t, query, func() bool {
			return gjson.Get(get("/api/v1/query?query="+url.QueryEscape(query)), "data.result.0.value.1").String() == "1"
		})
	}
	rules := gjson.Get(get("/api/v1/rules"), "data.groups.#.rules.#.health|@flatten").Array()
	alerts, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := bytes.Count(alerts, []byte("alert: ")); want == 0 || len(rules) != want {
		t.Errorf("Prometheus has %d alerts, want the %d of the file", len(rules), want)
	}
}
