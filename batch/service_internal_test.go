package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
	"basegate/proxy"
)

// startService starts the only gateway of a database of the engine that the tests run on.
func startService(t *testing.T) *testGateway {
	t.Helper()
	if databasetest.Postgres() {
		return newCluster(t).start(t, "only")
	}
	folder := t.TempDir()
	db, err := database.Open(t.Context(), databasetest.Settings(t, filepath.Join(folder, "base.db")), zap.NewNop())
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	store, err := storage.OpenDisk(filepath.Join(folder, "files"))
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	g := &testGateway{testCompleter: newTestCompleter("only"), cluster: &testCluster{db: db}}
	_, err = g.cluster.write(t, `CREATE TABLE charges (request_id TEXT PRIMARY KEY, line TEXT NOT NULL, tokens BIGINT NOT NULL)`)
	must(t, err)
	g.Service = New(db, store, g.testCompleter, testSettings, zap.NewNop())
	must(t, g.Start(t.Context()))
	t.Cleanup(g.Close)
	return g
}

// call calls a route as the API does, for the account "a", and returns the response.
func (g *testGateway) call(t *testing.T, method, path, body string, header ...string) (*httptest.ResponseRecorder, error) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	mux, response := http.NewServeMux(), httptest.NewRecorder()
	var failed error
	for _, route := range g.Routes() {
		pattern := strings.ReplaceAll(route.Path, ":id", "{id}")
		if strings.HasSuffix(pattern, "/") {
			continue
		}
		mux.HandleFunc(route.Method+" "+pattern, func(w http.ResponseWriter, r *http.Request) {
			failed = route.Serve(&proxy.ExtensionCall{Response: w, Request: r, Account: "a", Key: "k", Param: r.PathValue})
		})
	}
	mux.ServeHTTP(response, r)
	return response, failed
}

// get decodes the response to a call that must succeed.
func (g *testGateway) get(t *testing.T, into any, method, path, body string, header ...string) {
	t.Helper()
	response, err := g.call(t, method, path, body, header...)
	if err != nil || response.Code != http.StatusOK {
		t.Fatalf("%s %s: status %d, %v", method, path, response.Code, err)
	}
	must(t, json.Unmarshal(response.Body.Bytes(), into))
}

// formOf returns the body of an upload and its content type.
func formOf(t *testing.T, file string) (body, contentType string) {
	t.Helper()
	var text bytes.Buffer
	w := multipart.NewWriter(&text)
	must(t, w.WriteField("purpose", "batch"))
	part, err := w.CreateFormFile("file", "lines.jsonl")
	must(t, err)
	_, err = io.WriteString(part, file)
	must(t, err)
	must(t, w.Close())
	return text.String(), w.FormDataContentType()
}

// An unknown path would get an error that names /v1/files as the path to use.
func TestGatewayWithoutFilesSaysSo(t *testing.T) {
	served := (*Service)(nil).Routes()
	for i, route := range Unserved((*Service)(nil).Routes()) {
		r := httptest.NewRequestWithContext(t.Context(), route.Method, served[i].Path, http.NoBody)
		err := route.Serve(&proxy.ExtensionCall{Request: r})
		if e := apierr.From(err); e.Code != apierr.NotFound || !strings.Contains(e.Message, "files and batches are off") {
			t.Errorf("%s %s: got %v", route.Method, route.Path, err)
		}
	}
}

// upload uploads n lines.
func (g *testGateway) upload(t *testing.T, n int, header ...string) (f fileObject) {
	t.Helper()
	body, kind := formOf(t, inputLines(n))
	g.get(t, &f, "POST", "/v1/files", body, append(header, "Content-Type", kind)...)
	return f
}

func batchBody(file string) string {
	return fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"1h","metadata":{"a":"ü"}}`, file)
}

func wantCode(t *testing.T, what string, err error, want apierr.Code) {
	t.Helper()
	if err == nil || apierr.From(err).Code != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func TestFileBecomesABatchAndItsResults(t *testing.T) {
	g := startService(t)
	f := g.upload(t, 30)
	var b struct {
		ID         string
		InputFile  string `json:"input_file_id"`
		Status     Status
		OutputFile *string `json:"output_file_id"`
		Metadata   map[string]string
	}
	serve := g.hold(10)
	g.get(t, &b, "POST", "/v1/batches", batchBody(f.ID))
	if b.Status != Validating || b.InputFile != f.ID || b.Metadata["a"] != "ü" {
		t.Errorf("the new batch is %+v", b)
	}
	_, err := g.call(t, "DELETE", "/v1/files/"+f.ID, "")
	wantCode(t, "the file of a batch that runs is deleted", err, apierr.FileInUse)
	serve()
	d := g.await(t, b.ID, Completed)
	g.checkResults(t, d, 30)

	response, err := g.call(t, "GET", "/v1/files/"+d.OutputFile+"/content", "", "Range", "bytes=0-9")
	if err != nil || response.Code != http.StatusPartialContent || response.Body.Len() != 10 || response.Header().Get("ETag") == "" {
		t.Errorf("a range of the output: status %d with %d bytes and the ETag %q, %v", response.Code, response.Body.Len(), response.Header().Get("ETag"), err)
	}
	for _, outside := range []string{"bytes=99999-", "bytes=x", "bytes=-0"} {
		response, err = g.call(t, "GET", "/v1/files/"+d.OutputFile+"/content", "", "Range", outside)
		wantCode(t, outside, err, apierr.InvalidRequest)
		if e := apierr.From(err); e.Status() != http.StatusRequestedRangeNotSatisfiable || response.Body.Len() > 0 {
			t.Errorf("%s: status %d and the text %q beside the error, want 416 and the error alone", outside, e.Status(), response.Body)
		}
	}
	response, err = g.call(t, "GET", "/v1/files/"+d.OutputFile+"/content", "", "If-Match", `"another"`)
	wantCode(t, "another ETag", err, apierr.InvalidRequest)
	if e := apierr.From(err); e.Status() != http.StatusPreconditionFailed || response.Body.Len() > 0 {
		t.Errorf("another ETag: status %d and the text %q beside the error, want 412 and the error alone", e.Status(), response.Body)
	}
	var files proxy.List[fileObject]
	g.get(t, &files, "GET", "/v1/files?limit=1&order=asc", "")
	if len(files.Data) != 1 || files.Data[0].ID != f.ID || !files.HasMore {
		t.Errorf("the first page of files is %+v", files)
	}
	g.get(t, &files, "GET", "/v1/files?purpose=batch_output&after="+f.ID+"&order=asc", "")
	if len(files.Data) != 1 || files.Data[0].ID != d.OutputFile {
		t.Errorf("the outputs are %+v", files)
	}
	var deleted deletedObject
	g.get(t, &deleted, "DELETE", "/v1/files/"+d.OutputFile, "")
	_, err = g.call(t, "GET", "/v1/files/"+d.OutputFile+"/content", "")
	wantCode(t, "a deleted file is read", err, apierr.NotFound)
}

// Lines that begin alike are sent one after another, so that vLLM's prefix cache serves them, in whatever order a file has them.
func TestLinesThatBeginAlikeAreSentOneAfterAnother(t *testing.T) {
	const prefixes, lines = 12, 2 * linesAhead
	g := startService(t)
	settings := testSettings
	settings.PerBackend = 1
	g.Reload(settings)
	var file strings.Builder
	for _, n := range rand.Perm(lines) {
		prefix := strings.Repeat(fmt.Sprintf("Instruction number %d. ", n%prefixes), 8)
		fmt.Fprintf(&file, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"%sQuestion %d"}}`+"\n", n, prefix, n)
	}
	b, err := g.Create(t.Context(), "a", "k", "lines.jsonl", "24h", strings.NewReader(file.String()))
	must(t, err)
	g.await(t, b.ID, Completed)
	sent, changes, before := g.sent(), -1, ""
	for _, prompt := range sent {
		if prefix, _, _ := strings.Cut(prompt, "."); prefix != before {
			changes, before = changes+1, prefix
		}
	}
	if len(sent) != lines || changes != prefixes-1 {
		t.Errorf("the prefix changes %d times among the %d lines that were sent, want %d times among %d", changes, len(sent), prefixes-1, lines)
	}
}

func TestUploadsOfAKeyLeavePlacesForOtherKeysOfTheAccount(t *testing.T) {
	g := startService(t)
	ctx, cancel := context.WithCancel(t.Context())
	var slow sync.WaitGroup
	for range uploadsPerAccount {
		slow.Go(func() {
			if turn, err := g.acquireUpload(ctx, "a", "slow"); err == nil {
				<-ctx.Done()
				turn.Release()
			}
		})
	}
	poll.Until(t, "half of the slow uploads have places", func() bool {
		s := g.uploads.Stats()
		return s.Running == uploadsPerAccount/2 && s.Waiting == uploadsPerAccount/2
	})
	g.upload(t, 1)
	cancel()
	slow.Wait()
}

func TestBodyOfABatchHasTheLimitOfBodiesAndRoomForAllMetadata(t *testing.T) {
	g := startService(t)
	file := g.upload(t, 1).ID
	var metadata strings.Builder
	for i := range maxMetadata {
		escaped := func(characters int) string { return strings.Repeat(`\ud83d\ude00`, characters) }
		fmt.Fprintf(&metadata, `,"%02d%s":"%s"`, i, escaped(maxMetadataName-2), escaped(maxMetadataValue))
	}
	body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"1h","metadata":{%s}}`, file, metadata.String()[1:])
	for most, limit := range map[int64]int64{2 << 10: 2 << 10, 1 << 20: maxCreateBody} {
		settings := testSettings
		settings.MaxBodyBytes = most
		g.Reload(settings)
		response, err := g.call(t, "POST", "/v1/batches", body)
		if (err == nil) != (most > maxCreateBody) {
			t.Errorf("a body of %d bytes where %d are allowed: %d, %v", len(body), limit, response.Code, err)
		}
		_, err = g.call(t, "POST", "/v1/batches", body+strings.Repeat(" ", maxCreateBody))
		wantCode(t, "a longer body", err, apierr.RequestTooLarge)
		if e := apierr.From(err); !slices.Equal(e.Extras, []apierr.Extra{{Name: "limit_bytes", Value: limit}}) {
			t.Errorf("the limit is said to be %v, want %d", e.Extras, limit)
		}
	}
}

func TestWrongLinesFailTheBatch(t *testing.T) {
	g := startService(t)
	body, kind := formOf(t, "no JSON\n")
	var f fileObject
	g.get(t, &f, "POST", "/v1/files", body, "Content-Type", kind)
	var b struct{ ID string }
	g.get(t, &b, "POST", "/v1/batches", batchBody(f.ID))
	if d := g.await(t, b.ID, Failed); len(d.Errors) != 1 || d.Errors[0].Code != codeInvalidLine {
		t.Errorf("the errors are %+v", d.Errors)
	}
}

func TestBatchNamesTheEndpointOfChatOnlyWhereAModelServesIt(t *testing.T) {
	g := startService(t)
	body := strings.Replace(batchBody(g.upload(t, 1).ID), "/v1/completions", "/v1/chat/completions", 1)
	_, err := g.call(t, "POST", "/v1/batches", body)
	wantCode(t, "a batch of chats without a model that chats", err, apierr.InvalidRequest)
	if e := apierr.From(err); e.Param != "endpoint" {
		t.Errorf("the error names %q: %s; want endpoint", e.Param, e.Message)
	}
	settings := testSettings
	settings.Chat = true
	g.Reload(settings)
	if _, err := g.call(t, "POST", "/v1/batches", body); err != nil {
		t.Errorf("a batch of chats with a model that chats: %v", err)
	}
}

func TestUnknownIDsAreNotFound(t *testing.T) {
	g := startService(t)
	for _, id := range []string{"x", "%00", "%ff", "a%00b"} {
		for _, path := range []string{"/v1/files/" + id, "/v1/files/" + id + "/content", "/v1/batches/" + id, "/v1/files?after=" + id, "/v1/batches?after=" + id} {
			_, err := g.call(t, "GET", path, "")
			wantCode(t, path, err, apierr.NotFound)
			want := "id"
			if strings.Contains(path, "after=") {
				want = "after"
			}
			if e := apierr.From(err); e.Param != want || want == "after" && !strings.HasPrefix(e.Message, "after: no ") {
				t.Errorf("%s: the error names %q: %s; want %s", path, e.Param, e.Message, want)
			}
		}
		_, err := g.call(t, "DELETE", "/v1/files/"+id, "")
		wantCode(t, "deletion of "+id, err, apierr.NotFound)
		_, err = g.call(t, "POST", "/v1/batches/"+id+"/cancel", "")
		wantCode(t, "cancellation of "+id, err, apierr.NotFound)
	}
	_, err := g.call(t, "POST", "/v1/batches", `{"input_file_id":"\u0000","endpoint":"/v1/completions","completion_window":"1h"}`)
	wantCode(t, "a batch of no file", err, apierr.InvalidRequest)
	var files proxy.List[fileObject]
	if g.get(t, &files, "GET", "/v1/files?purpose=%00", ""); len(files.Data) != 0 {
		t.Errorf("files without a purpose: %+v", files)
	}
}

func TestCancelledBatchHasAllLinesInItsFiles(t *testing.T) {
	g := startService(t)
	defer g.hold(10)()
	id := g.create(t, 30)
	poll.Until(t, "the first results are recorded", func() bool { return g.cluster.number(t, `SELECT completed FROM batches`) == 10 })
	var b struct{ Status Status }
	if g.get(t, &b, "POST", "/v1/batches/"+id+"/cancel", ""); b.Status != Cancelling {
		t.Errorf("the batch is %s, want cancelling", b.Status)
	}
	g.checkResults(t, g.await(t, id, StatusCancelled), 30)
	_, err := g.call(t, "POST", "/v1/batches/"+id+"/cancel", "")
	wantCode(t, "the second cancellation", err, apierr.BatchNotCancellable)
}

// The error file tells the lines that a backend had received from those that it had not.
func TestLinesSayWhetherTheyRanWhenTheirBatchEnded(t *testing.T) {
	for _, c := range []struct {
		end       Status
		code, cut string
	}{{StatusCancelled, "batch_cancelled", "cancelled while it ran"}, {Expired, "batch_expired", "while it ran"}} {
		t.Run(string(c.end), func(t *testing.T) {
			g := startService(t)
			settings := testSettings
			settings.PerBackend = 4
			g.Reload(settings)
			defer g.hold(10)()
			id := g.create(t, 30)
			poll.Until(t, "some lines run", func() bool {
				return g.cluster.number(t, `SELECT completed FROM batches`) == 10 && g.serving.Load() == 4
			})
			if c.end == StatusCancelled {
				g.get(t, new(any), "POST", "/v1/batches/"+id+"/cancel", "")
			} else {
				g.Service.mu.Lock()
				for _, j := range g.jobs {
					j.cancel(errExpired) // as the timer of its deadline does
				}
				g.Service.mu.Unlock()
			}
			d := g.await(t, id, c.end)
			if (d.ExpiredAt > 0) != (c.end == Expired) || (d.CancelledAt > 0) != (c.end == StatusCancelled) {
				t.Errorf("the batch expired at %d and was cancelled at %d", d.ExpiredAt, d.CancelledAt)
			}
			g.checkResults(t, d, 30)
			response, err := g.call(t, "GET", "/v1/files/"+d.ErrorFile+"/content", "")
			must(t, err)
			text := response.Body.String()
			if n, all := strings.Count(text, c.cut), strings.Count(text, c.code); n != 4 || all != 20 || strings.Count(text, "before this line ran") != 16 {
				t.Errorf("%d of %d lines were cut, want 4 of 20:\n%s", n, all, text)
			}
		})
	}
}

func TestRangesOfAFile(t *testing.T) {
	g := startService(t)
	f := g.upload(t, 10)
	path := "/v1/files/" + f.ID + "/content"
	size := fmt.Sprint(f.Bytes)
	whole, err := g.call(t, "GET", path, "")
	must(t, err)
	for ranges, want := range map[string]string{ // the Content-Range, "parts" for several, empty for the whole file
		"bytes=0-0": "bytes 0-0/" + size, "Bytes=0-0": "bytes 0-0/" + size, "bytes=-1": fmt.Sprintf("bytes %d-%d/%s", f.Bytes-1, f.Bytes-1, size),
		"bytes=-10,0-0": "parts", "bytes=0-0,-0": "bytes 0-0/" + size, "bytes=-0, 1-2": "bytes 1-2/" + size,
		"bytes=-0": "outside", "bytes= - 0": "outside", "bytes=-00,-0": "outside", "bytes=" + size + "-": "outside", "bytes=x": "outside",
		"items=0-1": "", "items": "", "": "", "bytes": "", "bytes=": "",
		"bytes=" + strings.Repeat("0-0,", 15) + "5-5": "parts", "bytes=" + strings.Repeat("0-0,", 16) + "5-5": "",
		"bytes=0-,0-": "",
	} {
		got, err := g.call(t, "GET", path, "", "Range", ranges)
		kind := got.Header().Get("Content-Range")
		switch {
		case strings.HasPrefix(got.Header().Get("Content-Type"), "multipart/byteranges"):
			kind = "parts"
		case err != nil && apierr.From(err).Status() == http.StatusRequestedRangeNotSatisfiable:
			kind = "outside"
		}
		if kind != want || want == "" && (got.Code != http.StatusOK || got.Body.String() != whole.Body.String()) {
			t.Errorf("%q: got %d, %q and %v, want %q", ranges, got.Code, kind, err, want)
		}
	}
}

func TestExpiredBatchEndsAndExpiredFilesAreDeleted(t *testing.T) {
	g := startService(t)
	serve := g.hold(10)
	defer serve()
	turn, err := g.validations.Acquire(t.Context(), "another") // the batch does not begin before its time is changed
	must(t, err)
	id := g.create(t, 30)
	_, err = g.cluster.write(t, `UPDATE batches SET expires_at = created_at + 2`)
	must(t, err)
	turn.Release()
	d := g.await(t, id, Expired)
	g.checkResults(t, d, 30)
	_, err = g.cluster.write(t, `UPDATE files SET expires_at = created_at`)
	must(t, err)
	_, err = g.call(t, "GET", "/v1/files/"+d.InputFile, "")
	wantCode(t, "an expired file is shown", err, apierr.NotFound)
	must(t, g.sweepOnce(t.Context(), map[string]time.Time{}))
	if n := g.cluster.number(t, `SELECT count(*) FROM files`); n != 0 {
		t.Errorf("%d expired files are kept", n)
	}
	must(t, g.store.List(t.Context(), func(name string, size int64) error {
		if g.cluster.number(t, `SELECT count(*) FROM objects WHERE file = 'storage' AND name = $1`, name) == 0 {
			t.Errorf("%d bytes of expired files are left", size)
		}
		return nil
	}))
}

func TestBatchWithReceiptsIsRefused(t *testing.T) {
	g := startService(t)
	body := batchBody(g.upload(t, 2).ID)
	for _, value := range []string{"true", "maybe"} {
		_, err := g.call(t, "POST", "/v1/batches", body, "X-Acs-Receipt", value)
		wantCode(t, "a batch with X-Acs-Receipt: "+value, err, apierr.InvalidRequest)
	}
	var b struct{ ID string }
	g.get(t, &b, "POST", "/v1/batches", body, "X-Acs-Receipt", "false")
}

// A batch says in its body that its lines are replayed. The header of a request would have no effect.
func TestBatchWithTheHeaderOfAReplayIsRefused(t *testing.T) {
	g := startService(t)
	body := batchBody(g.upload(t, 2).ID)
	for _, value := range []string{"true", "refresh", "maybe"} {
		_, err := g.call(t, "POST", "/v1/batches", body, "X-Acs-Replay", value)
		wantCode(t, "a batch with X-Acs-Replay: "+value, err, apierr.InvalidRequest)
	}
	var b struct{ ID string }
	g.get(t, &b, "POST", "/v1/batches", body, "X-Acs-Replay", "false")
}

func TestConcurrentRequestsWithOneKeyCreateOneObject(t *testing.T) {
	g := startService(t)
	const tries = 8
	for _, c := range []struct{ what, path string }{{"file", "/v1/files"}, {"batch", "/v1/batches"}} {
		body, kind := formOf(t, inputLines(2))
		if c.what == "batch" {
			body = batchBody(g.upload(t, 2).ID)
		}
		ids := make([]string, tries)
		var creating sync.WaitGroup
		for i := range tries {
			creating.Go(func() {
				response, err := g.call(t, "POST", c.path, body, "Content-Type", kind, "Idempotency-Key", "once")
				var o struct{ ID string }
				if err = errors.Join(err, json.Unmarshal(response.Body.Bytes(), &o)); err != nil {
					t.Error(err)
				}
				ids[i] = o.ID
			})
		}
		creating.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Errorf("one key has created the %s %s and %s", c.what, ids[0], id)
			}
		}
		_, err := g.call(t, "POST", c.path, strings.Replace(body, "1h", "3h", 1)+" ", "Content-Type", kind, "Idempotency-Key", "once")
		if c.what == "batch" {
			wantCode(t, "another body with the same key", err, apierr.IdempotencyConflict)
		}
	}
}

// The official SDKs number their retries, but send no idempotency key.
func TestRetryOfAnSDKReturnsTheFirstBatch(t *testing.T) {
	g := startService(t)
	body := batchBody(g.upload(t, 1).ID)
	create := func(header ...string) string {
		var b struct{ ID string }
		g.get(t, &b, "POST", "/v1/batches", body, header...)
		return b.ID
	}
	first := create()
	if again := create("X-Stainless-Retry-Count", "1"); again != first {
		t.Errorf("a retry has created the batch %s beside %s", again, first)
	}
	for _, header := range []string{"X-Stainless-Retry-Count", "Idempotency-Key"} {
		if other := create(header, "0"); other == first {
			t.Errorf("a request with %s: 0, which is no retry, has returned the first batch", header)
		}
	}
}

// A retry is for the answer to the first request, and who has cancelled that batch has had it.
func TestRetryAfterACancellationCreatesABatch(t *testing.T) {
	g := startService(t)
	defer g.hold(0)()
	body := batchBody(g.upload(t, 1).ID)
	create := func(header ...string) string {
		var b struct{ ID string }
		g.get(t, &b, "POST", "/v1/batches", body, header...)
		return b.ID
	}
	cancel := func(id string) { g.get(t, new(any), "POST", "/v1/batches/"+id+"/cancel", "") }
	retry := []string{"X-Stainless-Retry-Count", "1"}
	first := create()
	cancel(first)
	second := create(retry...)
	if second == first {
		t.Error("a retry has returned the batch that is being cancelled")
	}
	if again := create(retry...); again != second {
		t.Errorf("a second retry has created the batch %s beside %s", again, second)
	}
	cancel(second)
	g.await(t, second, StatusCancelled)
	if third := create(retry...); third == first || third == second {
		t.Error("a retry has returned a cancelled batch")
	}
	named := create("Idempotency-Key", "once")
	cancel(named)
	if again := create("Idempotency-Key", "once"); again != named {
		t.Errorf("an Idempotency-Key has created the batch %s beside the cancelled %s", again, named)
	}
}

func TestFilesOfAnAccountStayWithinItsQuota(t *testing.T) {
	g := startService(t)
	size := g.upload(t, 100).Bytes
	s := testSettings
	s.MaxAccountBytes = 2*size + 10
	g.Reload(s)
	body, kind := formOf(t, inputLines(100))
	var uploading sync.WaitGroup
	for range 4 {
		uploading.Go(func() {
			if _, err := g.call(t, "POST", "/v1/files", body, "Content-Type", kind); err != nil {
				wantCode(t, "a file over the quota", err, apierr.StorageQuotaExceeded)
			}
		})
	}
	uploading.Wait()
	if stored, err := g.StoredBytes(t.Context(), "a"); err != nil || stored > 2*size {
		t.Errorf("%d bytes are stored, %v, want at most %d", stored, err, 2*size)
	}
	// Another gateway may have stored a file since the bytes of this one were counted.
	err := g.write(t.Context(), func(ctx context.Context, tx database.Tx) error {
		return g.checkQuota(ctx, tx, &File{Account: "a", Bytes: 2 * size})
	})
	wantCode(t, "a file that does not fit beside others", err, apierr.StorageQuotaExceeded)
}

func TestFilesAreListedInPages(t *testing.T) {
	g := startService(t)
	var ids []string
	for range 3 {
		ids = append(ids, g.upload(t, 1).ID)
	}
	for _, c := range []struct {
		query string
		want  []string
		more  bool
	}{
		{"limit=2", []string{ids[2], ids[1]}, true},
		{"limit=2&after=" + ids[1], []string{ids[0]}, false},
		{"order=asc&purpose=batch", ids, false},
		{"purpose=batch_output", nil, false},
	} {
		var page proxy.List[fileObject]
		g.get(t, &page, "GET", "/v1/files?"+c.query, "")
		var got []string
		for _, f := range page.Data {
			got = append(got, f.ID)
		}
		if !slices.Equal(got, c.want) || page.HasMore != c.more {
			t.Errorf("%s: got %v, more %v, want %v, more %v", c.query, got, page.HasMore, c.want, c.more)
		}
	}
	for _, query := range []string{"files?limit=0", "files?limit=10001", "files?order=up", "files?order=", "files?x=1", "batches?limit=101"} {
		_, err := g.call(t, "GET", "/v1/"+query, "")
		wantCode(t, query, err, apierr.InvalidRequest)
	}
}

func TestListedBatchesBelongToTheirAccount(t *testing.T) {
	g := startService(t)
	first, second := g.create(t, 1), g.create(t, 1)
	g.await(t, first, Completed)
	g.await(t, second, Completed)
	var page proxy.List[map[string]any]
	g.get(t, &page, "GET", "/v1/batches?limit=1", "")
	if len(page.Data) != 1 || page.Data[0]["id"] != second || !page.HasMore {
		t.Errorf("the first page is %v", page)
	}
	g.get(t, &page, "GET", "/v1/batches?after="+second, "")
	if len(page.Data) != 1 || page.Data[0]["id"] != first {
		t.Errorf("the second page is %v", page)
	}
	files, _, err := g.FilesOf(t.Context(), "a", "", 10)
	must(t, err)
	for _, f := range files {
		if f.Batch == "" || f.InUse || f.Lines != 1 {
			t.Errorf("the file %s has the batch %q with %d lines", f.ID, f.Batch, f.Lines)
		}
	}
	if others, _, err := g.BatchesOf(t.Context(), "b", "", 10); err != nil || len(others) != 0 {
		t.Errorf("another account has the batches %v, %v", others, err)
	}
	if all, _, err := g.BatchesOf(t.Context(), "", "", 10); err != nil || len(all) != 2 {
		t.Errorf("all accounts have %d batches, %v", len(all), err)
	}
}
