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

func TestTheImageIsSmallAndWithoutPrivileges(t *testing.T) {
	image, err := docker.ImageInspect(t.Context(), imageGateway)
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(40_000_000); image.Size > limit {
		t.Errorf("%d bytes, want at most %d", image.Size, limit)
	}
	if image.Config.User != "65532:65532" {
		t.Errorf("user %q", image.Config.User)
	}
	if _, has := image.Config.Volumes["/var/lib/basegate"]; !has {
		t.Errorf("volumes %v", image.Config.Volumes)
	}
}

// The health check of the image is the binary itself, which finds the gateway by its configuration.
func TestTheImageTellsDockerOfItsHealth(t *testing.T) {
	s := newSite(t)
	mock := s.mock("vllm")
	g := s.gateway("", map[string][]*box{"m": {mock}}, testcontainers.WithConfigModifier(func(c *container.Config) {
		c.Healthcheck = &container.HealthConfig{Interval: 200 * time.Millisecond} // what is absent is the image's
	}), testcontainers.WithAdditionalWaitStrategy(wait.ForHealthCheck()))
	if answer := g.complete(2); answer.status != http.StatusOK {
		t.Errorf("%d %s", answer.status, answer.body)
	}
}

// A new container on the same volume knows the keys of the one before: the folder is writable for the image's user, on
// a root that is not writable at all.
func TestTheVolumeKeepsTheDatabase(t *testing.T) {
	s := newSite(t)
	mock := s.mock("vllm")
	volume := "basegate-e2e-" + strings.ToLower(s.net.ID[:12])
	t.Cleanup(func() { // after the containers, when the test's own context has ended
		if _, err := docker.VolumeRemove(context.Background(), volume, client.VolumeRemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	mounted := testcontainers.WithMounts(testcontainers.VolumeMount(volume, "/var/lib/basegate"))
	first := s.gateway("", map[string][]*box{"m": {mock}}, mounted)
	if err := first.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := s.serve(first.config, "gateway", mounted)
	again.secret = first.secret
	if answer := again.complete(2); answer.status != http.StatusOK {
		t.Errorf("%d %s", answer.status, answer.body)
	}
}

// The image has no files of time zones and one bundle of certificates; both must be found.
func TestTheImageKnowsTimeZonesAndCertificates(t *testing.T) {
	dir := t.TempDir()
	const text = `models:
  - id: m
    checkpoint: org/m
    backends: [{url: "http://127.0.0.1:1", launch: {start: [a], stop: [b]}}]
    warm_windows: [{days: daily, from: "09:00", to: "18:00", timezone: Europe/Prague}]
`
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o644); err != nil { // read by another user
		t.Fatal(err)
	}
	c, err := testcontainers.Run(t.Context(), imageGateway,
		testcontainers.WithCmd("check", "--config", "/etc/basegate/config.yaml"),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.Binds = []string{dir + ":/etc/basegate:ro"} }),
		testcontainers.WithWaitStrategy(wait.ForExit().WithExitTimeout(patience)))
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if told := (&box{DockerContainer: c}).log(); !strings.Contains(told, "models: m") {
		t.Errorf("check says: %s", told)
	}
	r, err := c.CopyFileFromContainer(t.Context(), "/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	head := make([]byte, 1<<16)
	if n, _ := r.Read(head); !strings.Contains(string(head[:n]), "BEGIN CERTIFICATE") {
		t.Error("no certificates")
	}
}
