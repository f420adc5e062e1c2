//go:build containers

package containers_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

func TestImageIsSmallAndUnprivileged(t *testing.T) {
	image, err := docker.ImageInspect(t.Context(), imageGateway)
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(46_000_000); image.Size > limit {
		t.Errorf("the image has %d bytes, want at most %d", image.Size, limit)
	}
	if image.Config.User != "65532:65532" {
		t.Errorf("got the user %q, want 65532:65532", image.Config.User)
	}
	if _, has := image.Config.Volumes["/var/lib/basegate"]; !has {
		t.Errorf("got the volumes %v, want /var/lib/basegate", image.Config.Volumes)
	}
}

// The image's health check runs the binary itself, which finds the gateway by its configuration.
func TestImageHasAHealthCheck(t *testing.T) {
	env := newEnvironment(t)
	mock := env.mock("vllm")
	g := env.gateway("", map[string][]*service{"m": {mock}}, testcontainers.WithConfigModifier(func(c *container.Config) {
		c.Healthcheck = &container.HealthConfig{Interval: 200 * time.Millisecond} // the other fields come from the image
	}), testcontainers.WithAdditionalWaitStrategyAndDeadline(waitTimeout, wait.ForHealthCheck().WithStartupTimeout(waitTimeout)))
	if got := g.complete(2); got.status != http.StatusOK {
		t.Errorf("got %d %s, want 200", got.status, got.body)
	}
}

// A new container on an existing volume has its keys: the folder is writable for the image's user, on a read-only root.
func TestVolumeKeepsTheDatabase(t *testing.T) {
	env := newEnvironment(t)
	mock := env.mock("vllm")
	volume := "basegate-e2e-" + strings.ToLower(env.net.ID[:12])
	t.Cleanup(func() { // runs after the containers' cleanups, when t.Context has ended
		if _, err := docker.VolumeRemove(context.Background(), volume, client.VolumeRemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	mounted := testcontainers.CustomizeRequestOption(func(req *testcontainers.GenericContainerRequest) error {
		delete(req.Tmpfs, databaseFolder)
		return testcontainers.WithMounts(testcontainers.VolumeMount(volume, databaseFolder))(req)
	})
	first := env.gateway("", map[string][]*service{"m": {mock}}, mounted)
	if err := first.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := env.serve(first.config, "gateway", mounted)
	again.secret = first.secret
	if got := again.complete(2); got.status != http.StatusOK {
		t.Errorf("got %d %s, want 200", got.status, got.body)
	}
}

// The image has no time zone files, because the zones are in the binary, and one bundle of certificates.
func TestImageHasTimeZonesAndCertificates(t *testing.T) {
	dir := t.TempDir()
	const text = `models:
  - id: m
    checkpoint: org/m
    backends: [{url: "http://127.0.0.1:1", launch: {start: [a], stop: [b]}}]
    warm_windows: [{days: daily, from: "09:00", to: "18:00", timezone: Europe/Prague}]
`
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o644); err != nil { // the container runs as another user
		t.Fatal(err)
	}
	c, err := testcontainers.Run(t.Context(), imageGateway,
		testcontainers.WithCmd("check", "--config", "/etc/basegate/config.yaml"),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.Binds = []string{dir + ":/etc/basegate:ro"} }),
		waitingFor(wait.ForExit().WithExitTimeout(waitTimeout)))
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if output := (&service{DockerContainer: c}).log(); !strings.Contains(output, "models: m") {
		t.Errorf("check does not list the model m: %s", output)
	}
	r, err := c.CopyFileFromContainer(t.Context(), "/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	head := make([]byte, 1<<16)
	if n, _ := r.Read(head); !strings.Contains(string(head[:n]), "BEGIN CERTIFICATE") {
		t.Error("the bundle has no certificate")
	}
}
