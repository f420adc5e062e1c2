//go:build real

package real_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"basegate/internal/loopback"
	"basegate/internal/poll"
)

// bootTimeout limits the boot of a vLLM server: a minute on an idle machine with two cores, more than six at a load of 30.
const bootTimeout = 15 * time.Minute

// vllm is a vLLM server on a fixed port.
type vllm struct {
	name    string
	address string
	url     string
	log     string
	chats   bool // it has a chat template
	rust    bool // it has vLLM's Rust frontend
	lora    bool // it loads adapters at run time

	more, environment []string // further arguments and variables

	cmd    *exec.Cmd
	exited chan struct{}
}

// servers are shared by all tests: a boot takes a minute. A test that stops one starts it again.
var servers struct {
	sync.Mutex
	all []*vllm
}

// backends returns the shared servers, running: two, or one with -short. The first one has a chat template.
func backends(t *testing.T) []*vllm {
	t.Helper()
	servers.Lock()
	defer servers.Unlock()
	if servers.all == nil {
		count := 2
		if testing.Short() {
			count = 1
		}
		for i := range count {
			servers.all = append(servers.all, newVLLM(t, string(rune('a'+i))))
		}
		servers.all[0].chats = true
		for _, s := range servers.all {
			s.start(t)
		}
	}
	for _, s := range servers.all {
		if s.hasExited() {
			s.start(t)
		}
		s.waitReady(t)
	}
	return servers.all
}

func stopServers() {
	for _, s := range servers.all {
		if s.cmd != nil {
			s.kill()
		}
	}
}

func newVLLM(t *testing.T, name string) *vllm {
	t.Helper()
	address := loopback.Address(t)
	return &vllm{name: name, address: address, url: "http://" + address, log: filepath.Join(filepath.Dir(model), name+".log")}
}

// arguments returns the command line of the server. It computes with 32 bits, because with 16 the two best of 2,000 random
// logits are often equal, and then top_k=1 draws between them.
func (s *vllm) arguments() []string {
	_, port, _ := strings.Cut(s.address, ":")
	args := []string{
		filepath.Join(venv, "bin", "vllm"), "serve", model, "--served-model-name", checkpoint, "--host", "127.0.0.1", "--port", port,
		"--generation-config", "vllm", "--max-model-len", strconv.Itoa(contextLen), "--enforce-eager", "--dtype", "float32",
		"--enable-tokenizer-info-endpoint",
	}
	if s.chats {
		args = append(args, "--chat-template", "chat_template.jinja", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
	}
	if s.lora {
		args = append(args, "--enable-lora", "--max-lora-rank", "16", "--max-cpu-loras", "2")
	}
	return append(args, s.more...)
}

// vllmEnvironment keeps vLLM from the network, from statistics and from taking all memory and every core.
// Variables of the test itself go before: 0.20 does not start with nobind.
var vllmEnvironment = []string{
	"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_CPU_KVCACHE_SPACE=1",
	"VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "VLLM_LOGGING_LEVEL=INFO",
}

// start starts the server in a process group of its own, and does not wait until it is ready.
func (s *vllm) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	defer log.Close()
	args := s.arguments()
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = slices.Concat(vllmEnvironment, os.Environ(), s.environment)
	if s.rust {
		s.cmd.Env = append(s.cmd.Env, "VLLM_USE_RUST_FRONTEND=1")
	}
	if s.lora {
		s.cmd.Env = append(s.cmd.Env, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, s.cmd.Start())
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		defer close(exited)
		cmd.Wait()
	}(s.cmd, s.exited)
}

func (s *vllm) hasExited() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

func (s *vllm) waitReady(t *testing.T) {
	t.Helper()
	poll.Within(t, bootTimeout, "vLLM "+s.name+" is ready", func() bool {
		if s.hasExited() {
			t.Fatalf("vLLM %s has exited:\n%s", s.name, s.logTail())
		}
		status, _ := s.tryGet("/health")
		return status == http.StatusOK
	})
}

func (s *vllm) logTail() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

func (s *vllm) tryGet(path string) (status int, body string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return 0, ""
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(text)
}

// metric returns the sum of a metric's samples whose labels contain the text.
func (s *vllm) metric(t *testing.T, name, label string) float64 {
	t.Helper()
	_, body := s.tryGet("/metrics")
	sum := 0.0
	for _, line := range regexp.MustCompile(`(?m)^`+name+`\{([^}]*)\} (\S+)$`).FindAllStringSubmatch(body, -1) {
		if v, err := strconv.ParseFloat(line[2], 64); err == nil && strings.Contains(line[1], label) {
			sum += v
		}
	}
	return sum
}

// signalAll sends a signal to every process of the server.
func (s *vllm) signalAll(t *testing.T, signal syscall.Signal) {
	t.Helper()
	must(t, syscall.Kill(-s.cmd.Process.Pid, signal))
}

// kill kills every process of the server and waits for the first one.
func (s *vllm) kill() {
	syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	<-s.exited
}

// restart kills the server and starts it again.
func (s *vllm) restart(t *testing.T) {
	t.Helper()
	s.kill()
	s.start(t)
	s.waitReady(t)
}

// enginePID returns the process of the server's engine.
func (s *vllm) enginePID(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if group, err := syscall.Getpgid(pid); err != nil || group != s.cmd.Process.Pid {
			continue
		}
		title, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && strings.Contains(string(title), "EngineCore") {
			return pid
		}
	}
	t.Fatalf("vLLM %s has no process with EngineCore in its title", s.name)
	return 0
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shellCommand returns a line for sh that runs the server in the background and writes its process group to a file.
func (s *vllm) shellCommand(pidFile string) string {
	return fmt.Sprintf("%s setsid %s >>%s 2>&1 & echo $! > %s",
		strings.Join(vllmEnvironment, " "), strings.Join(s.arguments(), " "), s.log, pidFile)
}
