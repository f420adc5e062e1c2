package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

const batchPassword = "correct horse battery"

// batchSite is a gateway with a mock backend, two accounts with a key each, and an administrator.
type batchSite struct {
	t       *testing.T
	gateway *gateway.Gateway
	mock    *mockvllm.Process
	config  *config.Config
	ada     console
	bob     console
	root    console
	key     string // id of Ada's key
	secret  string // of Ada's key
}

func newBatchSite(t *testing.T, options mockvllm.Options, change func(*config.Config)) *batchSite {
	t.Helper()
	options.Models = []string{"org/m"}
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", options)
	if err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(mock.URL())
	if err != nil {
		t.Fatal(err)
	}
	s := &batchSite{t: t, mock: mock, config: newConfig(t, model("m", address))}
	if change != nil {
		change(s.config)
	}
	newAdministrator(t, s.config, "root@example.org", batchPassword)
	withIdentity(t, s.config, func(ctx context.Context, store *identity.Store) error {
		for _, email := range []string{"ada@example.org", "bob@example.org"} {
			if _, err := store.Accounts.Create(ctx, identity.Account{Email: email}); err != nil {
				return err
			}
			if err := store.Sessions.SetPassword(ctx, email, batchPassword); err != nil {
				return err
			}
			k, secret, err := store.Keys.Create(ctx, identity.Key{Email: email, Name: "key of " + email})
			if err != nil {
				return err
			}
			if s.key == "" {
				s.key, s.secret = k.ID, secret
			}
		}
		return nil
	})
	s.gateway = start(t, s.config)
	t.Cleanup(func() { mock.Close() }) // before the gateway, which waits for the lines that run
	s.ada = signInAt(t, s.gateway, "ada@example.org", batchPassword)
	s.bob = signInAt(t, s.gateway, "bob@example.org", batchPassword)
	s.root = signInAt(t, s.gateway, "root@example.org", batchPassword)
	for _, c := range []console{s.ada, s.bob, s.root} {
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	return s
}

// lines returns an input file of n lines.
func lines(n int, body string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"line %d","method":"POST","url":"/v1/completions","body":%s}`+"\n", i, body)
	}
	return b.String()
}

const goodBody = `{"model":"m","prompt":"a private prompt","max_tokens":4,"ignore_eos":true}`

// uploadForm returns the body of an upload and its Content-Type.
func uploadForm(t *testing.T, key, name, text string) (body *bytes.Buffer, contentType string) {
	t.Helper()
	body = &bytes.Buffer{}
	form := multipart.NewWriter(body)
	form.WriteField("key", key)
	file, err := form.CreateFormFile("file", name)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(file, text)
	form.Close()
	return body, form.FormDataContentType()
}

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   string
}

func (c console) send(t *testing.T, method, path, contentType string, body io.Reader, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, c.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func (c console) form(t *testing.T, path string, fields url.Values) answer {
	t.Helper()
	return c.send(t, http.MethodPost, path, "application/x-www-form-urlencoded", strings.NewReader(fields.Encode()))
}

// upload uploads a file of Ada's with the page's form, and returns the path of its page.
func (s *batchSite) upload(name, text string) string {
	s.t.Helper()
	body, contentType := uploadForm(s.t, s.key, name, text)
	got := s.ada.send(s.t, http.MethodPost, "/files", contentType, body)
	if got.status != http.StatusSeeOther || !strings.HasPrefix(got.header.Get("Location"), "/files/file-") {
		s.t.Fatalf("upload: got %d to %q %s, want a redirect to the file", got.status, got.header.Get("Location"), got.body)
	}
	return got.header.Get("Location")
}

// run creates a batch of a file, and returns the path of its page.
func (s *batchSite) run(file, once string) string {
	s.t.Helper()
	got := s.ada.form(s.t, file+"/run", url.Values{"key": {s.key}, "window": {"24h"}, "once": {once}})
	if got.status != http.StatusSeeOther || !strings.HasPrefix(got.header.Get("Location"), "/batches/batch_") {
		s.t.Fatalf("run: got %d to %q %s, want a redirect to the batch", got.status, got.header.Get("Location"), got.body)
	}
	return got.header.Get("Location")
}

// waitFor polls a page until it contains a text.
func (s *batchSite) waitFor(c console, path, text string) (page string) {
	s.t.Helper()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("%s has\n%s", path, page)
		}
	})
	poll.Until(s.t, path+" has "+text, func() bool {
		page = c.page(s.t, path)
		return strings.Contains(page, text)
	})
	return page
}

// stored returns the number of objects in the storage of files.
func (s *batchSite) stored() int {
	s.t.Helper()
	entries, err := os.ReadDir(s.config.Database.Path + ".files")
	if err != nil {
		s.t.Fatal(err)
	}
	return len(entries)
}

// waitForNothingStored waits until the storage is empty.
func (s *batchSite) waitForNothingStored() {
	s.t.Helper()
	poll.Until(s.t, "nothing is left in the storage", func() bool { return s.stored() == 0 })
}

func wantParts(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: %q is missing in:\n%s", what, p, text)
		}
	}
}

func lacksParts(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if strings.Contains(text, p) {
			t.Errorf("%s: unexpected %q in:\n%s", what, p, text)
		}
	}
}

func wantAnswer(t *testing.T, what string, got answer, status int) {
	t.Helper()
	if got.status != status {
		t.Errorf("%s: got %d %s, want %d", what, got.status, got.body, status)
	}
}

var contentLink = regexp.MustCompile(`/files/file-[a-z0-9]+/content`)

func TestFileIsUploadedRunAndDownloadedAtTheConsole(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, nil)
	wantParts(t, "no files", s.ada.page(t, "/files"), "No files yet")
	wantParts(t, "no batches", s.ada.page(t, "/batches"), "No batches yet")
	text := lines(20, goodBody)
	file := s.upload("prompts.jsonl", text)
	page := s.ada.page(t, file)
	wantParts(t, "files before a batch", s.ada.page(t, "/files"), `data-name="Lines">20<`)
	wantParts(t, "file", page, "prompts.jsonl stored: 20 lines, no errors.", "key of ada@example.org", "Create batch")
	got := s.ada.send(t, http.MethodGet, file+"/content", "", nil)
	if got.status != http.StatusOK || got.body != text {
		t.Errorf("content: got %d and %d bytes, want 200 and the %d that were sent", got.status, len(got.body), len(text))
	}
	wantParts(t, "download", got.header.Get("Content-Disposition"), "attachment", "prompts.jsonl")
	part := s.ada.send(t, http.MethodGet, file+"/content", "", nil, "Range", "bytes=0-9")
	if part.status != http.StatusPartialContent || part.body != text[:10] {
		t.Errorf("range: got %d %q, want 206 and the first ten bytes", part.status, part.body)
	}

	batch := s.run(file, "one form")
	if again := s.run(file, "one form"); again != batch {
		t.Errorf("the same form again: got %s, want %s", again, batch)
	}
	page = s.waitFor(s.ada, batch, "completed")
	wantParts(t, "batch", page, "20", "Download results", "prompts.jsonl", "key of ada@example.org")
	lacksParts(t, "a batch that has ended", page, "data-live-every", "Cancel batch")
	results := s.ada.send(t, http.MethodGet, contentLink.FindString(page), "", nil)
	if n := strings.Count(results.body, "\n"); n != 20 || gjson.Get(results.body, "response.status_code").Int() != 200 {
		t.Errorf("results: got %d lines beginning with %.200s, want 20 responses", n, results.body)
	}
	wantParts(t, "batches", s.ada.page(t, "/batches"), "completed", "key of ada@example.org", batch)
	files := s.ada.page(t, "/files")
	wantParts(t, "files", files, "_output.jsonl", `data-name="Lines">20<`)
	for name, p := range map[string]string{"file": s.ada.page(t, file), "files": files, "batch": page} {
		lacksParts(t, name, p, "a private prompt")
	}
}

func TestWrongLinesAreShownAndTheFileIsNotStored(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, nil)
	wrong := lines(1, goodBody) +
		"not JSON: a private prompt\n" +
		strings.Replace(lines(1, goodBody), `"line 0"`, `"line 0"`, 1) + // the same custom_id again
		strings.Replace(lines(1, `{"model":"m","prompt":"x","temperature":"a private prompt"}`), "line 0", "other", 1) +
		strings.Replace(lines(1, `{"model":"a private prompt","prompt":"x"}`), "line 0", "model", 1) +
		strings.Replace(lines(1, `{"model":"m","prompt":"x","a private prompt":1}`), "line 0", "name", 1)
	want := []string{"invalid_json_line", "duplicate_custom_id", "invalid_request", "model_not_found", "invalid_request"}
	body, contentType := uploadForm(t, s.key, "wrong.jsonl", wrong)
	page := s.ada.send(t, http.MethodPost, "/files", contentType, bytes.NewReader(body.Bytes()))
	wantAnswer(t, "form", page, http.StatusUnprocessableEntity)
	wantParts(t, "form", page.body, append(want, "5 wrong lines", "temperature")...)
	script := s.ada.send(t, http.MethodPost, "/console/api/files", contentType, body)
	wantAnswer(t, "script", script, http.StatusUnprocessableEntity)
	for i, line := range gjson.Get(script.body, "lines").Array() {
		if got := line.Get("code").Str; got != want[i] || line.Get("line").Int() != int64(i+2) {
			t.Errorf("got %s, want %s in line %d", line, want[i], i+2)
		}
	}
	if n := gjson.Get(script.body, "lines.#").Int(); n != 5 {
		t.Errorf("got %d wrong lines, want 5", n)
	}
	lacksParts(t, "form", page.body, "a private prompt")
	lacksParts(t, "script", script.body, "a private prompt")

	many, contentType := uploadForm(t, s.key, "many.jsonl", strings.Repeat("nothing\n", 200_000))
	script = s.ada.send(t, http.MethodPost, "/console/api/files", contentType, many)
	if n := gjson.Get(script.body, "lines.#").Int(); n != 100 {
		t.Errorf("got %d %d wrong lines, want the first 100", script.status, n)
	}
	wantParts(t, "nothing is stored", s.ada.page(t, "/files"), "No files yet")
	s.waitForNothingStored()

	// The API stores files unseen: then the batch fails, and its page shows the lines.
	id := s.uploadByAPI(wrong)
	wantParts(t, "files", s.ada.page(t, "/files"), "api.jsonl", `data-name="Lines">6<`)
	page = s.ada.form(t, "/files/"+id+"/run", url.Values{"key": {s.key}, "window": {"1h"}, "once": {"x"}})
	failed := s.waitFor(s.ada, page.header.Get("Location"), "Wrong lines")
	wantParts(t, "failed batch", failed, want...)
	lacksParts(t, "failed batch", failed, "a private prompt")
}

// uploadByAPI uploads a file of Ada's with the API, and returns its id.
func (s *batchSite) uploadByAPI(text string) string {
	s.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	form.WriteField("purpose", "batch")
	file, err := form.CreateFormFile("file", "api.jsonl")
	if err != nil {
		s.t.Fatal(err)
	}
	io.WriteString(file, text)
	form.Close()
	api := console{client, s.ada.url}
	got := api.send(s.t, http.MethodPost, "/v1/files", form.FormDataContentType(), &body, "Authorization", "Bearer "+s.secret)
	if got.status != http.StatusOK {
		s.t.Fatalf("upload by the API: got %d %s, want 200", got.status, got.body)
	}
	return gjson.Get(got.body, "id").Str
}

// A backend that schedules by priority serves live requests, which have none, before lines.
func TestLinesHaveTheirDeadlineAsPriority(t *testing.T) {
	for _, policy := range []string{mockvllm.PolicyPriority, mockvllm.PolicyFCFS} {
		t.Run(policy, func(t *testing.T) {
			s := newBatchSite(t, mockvllm.Options{SchedulingPolicy: policy}, func(c *config.Config) {
				c.Models[0].Backends[0].SchedulingPolicy = policy
			})
			status, batch := get(t, s.gateway, s.secret, "/v1/batches", fmt.Sprintf(
				`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, s.uploadByAPI(lines(5, goodBody))))
			if status != http.StatusOK {
				t.Fatalf("create a batch: got %d %s", status, batch)
			}
			if status, body := get(t, s.gateway, s.secret, "/v1/completions", `{"model":"m","prompt":"live","max_tokens":1}`); status != http.StatusOK {
				t.Errorf("the live request: got %d %s", status, body)
			}
			s.waitFor(s.ada, "/batches/"+gjson.Get(batch, "id").Str, "completed")
			priorities := map[string][]string{} // by prompt
			for _, r := range s.mock.Requests() {
				if r.Path == "/v1/completions" {
					prompt := gjson.GetBytes(r.Body, "prompt").Str
					priorities[prompt] = append(priorities[prompt], gjson.GetBytes(r.Body, "priority").Raw)
				}
			}
			deadline := ""
			if policy == mockvllm.PolicyPriority {
				deadline = gjson.Get(batch, "expires_at").Raw
			}
			want := map[string][]string{"a private prompt": slices.Repeat([]string{deadline}, 5), "live": {""}}
			if diff := cmp.Diff(want, priorities); diff != "" {
				t.Errorf("the priorities of what the backend received (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFilesAndBatchesOfAnotherAccountAreNotFound(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{TokenDelay: time.Hour}, nil)
	file := s.upload("private.jsonl", lines(3, goodBody))
	batch := s.run(file, "x")
	s.waitFor(s.ada, batch, "running")
	run := url.Values{"key": {s.key}, "window": {"24h"}}
	for _, c := range []struct {
		who  string
		from console
	}{{"another account", s.bob}, {"an administrator", s.root}} {
		for _, path := range []string{file, file + "/content", batch, "/files?after=" + strings.TrimPrefix(file, "/files/"), "/batches?after=" + strings.TrimPrefix(batch, "/batches/")} {
			wantAnswer(t, c.who+" opens "+path, c.from.send(t, http.MethodGet, path, "", nil), http.StatusNotFound)
		}
		for _, path := range []string{file + "/run", file + "/delete", batch + "/cancel"} {
			wantAnswer(t, c.who+" sends "+path, c.from.form(t, path, run), http.StatusNotFound)
		}
		lacksParts(t, c.who, c.from.page(t, "/files")+c.from.page(t, "/batches"), "private.jsonl", batch)
	}
	wantAnswer(t, "the operator's list", s.bob.send(t, http.MethodGet, "/admin/batches", "", nil), http.StatusNotFound)
	wantAnswer(t, "the operator's cancel", s.bob.form(t, "/admin"+batch+"/cancel", nil), http.StatusNotFound)

	// The key must be the user's own too.
	body, contentType := uploadForm(t, s.key, "stolen.jsonl", lines(1, goodBody))
	wantAnswer(t, "upload with another account's key", s.bob.send(t, http.MethodPost, "/console/api/files", contentType, body), http.StatusUnprocessableEntity)

	wantParts(t, "operator", s.root.page(t, "/admin/batches"), "ada@example.org", "key of ada@example.org", strings.TrimPrefix(batch, "/batches/"), "Yes, cancel")
	wantAnswer(t, "the operator cancels", s.root.form(t, "/admin"+batch+"/cancel", nil), http.StatusSeeOther)
	page := s.waitFor(s.ada, batch, ">cancelled<")
	wantParts(t, "cancelled", page, "batch_cancelled", "line 0", "Download errors")
	wantAnswer(t, "cancel again", s.root.form(t, "/admin"+batch+"/cancel", nil), http.StatusConflict)
}

func TestFileOfARunningBatchIsNotDeleted(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{TokenDelay: time.Hour}, nil)
	file := s.upload("used.jsonl", lines(3, goodBody))
	batch := s.run(file, "x")
	wantParts(t, "dashboard", s.waitFor(s.ada, "/dashboard", "0 of 3 lines"), "1 batch running", batch)
	wantParts(t, "file", s.ada.page(t, file), "A batch that has not ended uses this file", batch)
	got := s.ada.form(t, file+"/delete", nil)
	wantAnswer(t, "delete", got, http.StatusConflict)
	wantParts(t, "delete", got.body, "The file is in use", "Cancel the batch, or wait for its end")
	wantAnswer(t, "cancel", s.ada.form(t, batch+"/cancel", nil), http.StatusSeeOther)
	s.waitFor(s.ada, batch, ">cancelled<")
	lacksParts(t, "dashboard", s.ada.page(t, "/dashboard"), "has not ended")
	wantAnswer(t, "delete", s.ada.form(t, file+"/delete", nil), http.StatusSeeOther)
	wantParts(t, "files", s.ada.page(t, "/files"), "used.jsonl deleted.")
	wantAnswer(t, "deleted", s.ada.send(t, http.MethodGet, file, "", nil), http.StatusNotFound)
	wantParts(t, "batch", s.ada.page(t, batch), "deleted")
}

func TestUploadsAtTheConsoleKeepTheLimitsOfFiles(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, func(c *config.Config) {
		c.Files.MaxBytes, c.Files.MaxBytesPerAccount = 2<<20, 3<<20
	})
	longPrompt := `{"model":"m","prompt":"` + strings.Repeat("x", 1000) + `","max_tokens":1}`
	fits, tooLarge := lines(1600, longPrompt), lines(3000, longPrompt)
	for _, c := range []struct{ what, text, want string }{
		{"a file over files.max_bytes", tooLarge, "larger than 2"},
		{"no file", "", "Choose a file"},
	} {
		name := "x.jsonl"
		if c.text == "" {
			name = ""
		}
		body, contentType := uploadForm(t, s.key, name, c.text)
		page := s.ada.send(t, http.MethodPost, "/files", contentType, bytes.NewReader(body.Bytes()))
		if page.status < 400 || page.status >= 500 {
			t.Errorf("%s: got %d, want an error of the user", c.what, page.status)
		}
		wantParts(t, c.what, page.body, c.want)
		script := s.ada.send(t, http.MethodPost, "/console/api/files", contentType, body)
		wantParts(t, c.what, gjson.Get(script.body, "error.message").Str, c.want)
	}
	s.waitForNothingStored()
	s.upload("first.jsonl", fits)
	body, contentType := uploadForm(t, s.key, "second.jsonl", fits)
	page := s.ada.send(t, http.MethodPost, "/files", contentType, body)
	wantAnswer(t, "a file over the account's quota", page, http.StatusRequestEntityTooLarge)
	wantParts(t, "quota", page.body, "does not fit", "Delete some")
	lacksParts(t, "quota", page.body, "second.jsonl")
	poll.Until(t, "the refused file is gone", func() bool { return s.stored() == 1 })
}

// cookies returns the address of the console, and the Cookie header of the browser that is signed in.
func (s *batchSite) cookies(t *testing.T) (address *url.URL, header string) {
	t.Helper()
	address, err := url.Parse(s.ada.url)
	if err != nil {
		t.Fatal(err)
	}
	var cookies []string
	for _, c := range s.ada.Jar.Cookies(address) {
		cookies = append(cookies, c.String())
	}
	return address, strings.Join(cookies, "; ")
}

func TestUploadThatIsCutOffLeavesNothing(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, nil)
	body, contentType := uploadForm(t, s.key, "cut.jsonl", lines(50_000, goodBody))
	address, cookies := s.cookies(t)
	for _, path := range []string{"/files", "/console/api/files"} {
		conn, err := net.Dial("tcp", address.Host)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nSec-Fetch-Site: same-origin\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n",
			path, address.Host, cookies, contentType, body.Len())
		conn.Write(body.Bytes()[:body.Len()-1000])
		poll.Until(t, "a part is stored", func() bool { return s.stored() > 0 })
		conn.Close()
		s.waitForNothingStored()
	}
	wantParts(t, "files", s.ada.page(t, "/files"), "No files yet")
}

func TestFormsOfOtherSitesChangeNoFile(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{TokenDelay: time.Hour}, nil)
	file := s.upload("mine.jsonl", lines(1, goodBody))
	batch := s.run(file, "x")
	for _, path := range []string{"/files", "/console/api/files", file + "/run", file + "/delete", batch + "/cancel"} {
		body, contentType := uploadForm(t, s.key, "forged.jsonl", lines(1, goodBody))
		got := s.ada.send(t, http.MethodPost, path, contentType, body, "Sec-Fetch-Site", "cross-site")
		wantAnswer(t, path, got, http.StatusForbidden)
	}
	lacksParts(t, "files", s.ada.page(t, "/files"), "forged.jsonl")
	s.waitFor(s.ada, batch, "running")
	signedOut := console{client, s.ada.url}
	body, contentType := uploadForm(t, s.key, "forged.jsonl", lines(1, goodBody))
	wantAnswer(t, "upload without a session", signedOut.send(t, http.MethodPost, "/console/api/files", contentType, body), http.StatusUnauthorized)
	if _, err := os.Stat(filepath.Join(s.config.Database.Path + ".files")); err != nil {
		t.Error(err)
	}
}
