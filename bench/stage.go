package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The targets, by the names that stand in the report.
const (
	direct  = "direct"
	bare    = "ReverseProxy"
	gateway = "basegate"
)

// model is the id and the checkpoint at once, so that all targets get the same bytes.
const model = "bench"

// target is one way to the upstream.
type target struct {
	name    string
	url     string // of completions
	key     string
	process *process
}

// stage is the upstream with both proxies before it, and the folder with their files.
type stage struct {
	dir       string
	basegate  string
	addresses map[string]string // of every target, and of the gateway's admin listener
	key       string
	processes map[string]*process
}

const admin = "admin"

func newStage(ctx context.Context, basegate string) (s *stage, err error) {
	dir, err := os.MkdirTemp("", "basegate-bench-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	s = &stage{dir: dir, basegate: basegate, addresses: map[string]string{}, processes: map[string]*process{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, name := range []string{direct, bare, gateway, admin} {
		if s.addresses[name], err = freeAddress(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.startUpstream(ctx); err != nil {
		return nil, err
	}
	if err := s.startBare(ctx); err != nil {
		return nil, err
	}
	return s, s.startGateway(ctx)
}

func (s *stage) startUpstream(ctx context.Context) error {
	return s.start(ctx, direct, "/health", s.basegate, "mockvllm", "--instant", "--model", model, "--listen", s.addresses[direct])
}

func (s *stage) startBare(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return s.start(ctx, bare, "/health", self, bareCommand, "-listen", s.addresses[bare], "-target", "http://"+s.addresses[direct])
}

// startGateway configures the gateway as it would be in use: every request is logged, to a file, by a key from the
// database. The context is large, as today's models' are, so that no prompt here needs its tokens counted.
func (s *stage) startGateway(ctx context.Context) error {
	path := filepath.Join(s.dir, "config.yaml")
	text := fmt.Sprintf(`server: {listen: %q, admin_listen: %q, drain_timeout: 2s}
database: {path: %q}
models:
  - {id: %s, checkpoint: %s, max_model_len: 1000000, backends: [{url: "http://%s"}]}
`, s.addresses[gateway], s.addresses[admin], filepath.Join(s.dir, "basegate.db"), model, model, s.addresses[direct])
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if _, err := s.command(ctx, path, "account", "create", "bench@example.org"); err != nil {
		return err
	}
	key, err := s.command(ctx, path, "key", "create", "--account", "bench@example.org", "--name", "bench", "--concurrency", "1000")
	if err != nil {
		return err
	}
	s.key = key
	return s.start(ctx, gateway, "/readyz", s.basegate, "serve", "--config", path)
}

// command runs one command of the gateway to its end and returns what it printed.
func (s *stage) command(ctx context.Context, config string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, s.basegate, append(args, "--config", config)...).Output() //nolint:gosec // the gateway's binary
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", s.basegate, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (s *stage) start(ctx context.Context, name, ready, program string, args ...string) error {
	output, err := os.Create(filepath.Join(s.dir, name+".log")) //nolint:gosec // in the folder just made
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	defer output.Close() // the child has its own handle
	s.processes[name], err = startProcess(ctx, name, output, "http://"+s.addresses[name]+ready, program, args...)
	if err != nil {
		delete(s.processes, name)
	}
	return err
}

// targets lists the ways to the upstream in the order in which they take turns.
func (s *stage) targets() []target {
	var all []target
	for _, name := range []string{direct, bare, gateway} {
		all = append(all, target{name, "http://" + s.addresses[name] + "/v1/completions", s.key, s.processes[name]})
	}
	return all
}

// close ends every process and removes the folder.
func (s *stage) close() error {
	var all error
	for _, p := range s.processes {
		all = errors.Join(all, p.stop())
	}
	return errors.Join(all, os.RemoveAll(s.dir))
}
