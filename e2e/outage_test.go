//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"database/sql"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// outage makes the database at a path unavailable for a while.
type outage struct {
	name string
	// makeDir creates the database's folder.
	makeDir func(t *testing.T) string
	start   func(t *testing.T, path string) (end func())
}

var outages = []outage{
	{"deleted", (*testing.T).TempDir, moveFile},
	{"deleted, and put back from a copy", (*testing.T).TempDir, replaceWithCopy},
	{"locked by another process", (*testing.T).TempDir, lockDatabase},
	{"on a full disk", tmpfsDir, fillDisk},
	{"read-only", loopDir, makeImmutable},
	{"on a disk that has become read-only", loopDir, abortFilesystem},
}

func moveFile(t *testing.T, path string) func() {
	t.Helper()
	moved := filepath.Join(t.TempDir(), "moved.db")
	must(t, os.Rename(path, moved))
	return func() { must(t, os.Rename(moved, path)) }
}

// replaceWithCopy deletes the database and puts a copy of it in its place.
func replaceWithCopy(t *testing.T, path string) func() {
	t.Helper()
	backup := filepath.Join(t.TempDir(), "copy.db")
	db, err := sql.Open("sqlite3", path)
	must(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), "BEGIN IMMEDIATE") // keeps other writers out while the files are copied
	must(t, err)
	content, err := os.ReadFile(path)
	must(t, err)
	wal, err := os.ReadFile(path + "-wal")
	must(t, err)
	writeFile(t, backup, string(content))
	writeFile(t, backup+"-wal", string(wal))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		must(t, os.Remove(path+suffix))
	}
	return func() {
		must(t, os.Rename(backup+"-wal", path+"-wal"))
		must(t, os.Rename(backup, path))
	}
}

func lockDatabase(t *testing.T, path string) func() {
	t.Helper()
	db, err := sql.Open("sqlite3", path)
	must(t, err)
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	must(t, err)
	return func() {
		_, err := db.ExecContext(t.Context(), "ROLLBACK")
		must(t, err)
		must(t, db.Close())
	}
}

func tmpfsDir(t *testing.T) string {
	t.Helper()
	return mountDir(t, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
}

// fillDisk leaves two pages, in which SQLite can commit less than what a request writes.
func fillDisk(t *testing.T, path string) func() {
	t.Helper()
	filler := filepath.Join(filepath.Dir(path), "filler")
	os.WriteFile(filler, make([]byte, 32<<20), 0o600) // as much as fits
	info, err := os.Stat(filler)
	must(t, err)
	must(t, os.Truncate(filler, info.Size()-2*4096))
	return func() { must(t, os.Remove(filler)) }
}

func loopDir(t *testing.T) string {
	t.Helper()
	return mountDir(t, "-o", "loop", diskImage(t))
}

// makeImmutable makes the database read-only for all processes, including root's and those that have it open.
func makeImmutable(t *testing.T, path string) func() {
	t.Helper()
	runTool(t, "chattr", "+i", path, path+"-wal")
	return func() { runTool(t, "chattr", "-i", path, path+"-wal") }
}

// abortFilesystem puts ext4 into the state after a disk error; the end of the outage mounts a repaired copy.
func abortFilesystem(t *testing.T, path string) func() {
	t.Helper()
	dir := filepath.Dir(path)
	device := strings.TrimSpace(runTool(t, "findmnt", "-n", "-o", "SOURCE", dir))
	disk := strings.TrimSpace(runTool(t, "losetup", "-n", "-O", "BACK-FILE", device))
	runTool(t, "mount", "-o", "remount,abort", dir)
	return func() {
		runTool(t, "umount", "-l", dir)
		runTool(t, "cp", disk, disk+"-repaired")
		runTool(t, "mount", "-o", "loop", disk+"-repaired", dir)
	}
}

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func runTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// mountDir mounts a file system on a new folder. Only root can.
func mountDir(t *testing.T, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	runTool(t, "mount", append(args, dir)...)
	t.Cleanup(func() { runTool(t, "umount", "-l", dir) })
	return dir
}

// diskImage returns the path of an ext4 image of 16 MiB.
func diskImage(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	path := filepath.Join(t.TempDir(), "disk")
	must(t, os.WriteFile(path, make([]byte, 16<<20), 0o600))
	runTool(t, "mkfs.ext4", "-q", "-F", path)
	return path
}

func TestNothingIsServedWhileTheDatabaseIsUnavailable(t *testing.T) {
	t.Parallel() // it waits
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			mock := startMock(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
			env := newEnvironment(t, settings{database: filepath.Join(o.makeDir(t), "basegate.db")}, mock.URL())
			g := env.serve()
			served := 0
			send := func() response {
				got := g.complete(smallRequest)
				if got.status == http.StatusOK {
					served++
				}
				return got
			}
			if got := send(); got.status != http.StatusOK {
				t.Fatalf("before the outage: got %d %s, want 200", got.status, got.body)
			}
			mock.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: 50}) // the stream runs until the outage is noticed
			stream := g.startLongStream()
			end := o.start(t, env.database)
			refused := send()
			if refused.status != http.StatusServiceUnavailable || refused.apiError(t).Code != "overloaded" || refused.header.Get("Retry-After") == "" {
				t.Errorf("got %d %v %s, want 503 overloaded with Retry-After", refused.status, refused.header, refused.body)
			}
			g.waitForOutput(g.stderr, "the database cannot be written")
			if got := g.get(g.url, "/readyz"); got.status != http.StatusServiceUnavailable {
				t.Errorf("/readyz: %d", got.status)
			}
			before := completionRequests(mock)
			for began := time.Now(); time.Since(began) < 3*time.Second; { // through three of the database's health checks
				if got := send(); got.status != http.StatusServiceUnavailable {
					t.Errorf("during the outage: %d %s", got.status, got.body)
				}
			}
			if n := completionRequests(mock) - before; n != 0 {
				t.Errorf("vLLM got %d requests that could not be charged", n)
			}
			mock.ClearFaults()
			if last := <-stream; !strings.Contains(last, `"overloaded"`) {
				t.Errorf("the stream that was running ended with %q", last)
			}
			end()
			poll.Until(t, "a request is served again", func() bool { return send().status == http.StatusOK })
			g.waitForOutput(g.stderr, "the database can be written again")
			if got := g.get(g.url, "/readyz"); got.status != http.StatusOK {
				t.Errorf("/readyz: %d", got.status)
			}
			poll.Until(t, "the ledger has every response and the stream", func() bool {
				complete, interrupted := 0, 0
				for _, row := range env.usageRows() {
					switch {
					case row.Status == http.StatusOK && row.Code == "":
						complete++
					case row.Status == http.StatusOK && row.Code == "overloaded" && row.Completion > 2:
						interrupted++
					case row.Completion > 0:
						t.Errorf("a refused request is charged: %+v", row)
					}
				}
				return complete == served && interrupted == 1
			})
		})
	}
}

// The database is unavailable for a while under load. The ledger has every completed response with its usage, and every
// response that the ledger says was complete, a client received completely.
func TestLedgerMatchesClientsAfterAnOutageUnderLoad(t *testing.T) {
	for _, o := range outages[:len(outages)-1] { // after the last one the kernel has lost writes that it had confirmed
		t.Run(o.name, func(t *testing.T) {
			mock := startMock(t, mockvllm.Options{TokenDelay: time.Millisecond})
			env := newEnvironment(t, settings{database: filepath.Join(o.makeDir(t), "basegate.db"), extra: "limits: {concurrency_per_key: 100}"}, mock.URL())
			g := env.serve()
			completed := &completedResponses{usage: map[string]gjson.Result{}}
			var clients sync.WaitGroup
			done := make(chan struct{})
			for i := range 16 {
				clients.Go(func() { completed.sendUntil(g, i%2 == 0, done) })
			}
			waitForResponses := func() {
				t.Helper()
				before := completed.count()
				poll.Until(t, "300 more responses are complete", func() bool { return completed.count() > before+300 })
			}
			waitForResponses()
			end := o.start(t, env.database)
			g.waitForOutput(g.stderr, "the database cannot be written")
			poll.Until(t, "requests are refused", func() bool { return g.complete(smallRequest).status == http.StatusServiceUnavailable })
			end()
			g.waitForOutput(g.stderr, "the database can be written again")
			waitForResponses()
			close(done)
			clients.Wait()
			g.signal(syscall.SIGTERM)
			g.waitStop()
			rows, err := env.ledgerRows(t.Context())
			must(t, err)
			_, interrupted := completed.verify(t, rows, g.secret)
			if interrupted != 0 {
				t.Errorf("%d rows are interrupted, want none", interrupted)
			}
			for _, row := range rows {
				if _, ok := completed.usage[row.ID]; !ok && row.Status == http.StatusOK && row.Code == "" {
					t.Errorf("no client received the complete response of %+v", row)
				}
			}
			t.Logf("%d completed responses, %d rows", len(completed.usage), len(rows))
		})
	}
}

// sendUntil sends requests one after another until done is closed, with a pause after each that is refused.
func (r *completedResponses) sendUntil(g *gateway, stream bool, done <-chan struct{}) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		before := r.count()
		if !r.send(g, g.secret, stream) {
			g.t.Error("the gateway broke a connection")
			return
		}
		if r.count() == before {
			<-pause.C
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func (r *completedResponses) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.usage)
}

// completionRequests counts the completion requests that the mock received, without probes.
func completionRequests(mock *mockvllm.Process) (n int) {
	for _, q := range mock.Requests() {
		if q.Path == "/v1/completions" {
			n++
		}
	}
	return n
}

// startLongStream starts a stream of 100 events. The channel gets the last event when the stream has ended.
func (g *gateway) startLongStream() <-chan string {
	g.t.Helper()
	resp, err := httpClient.Do(g.request(context.WithoutCancel(g.t.Context()), http.MethodPost, g.url+"/v1/completions",
		`{"model":"m","prompt":"Once upon a time","max_tokens":100,"stream":true,"seed":1}`))
	must(g.t, err)
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() {
		g.t.Fatal("no event")
	}
	last := make(chan string, 1)
	go func() {
		defer resp.Body.Close()
		text := ""
		for lines.Scan() {
			if lines.Text() != "" {
				text = lines.Text()
			}
		}
		last <- text
	}()
	return last
}
