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
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"

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
	{"locked by another process", (*testing.T).TempDir, lock},
	{"on a full disk", smallDisk, fill},
	{"on a disk that has become read-only", loopDisk, fail},
}

func moveAway(t *testing.T, path string) func() {
	t.Helper()
	away := filepath.Join(t.TempDir(), "away.db")
	must(t, os.Rename(path, away))
	return func() { must(t, os.Rename(away, path)) }
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
	return mounted(t, "-t", "tmpfs", "-o", "size=1m", "tmpfs")
}

func fill(t *testing.T, path string) func() {
	t.Helper()
	filler := filepath.Join(filepath.Dir(path), "filler")
	os.WriteFile(filler, make([]byte, 4<<20), 0o600) // as much as fits
	return func() { must(t, os.Remove(filler)) }
}

func loopDisk(t *testing.T) string {
	t.Helper()
	return mounted(t, "-o", "loop", image(t))
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
			asked := len(mock.Requests())
			for range 20 {
				if got := ask(); got.status != http.StatusServiceUnavailable {
					t.Errorf("meanwhile: %d %s", got.status, got.body)
				}
			}
			if n := len(mock.Requests()) - asked; n != 0 {
				t.Errorf("vLLM was asked %d times for answers that could not be charged", n)
			}
			if last := <-stream; !strings.Contains(last, `"overloaded"`) {
				t.Errorf("the stream that was under way ended with %q", last)
			}
			end()
			eventually(t, "it serves again", func() bool { return ask().status == http.StatusOK })
			g.says(g.stderr, "the database can be written again")
			if got := g.get(g.url, "/readyz"); got.status != http.StatusOK {
				t.Errorf("/readyz: %d", got.status)
			}
			eventually(t, "every answer is on the ledger, and the stream", func() bool {
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
