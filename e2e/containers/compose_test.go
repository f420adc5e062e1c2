//go:build containers

package containers_test

import (
	"bytes"
	"fmt"
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

// project is the real vllm-compose.yml, with testdata/compose.override.yml and perhaps more over it, as a project of its
// own.
type project struct {
	t   *testing.T
	env []string
}

func newProject(t *testing.T, overrides ...string) *project {
	t.Helper()
	files := append([]string{"vllm-compose.yml", "e2e/containers/testdata/compose.override.yml"}, overrides...)
	socket, err := os.Stat("/var/run/docker.sock")
	if err != nil {
		t.Fatal(err)
	}
	p := &project{t: t, env: append(os.Environ(),
		"COMPOSE_FILE="+strings.Join(files, ":"),
		"COMPOSE_PROJECT_NAME="+strings.ToLower(t.Name()),
		"COMPOSE_DISABLE_ENV_FILE=1",
		"COMPOSE_PROGRESS=plain",
		"BASEGATE_ADDRESS=127.0.0.1:0",
		fmt.Sprint("DOCKER_GID=", socket.Sys().(*syscall.Stat_t).Gid),
	)}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := p.try("--profile", "*", "logs", "--no-color")
			t.Logf("the services wrote:\n%s", logs)
		}
		if out, err := p.try("--profile", "*", "down", "--volumes", "--timeout", "1"); err != nil {
			t.Errorf("down: %v: %s", err, out)
		}
	})
	return p
}

// try runs Compose, the binary of the image.
func (p *project) try(args ...string) (stdout string, err error) {
	compose, err := filepath.Abs("../../bin/image/docker-compose")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(compose, args...) // without the test's context, which has ended when this takes the project down
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "../..", p.env, &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("docker-compose %s: %w\n%s%s", strings.Join(args, " "), err, &out, &errs)
	}
	return out.String(), nil
}

func (p *project) compose(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// running is which services run.
func (p *project) running() []string {
	p.t.Helper()
	services := strings.Fields(p.compose("--profile", "*", "ps", "--services", "--status", "running"))
	slices.Sort(services)
	return services
}

// basegate runs a command in the gateway's container.
func (p *project) basegate(args ...string) string {
	p.t.Helper()
	args = append([]string{"exec", "-T", "gateway", "basegate"}, args...)
	return p.compose(append(args, "--config", "compose-config.yaml")...)
}

// up brings the gateway up and makes a key.
func (p *project) up() *gateway {
	p.t.Helper()
	p.compose("up", "-d", "--wait")
	p.basegate("account", "create", "ada@example.org")
	g := &gateway{box: &box{t: p.t, name: "gateway", url: "http://" + p.compose("port", "gateway", "8080")}}
	g.secret = secretIn(p.t, p.basegate("key", "create", "--account", "ada@example.org", "--name", "e2e"))
	g.awaitKey()
	return g
}

// ask asks a model for two tokens.
func (g *gateway) ask(model string) reply {
	g.t.Helper()
	return send(g.t, g.request(fmt.Sprintf(`{"model": %q, "prompt": "Once upon a time", "max_tokens": 2}`, model)))
}

// One command brings up the gateway alone; what it needs for its launch commands works from within its container: the
// socket, Compose, and the same project, in which a container that is there is not made anew.
func TestComposeComesUpAndItsGatewayReachesItsModels(t *testing.T) {
	p := newProject(t)
	g := p.up()
	if running := p.running(); !slices.Equal(running, []string{"gateway"}) {
		t.Errorf("up has started %v", running)
	}
	for _, model := range []string{"llama-8b", "llama-405b", "trinity-base", "qwen-cpu"} {
		p.compose("create", model)
		made := p.compose("ps", "-aq", model)
		p.compose("exec", "-T", "gateway", "docker-compose", "up", "-d", model)
		if started := p.compose("ps", "-q", model); started != made {
			t.Errorf("%s: made as %q, started as %q", model, made, started)
		}
		poll.Until(t, model+" answers", func() bool { return g.ask(model).status == http.StatusOK })
		p.compose("exec", "-T", "gateway", "docker-compose", "stop", model)
	}
	if running := p.running(); !slices.Equal(running, []string{"gateway"}) {
		t.Errorf("after the stops %v run", running)
	}
}

// vLLM ends with exit code 0 when its engine has died, and a process that ends by itself is what Docker must start again.
// What was stopped on purpose stays stopped.
func TestComposeStartsAModelAgainThatEndedWithExitCodeZero(t *testing.T) {
	p := newProject(t)
	g := p.up()
	p.compose("up", "-d", "llama-8b")
	poll.Until(t, "the model answers", func() bool { return g.ask("llama-8b").status == http.StatusOK })
	id := p.compose("ps", "-q", "llama-8b")
	endByItself(t, id)
	poll.Until(t, "Docker starts it again", func() bool {
		return p.compose("ps", "-q", "--status", "running", "llama-8b") == id && g.ask("llama-8b").status == http.StatusOK
	})
	if n := restarts(t, id); n != 1 {
		t.Errorf("started again %d times", n)
	}
}

// endByItself ends a container's process without Docker's doing, which would take it for a stop by hand.
func endByItself(t *testing.T, id string) {
	t.Helper()
	c, err := testcontainers.Run(t.Context(), imageOf(t, "scratch", "kill"), // the container's own image has none
		testcontainers.WithCmd("-TERM", "1"),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.PidMode = container.PidMode("container:" + id) }),
		testcontainers.WithWaitStrategy(wait.ForExit()))
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		t.Fatal(err)
	}
}

// The way to reload that docs/gpu-box.md gives must not make Docker believe that the gateway was stopped.
func TestComposeStartsAGatewayAgainThatWasReloaded(t *testing.T) {
	p := newProject(t)
	p.up()
	id := p.compose("ps", "-q", "gateway")
	p.compose("kill", "-s", "HUP", "gateway")
	poll.Until(t, "the gateway reloads", func() bool { return strings.Contains(p.compose("logs", "gateway"), "configuration reloaded") })
	endByItself(t, id)
	poll.Until(t, "Docker starts it again", func() bool { return restarts(t, id) == 1 })
	p.compose("up", "-d", "--wait")
	if now := p.compose("ps", "-q", "gateway"); now != id {
		t.Errorf("the gateway was %s and is %s", id, now)
	}
}

func restarts(t *testing.T, id string) int {
	t.Helper()
	state, err := docker.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return state.Container.RestartCount
}

// The second node's half cannot serve without the first, and need not notice its end: its health check must.
func TestComposeStartsTheWorkerAgainWhenItsHeadHasGone(t *testing.T) {
	p := newProject(t)
	p.env = append(p.env, "LLAMA_405B_HEAD=llama-405b") // its name on the project's network
	imageOf(t, imageGateway, "/bin/sh", "curl", "touch")
	p.compose("up", "-d", "llama-405b", "llama-405b-worker")
	worker := p.compose("ps", "-q", "llama-405b-worker")
	healthy := func() bool { return p.compose("ps", "--format", "{{.Health}}", "llama-405b-worker") == "healthy" }
	poll.Until(t, "the worker is healthy", healthy)
	if n := restarts(t, worker); n != 0 {
		t.Errorf("the worker was started again %d times while its head was well", n)
	}
	p.compose("stop", "llama-405b")
	poll.Until(t, "the worker is started again", func() bool { return restarts(t, worker) == 1 })
	p.compose("start", "llama-405b")
	poll.Until(t, "the worker is healthy again", healthy)
	if n := restarts(t, worker); n != 1 {
		t.Errorf("the worker was started again %d times; once its head had gone it must wait", n)
	}
}

// The scrape configuration and the alerts as a Prometheus on the project's network finds them.
func TestComposeShowsItselfToPrometheus(t *testing.T) {
	p := newProject(t)
	imageOf(t, "scratch", "prometheus")
	p.up()
	p.compose("up", "-d", "llama-8b", "prometheus")
	base := "http://" + p.compose("port", "prometheus", "9090")
	get := func(path string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := sendOrFail(r)
		if err != nil {
			return err.Error() // it may not listen yet
		}
		return answer.body
	}
	for _, query := range []string{`up{job="basegate"}`, `up{job="vllm",model="llama-8b"}`, `basegate_backend_ready{model="llama-8b"}`} {
		poll.Until(t, query, func() bool {
			return gjson.Get(get("/api/v1/query?query="+url.QueryEscape(query)), "data.result.0.value.1").String() == "1"
		})
	}
	rules := gjson.Get(get("/api/v1/rules"), "data.groups.#.rules.#.health|@flatten").Array()
	if len(rules) != 12 {
		t.Errorf("%d alerts are known", len(rules))
	}
}
