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

// outage takes the database at a path away, and brings it back.
type outage struct {
	name string
	// place makes the folder for the database.
	place func(t *testing.T) string
	begin func(t *testing.T, path string) (end func())
}

var outages = []outage{
	{"deleted", (*testing.T).TempDir, moveAway},
	{"deleted, and put back from a copy", (*testing.T).TempDir, replace},
	{"locked by another process", (*testing.T).TempDir, lock},
	{"on a full disk", smallDisk, fill},
	{"read-only", loopDisk, freeze},
	{"on a disk that has become read-only", loopDisk, fail},
}

func moveAway(t *testing.T, path string) func() {
	t.Helper()
	away := filepath.Join(t.TempDir(), "away.db")
	must(t, os.Rename(path, away))
	return func() { must(t, os.Rename(away, path)) }
}

// replace leaves nothing of the database, and brings another file with what was in it.
func replace(t *testing.T, path string) func() {
	t.Helper()
	saved := filepath.Join(t.TempDir(), "copy.db")
	db, err := sql.Open("sqlite3", path)
	must(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), "BEGIN IMMEDIATE") // nothing is committed behind the copy's back
	must(t, err)
	content, err := os.ReadFile(path)
	must(t, err)
	log, err := os.ReadFile(path + "-wal")
	must(t, err)
	write(t, saved, string(content))
	write(t, saved+"-wal", string(log))
	for _, end := range []string{"", "-wal", "-shm"} {
		must(t, os.Remove(path+end))
	}
	return func() {
		must(t, os.Rename(saved+"-wal", path+"-wal"))
		must(t, os.Rename(saved, path))
	}
}

func lock(t *testing.T, path string) func() {
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

func smallDisk(t *testing.T) string {
	t.Helper()
	return mounted(t, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
}

func fill(t *testing.T, path string) func() {
	t.Helper()
	filler := filepath.Join(filepath.Dir(path), "filler")
	os.WriteFile(filler, make([]byte, 32<<20), 0o600) // as much as fits
	return func() { must(t, os.Remove(filler)) }
}

func loopDisk(t *testing.T) string {
	t.Helper()
	return mounted(t, "-o", "loop", image(t))
}

// freeze makes the database read-only for everybody, root and whoever has it open included.
func freeze(t *testing.T, path string) func() {
	t.Helper()
	tool(t, "chattr", "+i", path, path+"-wal")
	return func() { tool(t, "chattr", "-i", path, path+"-wal") }
}

// fail does what ext4 does after an error of the disk, which is then mended and mounted again.
func fail(t *testing.T, path string) func() {
	t.Helper()
	dir := filepath.Dir(path)
	device := strings.TrimSpace(tool(t, "findmnt", "-n", "-o", "SOURCE", dir))
	disk := strings.TrimSpace(tool(t, "losetup", "-n", "-O", "BACK-FILE", device))
	tool(t, "mount", "-o", "remount,abort", dir)
	return func() {
		tool(t, "umount", "-l", dir)
		tool(t, "cp", disk, disk+"-mended")
		tool(t, "mount", "-o", "loop", disk+"-mended", dir)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// mounted is a folder with a file system of its own, which only root can make.
func mounted(t *testing.T, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount what this needs")
	}
	dir := t.TempDir()
	tool(t, "mount", append(args, dir)...)
	t.Cleanup(func() { tool(t, "umount", "-l", dir) })
	return dir
}

// image is a small disk.
func image(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount what this needs")
	}
	path := filepath.Join(t.TempDir(), "disk")
	must(t, os.WriteFile(path, make([]byte, 16<<20), 0o600))
	tool(t, "mkfs.ext4", "-q", "-F", path)
	return path
}

func TestNothingIsServedUnchargedWhileTheDatabaseIsAway(t *testing.T) {
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			mock := startMock(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
			place := newSite(t, settings{database: filepath.Join(o.place(t), "basegate.db")}, mock.URL())
			g := place.serve()
			served := 0
			ask := func() reply {
				got := g.complete(small)
				if got.status == http.StatusOK {
					served++
				}
				return got
			}
			if got := ask(); got.status != http.StatusOK {
				t.Fatalf("before: %d %s", got.status, got.body)
			}
			stream := g.longStream()
			end := o.begin(t, place.database)
			refused := ask()
			if refused.status != http.StatusServiceUnavailable || refused.fault(t).Code != "overloaded" || refused.header.Get("Retry-After") == "" {
				t.Errorf("got %d %v %s", refused.status, refused.header, refused.body)
			}
			g.says(g.stderr, "the database cannot be written")
			if got := g.get(g.url, "/readyz"); got.status != http.StatusServiceUnavailable {
				t.Errorf("/readyz: %d", got.status)
			}
			asked := completions(mock)
			for range 20 {
				if got := ask(); got.status != http.StatusServiceUnavailable {
					t.Errorf("meanwhile: %d %s", got.status, got.body)
				}
			}
			if n := completions(mock) - asked; n != 0 {
				t.Errorf("vLLM was asked %d times for answers that could not be charged", n)
			}
			if last := <-stream; !strings.Contains(last, `"overloaded"`) {
				t.Errorf("the stream that was under way ended with %q", last)
			}
			end()
			poll.Until(t, "it serves again", func() bool { return ask().status == http.StatusOK })
			g.says(g.stderr, "the database can be written again")
			if got := g.get(g.url, "/readyz"); got.status != http.StatusOK {
				t.Errorf("/readyz: %d", got.status)
			}
			poll.Until(t, "every answer is on the ledger, and the stream", func() bool {
				whole, cut := 0, 0
				for _, row := range place.usage() {
					switch {
					case row.Status == http.StatusOK && row.Code == "":
						whole++
					case row.Status == http.StatusOK && row.Code == "overloaded" && row.Completion > 2:
						cut++
					case row.Completion > 0:
						t.Errorf("a refused request costs %+v", row)
					}
				}
				return whole == served && cut == 1
			})
		})
	}
}

// An outage comes over many clients at once, and goes. Whoever saw an answer whole finds it on the ledger at its price,
// and what the ledger says was served whole, a client has seen whole.
func TestAnOutageUnderLoadLosesNothingAndInventsNothing(t *testing.T) {
	for _, o := range outages[:len(outages)-1] { // at the last one the kernel itself forgets what it has said is on disk
		t.Run(o.name, func(t *testing.T) {
			mock := startMock(t, mockvllm.Options{TokenDelay: time.Millisecond})
			place := newSite(t, settings{database: filepath.Join(o.place(t), "basegate.db"), rest: "limits: {concurrency_per_key: 100}"}, mock.URL())
			g := place.serve()
			noted := &receipts{seen: map[string]gjson.Result{}}
			var clients sync.WaitGroup
			over := make(chan struct{})
			for i := range 16 {
				clients.Go(func() { noted.keepAsking(g, i%2 == 0, over) })
			}
			more := func() {
				t.Helper()
				before := noted.count()
				poll.Until(t, "answers come", func() bool { return noted.count() > before+300 })
			}
			more()
			end := o.begin(t, place.database)
			g.says(g.stderr, "the database cannot be written")
			poll.Until(t, "requests are refused", func() bool { return g.complete(small).status == http.StatusServiceUnavailable })
			end()
			g.says(g.stderr, "the database can be written again")
			more()
			close(over)
			clients.Wait()
			g.signal(syscall.SIGTERM)
			if code := g.code(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			rows, err := place.onDisk(t.Context())
			must(t, err)
			_, interrupted := noted.check(t, rows, g.secret)
			if interrupted != 0 {
				t.Errorf("%d requests have ended without anybody's saying how", interrupted)
			}
			for _, row := range rows {
				if _, ok := noted.seen[row.ID]; !ok && row.Status == http.StatusOK && row.Code == "" {
					t.Errorf("nobody has seen the end of %+v", row)
				}
			}
			t.Logf("%d answers seen whole, %d rows", len(noted.seen), len(rows))
		})
	}
}

// keepAsking asks until it is over, and not at once again after a refusal.
func (r *receipts) keepAsking(g *gateway, stream bool, over <-chan struct{}) {
	calm := time.NewTicker(20 * time.Millisecond)
	defer calm.Stop()
	for {
		before := r.count()
		if !r.ask(g, g.secret, stream) {
			g.t.Error("the gateway broke a connection off")
			return
		}
		if r.count() == before {
			<-calm.C
		}
		select {
		case <-over:
			return
		default:
		}
	}
}

func (r *receipts) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// completions is how often the mock was asked for one; probes go on meanwhile.
func completions(mock *mockvllm.Process) (n int) {
	for _, q := range mock.Requests() {
		if q.Path == "/v1/completions" {
			n++
		}
	}
	return n
}

// longStream begins a stream of 100 events and tells its last event when it has ended.
func (g *gateway) longStream() <-chan string {
	g.t.Helper()
	resp, err := client.Do(g.request(context.WithoutCancel(g.t.Context()), http.MethodPost, g.url+"/v1/completions",
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
