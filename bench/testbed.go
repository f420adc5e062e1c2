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

	"basegate/internal/loopback"
)

// Names of the targets, as in the report.
const (
	direct       = "direct"
	reverseProxy = "ReverseProxy"
	gateway      = "basegate"
	flushing     = "basegate, flush: 1s"
	oldGateway   = "old basegate"
	byteCopy     = "copy in Go"
	nginx        = "nginx"
	haproxy      = "HAProxy"
)

// model is both the model's id and its checkpoint, so that all targets receive the same bytes.
const model = "bench"

// target is an address that the load can be sent to: a proxy, or the upstream itself.
type target struct {
	name    string
	address string // host:port
	key     string
	process *process
	header  string   // further lines of the header of a request
	keys    []string // of the connections in turn, in place of key; nil: key
	server  *process // whose CPU time is taken too; nil: none
}

// request encodes a request of a path for the target.
func (t *target) request(path string, body []byte) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", path, t.address, t.key, t.header, len(body), body)
}

// dummyKey is sent to the targets that check no key. It is as long as a key of the gateway.
var dummyKey = "acs-bm-" + strings.Repeat("0", 43)

// testbed is an upstream with proxies in front of it, and the directory with their files.
type testbed struct {
	dir      string
	programs programs
	upstream string   // host:port
	targets  []target // in the order of their start
}

func newTestbed(p programs) (*testbed, error) {
	dir, err := os.MkdirTemp("", "basegate-bench-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	return &testbed{dir: dir, programs: p}, nil
}

// newLoadTestbed starts the upstream, with the pace between two events of a stream, and every proxy in front of it.
func newLoadTestbed(ctx context.Context, p programs, pace time.Duration) (b *testbed, err error) {
	if b, err = newTestbed(p); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err := b.addUpstream(ctx, "-pace", pace.String()); err != nil {
		return nil, err
	}
	for _, name := range p.loaded() {
		if _, err := b.addProxy(ctx, name); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// addUpstream starts the upstream of the load, which is also a target. The flags are those of childFlags.
func (b *testbed) addUpstream(ctx context.Context, flags ...string) (err error) {
	if b.upstream, err = loopback.FreeAddress(ctx); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	_, err = b.start(ctx, direct, b.upstream, "/health", self, append([]string{upstreamCommand, "-listen", b.upstream}, flags...)...)
	return err
}

// addProxy starts a proxy in front of the upstream.
func (b *testbed) addProxy(ctx context.Context, name string) (target, error) {
	switch name {
	case gateway:
		t, _, err := b.startGateway(ctx, unlimited)
		return t, err
	case flushing:
		t, _, err := b.startGatewayOf(ctx, gatewayOptions{name: flushing, program: b.programs.basegate, database: ", flush: 1s", concurrency: unlimited})
		return t, err
	case oldGateway:
		t, _, err := b.startGatewayOf(ctx, gatewayOptions{name: oldGateway, program: b.programs.old, concurrency: unlimited})
		return t, err
	case nginx:
		return b.startNginx(ctx)
	case haproxy:
		return b.startHAProxy(ctx)
	case byteCopy:
		return b.startSelf(ctx, byteCopy, byteCopyCommand)
	default:
		return b.startSelf(ctx, reverseProxy, reverseProxyCommand)
	}
}

// startSelf starts this program as one of its children.
func (b *testbed) startSelf(ctx context.Context, name, command string) (target, error) {
	self, err := os.Executable()
	if err != nil {
		return target{}, fmt.Errorf("find this program: %w", err)
	}
	address, err := loopback.FreeAddress(ctx)
	if err != nil {
		return target{}, err
	}
	return b.start(ctx, name, address, "/health", self, command, "-listen", address, "-target", b.upstream)
}

// unlimited is a concurrency at which no request of the benchmark queues.
const unlimited = 100_000

// budgetFlags set budgets that are checked on each request and never exhausted.
var budgetFlags = []string{"--monthly-budget", "1_000_000_000_000", "--daily-budget", "1_000_000_000_000"}

// startGateway starts the gateway configured as in production: it logs each request to a file, checks a key from the
// database, and checks budgets. The context is as large as those of current models, so that the gateway need not count
// a prompt's tokens. startGateway also returns the URL of the admin listener.
func (b *testbed) startGateway(ctx context.Context, concurrency int) (target, string, error) {
	return b.startGatewayOf(ctx, gatewayOptions{name: gateway, program: b.programs.basegate, concurrency: concurrency})
}

// gatewayOptions are what differs between the gateways of a testbed.
type gatewayOptions struct {
	name, program string
	database      string // further members of the section, with a comma before them
	url           string // of the database; empty: a SQLite file
	sections      string // further sections of the configuration
	concurrency   int
	chat          bool     // the model chats, besides completions
	balance       string   // of the model; empty: the default
	backends      []string // host:port; nil: the testbed's upstream
}

// model returns the model's members beside its id, in YAML flow style.
func (o *gatewayOptions) model(upstream string) string {
	backends := o.backends
	if backends == nil {
		backends = []string{upstream}
	}
	var list []string
	for i, address := range backends {
		list = append(list, fmt.Sprintf(`{name: b%d, gpu: b%d, url: "http://%s"}`, i, i, address))
	}
	text := fmt.Sprintf("max_model_len: 1000000, backends: [%s]", strings.Join(list, ", "))
	if o.chat {
		text += ", chat: true"
	}
	if o.balance != "" {
		text += ", balance: " + o.balance
	}
	return text
}

// startGatewayOf is startGateway for one of several gateways, each with a database of its own.
func (b *testbed) startGatewayOf(ctx context.Context, o gatewayOptions) (target, string, error) {
	listen, err := loopback.FreeAddress(ctx)
	if err != nil {
		return target{}, "", err
	}
	admin, err := loopback.FreeAddress(ctx)
	if err != nil {
		return target{}, "", err
	}
	path := filepath.Join(b.dir, o.name+".yaml")
	database := fmt.Sprintf("path: %q", filepath.Join(b.dir, o.name+".db"))
	if o.url != "" {
		database = fmt.Sprintf("url: %q", o.url)
	}
	text := fmt.Sprintf(`server: {listen: %q, admin_listen: %q, drain_timeout: 0s}
database: {%s%s}
%smodels:
  - {id: %s, checkpoint: %s, %s}
`, listen, admin, database, o.database, o.sections, model, model, o.model(b.upstream))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return target{}, "", fmt.Errorf("write configuration: %w", err)
	}
	account := append([]string{"account", "create", "bench@example.org"}, budgetFlags...)
	if _, err := command(ctx, o.program, path, account...); err != nil {
		return target{}, "", err
	}
	key, err := command(ctx, o.program, path, append([]string{
		"key", "create", "--account", "bench@example.org", "--name", "bench",
		"--concurrency", strconv.Itoa(o.concurrency),
	}, budgetFlags...)...)
	if err != nil {
		return target{}, "", err
	}
	t, err := b.start(ctx, o.name, listen, "/readyz", o.program, "serve", "--config", path)
	if err != nil {
		return t, "", err
	}
	t.key = key
	b.targets[len(b.targets)-1].key = key
	return t, "http://" + admin, nil
}

// command runs one command of the gateway and returns its output.
func command(ctx context.Context, program, config string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, program, append(args, "--config", config)...).Output() //nolint:gosec // the gateway's binary
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// start starts a target that listens on address, and waits until its path ready responds. Its output goes to a file.
func (b *testbed) start(ctx context.Context, name, address, ready, program string, args ...string) (target, error) {
	output, err := os.Create(filepath.Join(b.dir, name+".log")) //nolint:gosec // in the testbed's own directory
	if err != nil {
		return target{}, fmt.Errorf("make log: %w", err)
	}
	defer output.Close() // the child has its own descriptor
	p, err := startProcess(ctx, name, output, "http://"+address+ready, program, args...)
	if err != nil {
		text, _ := os.ReadFile(output.Name()) // on failure the first error suffices
		return target{}, fmt.Errorf("%w: %.1000s", err, text)
	}
	t := target{name: name, address: address, key: dummyKey, process: p}
	b.targets = append(b.targets, t)
	return t, nil
}

// close stops every process, the upstream last, and removes the directory.
func (b *testbed) close() error {
	var all error
	for len(b.targets) > 0 {
		last := len(b.targets) - 1
		all = errors.Join(all, b.targets[last].process.stop())
		b.targets = b.targets[:last]
	}
	return errors.Join(all, os.RemoveAll(b.dir))
}
