//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// replicated is an environment whose PostgreSQL has a standby, and the proxies before both servers.
type replicated struct {
	*environment

	primary, standby *postgrestest.Server
	first, second    *postgrestest.Proxy
	name             string // of the database
}

// newReplicated creates the environment, whose URL is that of the primary until setURL.
func newReplicated(t *testing.T) *replicated {
	t.Helper()
	primary := postgrestest.Start(t)
	env := newEnvironment(t, settings{postgres: primary, probeTimeout: loadedProbe}, startMock(t, mockvllm.Options{}).URL())
	_, name, _ := strings.Cut(env.postgresURL, "@/")
	name, _, _ = strings.Cut(name, "?")
	standby := primary.Replica(t)
	return &replicated{
		environment: env, primary: primary, standby: standby, name: name,
		first: postgrestest.NewProxy(t, primary), second: postgrestest.NewProxy(t, standby),
	}
}

// setURL changes database.url in the configuration.
func (e *replicated) setURL(url string) {
	e.t.Helper()
	text, err := os.ReadFile(e.config)
	must(e.t, err)
	writeFile(e.t, e.config, strings.Replace(string(text), fmt.Sprintf("%q", e.postgresURL), fmt.Sprintf("%q", url), 1))
	e.postgresURL = url
}

// bothHosts is the URL of both servers.
func (e *replicated) bothHosts(more string) string {
	return "postgres://postgres@" + e.first.Address() + "," + e.second.Address() + "/" + e.name + "?sslmode=disable" + more
}

// A switchover costs requests for seconds, and no gateway a restart, whichever way the address follows the primary.
func TestGatewayServesAfterASwitchover(t *testing.T) {
	for name, test := range map[string]struct {
		url func(*replicated) string
		end func(*replicated)
	}{
		"an address moves from a read-only server": {
			func(e *replicated) string { return e.first.URL(e.name) },
			func(e *replicated) { e.primary.Fence(e.t); e.first.Move(e.standby) },
		},
		"an address moves late from a server that has become a standby": {
			func(e *replicated) string { return e.first.URL(e.name) },
			func(e *replicated) {
				e.primary.Demote(e.t)
				before := e.first.Accepted()
				poll.Until(e.t, "the gateway has asked the standby", func() bool { return e.first.Accepted() > before+4 })
				e.first.Move(e.standby)
			},
		},
		"two hosts": {
			func(e *replicated) string { return e.bothHosts("") },
			func(e *replicated) { e.primary.Demote(e.t) },
		},
		"two hosts, the first does not answer": {
			func(e *replicated) string { return e.bothHosts("") },
			func(e *replicated) { e.primary.Pause(e.t); e.t.Cleanup(func() { e.primary.Resume(e.t) }) },
		},
		"target_session_attrs": {
			func(e *replicated) string { return e.bothHosts("&target_session_attrs=read-write") },
			func(e *replicated) { e.primary.Demote(e.t) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newReplicated(t)
			e.setURL(test.url(e))
			if table, code := e.check(); code != 0 {
				t.Errorf("check: exit code %d, %s", code, table)
			}
			g := e.serve()
			if got := admitted(t, g.url, g.secret); got.status != http.StatusOK {
				t.Fatalf("before the switchover: %+v", got)
			}
			e.standby.Promote(t, e.primary)
			test.end(e)
			poll.Until(t, "requests are served again", func() bool {
				got, err := post(g.url, g.secret, smallRequest)
				must(t, err)
				return got.status == http.StatusOK
			})
			// Keys are read by other connections than requests are charged on.
			created := g.createKey("later")
			poll.Until(t, "a new key works", func() bool {
				got, err := post(g.url, created, smallRequest)
				must(t, err)
				return got.status == http.StatusOK
			})
			poll.Until(t, "the gateway is ready", func() bool { return g.get(g.admin, "/readyz").status == http.StatusOK })
			g.signIn()
		})
	}
}

// At a boot, PostgreSQL may be ready later than the gateway, and at a switchover it is a standby at first.
func TestServeWaitsForItsDatabase(t *testing.T) {
	e := newReplicated(t)
	secret := e.createKey("test")
	e.standby.Promote(t, e.primary)
	e.setURL(e.first.URL(e.name))
	const waiting = `the database cannot be used yet; the start waits for it`

	e.primary.Stop(t)
	stopped := &gateway{environment: e.environment, t: t, process: startProcess(t, "serve", "--config", e.config)}
	stopped.waitForOutput(stopped.stderr, waiting)
	stopped.signal(syscall.SIGTERM)
	if code := stopped.waitExit(); code != 0 {
		t.Errorf("SIGTERM while the database is away: exit code %d, %s; want 0", code, stopped.stderr.String())
	}

	e.primary.Demote(t)
	g := &gateway{environment: e.environment, t: t, secret: secret, process: startProcess(t, "serve", "--config", e.config)}
	g.waitForOutput(g.stderr, waiting+`.*a standby`)
	e.first.Move(e.standby)
	addresses := g.waitForOutput(g.stderr, `"listening","public":"([^"]+)","admin":"([^"]+)"`)
	if got := admitted(t, "http://"+addresses[1], secret); got.status != http.StatusOK {
		t.Errorf("after the wait: %+v", got)
	}
}

// PgBouncer in session mode passes what a gateway needs; in transaction mode it does not.
func TestGatewayServesThroughAPooler(t *testing.T) {
	server := postgrestest.Shared(t)
	env := newEnvironment(t, settings{postgres: server, probeTimeout: loadedProbe}, startMock(t, mockvllm.Options{}).URL())
	_, name, _ := strings.Cut(env.postgresURL, "@/")
	name, _, _ = strings.Cut(name, "?")
	e := &replicated{environment: env}
	e.setURL(server.StartPooler(t, name, "session", "default_pool_size = 40"))
	if table, code := e.check(); code != 0 {
		t.Errorf("check: exit code %d, %s", code, table)
	}
	g := e.serve()
	if got := admitted(t, g.url, g.secret); got.status != http.StatusOK {
		t.Errorf("got %+v", got)
	}
	g.signIn()

	e.setURL(server.StartPooler(t, name, "transaction", ""))
	table, code := e.check()
	if code != 1 || !strings.Contains(table, "a pooler in transaction mode") {
		t.Errorf("check: exit code %d, %s; want the mode of the pooler", code, table)
	}
	if _, stderr, code := runCommand(t, "serve", "--config", e.config); code != 1 || !strings.Contains(stderr, "a pooler in transaction mode") {
		t.Errorf("serve: exit code %d, %s; want the mode of the pooler", code, stderr)
	}
}
