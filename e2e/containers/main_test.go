//go:build containers

// Package containers_test drives the images in containers: the gateway and mock vLLM servers on a network of their own,
// which is paused, cut off, slowed down and killed, and the real vllm-compose.yml with the mock in vLLM's place. It needs
// a Docker daemon on this machine and what `make image-files` builds; `make e2e` sees to both.
package containers_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// The images under test, built anew from the repository's Dockerfile.
const (
	imageGateway = "basegate:e2e"
	imageCompose = "basegate:e2e-compose"
)

// docker is the daemon's API, for what testcontainers has no call.
var docker *testcontainers.DockerClient

func TestMain(m *testing.M) {
	// Its reaper is an image to pull; every test removes its own. The daemon's ports are this machine's: a file that
	// says that this is a container must not send the requests to some gateway's address instead.
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	if os.Getenv("TESTCONTAINERS_HOST_OVERRIDE") == "" {
		os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	log.SetDefault(quiet{})
	if err := prepare(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// quiet drops what testcontainers tells of every container.
type quiet struct{}

// Printf implements testcontainers' logger.
func (quiet) Printf(string, ...any) {}

// prepare finds the daemon and builds the images.
func prepare(ctx context.Context) (err error) {
	if docker, err = testcontainers.NewDockerClientWithOpts(ctx); err != nil {
		return fmt.Errorf("these tests need Docker, which does not answer: %w", err)
	}
	for _, file := range []string{"basegate", "docker-compose", "ca-certificates.crt"} {
		if _, err := os.Stat(filepath.Join("../../bin/image", file)); err != nil {
			return fmt.Errorf("find what the images are made of (make image-files): %w", err)
		}
	}
	for stage, image := range map[string]string{"gateway": imageGateway, "compose": imageCompose} {
		if err := build(ctx, "../..", stage, image); err != nil {
			return fmt.Errorf("build %s: %w", image, err)
		}
	}
	return nil
}

// build builds a stage of a folder's Dockerfile; an empty stage is the last one.
func build(ctx context.Context, dir, stage, image string) error {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return err
	}
	defer provider.Close()
	var told bytes.Buffer
	repo, tag, _ := strings.Cut(image, ":")
	_, err = provider.BuildImage(ctx, &testcontainers.ContainerRequest{FromDockerfile: testcontainers.FromDockerfile{
		Context: dir, Repo: repo, Tag: tag, BuildLogWriter: &told,
		BuildOptionsModifier: func(o *client.ImageBuildOptions) { o.Target = stage },
	}})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, &told)
	}
	return nil
}

// imageOf makes an image of some of this machine's programs and the libraries that they are linked with, for want of a
// registry. It returns the image's name; its entrypoint is the first program.
func imageOf(t *testing.T, base string, programs ...string) string {
	t.Helper()
	dir, files := t.TempDir(), map[string]bool{}
	entrypoint := ""
	for _, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatalf("%s is missing on this machine, and the image for this test is made of it", program)
		}
		linked, err := exec.CommandContext(t.Context(), "ldd", path).CombinedOutput()
		if err != nil && !bytes.Contains(linked, []byte("not a dynamic executable")) {
			t.Fatalf("ldd %s: %v: %s", path, err, linked)
		}
		for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(linked), -1) {
			files[m[1]] = true
		}
		files[path] = true
		entrypoint = cmp.Or(entrypoint, path)
	}
	recipe := fmt.Sprintf("FROM %s\nUSER 0\nENTRYPOINT [%q]\n", base, entrypoint)
	for i, path := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("file", i)
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
		recipe += fmt.Sprintf("COPY %s %s\n", name, path)
	}
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(recipe), 0o644); err != nil {
		t.Fatal(err)
	}
	image := "basegate:e2e-" + filepath.Base(entrypoint)
	if err := build(t.Context(), dir, "", image); err != nil {
		t.Fatal(err)
	}
	return image
}
