package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"basegate/internal/loopback"
	"basegate/internal/postgrestest"
)

// model is both the model's id and its checkpoint, so that all targets receive the same bytes.
const model = "bench"

// target is an address that the load can be sent to: a proxy, or the upstream itself.
type target struct {
	address string   // host:port
	admin   string   // base URL of the gateway's admin listener
	keys    []string // of the connections in turn
	header  string   // further lines of the header of a request
	process *process
	server  *process  // whose CPU time is taken too; nil: none
	others  []*target // further gateways on the same database, over which connections are spread too
}

func (t *target) gateways() []*target { return append([]*target{t}, t.others...) }

// request encodes a request of a path for one of the target's connections.
func (t *target) request(connection int, path string, body []byte) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		path, t.address, t.keys[connection%len(t.keys)], t.header, len(body), body)
}

// dummyKey is sent to the targets that check no key. It is as long as a key of the gateway.
var dummyKey = "acs-bm-" + strings.Repeat("0", 43)

// testbed is a set of processes, and the directory with their files.
type testbed struct {
	options options
	dir     string
	targets map[string]*target // by name
	direct  map[string]*sample // of the loads in the round, as sent to the upstream directly
	closers []func()           // called last to first
}

func newTestbed(o options) (*testbed, error) {
	dir, err := os.MkdirTemp("", "basegate-bench-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	return &testbed{options: o, dir: dir, targets: map[string]*target{}}, nil
}

// close stops every process, the upstream last, and removes the directory.
func (b *testbed) close() error {
	for _, c := range slices.Backward(b.closers) {
		c()
	}
	return os.RemoveAll(b.dir)
}

// start starts a program that listens on an address, and waits until its path ready responds. Its output goes to a file.
func (b *testbed) start(ctx context.Context, name, address, ready, program string, args ...string) *target {
	isReady := func(ctx context.Context) bool {
		_, err := fetch(ctx, http.MethodGet, "http://"+address+ready, nil, nil)
		return err == nil
	}
	p := b.startProcess(ctx, name+" "+address, isReady, program, args...)
	return &target{address: address, keys: []string{dummyKey}, process: p}
}

// shared returns the target of a name. It starts it if there is none.
func (b *testbed) shared(name string, start func() *target) *target {
	if b.targets[name] == nil {
		b.targets[name] = start()
	}
	return b.targets[name]
}

// startChild starts this program as one of its children.
func (b *testbed) startChild(ctx context.Context, command string, o childOptions) *target {
	o.Listen = must(loopback.FreeAddress(ctx))
	return b.start(ctx, command, o.Listen, "/health", must(os.Executable()), command, string(must(json.Marshal(o))))
}

func (b *testbed) upstream(ctx context.Context, o childOptions) *target {
	return b.shared(fmt.Sprint("upstream ", o), func() *target { return b.startChild(ctx, upstreamCommand, o) })
}

// behindGateway returns a gateway in front of an upstream. The testbed has one of each.
func (b *testbed) behindGateway(ctx context.Context, g gatewayOptions, o childOptions) *target {
	return b.shared(fmt.Sprint(g, o), func() *target { return b.startGateway(ctx, g, b.upstream(ctx, o).address) })
}

func (b *testbed) startProxy(ctx context.Context, column, upstream string) *target {
	switch column {
	case reverseProxy:
		return b.startChild(ctx, reverseProxyCommand, childOptions{Target: upstream})
	case haproxy:
		return b.startHAProxy(ctx, upstream)
	default:
		return b.startGateway(ctx, gatewayColumns[column], upstream)
	}
}

// unlimited is a concurrency at which no request of the benchmark queues.
const unlimited = 100_000

// budgetFlags set budgets that are checked on each request and never exhausted.
var budgetFlags = []string{"--monthly-budget", "1_000_000_000_000", "--daily-budget", "1_000_000_000_000"}

// gatewayOptions are what differs between gateways.
type gatewayOptions struct {
	old      bool   // it is the other binary
	postgres int    // gateways on a PostgreSQL server of their own, in place of one on a SQLite file
	database string // further members of the section, after a comma
	model    string // further members of the model, after a comma
	sections string // further sections of the configuration
	accounts int    // with a key each; 0: one
}

// withTimerSlack is a shell command that starts a program with the TimerSlackNSec of deploy/systemd/basegate.service.
const withTimerSlack = `echo 1000000 >/proc/self/timerslack_ns; exec "$0" "$@"`

// startGateway starts a gateway with a database of its own, or several on one, as in production: it logs each request to a file, and
// checks keys and budgets. The context is large, so that it need not count a prompt's tokens. The backends are host:port.
func (b *testbed) startGateway(ctx context.Context, o gatewayOptions, backends ...string) *target {
	database := fmt.Sprintf("path: %q", filepath.Join(must(os.MkdirTemp(b.dir, "")), "basegate.db"))
	var server *process
	if o.postgres > 0 {
		server, database = b.startPostgres(ctx)
	}
	var list []string
	for i, address := range backends {
		list = append(list, fmt.Sprintf(`{name: b%d, gpu: b%d, url: "http://%s"}`, i, i, address))
	}
	program := b.options.basegate
	if o.old {
		program = b.options.old
	}
	var all []*target
	var keys []string
	for i := range max(o.postgres, 1) {
		listen, admin := must(loopback.FreeAddress(ctx)), must(loopback.FreeAddress(ctx))
		path := filepath.Join(b.dir, listen+".yaml")
		text := fmt.Sprintf(`server: {listen: %q, admin_listen: %q, drain_timeout: 0s}
database: {%s%s}
%smodels:
  - {id: %s, checkpoint: %s, max_model_len: 1000000, backends: [%s]%s}
`, listen, admin, database, o.database, o.sections, model, model, strings.Join(list, ", "), o.model)
		if o.postgres > 0 {
			text += fmt.Sprintf("gateway: {name: g%d}\n", i)
		}
		check(os.WriteFile(path, []byte(text), 0o600))
		if i == 0 {
			keys = createKeys(ctx, program, path, max(o.accounts, 1))
		}
		t := b.start(ctx, gateway, listen, "/readyz", "sh", "-c", withTimerSlack, program, "serve", "--config", path)
		t.admin, t.keys, t.server = "http://"+admin, keys, server
		all = append(all, t)
	}
	all[0].others = all[1:]
	return all[0]
}

// createKeys creates accounts with a key each.
func createKeys(ctx context.Context, program, config string, accounts int) (keys []string) {
	create := func(args ...string) string {
		return must(command(ctx, program, slices.Concat(args, []string{"--config", config}, budgetFlags)...))
	}
	for i := range accounts {
		account := fmt.Sprintf("account%d@example.org", i)
		create("account", "create", account)
		keys = append(keys, create("key", "create", "--account", account, "--name", "bench", "--concurrency", strconv.Itoa(unlimited)))
	}
	return keys
}

// haproxyText is HAProxy's configuration: as many threads as Go uses processors, kept connections to the upstream, no log,
// and each event flushed at once. Its arguments: connections, threads, the listen address and the upstream.
const haproxyText = `global
  maxconn %d
  nbthread %d
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 10m
  timeout server 10m
frontend bench
  bind %s backlog 4096
  default_backend vllm
backend vllm
  server vllm %s
`

func (b *testbed) startHAProxy(ctx context.Context, upstream string) *target {
	address := must(loopback.FreeAddress(ctx))
	path := filepath.Join(b.dir, address+".cfg")
	text := fmt.Sprintf(haproxyText, b.options.streams, runtime.GOMAXPROCS(0), address, upstream)
	check(os.WriteFile(path, []byte(text), 0o600))
	return b.start(ctx, haproxy, address, "/health", b.options.haproxy, "-db", "-f", path)
}

// findHAProxy returns HAProxy's binary, which PATH may lack for users other than root, and its version. Both are empty if it
// is not installed.
func findHAProxy(ctx context.Context) (path, version string) {
	for _, place := range []string{"haproxy", "/usr/sbin/haproxy"} {
		output, err := command(ctx, place, "-v")
		if words := strings.Fields(output); err == nil && len(words) > 2 {
			return place, words[2]
		}
	}
	return "", ""
}

// startPostgres starts a PostgreSQL server of its own with fsync, on a socket in a temporary directory, and returns the member
// of the gateway's section that has its URL.
func (b *testbed) startPostgres(ctx context.Context) (server *process, member string) {
	bin, dir := postgrestest.Binaries(), must(os.MkdirTemp("", "basegate-bench-postgres-"))
	b.closers = append(b.closers, func() { _ = os.RemoveAll(dir) }) // in the system's directory of temporary files
	var as []string
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		as = []string{"setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"}
		must(command(ctx, "chown", "postgres", dir))
	}
	data := filepath.Join(dir, "data")
	initialize := append(as, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
	must(command(ctx, initialize[0], initialize[1:]...))
	serve := append(as, filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "shared_buffers=256MB")
	isReady := func(ctx context.Context) bool {
		_, err := command(ctx, filepath.Join(bin, "pg_isready"), "-q", "-h", dir, "-U", "postgres")
		return err == nil
	}
	server = b.startProcess(ctx, "PostgreSQL", isReady, serve[0], serve[1:]...)
	return server, fmt.Sprintf(`url: "postgres://postgres@/postgres?host=%s"`, dir)
}

func command(ctx context.Context, program string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// httpClient is for all but the load.
var httpClient = &http.Client{Timeout: time.Minute}

// fetch sends a request and returns the body of its response, which must be 200.
func fetch(ctx context.Context, method, url string, header http.Header, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %w: %d %.300s", method, url, errStatus, resp.StatusCode, text)
	}
	return text, nil
}

// scrape returns the sum of the samples whose lines begin with the prefix, of the metrics at a base URL.
func scrape(ctx context.Context, base, prefix string) (sum float64) {
	for line := range strings.Lines(string(must(fetch(ctx, http.MethodGet, base+"/metrics", nil, nil)))) {
		if strings.HasPrefix(line, prefix) {
			sum += must(strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64))
		}
	}
	return sum
}
