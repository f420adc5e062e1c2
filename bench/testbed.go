package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The targets, by the names that stand in the report.
const (
	direct       = "direct"
	reverseProxy = "ReverseProxy"
	gateway      = "basegate"
	byteCopy     = "copy in Go"
	nginx        = "nginx"
	haproxy      = "HAProxy"
)

// model is the id and the checkpoint at once, so that all targets get the same bytes.
const model = "bench"

// target is one way to the upstream.
type target struct {
	name    string
	address string // host:port
	key     string
	process *process
}

// request is a completion request to it as it goes over a connection.
func (t *target) request(body []byte) []byte {
	return fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", t.address, t.key, len(body), body)
}

// noKey goes to the targets that ask for none: as many bytes as a key of the gateway has.
var dummyKey = "acs-bm-" + strings.Repeat("0", 43)

// stage is an upstream with proxies before it, and the folder with their files.
type testbed struct {
	dir      string
	programs programs
	upstream string   // its host:port
	targets  []target // in the order in which they were added
}

func newTestbed(p programs) (*testbed, error) {
	dir, err := os.MkdirTemp("", "basegate-bench-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	return &testbed{dir: dir, programs: p}, nil
}

// newLoadStage starts the mock, with so much time between the events of a stream, and every proxy before it.
func newLoadTestbed(ctx context.Context, p programs, pace time.Duration) (s *testbed, err error) {
	if s, err = newTestbed(p); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.addUpstream(ctx, pace); err != nil {
		return nil, err
	}
	for _, name := range p.proxies() {
		if _, err := s.addProxy(ctx, name); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// addUpstream makes the mock the stage's upstream, and a target.
func (s *testbed) addUpstream(ctx context.Context, pace time.Duration) (err error) {
	if s.upstream, err = freeAddress(ctx); err != nil {
		return err
	}
	_, err = s.start(ctx, direct, s.upstream, "/health", s.programs.basegate,
		"mockvllm", "--instant", "--model", model, "--listen", s.upstream, "--token-delay", pace.String())
	return err
}

// addProxy starts one of the proxies before the upstream.
func (s *testbed) addProxy(ctx context.Context, name string) (target, error) {
	switch name {
	case gateway:
		t, _, err := s.startGateway(ctx, unlimited)
		return t, err
	case nginx:
		return s.startNginx(ctx)
	case haproxy:
		return s.startHAProxy(ctx)
	case byteCopy:
		return s.startSelf(ctx, byteCopy, byteCopyCommand)
	default:
		return s.startSelf(ctx, reverseProxy, reverseProxyCommand)
	}
}

// startItself starts this program as one of its children.
func (s *testbed) startSelf(ctx context.Context, name, command string) (target, error) {
	self, err := os.Executable()
	if err != nil {
		return target{}, fmt.Errorf("find this program: %w", err)
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return target{}, err
	}
	return s.start(ctx, name, address, "/health", self, command, "-listen", address, "-target", s.upstream)
}

// plenty is a concurrency at which no request of a benchmark waits.
const unlimited = 100_000

// budgetFlags are budgets that are looked at for each request, and that no benchmark uses up.
var budgetFlags = []string{"--monthly-budget", "1_000_000_000_000", "--daily-budget", "1_000_000_000_000"}

// startGateway configures the gateway as it would be in use: every request is logged, to a file, by a key from the
// database, and held against budgets. The context is large, as today's models' are, so that no prompt here needs its
// tokens counted. It also returns the URL of the gateway's admin listener.
func (s *testbed) startGateway(ctx context.Context, concurrency int) (target, string, error) {
	listen, err := freeAddress(ctx)
	if err != nil {
		return target{}, "", err
	}
	admin, err := freeAddress(ctx)
	if err != nil {
		return target{}, "", err
	}
	path := filepath.Join(s.dir, "config.yaml")
	text := fmt.Sprintf(`server: {listen: %q, admin_listen: %q, drain_timeout: 0s}
database: {path: %q}
models:
  - {id: %s, checkpoint: %s, max_model_len: 1000000, backends: [{url: "http://%s"}]}
`, listen, admin, filepath.Join(s.dir, "basegate.db"), model, model, s.upstream)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return target{}, "", fmt.Errorf("write configuration: %w", err)
	}
	account := append([]string{"account", "create", "bench@example.org"}, budgetFlags...)
	if _, err := s.command(ctx, path, account...); err != nil {
		return target{}, "", err
	}
	key, err := s.command(ctx, path, append([]string{
		"key", "create", "--account", "bench@example.org", "--name", "bench",
		"--concurrency", strconv.Itoa(concurrency),
	}, budgetFlags...)...)
	if err != nil {
		return target{}, "", err
	}
	t, err := s.start(ctx, gateway, listen, "/readyz", s.programs.basegate, "serve", "--config", path)
	if err != nil {
		return t, "", err
	}
	t.key = key
	s.targets[len(s.targets)-1].key = key
	return t, "http://" + admin, nil
}

// command runs one command of the gateway to its end and returns what it printed.
func (s *testbed) command(ctx context.Context, config string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, s.programs.basegate, append(args, "--config", config)...).Output() //nolint:gosec // the gateway's binary
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", s.programs.basegate, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// start adds a target that listens on address, once its path ready answers. Its output goes to a file.
func (s *testbed) start(ctx context.Context, name, address, ready, program string, args ...string) (target, error) {
	output, err := os.Create(filepath.Join(s.dir, name+".log")) //nolint:gosec // in the folder just made
	if err != nil {
		return target{}, fmt.Errorf("make log: %w", err)
	}
	defer output.Close() // the child has its own handle
	p, err := startProcess(ctx, name, output, "http://"+address+ready, program, args...)
	if err != nil {
		said, _ := os.ReadFile(output.Name()) // the first error is the one to tell
		return target{}, fmt.Errorf("%w: %.1000s", err, said)
	}
	t := target{name, address, dummyKey, p}
	s.targets = append(s.targets, t)
	return t, nil
}

// close ends every process, the upstream last, and removes the folder.
func (s *testbed) close() error {
	var all error
	for len(s.targets) > 0 {
		last := len(s.targets) - 1
		all = errors.Join(all, s.targets[last].process.stop())
		s.targets = s.targets[:last]
	}
	return errors.Join(all, os.RemoveAll(s.dir))
}
