//go:build containers

// Package containers_test tests the images: it runs the gateway and mock vLLM servers in containers on a network of their
// own, pauses, disconnects, throttles and kills them, and runs vllm-compose.yml with the mock in place of vLLM. It needs a
// Docker daemon on this machine and what `make image-files` builds; `make e2e` checks the daemon and builds the files.
package containers_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// The images under test, built from the repository's Dockerfile by every run.
const (
	imageGateway = "basegate:e2e"
	imageCompose = "basegate:e2e-compose"
)

// docker is the client for calls that testcontainers does not have.
var docker *testcontainers.DockerClient

func TestMain(m *testing.M) {
	// Ryuk, the reaper, would be an image to pull; every test removes its own containers. The daemon publishes ports on
	// this machine: without the override, testcontainers uses the default gateway's address if /.dockerenv exists.
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	if os.Getenv("TESTCONTAINERS_HOST_OVERRIDE") == "" {
		os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	log.SetDefault(discardLogger{})
	if err := prepare(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// discardLogger drops testcontainers' messages about every container.
type discardLogger struct{}

// Printf implements testcontainers' logger.
func (discardLogger) Printf(string, ...any) {}

// prepare connects to the daemon and builds the images.
func prepare(ctx context.Context) (err error) {
	if docker, err = testcontainers.NewDockerClientWithOpts(ctx); err != nil {
		return fmt.Errorf("connect to Docker: %w", err)
	}
	for _, file := range []string{"basegate", "docker-compose", "ca-certificates.crt"} {
		if _, err := os.Stat(filepath.Join("../../bin/image", file)); err != nil {
			return fmt.Errorf("find the images' files (make image-files): %w", err)
		}
	}
	for stage, image := range map[string]string{"gateway": imageGateway, "compose": imageCompose} {
		if err := buildImage(ctx, "../..", stage, image); err != nil {
			return fmt.Errorf("build %s: %w", image, err)
		}
	}
	return nil
}

// buildImage builds a stage of a folder's Dockerfile; an empty stage is the last one.
func buildImage(ctx context.Context, dir, stage, image string) error {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return err
	}
	defer provider.Close()
	var buildLog bytes.Buffer
	repo, tag, _ := strings.Cut(image, ":")
	_, err = provider.BuildImage(ctx, &testcontainers.ContainerRequest{FromDockerfile: testcontainers.FromDockerfile{
		Context: dir, Repo: repo, Tag: tag, BuildLogWriter: &buildLog,
		BuildOptionsModifier: func(o *client.ImageBuildOptions) { o.Target = stage },
	}})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, &buildLog)
	}
	return nil
}
