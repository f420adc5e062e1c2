//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/internal/s3test"
	"basegate/mockvllm"
)

// While the S3 server is away, uploads and downloads are refused, live requests are served, and batches wait. Then they go
// on: each line ends once, with one charge.
func TestFaultsBatchSurvivesAnS3ServerThatIsAway(t *testing.T) {
	t.Parallel() // it waits
	mock := startMock(t, mockvllm.Options{TokenDelay: time.Millisecond})
	env := newEnvironment(t, settings{bucket: true, extra: "batches: {per_backend: 8}"}, mock.URL())
	secret := env.createKey("batch")
	g := env.serveWithKey(secret)
	file, ids := batchLines(1_500)
	holdAfter(mock, 30)
	id := g.createBatch(secret, file)
	input := g.batch(secret, id).Get("input_file_id").Str
	completed := func() int64 { return g.batch(secret, id).Get("request_counts.completed").Int() }
	for round := range 2 {
		before := completed()
		if round > 0 {
			holdAfter(mock, 30)
			env.bucket.Restart()
		}
		poll.Until(t, "lines end", func() bool { return completed() > before+10 })
		env.bucket.Stop()
		r := g.upload(secret, file, "purpose", "batch")
		if r.status != http.StatusServiceUnavailable || gjson.Get(r.body, "error.code").Str != "storage_unavailable" || r.header.Get("Retry-After") == "" {
			t.Errorf("an upload: %d %s", r.status, r.body)
		}
		if n := g.inputFiles(secret); n != 1 {
			t.Errorf("%d files are listed, want the one that was stored", n)
		}
		if r := g.call(http.MethodGet, "/v1/files/"+input+"/content", secret, ""); r.status != http.StatusServiceUnavailable {
			t.Errorf("a download: %d %.100s", r.status, r.body)
		}
		mock.ClearFaults()
		if r := g.complete(smallRequest); r.status != http.StatusOK {
			t.Errorf("a live request: %d %s", r.status, r.body)
		}
		poll.Until(t, "the batch notices it", func() bool {
			return strings.Contains(g.stderr.String(), "cannot be written") || strings.Contains(g.stderr.String(), "cannot be read")
		})
		if status := g.batch(secret, id).Get("status").Str; status != "in_progress" {
			t.Errorf("the batch is %s", status)
		}
	}
	env.bucket.Restart()
	output, failures := g.checkResults(secret, g.waitForBatch(secret, id, "completed"), ids)
	if len(output) != len(ids) || len(failures) != 0 {
		t.Errorf("%d of %d lines succeeded, %d failed", len(output), len(ids), len(failures))
	}
	charges := map[string]int{}
	for _, row := range env.usageRows() {
		if row.State == "settled" && row.Status == http.StatusOK {
			charges[row.ID]++
		}
	}
	for line, o := range output {
		if n := charges[o.Get("response.request_id").Str]; n != 1 {
			t.Errorf("%s has %d charges", line, n)
		}
	}
	if len(charges) != len(output)+2 { // and the live requests
		t.Errorf("%d charges for %d results and two live requests", len(charges), len(output))
	}
}

// The name of an object is as good as the right to read it. The bytes of deleted files are gone, and so are those of an
// upload that a crash has cut off.
func TestBucketHoldsWhatIsKeptAndNoLogItsNames(t *testing.T) {
	mock := startMock(t, mockvllm.Options{Instant: true})
	env := newEnvironment(t, settings{bucket: true, extra: "log: {level: debug}"}, mock.URL())
	g := env.serve()
	file, ids := batchLines(300)
	id := g.createBatch(g.secret, file)
	b := g.waitForBatch(g.secret, id, "completed")
	g.checkResults(g.secret, b, ids)
	names := env.storedObjects()
	if kept := env.keptObjects(); len(names) != kept || len(env.bucket.Keys("")) != kept || kept < 2 {
		t.Errorf("the bucket has %q, want the %d objects of the input and the output", env.bucket.Keys(""), kept)
	}
	for _, r := range []string{"bytes=10-19", "bytes=-7"} {
		request := g.request(t.Context(), http.MethodGet, g.url+"/v1/files/"+b.Get("input_file_id").Str+"/content", "")
		request.Header.Set("Range", r)
		want := map[string]string{"bytes=10-19": file[10:20], "bytes=-7": file[len(file)-7:]}[r]
		if got := g.do(request); got.status != http.StatusPartialContent || got.body != want {
			t.Errorf("%s: %d %q, want %q", r, got.status, got.body, want)
		}
	}
	env.bucket.Stop()
	g.upload(g.secret, file, "purpose", "batch") // its errors are logged
	g.call(http.MethodGet, "/v1/files/"+b.Get("input_file_id").Str+"/content", g.secret, "")
	g.call(http.MethodDelete, "/v1/files/"+b.Get("input_file_id").Str, g.secret, "")
	poll.Until(t, "the deletion fails", func() bool { return strings.Contains(g.stderr.String(), "cannot be removed") })
	env.bucket.Restart()
	poll.Until(t, "the input is deleted", func() bool { return len(env.storedObjects()) == len(names)-1 })
	g.signal(syscall.SIGTERM)
	<-g.exited
	for _, name := range names {
		if log := g.stderr.String() + g.stdout.String(); strings.Contains(log, name) {
			t.Error("the log has the name of an object")
		}
	}
}

func TestUploadThatACrashHasCutOffLeavesTheBucket(t *testing.T) {
	t.Parallel() // it waits
	mock := startMock(t, mockvllm.Options{Instant: true})
	env := newEnvironment(t, settings{bucket: true}, mock.URL())
	g := env.serve()
	body, stop := strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"+strings.Repeat("x", 9<<20)), make(chan struct{})
	defer close(stop)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/files", readThenBlock{body, stop})
	must(t, err)
	request.Header.Set("Authorization", "Bearer "+g.secret)
	request.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	go func() {
		if r, err := http.DefaultClient.Do(request); err == nil {
			r.Body.Close()
		}
	}()
	poll.Until(t, "a part is stored", func() bool { return len(env.storedObjects()) > 0 })
	name := env.storedObjects()[0]
	g.kill()
	env.serveWithKey(g.secret)
	poll.Until(t, "it is deleted", func() bool { return len(env.bucket.Keys("")) == 0 })
	late := "lab/one/" + name
	// versitygw removes the empty folder of a deleted object after its reply, and refuses a write that comes between.
	poll.Until(t, "the late write is accepted", func() bool {
		_, err := env.bucket.Client.Client.PutObject(t.Context(), s3test.Bucket, late, strings.NewReader("x"), 1, minio.PutObjectOptions{})
		return err == nil
	})
	poll.Until(t, "a late write of it is deleted", func() bool { return len(env.bucket.Keys("")) == 0 })
}

// readThenBlock ends only when the test does.
type readThenBlock struct {
	*strings.Reader
	stop chan struct{}
}

func (r readThenBlock) Read(p []byte) (int, error) {
	if r.Len() == 0 {
		<-r.stop
	}
	return r.Reader.Read(p)
}

// A bucket that cannot be used is named at the start and by check, with what to do.
func TestBucketThatCannotBeUsedIsNamed(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{bucket: true, probeTimeout: loadedProbe}, mock.URL())
	if out := env.run("check"); !strings.Contains(out, "s3://files/lab/one at "+env.bucket.Address) {
		t.Errorf("check of a bucket that can be used:\n%s", out)
	}
	missing := fmt.Sprintf("s3://missing?endpoint=http://%s&region=%s", env.bucket.Address, s3test.Region)
	env.writeConfig(settings{extra: fmt.Sprintf("files: {url: %q}", missing)}, mock.URL())
	for _, command := range []string{"check", "serve"} {
		stdout, stderr, code := runCommand(t, command, "--config", env.config)
		if want := "the bucket does not exist: create it, or correct files.url (NoSuchBucket)"; code == 0 || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d, %s%s, want %q", command, code, stdout, stderr, want)
		}
	}
	t.Run("no credentials", func(t *testing.T) {
		for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
			t.Setenv(name, "")
		}
		t.Setenv("HOME", t.TempDir())
		env.writeConfig(settings{}, mock.URL())
		stdout, _, code := runCommand(t, "check", "--config", env.config)
		if code == 0 || !strings.Contains(stdout, "set AWS_ACCESS_KEY_ID") {
			t.Errorf("exit code %d, %s", code, stdout)
		}
	})
}

// A gateway starts while the S3 server is away, for the sake of live requests.
func TestGatewayStartsWithoutItsS3Server(t *testing.T) {
	mock := startMock(t, mockvllm.Options{Instant: true})
	env := newEnvironment(t, settings{bucket: true}, mock.URL())
	env.bucket.Stop()
	g := env.serve()
	if r := g.complete(smallRequest); r.status != http.StatusOK {
		t.Errorf("a live request: %d %s", r.status, r.body)
	}
	if !strings.Contains(g.stderr.String(), "the bucket of files cannot be used at the moment") {
		t.Errorf("the log does not name the bucket:\n%s", g.stderr.tail())
	}
	file, ids := batchLines(20)
	if r := g.upload(g.secret, file, "purpose", "batch"); r.status != http.StatusServiceUnavailable || gjson.Get(r.body, "error.code").Str != "storage_unavailable" {
		t.Errorf("an upload: %d %s", r.status, r.body)
	}
	if n := g.inputFiles(g.secret); n != 0 {
		t.Errorf("%d refused files are listed", n)
	}
	env.bucket.Restart()
	g.checkResults(g.secret, g.waitForBatch(g.secret, g.createBatch(g.secret, file), "completed"), ids)
}

// The commands use the bucket too.
func TestCommandsUseTheBucket(t *testing.T) {
	mock := startMock(t, mockvllm.Options{Instant: true})
	env := newEnvironment(t, settings{bucket: true}, mock.URL())
	g := env.serve()
	file, ids := batchLines(30)
	path := filepath.Join(env.dir, "lines.jsonl")
	writeFile(t, path, file)
	keys := gjson.Parse(env.run("key", "list", "--json"))
	id := strings.TrimSpace(env.run("batch", "create", path, "--key", keys.Get("0.id").Str))
	b := g.waitForBatch(g.secret, id, "completed")
	g.checkResults(g.secret, b, ids)
	if got := env.run("file", "download", b.Get("input_file_id").Str); got != file {
		t.Errorf("downloaded %d bytes, want %d", len(got), len(file))
	}
	if names := env.storedObjects(); len(names) < 2 || slices.ContainsFunc(names, func(n string) bool { return len(n) < 20 }) {
		t.Errorf("the bucket has %q", names)
	}
}
