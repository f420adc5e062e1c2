//go:build e2e

package e2e_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"basegate/internal/postgrestest"
)

// reader is a newcomer at a shell: in a fresh clone, with an empty home, and with the mock in vLLM's place.
type reader struct {
	t      *testing.T
	clone  string
	blocks []string // the shell's blocks of the page, in order
	python []string
	stdin  io.Writer
	output *bufio.Reader
	began  time.Time
}

// readPage starts a shell for the blocks of a page. The shell has a network of its own if that can be made; otherwise the ports of
// the page must be free.
func readPage(t *testing.T, page string, ports []string, env ...string) *reader {
	t.Helper()
	home := t.TempDir()
	r := &reader{t: t, clone: filepath.Join(home, "basegate")}
	clone(t, r.clone)
	text, err := os.ReadFile(filepath.Join(r.clone, page))
	must(t, err)
	for _, block := range regexp.MustCompile("(?ms)^```(bash|python)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if block[1] == "bash" {
			r.blocks = append(r.blocks, block[2])
		} else {
			r.python = append(r.python, block[2])
		}
	}
	isolated, err := filepath.Abs("isolated")
	must(t, err)
	cmd := exec.Command(isolated, "bash", "-eo", "pipefail", "-s")
	if exec.Command("unshare", "--net", "true").Run() != nil {
		for _, port := range ports {
			l, err := net.Listen("tcp", "127.0.0.1:"+port)
			if err != nil {
				t.Skipf("the page needs port %s: %v", port, err)
			}
			l.Close()
		}
	}
	tools := filepath.Join(home, "tools")
	must(t, os.Mkdir(tools, 0o700))
	writeProgram(t, filepath.Join(tools, "vllm"), `for port; do :; done # the last argument
exec bin/basegate mockvllm --model "$2" --listen "127.0.0.1:$port"`)
	writeProgram(t, filepath.Join(tools, "sudo"), `shift 3 # -u postgres --preserve-env
exec "$@"`)
	goEnv, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOROOT").Output()
	must(t, err)
	dirs := strings.Fields(string(goEnv))
	cmd.Dir = r.clone
	cmd.Env = append([]string{
		"HOME=" + home, "PATH=" + tools + ":" + filepath.Join(dirs[2], "bin") + ":" + os.Getenv("PATH"),
		"GOCACHE=" + dirs[0], "GOMODCACHE=" + dirs[1], "GOTOOLCHAIN=local", "GOPROXY=off",
	}, env...)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.stdin, r.output, r.began = stdin, bufio.NewReader(stdout), time.Now()
	must(t, cmd.Start())
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with what it has started
		cmd.Wait()
	})
	return r
}

// clone clones the repository, with the changes that are not committed yet.
func clone(t *testing.T, to string) {
	t.Helper()
	if _, err := os.Stat("../.git"); err != nil {
		t.Skip("this is no clone of the repository")
	}
	for _, command := range []string{
		`git clone -q .. "$0"`,
		`git -C .. diff --binary HEAD | git -C "$0" apply --allow-empty`,
	} {
		if out, err := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", command, to).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
}

func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
}

// run runs a block, which must succeed, and returns its output.
func (r *reader) run(block string) string {
	r.t.Helper()
	const end = "end of the block"
	fmt.Fprintf(r.stdin, "%s\necho; echo %s\n", block, end)
	var output strings.Builder
	for {
		line, err := r.output.ReadString('\n')
		if err != nil {
			r.t.Fatalf("%s\nfailed: %s", block, output.String())
		}
		if line == end+"\n" {
			return output.String()
		}
		output.WriteString(line)
	}
}

// take returns the next block, which must begin as told: a changed page needs a changed test.
func (r *reader) take(begins string) string {
	r.t.Helper()
	if len(r.blocks) == 0 || !strings.HasPrefix(r.blocks[0], begins) {
		r.t.Fatalf("the next block does not begin with %s: %q", begins, r.blocks)
	}
	block := r.blocks[0]
	r.blocks = r.blocks[1:]
	return block
}

// wait runs a shell's condition until it holds.
func (r *reader) wait(condition string) {
	r.t.Helper()
	r.run(fmt.Sprintf("for n in $(seq 3000); do if %s; then break; fi; sleep 0.1; [ $n != 3000 ] || { tail -n 50 *.log *.out; exit 1; }; done", condition))
}

// says prints how long it took to get here.
func (r *reader) says(what string) {
	r.t.Helper()
	r.t.Logf("%s: after %v", what, time.Since(r.began).Round(100*time.Millisecond))
	r.began = time.Now()
}

var aText = regexp.MustCompile(`"text": ?"[^"]`)

// answers checks that a block gets a completion.
func (r *reader) answers(block string) {
	r.t.Helper()
	if out := r.run(block); !aText.MatchString(out) {
		r.t.Fatalf("%s\ngot %s", block, out)
	}
}

// TestReadme does what README says. The times, which make first-hour prints, are those with compiled packages in Go's cache.
func TestReadme(t *testing.T) {
	skipPostgres(t, "README is about SQLite")
	r := readPage(t, "README.md", []string{"8001", "8080", "9090"})
	python := filepath.Join("sdk", ".venv", "bin", "python")
	if path, err := filepath.Abs(python); err == nil && exec.Command(path, "-c", "import openai").Run() == nil {
		python = path
	} else {
		python = ""
		t.Log("make sdk has not run, so Python's snippet is left to it")
	}
	askInPython := func() {
		if python != "" {
			writeFile(t, filepath.Join(r.clone, "ask.py"), r.python[0])
			r.run(python + " ask.py")
		}
	}

	r.run(strings.TrimSpace(r.take("make demo")) + " >demo.out 2>demo.log & demo=$!")
	r.wait("grep -q Ctrl-C demo.out || ! kill -0 $demo")
	r.run("grep -q Ctrl-C demo.out || { cat demo.log demo.out; exit 1; }")
	r.run(`eval "$(grep '^  export ' demo.out)"`)
	ask := r.take("curl")
	r.answers(ask)
	r.says("first answer, of the demo")
	askInPython()
	if secret, found := strings.CutPrefix(strings.TrimSpace(r.run("echo $OPENAI_API_KEY")), "acs-bm-"); !found || strings.Count(r.run("cat demo.out"), secret) != 1 {
		t.Error("the demo does not print its key once")
	}
	r.run("kill $demo; wait $demo || true; unset OPENAI_BASE_URL OPENAI_API_KEY")

	r.began = time.Now()
	r.run(strings.TrimSpace(r.take("vllm serve")) + " >vllm.log 2>&1 &")
	r.wait("curl -sf http://127.0.0.1:8001/health")
	r.run(r.take("make build"))
	r.wait("curl -sf http://127.0.0.1:8080/readyz")
	r.answers(ask)
	r.says("first own model")
	askInPython()
	written := r.run("grep -v '^#' basegate.yaml")
	page, err := os.ReadFile(filepath.Join(r.clone, "README.md"))
	must(t, err)
	if !strings.Contains(string(page), "```yaml\n"+strings.TrimSuffix(written, "\n")+"```") {
		t.Errorf("README has another configuration than basegate init writes:\n%s", written)
	}
	if out := r.run("git status --short"); strings.Contains(out, "?? basegate") {
		t.Errorf("git does not ignore what the gateway keeps: %s", out)
	}

	if out := r.run(r.take("for i in")); !strings.Contains(out, "completed") {
		t.Errorf("the batch is not completed: %s", out)
	}
	r.says("first batch, of 1,000 lines")

	out := r.run(r.take("bin/basegate account create ada@example.org"))
	found := regexp.MustCompile(`(?m)^acs-bm-\w+$`).FindString(out)
	if found == "" || !strings.Contains(out, "http://127.0.0.1:8080/invitation/") || !strings.Contains(out, "laptop") {
		t.Fatalf("a key, an invitation and the usage are missing in:\n%s", out)
	}
	r.run("export OPENAI_API_KEY=" + found)
	r.answers(ask)
	r.says("first second user")
	if len(r.blocks) > 0 {
		t.Errorf("blocks of README that the test does not know: %q", r.blocks)
	}
}

// TestTwoGatewaysWithoutContainers does what docs/two-gateways.md says.
func TestTwoGatewaysWithoutContainers(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/haproxy"); err != nil && os.Getenv("CI") == "" {
		t.Skip("HAProxy is not installed: apt-get install haproxy")
	}
	server := postgrestest.Start(t)
	folder := filepath.Dir(server.Socket())
	r := readPage(t, "docs/two-gateways.md", []string{"8001", "8080", "8081", "8082", "8405", "9091", "9092"},
		"PGHOST="+folder, "PGUSER=postgres")
	oneLine := regexp.MustCompile(`(?ms)<<'YAML'.*?^YAML|\\\n`).ReplaceAllString(strings.Join(r.blocks[:4], ""), "")
	if commands := strings.Count(oneLine, "\n"); commands != 10+1 { // and the completion
		t.Errorf("the page says ten commands and has %d:\n%s", commands-1, oneLine)
	}
	r.run("make build")
	r.run("vllm serve meta-llama/Llama-3.1-8B --port 8001 >vllm.log 2>&1 &")
	r.wait("curl -sf http://127.0.0.1:8001/health")
	r.run(r.take("export BASEGATE_DATABASE_PASSWORD"))
	// The test's server has no port in a network of its own, and its socket is elsewhere.
	r.run(strings.Replace(r.take("cat >gateway-1.yaml"), "@127.0.0.1/basegate", "@/basegate?host="+folder, 1))
	r.run(r.take("bin/basegate serve"))
	r.wait("curl -sf http://127.0.0.1:8081/readyz && curl -sf http://127.0.0.1:8082/readyz && curl -sf http://127.0.0.1:8080/readyz")
	r.answers(r.take("bin/basegate account create"))
	out := r.run(r.take("kill -9 $first"))
	if !aText.MatchString(out) || !strings.Contains(out, "gateway-1") || !strings.Contains(out, "gateway-2") {
		t.Errorf("after a gateway was killed: %s", out)
	}
}
