package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// apiForm returns the form of an upload to the API.
func apiForm(text string) (body, contentType string) {
	return "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" +
		"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n" + text + "\r\n--XX--\r\n", "multipart/form-data; boundary=XX"
}

// whole is the length of a form up to the end of its closing delimiter.
func whole(form string) int { return len(form) - len("\r\n") }

func TestFormThatIsCutAtAnyByteStoresNothing(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, nil)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	http2Client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer http2Client.CloseIdleConnections()
	http1Client := &http.Client{Transport: &http.Transport{}}
	defer http1Client.CloseIdleConnections()
	api, apiType := apiForm(lines(3, goodBody))
	page, pageType := uploadForm(t, s.key, "cut.jsonl", lines(3, goodBody))
	for _, c := range []struct {
		name, path, form, contentType string
		client                        console
		reader                        func(string) io.Reader
	}{
		{"HTTP/1", "/v1/files", api, apiType, console{http1Client, s.ada.url}, func(s string) io.Reader { return strings.NewReader(s) }},
		{"chunked", "/v1/files", api, apiType, console{http1Client, s.ada.url}, func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }},
		{"HTTP/2", "/v1/files", api, apiType, console{http2Client, s.ada.url}, func(s string) io.Reader { return strings.NewReader(s) }},
		{"console", "/files", page.String(), pageType, s.ada, func(s string) io.Reader { return strings.NewReader(s) }},
		{"script", "/console/api/files", page.String(), pageType, s.ada, func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			step := 1
			if testing.Short() || c.path == "/files" {
				step = 7
			}
			for n := 1; n < whole(c.form); n += step {
				got := c.client.send(t, http.MethodPost, c.path, c.contentType, c.reader(c.form[:n]), "Authorization", "Bearer "+s.secret)
				code := gjson.Get(got.body, "error.code").Str
				if got.status != http.StatusBadRequest || c.path == "/v1/files" && code != "invalid_request" {
					t.Fatalf("cut after %d of %d bytes: got %d %s, want 400", n, whole(c.form), got.status, got.body)
				}
			}
		})
	}
	s.waitForNothingStored()
	if _, files := get(t, s.gateway, s.secret, "/v1/files", ""); gjson.Get(files, "data.#").Int() != 0 {
		t.Errorf("files are left: %s", files)
	}
}

func TestMessagesAboutFormsSayWhatIsWrong(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, nil)
	good, contentType := apiForm(lines(1, goodBody))
	api := console{client, s.ada.url}
	for _, c := range []struct{ what, form, want string }{
		{"a control character", strings.Replace(good, "in.jsonl", "a\x01b", 1), "control character"},
		{"no closing delimiter", good[:len(good)-100], "without its closing delimiter"},
		{"a field without a name", strings.Replace(good, `name="purpose"`, `nane="purpose"`, 1), "has no name"},
	} {
		got := api.send(t, http.MethodPost, "/v1/files", contentType, strings.NewReader(c.form), "Authorization", "Bearer "+s.secret)
		wantAnswer(t, c.what, got, http.StatusBadRequest)
		wantParts(t, c.what, gjson.Get(got.body, "error.message").Str, c.want)
	}
	got := api.send(t, http.MethodPost, "/v1/files", contentType, strings.NewReader(good), "Authorization", "Bearer "+s.secret, "Content-Encoding", "gzip")
	wantParts(t, "no gzip", gjson.Get(got.body, "error.message").Str, "gzip")
	wantAnswer(t, "no gzip", got, http.StatusBadRequest)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	io.WriteString(w, good)
	w.Close()
	for _, c := range []struct {
		missing, status int // bytes of the trailer, which come after the whole form
	}{{4, http.StatusBadRequest}, {0, http.StatusOK}} {
		body := bytes.NewReader(zipped.Bytes()[:zipped.Len()-c.missing])
		got := api.send(t, http.MethodPost, "/v1/files", contentType, body, "Authorization", "Bearer "+s.secret, "Content-Encoding", "gzip")
		wantAnswer(t, fmt.Sprintf("gzip without its last %d bytes", c.missing), got, c.status)
	}
}

// End-to-end tests show the same of a full disk and of an S3 server that is away.
func TestUploadsAreRefusedWithoutTheirFolder(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, nil)
	if err := os.RemoveAll(s.config.Database.Path + ".files"); err != nil {
		t.Fatal(err)
	}
	form, contentType := apiForm(lines(1, goodBody))
	got := console{client, s.ada.url}.send(t, http.MethodPost, "/v1/files", contentType, strings.NewReader(form), "Authorization", "Bearer "+s.secret)
	e := gjson.Get(got.body, "error")
	if got.status != http.StatusServiceUnavailable || e.Get("code").Str != "storage_unavailable" || e.Get("type").Str != "service_unavailable" ||
		e.Get("retry_after_seconds").Int() < 1 || got.header.Get("Retry-After") != e.Get("retry_after_seconds").Raw || strings.Contains(got.body, s.config.Database.Path) {
		t.Errorf("got %d %v %s, want 503 storage_unavailable with Retry-After and no path", got.status, got.header, got.body)
	}
	if _, files := get(t, s.gateway, s.secret, "/v1/files", ""); gjson.Get(files, "data.#").Raw != "0" {
		t.Errorf("the refused file is listed: %s", files)
	}
	if status, body := get(t, s.gateway, s.secret, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":1}`); status != http.StatusOK {
		t.Errorf("a completion: got %d %s", status, body)
	}
}

// refused returns how many requests the ledger has as refused with a status and code.
func (s *batchSite) refused(t *testing.T, outcome string) (n int) {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: s.config.Database.Path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM refusals WHERE status || ' ' || code = $1`, outcome).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const corsOrigin = "https://lab.example.org"

// leavingSite is a site whose log the test reads.
func leavingSite(t *testing.T) (*batchSite, *observer.ObservedLogs) {
	t.Helper()
	s := newBatchSite(t, mockvllm.Options{}, func(c *config.Config) {
		c.Server.CORSOrigins, c.Server.MaxBodyBytes = []string{corsOrigin}, 1<<20
	})
	if err := s.gateway.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.DebugLevel)
	g, err := gateway.New(t.Context(), s.config, "test", zap.New(core), logState{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Stop(t.Context()) })
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.gateway, s.ada = g, signInAt(t, g, "ada@example.org", batchPassword)
	return s, logs
}

// leaving is a request that a client begins.
type leaving struct {
	name, method, path string
	header             []string // names and values, in lower case
	body               string   // what it sends of its body
}

func (s *batchSite) leavings(t *testing.T) []leaving {
	t.Helper()
	api, apiType := apiForm(lines(3, goodBody))
	page, pageType := uploadForm(t, s.key, "left.jsonl", lines(3, goodBody))
	_, cookies := s.cookies(t)
	key := []string{"authorization", "Bearer " + s.secret, "content-type"}
	browser := []string{"cookie", cookies, "sec-fetch-site", "same-origin", "content-type"}
	return []leaving{
		{"a completion", http.MethodPost, "/v1/completions", append(key, "application/json"), `{"model":"m",`},
		{"a batch", http.MethodPost, "/v1/batches", append(key, "application/json"), `{"input_file_id":`},
		{"a file", http.MethodPost, "/v1/files", append(key, apiType), api[:300]},
		{"a whole form, but not its body", http.MethodPost, "/v1/files", append(key, apiType), api},
		{"an upload", http.MethodPost, "/files", append(browser, pageType), page.String()[:400]},
		{"an upload by script", http.MethodPost, "/console/api/files", append(browser, pageType), page.String()},
		{"a form", http.MethodPost, "/keys", append(browser, "application/x-www-form-urlencoded"), "name=left"},
		{"a prompt", http.MethodPost, "/console/api/prompts", append(browser, "application/json"), `{"name":`},
	}
}

// promised is the length of the body that a leaving client promises.
const promised = 100_000

// head is the head of a request in HTTP/1, without the length of its body and the empty line.
func (l *leaving) head(address string) string {
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", l.method, l.path, address)
	for i := 0; i < len(l.header); i += 2 {
		head += l.header[i] + ": " + l.header[i+1] + "\r\n"
	}
	return head
}

// leaveHTTP1 begins a request and, once its body is read, ends the connection with a FIN or with a reset.
func (l *leaving) leaveHTTP1(t *testing.T, address string, chunked, reset bool) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := l.head(address)
	if reset { // which would discard a request that has not been read
		head += "Expect: 100-continue\r\n"
	}
	body := l.body
	if chunked {
		head, body = head+"Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n", len(body), body)
	} else {
		head += fmt.Sprintf("Content-Length: %d\r\n\r\n", promised)
	}
	io.WriteString(conn, head)
	if reset {
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
			t.Errorf("%s: got %q and %v, want 100 Continue", l.name, line, err)
		}
		io.WriteString(conn, body)
		conn.(*net.TCPConn).SetLinger(0)
		return
	}
	io.WriteString(conn, body)
	conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(conn); len(got) > 0 || err != nil {
		t.Errorf("%s: got %q and %v after the end, want a closed connection", l.name, got, err)
	}
}

// beginHTTP2 begins a request, and ends its stream if end is set.
func (l *leaving) beginHTTP2(t *testing.T, address string, end bool) *http2.Framer {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	framer.WriteSettings()
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	fields := append([]string{":method", l.method, ":path", l.path, ":scheme", "http", ":authority", address}, l.header...)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})
	framer.WriteData(1, end, []byte(l.body))
	return framer
}

// leaveHTTP2 begins a request and resets its stream.
func (l *leaving) leaveHTTP2(t *testing.T, address string) {
	t.Helper()
	framer := l.beginHTTP2(t, address, false)
	framer.WriteRSTStream(1, http2.ErrCodeCancel)
	framer.WritePing(false, [8]byte{1})
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if ping, ok := f.(*http2.PingFrame); ok && ping.IsAck() {
			return
		}
	}
}

// In HTTP/1 such a client has left; in HTTP/2 it has said that this is all.
func TestHTTP2BodyThatIsShorterThanItsLengthIsRefused(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, nil)
	for _, l := range s.leavings(t) {
		if !strings.HasPrefix(l.path, "/v1/") {
			continue
		}
		l.header = append(l.header, "content-length", "100000")
		framer := l.beginHTTP2(t, s.gateway.Addr().String(), true)
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if head, ok := f.(*http2.MetaHeadersFrame); ok {
				if got := head.PseudoValue("status"); got != "400" {
					t.Errorf("%s: got %s, want 400", l.name, got)
				}
				break
			}
		}
	}
	s.waitForNothingStored()
}

func TestClientThatLeavesIsNoFaultOfTheGateway(t *testing.T) {
	s, logs := leavingSite(t)
	address := s.gateway.Addr().String()
	all := s.leavings(t)
	for _, c := range []struct {
		how   string
		leave func(*leaving)
	}{
		{"FIN", func(l *leaving) { l.leaveHTTP1(t, address, false, false) }},
		{"FIN in chunks", func(l *leaving) { l.leaveHTTP1(t, address, true, false) }},
		{"RST", func(l *leaving) { l.leaveHTTP1(t, address, false, true) }},
		{"RST in chunks", func(l *leaving) { l.leaveHTTP1(t, address, true, true) }},
		{"HTTP/2", func(l *leaving) { l.leaveHTTP2(t, address) }},
	} {
		t.Run(c.how, func(t *testing.T) {
			for _, l := range all {
				logs.TakeAll()
				c.leave(&l)
				var entries []observer.LoggedEntry
				poll.Until(t, l.name+" is logged", func() bool {
					entries = append(entries, logs.TakeAll()...)
					for _, e := range entries {
						if m := e.ContextMap(); e.Message == "request" && m["endpoint"] == l.method+" "+l.path {
							if m["status"] != int64(499) || m["code"] != "client_gone" {
								t.Errorf("%s: got %v in the log, want 499 client_gone", l.name, m)
							}
							return true
						}
					}
					return false
				})
				for _, e := range entries {
					if e.Level >= zap.WarnLevel && e.Message != "the disk of the database is nearly full" {
						t.Errorf("%s: the log has %s %q %v", l.name, e.Level, e.Message, e.ContextMap())
					}
				}
			}
		})
	}
	poll.Until(t, "the ledger has the API's requests", func() bool { return s.refused(t, "499 client_gone") == 5*4 })
	s.waitForNothingStored()
	if _, files := get(t, s.gateway, s.secret, "/v1/files", ""); gjson.Get(files, "data.#").Int() != 0 {
		t.Errorf("files are left: %s", files)
	}
	if _, batches := get(t, s.gateway, s.secret, "/v1/batches", ""); gjson.Get(batches, "data.#").Int() != 0 {
		t.Errorf("batches are left: %s", batches)
	}
}

// dripping returns the status of the response to a request whose body comes byte by byte, once the gateway has ended the
// connection.
func (l *leaving) dripping(address string) (int, error) {
	var sender sync.WaitGroup
	defer sender.Wait()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute)) // more than twice of what the slowest body is given
	head := fmt.Sprintf("%sContent-Length: %d\r\n\r\n", l.head(address), len(l.body)+promised)
	ended := make(chan struct{})
	sender.Go(func() {
		io.WriteString(conn, head+l.body)
		drip := time.NewTicker(200 * time.Millisecond)
		defer drip.Stop()
		for {
			select {
			case <-ended:
				return
			case <-drip.C:
				io.WriteString(conn, " ")
			}
		}
	})
	defer close(ended)
	reader := bufio.NewReader(conn)
	status := http.StatusContinue
	for status == http.StatusContinue {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return 0, fmt.Errorf("no response: %w", err)
		}
		status = response.StatusCode
	}
	if _, err := io.Copy(io.Discard, reader); errors.Is(err, os.ErrDeadlineExceeded) { // a reset also ends it
		return status, errors.New("the connection is held after the response")
	}
	return status, nil
}

// net/http cancels a request whose body was too slow, which was taken for a client that had left: it got no response, and its
// connection was held for ever. net/http also reads the rest of a body that the gateway has refused or does not want, before or
// after the response.
func TestClientThatSendsTooSlowlyIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute; make test-all runs it")
	}
	s, logs := leavingSite(t)
	address := s.gateway.Addr().String()
	api, apiType := apiForm(lines(3, goodBody))
	_, cookies := s.cookies(t)
	key := []string{"authorization", "Bearer " + s.secret, "content-type", "application/json"}
	apiUpload := append(key[:2:2], "expect", "100-continue", "content-type", apiType)
	expecting := append(key[:4:4], "expect", "100-continue")
	stranger := []string{"sec-fetch-site", "same-origin", "content-type", "application/x-www-form-urlencoded"}
	browser := append(stranger[:4:4], "cookie", cookies)
	script := []string{"sec-fetch-site", "same-origin", "cookie", cookies, "expect", "100-continue"}
	preflight := []string{"origin", corsOrigin, "access-control-request-method", http.MethodPost}
	long := "name=" + strings.Repeat("x", 64<<10)
	tooLong := strings.Repeat(" ", int(s.config.Server.MaxBodyBytes)+1)
	var clients sync.WaitGroup
	for status, requests := range map[int][]leaving{
		http.StatusBadRequest: append(s.leavings(t), []leaving{
			{"an upload that is malformed", http.MethodPost, "/v1/files", apiUpload, strings.Replace(api, "in.jsonl", "a\x01b", 1)},
			{"a list of files", http.MethodGet, "/v1/files", key, "x"},
			{"a deletion of a file", http.MethodDelete, "/v1/files/file-1", key, "x"},
			{"a list of batches", http.MethodGet, "/v1/batches", key, "x"},
			{"a cancellation of a batch", http.MethodPost, "/v1/batches/batch_1/cancel", key, "x"},
		}...),
		http.StatusRequestEntityTooLarge: {
			{"a batch that is too long", http.MethodPost, "/v1/batches", expecting, strings.Repeat(" ", 129<<10)},
			{"a list of files with a body that is too long", http.MethodGet, "/v1/files", key, tooLong},
			{"a form that is too long", http.MethodPost, "/keys", browser, long},
			{"a form that is too long, without a session", http.MethodPost, "/sign-in", stranger, long},
		},
		http.StatusUnprocessableEntity: {{"a prompt that is no JSON", http.MethodPost, "/console/api/prompts", script, "{]"}},
		http.StatusUnauthorized: {
			{"an invalid key", http.MethodPost, "/v1/completions", []string{"authorization", "Bearer x", "expect", "100-continue"}, "{"},
			{"an unknown key of the workbench", http.MethodPost, "/console/api/completions?key=x", script[:4], tooLong},
		},
		http.StatusNoContent: {{"a preflight", http.MethodOptions, "/v1/completions", preflight, "x"}},
	} {
		for _, l := range requests {
			clients.Go(func() {
				if got, err := l.dripping(address); got != status || err != nil {
					t.Errorf("%s: got %d and %v, want %d and an ended connection", l.name, got, err, status)
				}
			})
		}
	}
	clients.Wait()
	for _, e := range logs.All() {
		ofRequest := slices.Contains([]string{"proxy", "console", "batch", "http"}, e.LoggerName) || e.Message == "internal error"
		if ofRequest && e.Level >= zap.WarnLevel || e.ContextMap()["code"] == "client_gone" {
			t.Errorf("the log has %s %q %v", e.Level, e.Message, e.ContextMap())
		}
	}
	s.waitForNothingStored()
}
