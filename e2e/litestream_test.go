//go:build e2e

package e2e_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// litestream is a Litestream that replicates an environment's database to a folder, with the shipped configuration.
type litestream struct {
	env    *environment
	binary string
	config string
}

func newLitestream(env *environment, binary string) *litestream {
	env.t.Helper()
	text, err := os.ReadFile("../deploy/litestream/litestream.yml")
	must(env.t, err)
	l := &litestream{env: env, binary: binary, config: filepath.Join(env.dir, "litestream.yml")}
	shipped := string(text)
	for from, to := range map[string]string{
		"/var/lib/basegate/basegate.db": env.database, "file:///backup/litestream": "file://" + filepath.Join(env.dir, "replica"),
	} {
		if strings.Count(shipped, from) != 1 {
			env.t.Fatalf("the shipped configuration has %q %d times, want once", from, strings.Count(shipped, from))
		}
		shipped = strings.Replace(shipped, from, to, 1)
	}
	writeFile(env.t, l.config, shipped)
	return l
}

// replicate runs Litestream until stop is called or the test ends. Stop kills it, as the end of its machine would.
func (l *litestream) replicate() (stop func()) {
	t := l.env.t
	t.Helper()
	log := newOutput(t)
	cmd := exec.Command(l.binary, "replicate", "-config", l.config)
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait() // the error is that of the kill
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("litestream wrote:\n%s", log.tail())
		}
	})
	return stop
}

// restore writes what has been replicated to a new file.
func (l *litestream) restore() (file string, err error) {
	file = filepath.Join(l.env.t.TempDir(), "replica.db")
	cmd := exec.CommandContext(l.env.t.Context(), l.binary, "restore", "-config", l.config, "-o", file, l.env.database)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("litestream restore: %w: %s", err, out)
	}
	return file, nil
}

// restoreAll restores into a new environment once the replica has all requests that the given responses reported.
func (l *litestream) restoreAll(want *completedResponses, backends ...string) *environment {
	t := l.env.t
	t.Helper()
	dir := t.TempDir()
	restored := &environment{t: t, dir: dir, config: filepath.Join(dir, "config.yaml"), email: l.env.email}
	restored.writeConfig(settings{}, backends...)
	poll.Until(t, "the replica has every request", func() bool {
		file, err := l.restore()
		if err != nil {
			t.Log(err)
			return false
		}
		restored.run("restore", file)
		return len(restored.usageRows()) >= len(want.usage)
	})
	return restored
}

// Litestream replicates while the gateway serves and writes its log back: the log stays small, the replica gets every
// settled request, and a gateway continues on the restored database, replicated again.
func TestLitestreamReplicatesAServingGateway(t *testing.T) {
	program := os.Getenv("BASEGATE_LITESTREAM")
	if program == "" {
		t.Skip("BASEGATE_LITESTREAM, the path of Litestream, is not set: run make litestream")
	}
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{}, mock.URL())
	g := env.serve()
	l := newLitestream(env, program)
	stop := l.replicate()
	done := sendConcurrently(g, 1500)
	if info, err := os.Stat(env.database + "-wal"); err != nil || info.Size() > 64<<20 {
		t.Errorf("the write-ahead log: %v, %v; want at most 64 MB", info, err)
	}
	restored := l.restoreAll(done, mock.URL())
	stop()
	restored.run("database", "check")
	done.verify(t, restored.usageRows(), g.secret)

	// The same on the restored database, in place: it replaces the one that was replicated.
	g.signal(syscall.SIGTERM)
	g.waitExit()
	file, err := l.restore()
	must(t, err)
	env.run("restore", file)
	again := env.serveWithKey(g.secret)
	l.replicate()
	if got := again.complete(smallRequest); got.status != http.StatusOK {
		t.Errorf("a key of the replica: %d %s", got.status, got.body)
	}
	maps.Copy(done.usage, sendConcurrently(again, 200).usage)
	l.restoreAll(done, mock.URL())
}

// sendConcurrently sends the given number of requests, which must succeed.
func sendConcurrently(g *gateway, n int) *completedResponses {
	g.t.Helper()
	done := &completedResponses{usage: map[string]gjson.Result{}}
	var clients sync.WaitGroup
	for range 10 {
		clients.Go(func() {
			for range n / 10 {
				if !done.send(g, g.secret, false) {
					g.t.Error("a request failed")
				}
			}
		})
	}
	clients.Wait()
	return done
}
