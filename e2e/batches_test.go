//go:build e2e

package e2e_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// batchLine returns a line of an input file.
func batchLine(id, body string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":"/v1/completions","body":%s}`, id, body) + "\n"
}

// batchLines returns an input file of n lines, and their custom_ids.
func batchLines(n int) (file string, ids map[string]bool) {
	var b strings.Builder
	ids = map[string]bool{}
	for i := range n {
		id := fmt.Sprintf("line %d", i)
		ids[id] = true
		b.WriteString(batchLine(id, fmt.Sprintf(`{"model":"m","prompt":"Once upon %d","max_tokens":4,"temperature":0}`, i)))
	}
	return b.String(), ids
}

// inputFiles returns how many files for batches are listed.
func (g *gateway) inputFiles(secret string) int64 {
	g.t.Helper()
	return gjson.Get(g.call(http.MethodGet, "/v1/files?purpose=batch", secret, "").body, "data.#").Int()
}

// upload uploads a file.
func (g *gateway) upload(secret, text string, fields ...string) response {
	g.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("file", "lines.jsonl")
	must(g.t, err)
	_, err = io.WriteString(file, text)
	must(g.t, err)
	for i := 0; i < len(fields); i += 2 {
		must(g.t, form.WriteField(fields[i], fields[i+1]))
	}
	must(g.t, form.Close())
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+"/v1/files", &body)
	must(g.t, err)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Authorization", "Bearer "+secret)
	return g.do(r)
}

// call sends a request with a key and a JSON body.
func (g *gateway) call(method, path, secret, body string) response {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), method, g.url+path, strings.NewReader(body))
	must(g.t, err)
	r.Header.Set("Authorization", "Bearer "+secret)
	return g.do(r)
}

// createBatch uploads a file and creates a batch of it.
func (g *gateway) createBatch(secret, file string) (id string) {
	g.t.Helper()
	return g.createBatchOf(secret, "/v1/completions", file)
}

// createBatchOf is createBatch for an endpoint.
func (g *gateway) createBatchOf(secret, endpoint, file string) (id string) {
	g.t.Helper()
	uploaded := g.upload(secret, file, "purpose", "batch")
	if uploaded.status != http.StatusOK {
		g.t.Fatalf("upload: %d %s", uploaded.status, uploaded.body)
	}
	created := g.call(http.MethodPost, "/v1/batches", secret, fmt.Sprintf(
		`{"input_file_id":%q,"endpoint":%q,"completion_window":"24h"}`, gjson.Get(uploaded.body, "id").Str, endpoint))
	if created.status != http.StatusOK {
		g.t.Fatalf("create a batch: %d %s", created.status, created.body)
	}
	return gjson.Get(created.body, "id").Str
}

// batch returns a batch.
func (g *gateway) batch(secret, id string) gjson.Result {
	g.t.Helper()
	r := g.call(http.MethodGet, "/v1/batches/"+id, secret, "")
	if r.status != http.StatusOK {
		g.t.Fatalf("GET of a batch: %d %s", r.status, r.body)
	}
	return gjson.Parse(r.body)
}

// waitForBatch waits until a batch has a status, as long as its lines end, and returns it. A gateway may be overloaded.
func (g *gateway) waitForBatch(secret, id, status string) (b gjson.Result) {
	g.t.Helper()
	for ended := int64(-1); b.Get("status").Str != status; {
		poll.Until(g.t, "the batch is "+status+" or advances", func() bool {
			r := g.call(http.MethodGet, "/v1/batches/"+id, secret, "")
			if r.status == http.StatusServiceUnavailable {
				return false
			}
			if r.status != http.StatusOK {
				g.t.Fatalf("GET of a batch: %d %s", r.status, r.body)
			}
			b = gjson.Parse(r.body)
			before := ended
			ended = b.Get("request_counts.completed").Int() + b.Get("request_counts.failed").Int()
			return b.Get("status").Str == status || ended != before
		})
	}
	return b
}

// results returns the lines of a file of results by their custom_ids, each of which may stand there once.
func (g *gateway) results(secret, file string) map[string]gjson.Result {
	g.t.Helper()
	all := map[string]gjson.Result{}
	if file == "" {
		return all
	}
	r := g.call(http.MethodGet, "/v1/files/"+file+"/content", secret, "")
	if r.status != http.StatusOK {
		g.t.Fatalf("content of %s: %d %s", file, r.status, r.body)
	}
	for line := range strings.Lines(r.body) {
		if !gjson.Valid(line) || !strings.HasSuffix(line, "\n") {
			g.t.Fatalf("a line of results is no whole JSON: %q", line)
		}
		o := gjson.Parse(line)
		id := o.Get("custom_id").Str
		if _, twice := all[id]; twice {
			g.t.Errorf("%s stands twice in a file of results", id)
		}
		all[id] = o
	}
	return all
}

// checkResults checks that each line is in exactly one file, once, and returns both files.
func (g *gateway) checkResults(secret string, b gjson.Result, ids map[string]bool) (output, failures map[string]gjson.Result) {
	g.t.Helper()
	output, failures = g.results(secret, b.Get("output_file_id").Str), g.results(secret, b.Get("error_file_id").Str)
	for id := range ids {
		_, succeeded := output[id]
		if _, failed := failures[id]; succeeded == failed {
			g.t.Errorf("%s: in the output file %v, in the error file %v; want one of them", id, succeeded, failed)
		}
	}
	counts := b.Get("request_counts")
	if len(output)+len(failures) != len(ids) || counts.Get("total").Int() != int64(len(ids)) ||
		counts.Get("completed").Int() != int64(len(output)) || counts.Get("failed").Int() != int64(len(failures)) {
		g.t.Errorf("%d lines, %d in the output file, %d in the error file, request_counts %s", len(ids), len(output), len(failures), counts.Raw)
	}
	return output, failures
}

func TestBatchRunsEachLineOnceAndChargesItsKey(t *testing.T) {
	// An open breaker would hold the lines back for as long as the test waits.
	g, mock := startGateway(t, settings{extra: "breaker: {consecutive_failures: 1000}"}, mockvllm.Options{})
	file, ids := batchLines(200)
	mock.InjectFault(mockvllm.Fault{Kind: "nested", Times: 7}) // 503s: the lines are tried again
	file += batchLine("too long", `{"model":"m","prompt":"a","max_tokens":3,"stop":["x"],"truncate_prompt_tokens":100000}`)
	ids["too long"] = true // vLLM refuses it
	b := g.waitForBatch(g.secret, g.createBatch(g.secret, file), "completed")
	output, failures := g.checkResults(g.secret, b, ids)
	charged := map[string]ledgerRow{}
	for _, row := range g.usageRows() {
		charged[row.ID] = row
	}
	var input, completion int64
	for id, line := range output {
		row, found := charged[line.Get("response.request_id").Str]
		usage := line.Get("response.body.usage")
		if !found || row.State != "settled" || row.Prompt != usage.Get("prompt_tokens").Int() || row.Completion != usage.Get("completion_tokens").Int() {
			t.Errorf("%s: the ledger has %+v, the response %s", id, row, usage.Raw)
		}
		if line.Get("response.status_code").Int() != 200 || line.Get("error").Type != gjson.Null || !strings.HasPrefix(line.Get("id").Str, "batch_req_") {
			t.Errorf("%s: %s", id, line.Raw)
		}
		input, completion = input+row.Prompt, completion+row.Completion
	}
	if got := b.Get("usage"); got.Get("input_tokens").Int() != input || got.Get("output_tokens").Int() != completion {
		t.Errorf("the batch's usage is %s; the ledger has %d and %d", got.Raw, input, completion)
	}
	if got := failures["too long"]; got.Get("response.status_code").Int() != 400 || got.Get("response.body.error.code").Str == "" {
		t.Errorf("a line that vLLM refuses: %s", got.Raw)
	}
	for _, f := range []string{"output_file_id", "error_file_id"} {
		r := g.call(http.MethodGet, "/v1/files/"+b.Get(f).Str+"/content", g.secret, "")
		if etag := r.header.Get("ETag"); len(etag) != 66 || r.header.Get("Content-Type") != "application/jsonl" {
			t.Errorf("%s: ETag %q, Content-Type %q", f, etag, r.header.Get("Content-Type"))
		}
	}
}

// A batch is killed again and again. Each line ends in one file, once, with one charge.
func TestKilledBatchLosesAndRepeatsNothing(t *testing.T) {
	kills, lines := 20, 6_000
	if testing.Short() {
		kills, lines = 5, 3_000
	}
	mock := startMock(t, mockvllm.Options{Instant: true})
	env := newEnvironment(t, settings{}, mock.URL())
	secret := env.createKey("batch")
	g := env.serveWithKey(secret)
	file, ids := batchLines(lines)
	id := g.createBatch(secret, file)
	killed := 0
	for ; killed < kills; killed++ {
		if killed > 0 { // validation is not killed, or the first kills would find nothing else
			enough := g.batch(secret, id).Get("request_counts.completed").Int() + 1 + rand.Int64N(int64(lines/kills))
			poll.Until(t, "lines are recorded", func() bool {
				b := g.batch(secret, id)
				return b.Get("request_counts.completed").Int() >= enough || b.Get("status").Str == "completed"
			})
		}
		timer := time.NewTimer(time.Duration(rand.IntN(100)) * time.Millisecond)
		<-timer.C
		g.signal(syscall.SIGKILL)
		<-g.exited
		g = env.serveWithKey(secret)
	}
	b := g.waitForBatch(secret, id, "completed")
	output, _ := g.checkResults(secret, b, ids)
	rows, err := env.ledgerRows(t.Context())
	must(t, err)
	settled := map[string]ledgerRow{}
	interrupted := 0
	for _, row := range rows {
		switch {
		case row.State == "interrupted":
			interrupted++
		case row.State == "settled" && row.Status == 200:
			settled[row.ID] = row
		default:
			t.Errorf("the ledger has %+v", row)
		}
	}
	for line, result := range output {
		if _, found := settled[result.Get("response.request_id").Str]; !found {
			t.Errorf("%s is not on the ledger", line)
		}
	}
	if len(settled) != len(output) {
		t.Errorf("%d charges for %d results", len(settled), len(output))
	}
	t.Logf("%d kills, %d lines, %d interrupted attempts", killed, len(ids), interrupted)
}

func TestBatchWaitsForItsBudget(t *testing.T) {
	t.Parallel() // it waits
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	secret := strings.TrimSpace(g.run("key", "create", "--account", g.email, "--name", "capped", "--monthly-budget", "300"))
	g.waitForKey(secret)
	file, ids := batchLines(40)
	file += batchLine("never", `{"model":"m","prompt":"a","max_tokens":1000}`)
	ids["never"] = true
	id := g.createBatch(secret, file)
	var b gjson.Result
	poll.Until(t, "the batch waits for its budget", func() bool {
		b = g.batch(secret, id)
		return b.Get("waiting_for.reason").Str == "budget" && b.Get("waiting_for.resets_at").Int() > time.Now().Unix() &&
			b.Get("request_counts.failed").Int() == 1
	})
	if done := b.Get("request_counts.completed").Int(); done == 0 || done == int64(len(ids)) {
		t.Errorf("%d lines have run with a small budget", done)
	}
	key := g.run("key", "list", "--json")
	keyID := gjson.Get(key, `#(name=="capped").id`).Str
	g.run("key", "set", keyID, "--monthly-budget", "1M")
	b = g.waitForBatch(secret, id, "completed")
	_, failures := g.checkResults(secret, b, ids)
	if o := failures["never"]; o.Get("response.body.error.code").Str != "budget_exceeded" {
		t.Errorf("a line over an unused cap: %s", o.Raw)
	}
}

func TestWrongInputFilesFailTheirBatch(t *testing.T) {
	g, _ := startGateway(t, settings{server: ", max_body_bytes: 64KiB"}, mockvllm.Options{})
	good := batchLine("good", `{"model":"m","prompt":"a"}`)
	many, _ := batchLines(50_001)
	for name, c := range map[string]struct {
		file string
		code string
		line int64
	}{
		"nothing":             {"", "empty_file", 0},
		"no lines":            {"\n\r\n  \n", "empty_file", 0},
		"not UTF-8":           {batchLine("x", "{\"model\":\"m\",\"prompt\":\"\xff\"}"), "bad_json", 1},
		"streamed":            {batchLine("x", `{"model":"m","prompt":"a","stream":true}`), "invalid_request", 1},
		"no custom_id":        {strings.Replace(good, `"custom_id":"good",`, "", 1), "invalid_request", 1},
		"a line that is long": {good + batchLine("x", `{"model":"m","prompt":"`+strings.Repeat("a", 70_000)+`"}`), "line_too_long", 2},
		"a line too many":     {many, "too_many_lines", 50_001},
	} {
		t.Run(name, func(t *testing.T) {
			b := g.waitForBatch(g.secret, g.createBatch(g.secret, c.file), "failed")
			first := b.Get("errors.data.0")
			if first.Get("code").Str != c.code || first.Get("line").Int() != c.line || first.Get("message").Str == "" {
				t.Errorf("got %s, want code %s and line %d", first.Raw, c.code, c.line)
			}
			if b.Get("output_file_id").Type != gjson.Null || b.Get("failed_at").Int() == 0 {
				t.Errorf("a failed batch: %s", b.Raw)
			}
		})
	}
	fine := "\xef\xbb\xbf" + strings.ReplaceAll(good, "\n", "\r\n") + "\r\n\n" + strings.TrimSuffix(batchLine("last", `{"model":"m","prompt":"b"}`), "\n")
	b := g.waitForBatch(g.secret, g.createBatch(g.secret, fine), "completed")
	g.checkResults(g.secret, b, map[string]bool{"good": true, "last": true})
}

// storedObjects returns the names of the objects in the storage of files.
func (e *environment) storedObjects() []string {
	e.t.Helper()
	names := map[string]bool{}
	if e.bucket != nil {
		for _, key := range e.bucket.Keys("lab/one/") {
			name, _, _ := strings.Cut(strings.TrimPrefix(key, "lab/one/"), "/")
			names[name] = true
		}
		return slices.Collect(maps.Keys(names))
	}
	entries, err := os.ReadDir(e.filesFolder())
	must(e.t, err)
	for _, entry := range entries {
		names[entry.Name()] = true
	}
	if e.postgresURL != "" { // without the one by which gateways know that they share the folder
		var shared string
		must(e.t, e.openLedger().QueryRow(`SELECT name FROM objects WHERE file = 'storage' AND state = 'kept'`).Scan(&shared))
		delete(names, shared)
	}
	return slices.Collect(maps.Keys(names))
}

// keptObjects returns how many objects the files have.
func (e *environment) keptObjects() (n int) {
	e.t.Helper()
	must(e.t, e.openLedger().QueryRow(`SELECT count(*) FROM objects WHERE state = 'kept' AND file <> 'storage'`).Scan(&n))
	return n
}

// storageFolder returns the folder in which the bytes of files are, also those of a bucket.
func (e *environment) storageFolder() string {
	if e.bucket != nil {
		return e.bucket.Folder
	}
	return e.filesFolder()
}

func TestUploadsAreStoredWholeOrNotAtAll(t *testing.T) {
	g, _ := startGateway(t, settings{extra: "files: {max_bytes: 64KiB, max_bytes_per_account: 100KiB, keep: 1h}"}, mockvllm.Options{})
	stored := func() int { return len(g.storedObjects()) }
	for name, c := range map[string]struct {
		got    response
		status int
		code   string
	}{
		"no multipart":     {g.call(http.MethodPost, "/v1/files", g.secret, "x"), 400, "invalid_request"},
		"no purpose":       {g.upload(g.secret, "x"), 400, "invalid_request"},
		"wrong purpose":    {g.upload(g.secret, "x", "purpose", "fine-tune"), 400, "invalid_request"},
		"unknown field":    {g.upload(g.secret, "x", "purpose", "batch", "note", "x"), 400, "invalid_request"},
		"doubled field":    {g.upload(g.secret, "x", "purpose", "batch", "purpose", "batch"), 400, "invalid_request"},
		"expires too soon": {g.upload(g.secret, "x", "purpose", "batch", "expires_after[anchor]", "created_at", "expires_after[seconds]", "60"), 400, "invalid_request"},
		"spelled twice":    {g.upload(g.secret, "x", "purpose", "batch", "expires_after[anchor]", "x", "expires_after.anchor", "created_at", "expires_after[seconds]", "7200"), 400, "invalid_request"},
		"no seconds":       {g.upload(g.secret, "x", "purpose", "batch", "expires_after.seconds", ""), 400, "invalid_request"},
		"signed seconds":   {g.upload(g.secret, "x", "purpose", "batch", "expires_after.seconds", "+7200"), 400, "invalid_request"},
		"too large":        {g.upload(g.secret, strings.Repeat("x", 70_000), "purpose", "batch"), 413, "request_too_large"},
		"no key":           {g.upload("acs-bm-x", "x", "purpose", "batch"), 401, "invalid_api_key"},
	} {
		if c.got.status != c.status || gjson.Get(c.got.body, "error.code").Str != c.code {
			t.Errorf("%s: got %d %s, want %d %s", name, c.got.status, c.got.body, c.status, c.code)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/files", strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\ncut"))
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+g.secret)
	r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	if got := g.do(r); got.status != http.StatusBadRequest {
		t.Errorf("a body that breaks off: %d %s", got.status, got.body)
	}
	poll.Until(t, "nothing is stored", func() bool { return stored() == 0 })

	first := g.upload(g.secret, strings.Repeat("x", 60_000), "purpose", "batch", "expires_after.seconds", "7200")
	if f := gjson.Parse(first.body); first.status != 200 || f.Get("bytes").Int() != 60_000 || f.Get("expires_at").Int()-f.Get("created_at").Int() != 7200 ||
		f.Get("object").Str != "file" || f.Get("status").Str != "processed" || f.Get("filename").Str != "lines.jsonl" {
		t.Errorf("an upload: %d %s", first.status, first.body)
	}
	if r := g.upload(g.secret, strings.Repeat("y", 60_000), "purpose", "batch"); r.status != 413 ||
		gjson.Get(r.body, "error.code").Str != "storage_quota_exceeded" || gjson.Get(r.body, "error.used_bytes").Int() != 60_000 {
		t.Errorf("an upload over the account's limit: %d %s", r.status, r.body)
	}
	stranger := g.createKeyOf(g.newAccount("eve@example.org"), "eve")
	g.waitForKey(stranger)
	id := gjson.Get(first.body, "id").Str
	for _, path := range []string{"/v1/files/" + id, "/v1/files/" + id + "/content"} {
		if r := g.call(http.MethodGet, path, stranger, ""); r.status != http.StatusNotFound {
			t.Errorf("another account's GET of %s: %d", path, r.status)
		}
	}
	if r := g.call(http.MethodDelete, "/v1/files/"+id, stranger, ""); r.status != http.StatusNotFound {
		t.Errorf("another account's DELETE: %d", r.status)
	}
	if r := g.call(http.MethodDelete, "/v1/files/"+id, g.secret, ""); r.status != http.StatusOK || !gjson.Get(r.body, "deleted").Bool() {
		t.Errorf("DELETE: %d %s", r.status, r.body)
	}
	poll.Until(t, "the bytes are gone", func() bool { return stored() == 0 })
}

// newAccount creates an account and returns its address.
func (e *environment) newAccount(email string) string {
	e.t.Helper()
	e.run("account", "create", email)
	return email
}

// The markers of a batch are in its files and nowhere else, and after their deletion nowhere at all.
func TestBatchesAreStoredInTheirFilesOnly(t *testing.T) {
	const prompt, id, field = "marker-prompt-Bq7", "marker-id-Bw8", "marker-field-Bv9"
	g, _ := startGateway(t, settings{extra: "log: {level: debug}"}, mockvllm.Options{})
	good := g.createBatch(g.secret, batchLine(id, fmt.Sprintf(`{"model":"m","prompt":%q,"echo":true}`, prompt)))
	b := g.waitForBatch(g.secret, good, "completed")
	if out := g.results(g.secret, b.Get("output_file_id").Str); !strings.Contains(out[id].Raw, prompt) {
		t.Fatalf("the prompt was not echoed, so the test proves nothing: %v", out)
	}
	bad := g.waitForBatch(g.secret, g.createBatch(g.secret, batchLine(id, fmt.Sprintf(`{"model":"m","prompt":%q,%q:1}`, prompt, field))), "failed")
	if !strings.Contains(bad.Get("errors.data.0.message").Str, field) {
		t.Fatalf("the error does not name the field, so the test proves nothing: %s", bad.Raw)
	}
	search := func(where string, inFiles bool) {
		outputs := map[string]string{"/metrics": g.get(g.admin, "/metrics").body, "stderr": g.stderr.String()}
		maps.Copy(outputs, readFiles(t, g.dir))
		for output, text := range outputs {
			if inFiles && strings.Contains(output, ".files"+string(filepath.Separator)) {
				continue
			}
			for _, marker := range []string{prompt, id, field} {
				if strings.Contains(text, marker) {
					t.Errorf("%s: %s is in %s", where, marker, output)
				}
			}
		}
	}
	search("while the files exist", true)
	for _, f := range []string{b.Get("input_file_id").Str, b.Get("output_file_id").Str, bad.Get("input_file_id").Str} {
		if r := g.call(http.MethodDelete, "/v1/files/"+f, g.secret, ""); r.status != http.StatusOK {
			t.Errorf("DELETE: %d %s", r.status, r.body)
		}
	}
	poll.Until(t, "the bytes are gone", func() bool {
		for _, text := range readFiles(t, g.storageFolder()) {
			if strings.Contains(text, prompt) || strings.Contains(text, id) {
				return false
			}
		}
		return true
	})
	errors := gjson.Get(g.call(http.MethodGet, "/v1/batches/"+bad.Get("id").Str, g.secret, "").body, "errors.data.0.message").Str
	if !strings.Contains(errors, field) {
		t.Errorf("the errors of a failed batch are gone with its file: %q", errors)
	}
	search("after the deletion", true) // the database with its free pages and its write-ahead log, the logs, the metrics
	g.signal(syscall.SIGTERM)
	<-g.exited
	for path, text := range readFiles(t, g.dir) {
		if strings.Contains(text, prompt) || strings.Contains(text, id) {
			t.Errorf("a marker is in %s after the deletion and a stop", path)
		}
	}
}

// The id in the path of a refused request is the client's text.
func TestRefusedRequestsForFilesAreRecordedByTheirRoute(t *testing.T) {
	skipPostgres(t, "the test searches the files of the database")
	const marker = "marker-path-Bx3"
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	paths := map[string]string{ // by route
		"/v1/files/:id": "/v1/files/" + marker, "/v1/files/:id/content": "/v1/files/" + marker + "/content",
		"/v1/batches/:id": "/v1/batches/" + marker,
	}
	for _, path := range paths {
		if r := g.call(http.MethodGet, path, g.secret, ""); r.status != http.StatusNotFound {
			t.Fatalf("%s: %d %s", path, r.status, r.body)
		}
	}
	poll.Until(t, "the refusals are recorded", func() bool {
		text := strings.Join(slices.Collect(maps.Values(readFiles(t, g.dir))), "")
		for route := range paths {
			if !strings.Contains(text, route) {
				return false
			}
		}
		return true
	})
	for file, text := range readFiles(t, g.dir) {
		if strings.Contains(text, marker) {
			t.Errorf("%s holds the path of a request", file)
		}
	}
}

// The routes of files and batches keep the rules of all routes: methods, encodings, headers.
func TestFilesAndBatchesKeepTheRulesOfTheAPI(t *testing.T) {
	g, _ := startGateway(t, settings{server: ", cors_origins: [https://app.example.org]"}, mockvllm.Options{})
	for path, allow := range map[string]string{
		"/v1/files": "GET, POST", "/v1/files/x": "DELETE, GET", "/v1/files/x/content": "GET",
		"/v1/batches": "GET, POST", "/v1/batches/x": "GET", "/v1/batches/x/cancel": "POST",
	} {
		for _, method := range []string{http.MethodPatch, http.MethodOptions} {
			r := g.call(method, path, g.secret, "")
			if r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != allow || gjson.Get(r.body, "error.code").Str != "method_not_allowed" {
				t.Errorf("%s %s: %d, Allow %q, %s", method, path, r.status, r.header.Get("Allow"), r.body)
			}
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, g.url+path, http.NoBody)
		must(t, err)
		r.Header.Set("Origin", "https://app.example.org")
		r.Header.Set("Access-Control-Request-Method", http.MethodDelete)
		r.Header.Set("Access-Control-Request-Headers", "authorization, idempotency-key, x-stainless-retry-count")
		granted := g.do(r)
		if granted.status != http.StatusNoContent || !strings.Contains(granted.header.Get("Access-Control-Allow-Methods"), "DELETE") ||
			granted.header.Get("Access-Control-Allow-Headers") != "authorization, idempotency-key, x-stainless-retry-count" {
			t.Errorf("the preflight of %s: %d %v", path, granted.status, granted.header)
		}
		wrong := g.call(http.MethodGet, path, "acs-bm-wrong", "")
		if wrong.header.Get("X-Request-Id") == "" || wrong.header.Get("Server-Timing") == "" {
			t.Errorf("the headers of an error at %s: %v", path, wrong.header)
		}
	}
	for path, hint := range map[string]string{
		"/v1/files/": "the path is /v1/files, without a slash", "/v1/batches/": "the path is /v1/batches, without a slash",
	} {
		if r := g.call(http.MethodGet, path, g.secret, ""); r.status != http.StatusNotFound || !strings.Contains(r.body, hint) {
			t.Errorf("GET %s: %d %s", path, r.status, r.body)
		}
	}
	id := gjson.Get(g.upload(g.secret, batchLine("a", `{"model":"m","prompt":"a"}`), "purpose", "batch").body, "id").Str
	for path, allow := range map[string]string{"/v1/files": "GET, POST", "/v1/files/" + id: "DELETE, GET", "/v1/files/" + id + "/content": "GET"} {
		if r := g.call(http.MethodHead, path, g.secret, ""); r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != allow || r.body != "" {
			t.Errorf("HEAD %s: %d, Allow %q, %q", path, r.status, r.header.Get("Allow"), r.body)
		}
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, err := fmt.Fprintf(w, `{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, id)
	must(t, err)
	must(t, w.Close())
	for encoding, want := range map[string]int{"gzip": http.StatusOK, "br": http.StatusUnsupportedMediaType} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/batches", bytes.NewReader(compressed.Bytes()))
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+g.secret)
		r.Header.Set("Content-Encoding", encoding)
		if got := g.do(r); got.status != want || got.header.Get("X-Request-Id") == "" || got.header.Get("Server-Timing") == "" {
			t.Errorf("a body in %s: %d %v %s; want %d", encoding, got.status, got.header, got.body, want)
		}
	}
}
