// The tests of a release build the last commit by `make release`, in a clone, and use what is in its dist: `make release-check`.
package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const repository = "../../.."

// version is the content of the file VERSION.
var version = sync.OnceValue(func() string {
	content, err := os.ReadFile(filepath.Join(repository, "VERSION"))
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(content))
})

// work holds the first release while the tests run.
var work string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if work, err = os.MkdirTemp("", "basegate-release-check-"); err != nil {
			log.Print(err)
			return 1
		}
		defer os.RemoveAll(work)
		return m.Run()
	}())
}

// first is the release that all tests use.
var first = sync.OnceValues(func() (dist string, err error) { return release(repository, filepath.Join(work, "first"), nil) })

// releaseFile returns the path of a file of the first release.
func releaseFile(t *testing.T, format string, args ...any) string {
	t.Helper()
	dist, err := first()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dist, fmt.Sprintf(format, args...))
}

// release runs `make release` in a clone of a repository's last commit, with the tools of this one's bin.
func release(from, dir string, env []string, umask ...string) (dist string, err error) {
	if _, err := command(nil, "git", "clone", "-q", from, dir); err != nil {
		return "", err
	}
	tools, err := filepath.Abs(filepath.Join(repository, "bin"))
	if err != nil {
		return "", err
	}
	if err := os.Symlink(tools, filepath.Join(dir, "bin")); err != nil {
		return "", err
	}
	script := strings.Join(append(umask, `exec make --no-print-directory -C "$0" release -o bin/nfpm -o bin/release -o bin/cyclonedx-gomod`), " && ")
	_, err = command(env, "sh", "-c", script, dir)
	return filepath.Join(dir, "dist"), err
}

// command runs a program and returns its output.
func command(env []string, name string, args ...string) (output string, err error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// run is command for one that must succeed.
func run(t *testing.T, name string, args ...string) (output string) {
	t.Helper()
	output, err := command(nil, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(2 * time.Minute)
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

// The second build is in another folder, with another umask, time zone and language, at another time. Without -short it also compiles
// everything again, also the C library.
func TestTwoBuildsOfACommitAreEqual(t *testing.T) {
	one := filepath.Dir(releaseFile(t, "SHA256SUMS"))
	env := []string{"TZ=Pacific/Kiritimati", "LC_ALL=C.UTF-8", "CGO_CFLAGS=-O0", "GOAMD64=v3", "GOFLAGS=-buildvcs=true"}
	if !testing.Short() {
		env = append(env, "GOCACHE="+t.TempDir(), "ZIG_GLOBAL_CACHE_DIR="+t.TempDir())
	}
	two, err := release(filepath.Dir(one), filepath.Join(t.TempDir(), "a", "longer", "path"), env, "umask 077")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, arch := range []string{"amd64", "arm64"} {
		binary := fmt.Sprintf("basegate-%s-linux-%s", version(), arch)
		want = append(want, binary, binary+".cdx.json", fmt.Sprintf("basegate_%s-1_%s.deb", version(), arch))
	}
	for _, arch := range []string{"x86_64", "aarch64"} {
		want = append(want, fmt.Sprintf("basegate-%s-1.%s.rpm", version(), arch))
	}
	want = append(want, fmt.Sprintf("basegate-%s-oci.tar", version()))
	sums, err := os.ReadFile(filepath.Join(one, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range want {
		if !bytes.Contains(sums, []byte("  "+name+"\n")) {
			t.Errorf("SHA256SUMS has no %s", name)
		}
	}
	for _, dir := range []string{one, two} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != len(want)+1 {
			t.Errorf("%s has %d files, want %d", dir, len(files), len(want)+1)
		}
		if out, err := command(nil, "sh", "-c", `cd "$0" && sha256sum --quiet --check "$1"`, dir, filepath.Join(one, "SHA256SUMS")); err != nil {
			t.Errorf("the builds are not equal: %s", out)
		}
	}
}

func TestBinariesAreStaticAndStripped(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		f, err := elf.Open(releaseFile(t, "basegate-%s-linux-%s", version(), arch))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if f.Machine != machine {
			t.Errorf("%s: got a binary for %v", arch, f.Machine)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s: has a segment %v, so it is not static", arch, p.Type)
			}
			if p.Type == elf.PT_GNU_STACK && p.Memsz != 8<<20 {
				t.Errorf("%s: the stack of a thread has %d bytes, want those of glibc, 8 MiB", arch, p.Memsz)
			}
		}
		for _, name := range []string{".symtab", ".debug_info"} {
			if f.Section(name) != nil {
				t.Errorf("%s: has the section %s", arch, name)
			}
		}
	}
}

// program is a binary, by an emulator if it is for another architecture than this machine's.
type program []string

func (p program) command(t *testing.T, args ...string) *exec.Cmd {
	args = append(slices.Clone(p[1:]), args...)
	cmd := exec.CommandContext(t.Context(), p[0], args...)
	cmd.Dir = t.TempDir()
	return cmd
}

func (p program) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.command(t, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// start runs a command until the end of the test.
func (p program) start(t *testing.T, args ...string) {
	t.Helper()
	cmd := p.command(t, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", args[0], &out)
		}
	})
}

// Each binary prints the version and the commit, checks a configuration and serves a request with tokens of a mock.
func TestBinaryServes(t *testing.T) {
	commit := run(t, "git", "-C", filepath.Dir(releaseFile(t, "SHA256SUMS")), "rev-parse", "--short=12", "HEAD")
	native := run(t, "go", "env", "GOHOSTARCH")
	for arch, machine := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		t.Run(arch, func(t *testing.T) {
			binary := program{releaseFile(t, "basegate-%s-linux-%s", version(), arch)}
			if arch != native {
				binary = append(program{"qemu-" + machine + "-static"}, binary...)
			}
			t.Parallel()
			want := fmt.Sprintf("basegate %s+%s %s linux/%s\n", version(), commit, run(t, "go", "env", "GOVERSION"), arch)
			if got := binary.run(t, "version"); got != want {
				t.Errorf("version prints %q, want %q", got, want)
			}
			mock, listen, admin := freeAddress(t), freeAddress(t), freeAddress(t)
			dir := t.TempDir()
			config := filepath.Join(dir, "config.yaml")
			text := fmt.Sprintf("server: {listen: %q, admin_listen: %q}\ndatabase: {path: %q}\n%s", listen, admin, filepath.Join(dir, "basegate.db"), models("http://"+mock))
			if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			binary.start(t, "mockvllm", "--listen", mock)
			until(t, "the mock answers", func() bool { return status("http://"+mock+"/health", "") == http.StatusOK })
			if out := binary.run(t, "check", "--config", config); !strings.Contains(out, "models: m") {
				t.Errorf("check prints %q", out)
			}
			binary.start(t, "serve", "--config", config)
			until(t, "the gateway is ready", func() bool { return status("http://"+admin+"/readyz", "") == http.StatusOK })
			binary.run(t, "account", "create", "ada@example.org", "--config", config)
			key := secret(t, binary.run(t, "key", "create", "--account", "ada@example.org", "--name", "laptop", "--config", config))
			complete(t, "http://"+listen, key)
		})
	}
}

// freeAddress is one of this machine's loopback interface.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// models is the section of a configuration with the mock's checkpoint.
func models(url string) string {
	return fmt.Sprintf("models:\n  - id: m\n    checkpoint: meta-llama/Llama-3.1-8B\n    backends:\n      - url: %s\n", url)
}

// secret finds the key in what key create prints.
func secret(t *testing.T, output string) string {
	t.Helper()
	key := regexp.MustCompile(`acs-bm-\w+`).FindString(output)
	if key == "" {
		t.Fatalf("no key in %q", output)
	}
	return key
}

// status returns that of a response, or 0 without one. With a key it is a completion's.
func status(url, key string) int {
	method, body := http.MethodGet, ""
	if key != "" {
		method, body = http.MethodPost, `{"model": "m", "prompt": "Once upon a time", "max_tokens": 4}`
	}
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0
	}
	return resp.StatusCode
}

// complete requests a completion. A running gateway sees a new key within a second.
func complete(t *testing.T, url, key string) {
	t.Helper()
	until(t, "a completion is answered", func() bool { return status(url+"/v1/completions", key) == http.StatusOK })
}

// host is a container with systemd, and the release's files in /dist.
type host struct {
	t  *testing.T
	id string
}

// debian is the image of the hosts.
var debian = sync.OnceValues(func() (string, error) {
	const image = "basegate:release-check-debian"
	_, err := command(nil, "docker", "import", filepath.Join(repository, "bin", "debian.tar"), image)
	return image, err
})

// newHost starts a container whose first process is systemd. It must mount, for the sandboxes of its services, and write to its
// own control groups, which Docker mounts read-only.
func newHost(t *testing.T) *host {
	t.Helper()
	dist := filepath.Dir(releaseFile(t, "SHA256SUMS"))
	image, err := debian()
	if err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	id := run(t, "docker", "run", "-d", "--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined",
		"--cgroupns=private", "--tmpfs=/run", "--tmpfs=/run/lock", "--tmpfs=/tmp", "-e=container=docker", "-p=127.0.0.1::8080", "-v="+dist+":/dist:ro",
		image, "/bin/sh", "-c", "mount -o remount,rw /sys/fs/cgroup; exec /lib/systemd/systemd")
	h := &host{t: t, id: id}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := h.try("journalctl --no-pager -n 60")
			t.Log(out)
		}
		if out, err := command(nil, "docker", "rm", "-f", "-v", id); err != nil {
			t.Error(out)
		}
	})
	until(t, "systemd runs", func() bool {
		out, _ := command(nil, "docker", "exec", id, "systemctl", "is-system-running")
		return out == "running" || out == "degraded" // some unit of Debian may need what a container lacks
	})
	return h
}

// try runs a line of a shell as root.
func (h *host) try(line string) (string, error) {
	return command(nil, "docker", "exec", h.id, "sh", "-c", line)
}

func (h *host) run(line string) string {
	h.t.Helper()
	out, err := h.try(line)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// fails runs a line that must fail.
func (h *host) fails(line string) {
	h.t.Helper()
	if out, err := h.try(line); err == nil {
		h.t.Errorf("%s succeeds: %s", line, out)
	}
}

func TestPackagesInstallUpgradeAndGo(t *testing.T) {
	for _, format := range []struct{ name, install, again, remove, purge string }{
		{"deb", "dpkg -i /dist/basegate_*_$(dpkg --print-architecture).deb", "dpkg -i /dist/basegate_*_$(dpkg --print-architecture).deb", "dpkg -r basegate", "dpkg -P basegate"},
		{"rpm", "rpm -i --nodeps /dist/basegate-*.$(uname -m).rpm", "rpm -U --nodeps --replacepkgs --replacefiles /dist/basegate-*.$(uname -m).rpm", "rpm -e basegate", "true"},
	} {
		t.Run(format.name, func(t *testing.T) {
			h := newHost(t)
			h.run(format.install)
			h.run("systemd-analyze verify basegate.service")
			if out := h.run("stat -c '%U %a %n' /etc/basegate/config.yaml /etc/basegate/environment /usr/bin/basegate"); out !=
				"root 644 /etc/basegate/config.yaml\nroot 600 /etc/basegate/environment\nroot 755 /usr/bin/basegate" {
				t.Errorf("got the files\n%s", out)
			}
			h.fails("systemctl is-active basegate")
			h.fails("systemctl is-enabled basegate")

			// The configuration of the package is complete, but for a server, and commands find it.
			h.run("systemctl start basegate")
			until(t, "the service is alive", func() bool { _, err := h.try("basegate check --live"); return err == nil })
			h.run("systemctl stop basegate")
			h.run("systemd-run --unit=mock basegate mockvllm --listen 127.0.0.1:8001")
			h.run("cat >/etc/basegate/config.yaml <<E\nserver: {listen: '0.0.0.0:8080'}\ndatabase: {path: /var/lib/basegate/basegate.db}\n" + models("http://127.0.0.1:8001") + "E")
			h.run("systemctl enable --now basegate")
			until(t, "the mock answers a check", func() bool { _, err := h.try("basegate check"); return err == nil })
			h.run("basegate account create ada@example.org")
			key := secret(t, h.run("basegate key create --account ada@example.org --name laptop"))
			url := "http://" + run(t, "docker", "port", h.id, "8080")
			complete(t, url, key)
			if out := h.run("stat -c '%U %a' /var/lib/basegate && ps -o user= -p $(systemctl show -P MainPID basegate)"); out != "basegate 700\nbasegate" {
				t.Errorf("got the owner, the mode and the process's user %q", out)
			}

			before := h.run("systemctl show -P MainPID basegate")
			h.run(format.again)
			if after := h.run("systemctl show -P MainPID basegate"); after == before || after == "0" {
				t.Errorf("the process was %s and is %s after the upgrade, want another one", before, after)
			}
			h.run("systemctl is-active basegate && systemctl is-enabled basegate")
			complete(t, url, key)

			h.run(format.remove)
			h.fails("systemctl is-active basegate")
			h.fails("test -e /usr/lib/systemd/system/basegate.service -o -e /etc/systemd/system/multi-user.target.wants/basegate.service -o -e /usr/bin/basegate")
			h.run("test -s /etc/basegate/config.yaml -o -s /etc/basegate/config.yaml.rpmsave")
			h.run(format.purge)
			h.run("test -s /var/lib/basegate/basegate.db && id basegate")
		})
	}
}

// imageConfig is what an image says of its containers.
func imageConfig(t *testing.T, image string) map[string]any {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal([]byte(run(t, "docker", "image", "inspect", "-f", "{{json .Config}}", image)), &config); err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(config, func(key string, value any) bool {
		return value == nil || key == "Image" || key == "Labels" || key == "Hostname"
	})
	return config
}

// The Dockerfile says why each setting is as it is; the release's image has to agree.
func TestImageIsThatOfTheDockerfile(t *testing.T) {
	image := releaseFile(t, "basegate-%s-oci.tar", version())
	run(t, "docker", "load", "-i", image)
	t.Cleanup(func() {
		run(t, "docker", "rmi", "-f", "basegate:release-check", "basegate:"+version()+"-amd64", "basegate:"+version()+"-arm64")
	})
	context := t.TempDir()
	run(t, "cp", filepath.Join(repository, "Dockerfile"), context)
	run(t, "mkdir", "-p", filepath.Join(context, "bin/image/data"))
	run(t, "cp", releaseFile(t, "basegate-%s-linux-amd64", version()), filepath.Join(context, "bin/image/basegate"))
	run(t, "cp", filepath.Join(repository, "LICENSE"), filepath.Join(context, "bin/image/ca-certificates.crt"))
	run(t, "docker", "build", "-q", "--target=gateway", "-t", "basegate:release-check", context)
	tree := func(image string) []string {
		id := run(t, "docker", "create", image)
		defer run(t, "docker", "rm", "-v", id)
		out := run(t, "sh", "-c", "docker export "+id+" | tar -tv --numeric-owner")
		var files []string
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if name := f[5]; !strings.HasSuffix(name, ".crt") && !regexp.MustCompile(`^(dev|proc|sys|\.dockerenv|etc/(hosts|hostname|mtab|resolv.conf))`).MatchString(name) {
				files = append(files, strings.Join([]string{f[0], f[1], f[2], name}, " "))
			}
		}
		slices.Sort(files)
		return files
	}
	want, wantTree := imageConfig(t, "basegate:release-check"), tree("basegate:release-check")
	for _, arch := range []string{"amd64", "arm64"} {
		name := "basegate:" + version() + "-" + arch
		if got := imageConfig(t, name); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got the configuration\n%v, want\n%v", name, got, want)
		}
		if got := run(t, "docker", "image", "inspect", "-f", "{{.Os}}/{{.Architecture}}", name); got != "linux/"+arch {
			t.Errorf("%s: got %s", name, got)
		}
	}
	name := "basegate:" + version() + "-amd64"
	if got := tree(name); !slices.Equal(got, wantTree) {
		t.Errorf("%s: got the files\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(wantTree, "\n"))
	}
	if out := run(t, "docker", "run", "--rm", name, "version"); !strings.HasPrefix(out, "basegate "+version()+"+") {
		t.Errorf("version prints %s", out)
	}
}

// The commands of docs/release.md put the image into a registry, and vllm-compose.yml takes it from there.
func TestComposeRunsTheImageOfARegistry(t *testing.T) {
	archive := releaseFile(t, "basegate-%s-oci.tar", version())
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/basegate:" + version()
	run(t, "skopeo", "copy", "-q", "--all", "--dest-tls-verify=false", "oci-archive:"+archive, "docker://"+image)
	var index v1.IndexManifest
	if err := json.Unmarshal([]byte(run(t, "skopeo", "inspect", "--raw", "--tls-verify=false", "docker://"+image)), &index); err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range index.Manifests {
		platforms = append(platforms, m.Platform.String())
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("the registry has the platforms %v", platforms)
	}
	env := []string{
		"BASEGATE_IMAGE=" + image, "COMPOSE_FILE=" + filepath.Join(repository, "vllm-compose.yml"), "COMPOSE_DISABLE_ENV_FILE=1", "COMPOSE_PROGRESS=plain",
		fmt.Sprint("COMPOSE_PROJECT_NAME=release-check-", os.Getpid()), "BASEGATE_ADDRESS=127.0.0.1:0",
	}
	compose := func(args ...string) string {
		t.Helper()
		out, err := command(env, filepath.Join(repository, "bin/image/docker-compose"), args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	t.Cleanup(func() {
		if out, err := command(env, filepath.Join(repository, "bin/image/docker-compose"), "down", "--volumes", "--rmi=all", "--timeout=1"); err != nil {
			t.Error(out)
		}
	})
	compose("pull", "-q", "gateway")
	compose("up", "-d", "--wait", "--no-build")
	if out := compose("exec", "-T", "gateway", "basegate", "version"); !strings.HasPrefix(out, "basegate "+version()+"+") {
		t.Errorf("version prints %s", out)
	}
}
