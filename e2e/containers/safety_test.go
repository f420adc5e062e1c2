//go:build containers

package containers_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/tidwall/gjson"

	"basegate/internal/poll"
)

// Without the override, the gateway cannot reach Docker, and serves the models that an operator starts.
func TestComposeGivesTheGatewayNoSocket(t *testing.T) {
	p := newProject(t)
	g := p.up()
	state, err := docker.ContainerInspect(t.Context(), p.compose("ps", "-q", "gateway"), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range state.Container.Mounts {
		if strings.Contains(m.Source, "docker.sock") || strings.Contains(m.Destination, "docker.sock") {
			t.Errorf("the gateway has %s", m.Source)
		}
	}
	if log := p.compose("logs", "gateway"); strings.Contains(log, "Docker's socket") {
		t.Errorf("the gateway warns of a socket that it does not have: %s", log)
	}
	if got := g.completeModel("llama-8b"); got.errorCode() != "upstream_unreachable" {
		t.Errorf("a stopped model: got %d %s, want upstream_unreachable", got.status, got.body)
	}
	p.compose("up", "-d", "llama-8b")
	poll.Until(t, "the model serves a request", func() bool { return g.completeModel("llama-8b").status == 200 })
}

// A socket that no launch command needs is reported.
func TestGatewayWarnsOfAnUnneededSocket(t *testing.T) {
	p := newSocketProject(t, "e2e/containers/testdata/unneeded.override.yml")
	p.compose("up", "-d", "--wait")
	if log := p.compose("logs", "gateway"); !strings.Contains(log, "Docker's socket") {
		t.Errorf("no warning: %s", log)
	}
	if table := p.basegateFails("check"); !strings.Contains(table, "Docker's socket") {
		t.Errorf("check does not warn: %s", table)
	}
}

// .env.example, copied to .env, decides by its one line COMPOSE_FILE whether the gateway gets the socket. The override
// cannot be used without that line, since the gateway's own Compose reads it.
func TestEnvExampleDecidesAboutTheSocket(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"vllm-compose.yml", "deploy/docker-socket/compose.yml", ".env.example"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	example, err := os.ReadFile(filepath.Join(dir, ".env.example"))
	if err != nil {
		t.Fatal(err)
	}
	config := func(env string, args ...string) (string, error) {
		if err := os.WriteFile(filepath.Join(dir, ".env"), []byte(env), 0o600); err != nil {
			t.Fatal(err)
		}
		compose, err := filepath.Abs("../../bin/image/docker-compose")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), compose, append(args, "config")...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const socket = "/var/run/docker.sock"
	if out, err := config(string(example)); err != nil || strings.Contains(out, socket) || !strings.Contains(out, "basegate:latest") {
		t.Errorf("the example: %v, want no socket: %s", err, out)
	}
	withSocket := strings.NewReplacer("#COMPOSE_FILE", "COMPOSE_FILE", "#DOCKER_GID", "DOCKER_GID").Replace(string(example))
	if out, err := config(withSocket); err != nil || !strings.Contains(out, socket) ||
		!strings.Contains(out, "COMPOSE_FILE: vllm-compose.yml:deploy/docker-socket/compose.yml") {
		t.Errorf("with both lines: %v, want the socket and the same files for the gateway: %s", err, out)
	}
	if out, err := config(strings.ReplaceAll(withSocket, "\nDOCKER_GID", "\n#")); err == nil {
		t.Errorf("without DOCKER_GID: no error: %s", out)
	}
	if out, err := config("DOCKER_GID=1\n", "-f", "vllm-compose.yml", "-f", "deploy/docker-socket/compose.yml"); err == nil {
		t.Errorf("the override without COMPOSE_FILE: no error: %s", out)
	}
}

// HAProxy is what an operator starts of the profile cluster: it brings the four services that it needs. A plain `up` starts
// none of them.
func TestClusterProfileIsStartedByHAProxy(t *testing.T) {
	p := newProject(t)
	p.env = append(p.env, "BASEGATE_S3_SECRET=s", "POSTGRES_PASSWORD=p", "BASEGATE_DATABASE_PASSWORD=d")
	if plain := strings.Fields(p.compose("config", "--services")); !slices.Equal(plain, []string{"gateway"}) {
		t.Errorf("a plain up starts %v, want the gateway", plain)
	}
	model := gjson.Parse(p.compose("--profile", "cluster", "config", "--format", "json"))
	needed := func(service string) []string {
		var names []string
		for name := range model.Get("services." + service + ".depends_on").Map() {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	if got := needed("haproxy"); !slices.Equal(got, []string{"gateway-1", "gateway-2"}) {
		t.Errorf("HAProxy needs %v", got)
	}
	for _, gateway := range []string{"gateway-1", "gateway-2"} {
		if got := needed(gateway); !slices.Equal(got, []string{"postgres", "s3"}) {
			t.Errorf("%s needs %v", gateway, got)
		}
	}
}
