//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// kill ends the gateway by SIGKILL.
func (g *gateway) kill() {
	g.t.Helper()
	g.signal(syscall.SIGKILL)
	<-g.exited
}

// passing is a fault that has no effect on n plain completions.
func passing(n int) mockvllm.Fault { return mockvllm.Fault{Kind: "merge", Times: n} }

// holdAfter makes a mock hold all completions behind the next n until its faults are cleared, so that a batch does not end before
// the test has done something to it.
func holdAfter(mock *mockvllm.Process, n int) {
	mock.InjectFault(passing(n))
	mock.InjectFault(mockvllm.Fault{Kind: "hang", Times: -1})
}

// setBatchStatus changes the status of a batch in the database of a gateway that does not run.
func (e *environment) setBatchStatus(id, set string) {
	e.t.Helper()
	result, err := e.openLedger().Exec(`UPDATE batches SET `+set+` WHERE id = $1`, id)
	must(e.t, err)
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		e.t.Fatalf("%d batches changed, error %v", n, err)
	}
}

// checkCharges checks that each successful line of a batch has one charge, which is settled.
func (e *environment) checkCharges(output map[string]gjson.Result) {
	e.t.Helper()
	rows, err := e.ledgerRows(e.t.Context())
	must(e.t, err)
	charges := map[string]int{}
	total := 0
	for _, row := range rows {
		if row.State == "settled" && row.Status == http.StatusOK {
			charges[row.ID]++
			total++
		}
	}
	for line, o := range output {
		if n := charges[o.Get("response.request_id").Str]; n != 1 {
			e.t.Errorf("%s has %d charges", line, n)
		}
	}
	if total != len(output) {
		e.t.Errorf("%d charges for %d results", total, len(output))
	}
}

// A gateway that is killed in a state of a batch goes on with it.
func TestFaultsBatchSurvivesAKillInEachState(t *testing.T) {
	t.Run("validating", func(t *testing.T) {
		mock := startMock(t, mockvllm.Options{Instant: true})
		env := newEnvironment(t, settings{}, mock.URL())
		secret := env.createKey("batch")
		g := env.serveWithKey(secret)
		file, ids := batchLines(5_000)
		id := g.createBatch(secret, file)
		g.kill() // some 100 ms before the end of the validation
		g = env.serveWithKey(secret)
		output, _ := g.checkResults(secret, g.waitForBatch(secret, id, "completed"), ids)
		env.checkCharges(output)
	})
	// The gateway is killed between the last result and the end of the batch, which are two commits.
	t.Run("finalizing", func(t *testing.T) {
		g, _ := startGateway(t, settings{}, mockvllm.Options{})
		file, ids := batchLines(20)
		id := g.createBatch(g.secret, file)
		g.waitForBatch(g.secret, id, "completed")
		g.kill()
		g.setBatchStatus(id, "status = 'finalizing', completed_at = NULL")
		_, err := g.openLedger().Exec(`UPDATE files SET sha256 = NULL WHERE purpose = 'batch_output'`)
		must(t, err)
		g = g.serveWithKey(g.secret)
		b := g.waitForBatch(g.secret, id, "completed")
		output, _ := g.checkResults(g.secret, b, ids)
		g.checkCharges(output)
		if r := g.call(http.MethodGet, "/v1/files/"+b.Get("output_file_id").Str+"/content", g.secret, ""); r.header.Get("ETag") == "" {
			t.Error("the output has no ETag: it is not final")
		}
	})
	t.Run("cancelling", func(t *testing.T) {
		g, mock := startGateway(t, settings{extra: "batches: {per_backend: 2}"}, mockvllm.Options{})
		holdAfter(mock, 3)
		file, ids := batchLines(50)
		id := g.createBatch(g.secret, file)
		poll.Until(t, "some lines have ended", func() bool { return g.batch(g.secret, id).Get("request_counts.completed").Int() > 2 })
		g.call(http.MethodPost, "/v1/batches/"+id+"/cancel", g.secret, "")
		g.kill()
		mock.ClearFaults()
		g = g.serveWithKey(g.secret)
		output, failures := g.checkResults(g.secret, g.waitForBatch(g.secret, id, "cancelled"), ids)
		g.checkCharges(output)
		if len(output) == 0 || len(failures) == 0 {
			t.Errorf("%d lines have ended before the cancel and %d not; want some of both", len(output), len(failures))
		}
	})
}

// While the disk of the files is full, uploads are refused, live requests are served, and batches wait. They go on when
// there is room again.
func TestFaultsBatchSurvivesAFullDisk(t *testing.T) {
	if filesInS3 {
		t.Skip("it is about a folder")
	}
	mock := startMock(t, mockvllm.Options{TokenDelay: time.Millisecond})
	dir := tmpfsDir(t)
	folder := filepath.Join(dir, "files")
	env := newEnvironment(t, settings{extra: fmt.Sprintf("files: {url: %q}\nbatches: {per_backend: 8}", "file://"+folder)}, mock.URL())
	secret := env.createKey("batch")
	g := env.serveWithKey(secret)
	file, ids := batchLines(2_000)
	holdAfter(mock, 20)
	id := g.createBatch(secret, file)
	poll.Until(t, "some lines have ended", func() bool { return g.batch(secret, id).Get("request_counts.completed").Int() > 10 })
	makeRoom := fillDisk(t, folder)
	r := g.upload(secret, strings.Repeat(file, 4), "purpose", "batch")
	if r.status != http.StatusServiceUnavailable || gjson.Get(r.body, "error.code").Str != "storage_unavailable" {
		t.Errorf("an upload to a full disk: %d %s", r.status, r.body)
	}
	if strings.Contains(r.body, folder) {
		t.Errorf("the response names a path of the server: %s", r.body)
	}
	if n := g.inputFiles(secret); n != 1 {
		t.Errorf("%d files are listed, want the one that was stored", n)
	}
	mock.ClearFaults()
	poll.Until(t, "the batch notices that the disk is full", func() bool { return strings.Contains(g.stderr.String(), "cannot be written") })
	if r := g.complete(smallRequest); r.status != http.StatusOK {
		t.Errorf("a live request: %d %s", r.status, r.body)
	}
	if status := g.batch(secret, id).Get("status").Str; status != "in_progress" {
		t.Errorf("the batch is %s", status)
	}
	makeRoom()
	output, _ := g.checkResults(secret, g.waitForBatch(secret, id, "completed"), ids)
	rows := 0
	for _, row := range env.usageRows() {
		if row.State == "settled" && row.Status == http.StatusOK {
			rows++
		}
	}
	if len(output) != len(ids) || rows != len(output)+1 { // and the live request
		t.Errorf("%d of %d lines succeeded, %d charges", len(output), len(ids), rows)
	}
	poll.Until(t, "the upload that was refused has left nothing", func() bool {
		left, err := os.ReadDir(folder)
		must(t, err)
		return len(left) == env.keptObjects()
	})
}

// A backend dies and comes back again and again. Its lines are tried again, each ends once and is charged once.
func TestFaultsBatchSurvivesABackendThatFlaps(t *testing.T) {
	t.Parallel() // it waits
	mock := startMock(t, mockvllm.Options{TokenDelay: time.Millisecond})
	env := newEnvironment(t, settings{extra: "batches: {attempts: 1000}"}, mock.URL())
	secret := env.createKey("batch")
	g := env.serveWithKey(secret)
	file, ids := batchLines(3_000)
	for range 4 { // all before the batch ends, however fast its lines are
		mock.InjectFault(passing(500))
		mock.InjectFault(mockvllm.Fault{Kind: "killed", RestartAfter: "300ms"})
	}
	id := g.createBatch(secret, file)
	output, failures := g.checkResults(secret, g.waitForBatch(secret, id, "completed"), ids)
	env.checkCharges(output)
	if len(failures) > 0 {
		t.Errorf("%d lines failed", len(failures))
	}
	if !strings.Contains(g.stderr.String(), `"to":"unreachable"`) && !strings.Contains(g.stderr.String(), "breaker changed") {
		t.Error("the gateway has not noticed that the backend was down: the test has not tested anything")
	}
}

// The copy of the database and the copy of the folder after it, both made while a batch runs, are restored elsewhere:
// the batch goes on there, and each line ends once.
func TestFaultsBatchRunsOnAfterARestore(t *testing.T) {
	if filesInS3 {
		t.Skip("it is about a folder")
	}
	mock := startMock(t, mockvllm.Options{TokenDelay: 50 * time.Millisecond}) // the backup is made before the lines end
	env := newEnvironment(t, settings{extra: "batches: {per_backend: 4}"}, mock.URL())
	secret := env.createKey("batch")
	g := env.serveWithKey(secret)
	file, ids := batchLines(300)
	id := g.createBatch(secret, file)
	poll.Until(t, "some lines have ended", func() bool { return g.batch(secret, id).Get("request_counts.completed").Int() > 20 })
	backup := filepath.Join(t.TempDir(), "copy.db")
	env.run("backup", backup)
	ended := g.batch(secret, id).Get("request_counts.completed").Int()
	poll.Until(t, "more lines have ended", func() bool {
		b := g.batch(secret, id)
		return b.Get("request_counts.completed").Int() > ended || b.Get("status").Str == "completed"
	})
	folder := filepath.Join(t.TempDir(), "files")
	must(t, os.CopyFS(folder, os.DirFS(filepath.Join(env.dir, "basegate.db.files"))))
	restored := newEnvironment(t, settings{}, mock.URL())
	restored.run("restore", backup)
	must(t, os.RemoveAll(filepath.Join(restored.dir, "basegate.db.files")))
	must(t, os.Rename(folder, filepath.Join(restored.dir, "basegate.db.files")))
	g2 := restored.serveWithKey(secret)
	output, _ := g2.checkResults(secret, g2.waitForBatch(secret, id, "completed"), ids)
	restored.checkCharges(output)
	if len(output) != len(ids) {
		t.Errorf("%d of %d lines have a result", len(output), len(ids))
	}
}
