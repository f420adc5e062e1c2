//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/internal/wait"
	"basegate/mockvllm"
)

const (
	clusterMembers = 3
	clusterKeys    = 16 // in four accounts
	clusterCap     = 60_000
	hotClients     = 14 // of each of two keys, so that requests wait for slots
)

// clusterRun is three gateways on one database behind HAProxy, under load, while they and their connections fail.
type clusterRun struct {
	t       *testing.T
	rng     *rand.Rand
	server  *postgrestest.Server
	ledger  *clusterLedger
	toxics  *toxiproxy
	env     *environment // of the commands, which reach the database directly
	members [clusterMembers]*clusterMember
	proxy   *haproxyProcess
	secrets []string
	model   *launchedModel
	faults  map[string]int

	violations violationLog
	mu         sync.Mutex
	answers    map[string]wholeAnswer
	outcomes   map[string]int
	cuts       map[string]int // replies of PostgreSQL that were cut, by statement
}

// clusterMember is one of the gateways.
type clusterMember struct {
	env     *environment
	name    string // also of its proxy to PostgreSQL
	address string
	process *process
	replies *postgrestest.Proxy // between Toxiproxy and PostgreSQL
	fault   string              // that it has, or has had
	undo    func()              // of the fault that it has; nil: none
	until   time.Time
}

// portOf returns the port of an address.
func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	return port
}

func newClusterRun(t *testing.T) *clusterRun {
	t.Helper()
	seed := faultSeed(t)
	c := &clusterRun{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), faults: map[string]int{}, answers: map[string]wholeAnswer{}, outcomes: map[string]int{},
		cuts: map[string]int{}, violations: violationLog{found: map[string]bool{}},
	}
	c.server = postgrestest.Start(t)
	name := c.server.Create(t, "")
	c.toxics = startToxiproxy(t)
	mock := startMock(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
	c.model = newObservedModel(t)
	files := t.TempDir()
	c.env = c.newEnvironment("commands", c.server.URL(name), loopback.Address(t), mock.URL(), files)
	addresses := make([]string, clusterMembers)
	for i := range c.members {
		m := &clusterMember{name: fmt.Sprintf("gateway-%d", i+1), address: loopback.Address(t), replies: postgrestest.NewProxy(t, c.server)}
		database := "postgres://postgres@" + c.toxics.add(m.name, m.replies.Address()) + "/" + name
		m.env = c.newEnvironment(m.name, database, m.address, mock.URL(), files)
		c.members[i], addresses[i] = m, m.address
	}
	c.createKeys() // the first command migrates the database
	c.ledger = openClusterLedger(t, c.server.URL(name))
	for _, m := range c.members {
		m.start()
	}
	c.proxy = startHAProxyFor(t, addresses...)
	for _, m := range c.members {
		poll.Until(t, m.name+" is ready", func() bool { m.supervise(); return m.ready() })
	}
	c.waitForProxy()
	return c
}

// waitForProxy waits until HAProxy's checks, which come once a second, have found a gateway that is ready.
func (c *clusterRun) waitForProxy() {
	c.t.Helper()
	poll.Until(c.t, "HAProxy has found a gateway", func() bool {
		resp, err := httpClient.Get(c.proxy.url + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// newObservedModel returns a model whose log of commands says twice for a start while it runs or boots.
func newObservedModel(t *testing.T) *launchedModel {
	t.Helper()
	l := newLaunchedModel(t, time.Second)
	l.bootTimeout = "30s" // for which others wait if the gateway that boots it is killed
	start := filepath.Join(l.dir, "start")
	must(t, os.Rename(start, start+"-unobserved"))
	must(t, os.WriteFile(start, []byte(fmt.Sprintf("#!/bin/sh\ncd %s\nkill -0 \"$(cat pid 2>/dev/null)\" 2>/dev/null && echo twice >> log\nexec ./start-unobserved\n", l.dir)), 0o700))
	return l
}

// newEnvironment writes the configuration of a gateway.
func (c *clusterRun) newEnvironment(name, database, listen, backend, files string) *environment {
	c.t.Helper()
	dir := c.t.TempDir()
	env := &environment{t: c.t, dir: dir, config: filepath.Join(dir, "config.yaml"), email: "a0@example.org"}
	writeFile(c.t, env.config, fmt.Sprintf(`server: {listen: %q, admin_listen: "127.0.0.1:0", drain_timeout: 10s}
gateway: {name: %s}
database: {url: %q}
files: {url: "file://%s", shared: true}
limits: {concurrency_per_key: %d}
probe: {interval: 100ms, timeout: 20s}
breaker: {consecutive_failures: 1000}
models: [%s, %s]
`, listen, name, database, files, leaseLimit, modelConfig("m", backend), c.model.config("launched", ", boot_estimate: 1s, idle_after: 5s", "")))
	return env
}

func (c *clusterRun) createKeys() {
	c.t.Helper()
	for a := range 4 {
		c.env.run("account", "create", fmt.Sprintf("a%d@example.org", a))
	}
	for k := range clusterKeys {
		args := []string{"key", "create", "--account", fmt.Sprintf("a%d@example.org", k%4), "--name", fmt.Sprint("key ", k)}
		if k%4 == 3 {
			args = append(args, "--monthly-budget", fmt.Sprint(clusterCap))
		}
		c.secrets = append(c.secrets, strings.TrimSpace(c.env.run(args...)))
	}
}

// start starts the gateway's process.
func (m *clusterMember) start() { m.process = startProcess(m.env.t, "serve", "--config", m.env.config) }

func (m *clusterMember) ready() bool {
	resp, err := httpClient.Get("http://" + m.address + "/readyz")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// supervise starts a gateway again that has exited, as systemd would: a gateway cannot start while the database is away.
func (m *clusterMember) supervise() {
	select {
	case <-m.process.exited:
		if m.process.stderr.contains("panic: ") || m.process.stderr.contains("fatal error: ") {
			m.env.t.Errorf("%s: %s", m.name, m.process.stderr.tail())
		}
		m.start()
	default:
	}
}

// memberFaults are what happens to a gateway; each returns how it ends.
var memberFaults = map[string]func(c *clusterRun, m *clusterMember) (undo func()){
	"killed": func(_ *clusterRun, m *clusterMember) func() {
		m.process.cmd.Process.Signal(syscall.SIGKILL)
		<-m.process.exited
		return m.start
	},
	"stopped": func(_ *clusterRun, m *clusterMember) func() {
		m.process.cmd.Process.Signal(syscall.SIGSTOP)
		return func() { m.process.cmd.Process.Signal(syscall.SIGCONT) }
	},
	"drained": func(_ *clusterRun, m *clusterMember) func() {
		m.process.cmd.Process.Signal(syscall.SIGTERM)
		return func() {}
	},
	"cut off":          func(c *clusterRun, m *clusterMember) func() { return c.toxics.refuse(m.name) },
	"calls are lost":   func(c *clusterRun, m *clusterMember) func() { return c.toxics.silence(m.name, "upstream") },
	"replies are lost": func(c *clusterRun, m *clusterMember) func() { return c.toxics.silence(m.name, "downstream") },
	"connections are cut": func(c *clusterRun, m *clusterMember) func() {
		return c.toxics.cutConnections(m.name, 500+c.rng.IntN(20_000))
	},
	cutReplies: func(c *clusterRun, m *clusterMember) func() {
		m.replies.Cut(c.cutReplies(1 + c.rng.IntN(4)))
		return func() { m.replies.Cut(nil) }
	},
	"connections are shut": func(c *clusterRun, m *clusterMember) func() { c.toxics.refuse(m.name)(); return func() {} },
}

// cutReplies is the fault without which the run has tested too little.
const cutReplies = "replies are cut"

// ledgerCall is the function of the ledger that decides requests.
const ledgerCall = "ledger_write_v1"

// ledgerFunction finds the function of the ledger that a statement calls.
var ledgerFunction = regexp.MustCompile(`ledger_\w+`)

// statementName returns the function of the ledger that a statement calls, or else its first word.
func statementName(statement string) string {
	if name := ledgerFunction.FindString(statement); name != "" {
		return name
	}
	return append(strings.Fields(statement), "startup")[0]
}

// cutReplies returns a fault of a proxy: one in so many calls of the ledger and commits is executed and its reply lost,
// or cut in its middle, and one in 20 of all other statements: a transaction must reach its commit. Until a call that
// decides requests has lost its reply, nothing else does: a gateway that starts would lose most of its attempts.
func (c *clusterRun) cutReplies(oneIn int) func(postgrestest.Reply) (after int, cut bool) {
	rng := rand.New(rand.NewPCG(c.rng.Uint64(), 3))
	return func(r postgrestest.Reply) (after int, cut bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		name, odds := statementName(r.Statement), 20
		if r.Executed && (name == "COMMIT" || ledgerFunction.MatchString(name)) {
			odds = oneIn
		}
		if (name != ledgerCall && c.cuts[ledgerCall] == 0) || rng.IntN(odds) > 0 {
			return 0, false
		}
		c.cuts[name]++
		places := []int{0, 1, rng.IntN(len(r.Text)), len(r.Text) - 1}
		return places[rng.IntN(len(places))], true
	}
}

// databaseFaults are what happens to PostgreSQL.
var databaseFaults = map[string]func(c *clusterRun){
	"PostgreSQL restarted": func(c *clusterRun) { c.server.Stop(c.t); c.server.Run(c.t) },
	"PostgreSQL frozen": func(c *clusterRun) {
		c.server.Pause(c.t)
		wait.For(c.t.Context(), randomUpTo(c.rng, 4*time.Second))
		c.server.Resume(c.t)
	},
	"sessions terminated": func(c *clusterRun) {
		c.ledger.texts(c.t.Context(), `SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE application_name = 'basegate' AND pid <> pg_backend_pid()`)
	},
}

// deck returns the keys of a map in random order, again and again: each one comes before any comes twice.
func deck[F any](rng *rand.Rand, all map[string]F) (next func() string) {
	var left []string
	return func() string {
		if len(left) == 0 {
			left = slices.Sorted(maps.Keys(all))
			rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		name := left[0]
		left = left[1:]
		return name
	}
}

// injectFaults makes gateways and the database fail until ctx ends, and then heals everything.
func (c *clusterRun) injectFaults(ctx context.Context) {
	c.t.Helper()
	ofMembers, ofDatabase := deck(c.rng, memberFaults), deck(c.rng, databaseFaults)
	for i := 0; wait.For(ctx, 500*time.Millisecond); i++ {
		failing := 0
		for _, m := range c.members {
			switch {
			case m.undo == nil:
				m.supervise()
			case c.awaitsCut(m):
				m.supervise()
				failing++
			case time.Now().After(m.until):
				m.heal()
			default:
				failing++
			}
		}
		switch m := c.members[c.rng.IntN(clusterMembers)]; {
		case i%20 == 19:
			name := ofDatabase()
			c.faults[name]++
			databaseFaults[name](c)
		case m.undo == nil && failing < clusterMembers-1 && i%3 == 0:
			name := cutReplies // first, since a short run may not come to it
			if c.faults[cutReplies] > 0 {
				name = ofMembers()
			}
			c.faults[name]++
			m.until = time.Now().Add(randomUpTo(c.rng, 18*time.Second)) // some are reaped, some are not
			m.fault, m.undo = name, memberFaults[name](c, m)
		}
	}
	for _, m := range c.members {
		if m.undo != nil {
			poll.Until(c.t, m.name+" has had a reply cut", func() bool {
				if !c.awaitsCut(m) {
					return true
				}
				m.supervise() // heal starts one that was killed
				return false
			})
			m.heal()
		}
	}
}

// awaitsCut reports whether replies to a gateway are to be cut, and none of the ledger has been yet: a gateway that
// still drains, or starts, has none.
func (c *clusterRun) awaitsCut(m *clusterMember) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return m.fault == cutReplies && c.cuts[ledgerCall] == 0
}

func (m *clusterMember) heal() {
	m.undo()
	m.undo = nil
}

// send sends one request through HAProxy and records its answer if it is whole.
func (c *clusterRun) send(ctx context.Context, rng *rand.Rand, model, secret string) {
	stream := rng.IntN(2) == 0
	if rng.IntN(20) == 0 { // this client disconnects
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, randomUpTo(rng, 300*time.Millisecond))
		defer cancel()
	}
	body := fmt.Sprintf(`{"model":%q,"prompt":"Once upon a time","max_tokens":%d`, model, 1+rng.IntN(60))
	if stream {
		body += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.proxy.url+"/v1/completions", strings.NewReader(body+"}"))
	if err != nil {
		c.t.Error(err)
		return
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	outcome := "connection lost"
	defer func() {
		c.mu.Lock()
		c.outcomes[outcome]++
		c.mu.Unlock()
	}()
	resp, err := httpClient.Do(r)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	outcome = resp.Status
	switch {
	case err != nil:
		outcome += ", cut"
		return
	case resp.StatusCode != http.StatusOK:
		outcome += " " + gjson.GetBytes(text, "error.code").Str
		return
	case stream:
		var done bool
		if text, done = lastUsage(string(text)); !done {
			outcome += ", error event"
			return
		}
	}
	usage := gjson.GetBytes(text, "usage")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[resp.Header.Get("X-Request-Id")] = wholeAnswer{usage.Get("prompt_tokens").Int(), usage.Get("completion_tokens").Int()}
}

// startLoad starts the clients and the sampler. The returned function stops them and waits.
func (c *clusterRun) startLoad() (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	for k, secret := range c.secrets {
		clients := 1
		if k < 2 {
			clients = hotClients
		}
		for range clients {
			rng := rand.New(rand.NewPCG(c.rng.Uint64(), 2))
			wg.Go(func() {
				for wait.For(ctx, randomUpTo(rng, 60*time.Millisecond)) {
					model := "m"
					if rng.IntN(200) == 0 {
						model = "launched"
					}
					c.send(ctx, rng, model, secret)
				}
			})
		}
	}
	wg.Go(func() {
		for wait.For(ctx, 20*time.Millisecond) {
			found, err := c.ledger.violations(ctx, runningChecks)
			if err == nil { // the database may be away
				c.violations.add(found...)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// clusterDuration returns the duration of the run: BASEGATE_CLUSTER. Without it the test is skipped.
func clusterDuration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BASEGATE_CLUSTER")
	if text == "" {
		t.Skip("set BASEGATE_CLUSTER to the duration of the run: make cluster")
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// Three gateways share one ledger while they are killed, stopped and cut off, PostgreSQL restarts, and its replies are
// lost. No cap is overspent and no key has more leases than slots at any sample; every whole answer has one settled
// row; nothing is left in flight; each line of a batch is in the results and charged once; no model is launched twice.
func TestClusterKeepsItsPromisesWhileItsPartsFail(t *testing.T) {
	t.Parallel() // it runs for a given time
	duration := clusterDuration(t)
	c := newClusterRun(t)
	through := &gateway{environment: c.env, t: t, url: c.proxy.url, secret: c.secrets[2]}
	file, ids := batchLines(int(min(duration.Seconds()*20, 5_000)))
	id := through.createBatch(through.secret, file)

	stop := c.startLoad()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	c.injectFaults(ctx)
	for _, m := range c.members { // under the load, each start waits in line for the lock of writers, and may fail
		poll.Until(t, m.name+" is ready again", func() bool { m.supervise(); return m.ready() })
	}
	stop()
	c.waitForProxy()
	// A gateway that was killed after it had published a boot, and before it ran the program, leaves the others to
	// wait for that boot to its limit, and then for the cooldown of a failure.
	poll.Until(t, "the launched model is started", func() bool {
		c.send(t.Context(), c.rng, "launched", c.secrets[2])
		wait.For(t.Context(), 100*time.Millisecond)
		return len(c.model.ranCommands()) > 0
	})
	batch := through.waitForBatch(through.secret, id, "completed")
	output, _ := through.checkResults(through.secret, batch, ids)
	began := time.Now()
	poll.Until(t, "no lease is left", func() bool {
		left, err := c.ledger.texts(t.Context(), `SELECT request_id FROM inflight UNION ALL SELECT request_id FROM waiter`)
		return err == nil && len(left) == 0
	})
	t.Logf("faults %v, replies cut %v, outcomes %v, %d whole answers, leases ended after %v", c.faults, c.cuts, c.outcomes, len(c.answers), time.Since(began))
	c.verify(output)
}

// verify reports what the run has violated.
func (c *clusterRun) verify(batch map[string]gjson.Result) {
	c.t.Helper()
	ctx := c.t.Context()
	for _, o := range batch {
		usage := o.Get("response.body.usage")
		c.answers[o.Get("response.request_id").Str] = wholeAnswer{usage.Get("prompt_tokens").Int(), usage.Get("completion_tokens").Int()}
	}
	for _, check := range []func() ([]string, error){
		func() ([]string, error) { return c.ledger.violations(ctx, runningChecks) },
		func() ([]string, error) { return c.ledger.violations(ctx, finalChecks) },
		func() ([]string, error) { return c.ledger.unsettled(ctx, c.answers) },
	} {
		found, err := check()
		must(c.t, err)
		c.violations.add(found...)
	}
	for violation := range c.violations.found {
		c.t.Error(violation)
	}
	if len(c.answers) < 100 || c.cuts[ledgerCall] == 0 {
		c.t.Errorf("%d whole answers, and replies cut %v: the run has tested too little", len(c.answers), c.cuts)
	}
	if commands := c.model.ranCommands(); slices.Contains(commands, "twice") || !slices.Contains(commands, "started") {
		c.t.Errorf("the launched model: %v, want starts, and none while it ran", commands)
	}
}
