package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

// step is what a client sends, and the number of responses that it reads before the next step.
type step struct {
	text      string
	responses int
}

// outcome is what a client observes.
type outcome struct {
	Responses []response
	Reusable  bool // the connection serves another request afterwards
}

// play sends the script on one connection. The outcome leaves out the Date and how a response declares its length, in
// which servers may differ.
func play(t *testing.T, address string, script []step) outcome {
	t.Helper()
	c := dial(t, address)
	defer c.Close()
	var o outcome
	read := func() bool {
		got, err := c.readResponse()
		if err != nil {
			return false
		}
		got.Header.Del("Date")
		got.Header.Del("Content-Length")
		o.Responses = append(o.Responses, got)
		return true
	}
	for _, s := range script {
		io.WriteString(c, s.text) // may fail if the server has closed, which the responses show
		for range s.responses {
			if !read() {
				return o
			}
		}
	}
	io.WriteString(c, "GET /probe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	n := len(o.Responses)
	o.Reusable = read()
	o.Responses = o.Responses[:n]
	return o
}

// servers are the addresses of a fast-path server and a net/http server with the same handler.
type servers struct{ fastPath, standard string }

func startBoth(t *testing.T, handler http.HandlerFunc) servers {
	t.Helper()
	listener := listen(t)
	standard := &http.Server{Handler: handler, MaxHeaderBytes: 64 << 10, ErrorLog: zap.NewStdLog(zap.NewNop())}
	ended := make(chan error, 1)
	go func() { ended <- standard.Serve(listener) }()
	t.Cleanup(func() { standard.Close(); <-ended })
	fastPath := serve(t, listen(t), &http.Server{Handler: handler, MaxHeaderBytes: 64 << 10})
	return servers{fastPath.address, listener.Addr().String()}
}

// compare fails the test if the two servers differ in the outcome of the script.
func (s servers) compare(t *testing.T, script ...step) {
	t.Helper()
	if d := cmp.Diff(play(t, s.standard, script), play(t, s.fastPath, script)); d != "" {
		t.Errorf("(-net/http +fast path)\n%s", d)
	}
}

func lines(all ...string) string { return strings.Join(all, "\r\n") + "\r\n\r\n" }

func requestLine(path string) string { return "POST " + path + " HTTP/1.1" }

func TestResponsesEqualThoseOfNetHTTP(t *testing.T) {
	s := startBoth(t, echo)
	for _, paths := range [][2]string{{path, chatPath}, {chatPath, path}} {
		for name, script := range parityScripts(paths[0], paths[1]) {
			t.Run(paths[0]+" "+name, func(t *testing.T) { s.compare(t, script...) })
		}
	}
}

// parityScripts returns scripts for one path of the fast path; a few of them use the other one too.
func parityScripts(path, other string) map[string][]step {
	line, hidden := requestLine(path), "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	post := func(body string, fields ...string) string { return postTo(path, body, fields...) }
	return map[string][]step{
		"one request":                            {{post("hello"), 1}},
		"sequential requests":                    {{post("hello"), 1}, {post("", "X: 1\r\n", "x: 2\r\n", "X-Y:\t 3 \r\n"), 1}, {post("again"), 1}},
		"lower-case field names":                 {{line + "\r\nhost: a\r\ncontent-length: 2\r\nx-test: b\r\n\r\nhi", 1}},
		"close":                                  {{post("hello", "Connection: close\r\n"), 1}},
		"close in mixed case":                    {{post("hello", "cONNECTION: CLOSE\r\n"), 1}},
		"keep-alive":                             {{post("hello", "Connection: keep-alive\r\n"), 1}},
		"close in a list":                        {{post("hello", "Connection: foo, close\r\n"), 1}},
		"close in a second field":                {{post("hello", "Connection: keep-alive\r\n", "Connection: close\r\n"), 1}},
		"HTTP/1.0":                               {{strings.Replace(post("hello"), "/1.1", "/1.0", 1), 1}},
		"HTTP/1.0 with keep-alive":               {{strings.Replace(post("hello", "Connection: keep-alive\r\n"), "/1.1", "/1.0", 1), 1}},
		"HTTP/1.2":                               {{strings.Replace(post("hello"), "/1.1", "/1.2", 1), 1}},
		"HTTP/2.0":                               {{strings.Replace(post("hello"), "/1.1", "/2.0", 1), 1}},
		"no version":                             {{strings.Replace(post("hello"), " HTTP/1.1", "", 1), 1}},
		"empty bodies":                           {{post(""), 1}, {post(""), 1}},
		"no length":                              {{lines(line, "Host: a"), 1}},
		"4 KB":                                   {{post(strings.Repeat("x", 4<<10)), 1}, {post("y"), 1}},
		"1 MB":                                   {{post(strings.Repeat("x", 1<<20)), 1}, {post("y"), 1}},
		"chunked":                                {{lines(line, "Host: a", "Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n", 1}, {post("y"), 1}},
		"chunked after a plain request":          {{post("y"), 1}, {lines(line, "Host: a", "Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n", 1}, {post("z"), 1}},
		"chunked with a trailer":                 {{lines(line, "Host: a", "Transfer-Encoding: chunked", "Trailer: X") + "5\r\nhello\r\n0\r\nX: y\r\n\r\n", 1}},
		"100-continue":                           {{strings.TrimSuffix(post("hello", "Expect: 100-continue\r\n"), "hello"), 1}, {"hello", 1}},
		"100-continue, body sent early":          {{post("hello", "Expect: 100-continue\r\n"), 2}},
		"two pipelined requests":                 {{post("one") + post("two"), 2}, {post("three"), 1}},
		"three pipelined after one":              {{post("zero"), 1}, {post("one") + post("two") + post("three"), 3}},
		"pipelined part of a request":            {{post("one") + post("two")[:30], 1}, {post("two")[30:], 1}},
		"one pipelined byte":                     {{post("one") + "P", 1}, {post("two")[1:], 1}},
		"pipelined after a long body":            {{post(strings.Repeat("x", 64<<10)) + post("two"), 2}},
		"body sent after the head":               {{post("hello")[:len(post("hello"))-5], 0}, {"he", 0}, {"llo", 1}},
		"a pipelined line break":                 {{post("one") + "\r\n" + post("two"), 2}},
		"a line break before the first":          {{"\r\n" + post("one"), 1}},
		"a head over 4 KB":                       {{post("hello", "X: "+strings.Repeat("x", 5<<10)+"\r\n"), 1}, {post("y"), 1}},
		"a head of 4 KB and 1 byte":              {{post("", "X: "+strings.Repeat("x", 4097-len(post(""))-len("X: \r\n"))+"\r\n"), 1}, {post("y"), 1}},
		"a head of 4 KB":                         {{post("", "X: "+strings.Repeat("x", 4096-len(post(""))-len("X: \r\n"))+"\r\n"), 1}, {post("y"), 1}},
		"a head of 4 KB, and a body":             {{post("hello", "X: "+strings.Repeat("x", 4096-len(post(""))-len("X: \r\n"))+"\r\n"), 1}, {post("y"), 1}},
		"a head over 64 KB":                      {{post("hello", "X: "+strings.Repeat("x", 80<<10)+"\r\n"), 1}},
		"a different path":                       {{strings.Replace(post("hello"), path, "/v1/models", 1), 1}, {post("y"), 1}},
		"a longer path":                          {{strings.Replace(post("hello"), path, path+"/", 1), 1}},
		"the other path, longer":                 {{postTo(other+"/", "hello"), 1}, {post("y"), 1}},
		"both paths in turn":                     {{post("one"), 1}, {postTo(other, "two"), 1}, {postTo(other, "three"), 1}, {post("four"), 1}},
		"both paths, pipelined":                  {{post("one") + postTo(other, "two"), 2}, {post("three"), 1}},
		"the other path, pipelined in part":      {{post("one") + postTo(other, "two")[:9], 1}, {postTo(other, "two")[9:], 1}},
		"the other path, closing":                {{post("one"), 1}, {postTo(other, "two", "Connection: close\r\n"), 1}},
		"a shorter path":                         {{strings.Replace(post("hello"), path, path[:5], 1), 1}},
		"a query":                                {{strings.Replace(post("hello"), path, path+"?a=b", 1), 1}, {post("y"), 1}},
		"an absolute address":                    {{strings.Replace(post("hello"), path, "http://b"+path, 1), 1}},
		"an escaped path":                        {{strings.Replace(post("hello"), path, "/v1/%63ompletions", 1), 1}},
		"GET":                                    {{lines("GET "+path+" HTTP/1.1", "Host: a"), 1}, {post("y"), 1}},
		"a lower-case method":                    {{strings.Replace(post("hello"), "POST", "post", 1), 1}},
		"OPTIONS":                                {{lines("OPTIONS * HTTP/1.1", "Host: a"), 1}, {post("y"), 1}},
		"PUT after a plain request":              {{post("y"), 1}, {strings.Replace(post("hello"), "POST", "PUT", 1), 1}},
		"two spaces after the method":            {{strings.Replace(post("hello"), "POST ", "POST  ", 1), 1}},
		"no host":                                {{lines(line, "Content-Length: 0"), 1}},
		"an empty host":                          {{lines(line, "Host:", "Content-Length: 0"), 1}},
		"two hosts":                              {{lines(line, "Host: a", "Host: b", "Content-Length: 0"), 1}},
		"a host with a space":                    {{lines(line, "Host: a b", "Content-Length: 0"), 1}},
		"a field without a colon":                {{post("hello", "X\r\n"), 1}},
		"an empty field name":                    {{post("hello", ": x\r\n"), 1}},
		"a space before the colon":               {{post("hello", "X : y\r\n"), 1}},
		"an invalid field name":                  {{post("hello", "X(: y\r\n"), 1}},
		"a field name of punctuation":            {{post("hello", "X!#$%&'*+.^`|~: y\r\n"), 1}},
		"a control character":                    {{post("hello", "X: \x01\r\n"), 1}},
		"a NUL character":                        {{post("hello", "X: a\x00b\r\n"), 1}},
		"a value not in ASCII":                   {{post("hello", "X: grüß\r\n"), 1}, {post("y"), 1}},
		"a folded first field":                   {{strings.Replace(post("hello"), "Host", " Host", 1), 1}},
		"a bare carriage return":                 {{post("hello", "X: a\rY: b\r\n"), 1}},
		"not HTTP":                               {{"SSH-2.0-OpenSSH_9.6\r\n\r\n", 1}},
		"TLS":                                    {{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 1}},
		"Pragma":                                 {{post("hello", "Pragma: no-cache\r\n"), 1}},
		"an upgrade":                             {{post("hello", "Connection: Upgrade\r\n", "Upgrade: websocket\r\n"), 1}},
		"two equal lengths":                      {{post("hello", "Content-Length: 5\r\n"), 1}, {post("y"), 1}},
		"two different lengths":                  {{post("hello"+hidden, "Content-Length: 5\r\n"), 1}},
		"a list of lengths":                      {{lines(line, "Host: a", "Content-Length: 5, 5") + "hello", 1}},
		"a length with a sign":                   {{lines(line, "Host: a", "Content-Length: +5") + "hello", 1}},
		"a negative length":                      {{lines(line, "Host: a", "Content-Length: -5") + "hello", 1}},
		"a length that is not a number":          {{lines(line, "Host: a", "Content-Length: five") + "hello", 1}},
		"a length with leading zeros":            {{lines(line, "Host: a", "Content-Length: 0005") + "hello", 1}, {post("y"), 1}},
		"a length, then chunked":                 {{lines(line, "Host: a", "Content-Length: 5", "Transfer-Encoding: chunked") + "0\r\n\r\n" + hidden, 2}},
		"chunked, then a length":                 {{lines(line, "Host: a", "Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n" + hidden, 2}},
		"an unknown encoding":                    {{lines(line, "Host: a", "Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", 1}},
		"encoding with a space before the colon": {{lines(line, "Host: a", "Content-Length: 5", "Transfer-Encoding : chunked") + "0\r\n\r\n" + hidden, 1}},
		"encoding with an underscore":            {{lines(line, "Host: a", "Content-Length: 5", "Transfer_Encoding: chunked") + "hello", 1}, {post("y"), 1}},
	}
}

// Net/http serves requests whose heads have lines that end with a bare LF, or folded lines. The gateway refuses them, in
// any position on a connection, because a proxy in front may read them differently.
func TestHeadsThatOnlyNetHTTPAcceptsAreRefused(t *testing.T) {
	s := startBoth(t, echo)
	for name, request := range map[string]string{
		"a folded field":                   post("hello", "X: a\r\n b\r\n"),
		"bare line feeds":                  strings.ReplaceAll(post("hello"), "\r\n", "\n"),
		"one bare line feed":               post("hello", "X: a\n"),
		"a bare line feed at the end":      strings.Replace(post("hello"), "\r\n\r\n", "\r\n\n", 1),
		"encoding after a bare LF":         lines(requestLine(path), "Host: a", "Content-Length: 5", "X: y\nTransfer-Encoding: chunked") + "0\r\n\r\n",
		"a folded field of the other path": postTo(chatPath, "hello", "X: a\r\n b\r\n"),
		"a folded field of another path":   strings.Replace(post("hello", "X: a\r\n b\r\n"), path, "/", 1),
		"a folded field over 4 KB":         post("hello", "X: "+strings.Repeat("x", 5<<10)+"\r\n b\r\n"),
		"a bare line feed in a GET":        lines("GET / HTTP/1.1", "Host: a", "X: y\nY: z"),
	} {
		t.Run(name, func(t *testing.T) {
			if got := play(t, s.standard, []step{{request, 1}}); len(got.Responses) != 1 || got.Responses[0].Line != "HTTP/1.1 200 OK" {
				t.Fatalf("net/http: got %+v, want status 200", got)
			}
			for _, before := range [][]step{nil, {{post("x"), 1}}, {{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1}}, {{post("x"), 1}, {strings.Replace(post("x"), path, "/", 1), 1}}, {{postTo(chatPath, "x"), 1}}} {
				got := play(t, s.fastPath, append(before, step{request, 1}))
				last := len(got.Responses) - 1
				if last != len(before) || got.Responses[last].Line != "HTTP/1.1 400 Bad Request" || !got.Responses[last].Close || got.Reusable {
					t.Errorf("after %d requests: got %+v, want status 400 and the connection closed", len(before), got)
				}
			}
		})
	}
}

// RFC 9112, 2.2: some old clients send a line break after a body that is not part of it. The next request must not
// fail.
func TestLineBreakBetweenRequestsIsSkipped(t *testing.T) {
	both := startBoth(t, echo)
	both.compare(t, step{post("one"), 1}, step{"\r\n" + post("two"), 1}, step{"\r\n", 0}, step{post("three"), 1})
	s := start(t, echo)
	c := dial(t, s.address)
	c.roundTrip(post("one"))
	for range 10 {
		c.send("\r")
		runtime.Gosched() // lets the server read it separately, sometimes
		c.send("\n")
		if got := c.roundTrip(post("two")); got.Line != "HTTP/1.1 200 OK" {
			t.Fatalf("got %+v, want status 200", got)
		}
	}
}

// A line break alone starts no request, so ReadHeaderTimeout does not apply to what follows it.
func TestLineBreakDoesNotShortenTheIdleTimeout(t *testing.T) {
	t.Parallel() // it waits
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: 4 * time.Second, IdleTimeout: time.Hour})
	c := dial(t, s.address)
	c.roundTrip(post("one"))
	c.send("\r\n")
	<-time.NewTimer(5 * time.Second).C
	if got := c.roundTrip(post("two")); got.Line != "HTTP/1.1 200 OK" {
		t.Errorf("got %+v, want status 200", got)
	}
}

func TestHeadMayBeSplitAnywhere(t *testing.T) {
	s := start(t, echo)
	for _, path := range []string{path, chatPath} {
		request := postTo(path, "hello", "X-Test: a\r\n")
		want := dial(t, s.address).roundTrip(request).Body
		c := dial(t, s.address)
		for i := 1; i < len(request); i++ {
			c.send(request[:i])
			for range i % 8 { // lets the server read it separately, sometimes
				runtime.Gosched()
			}
			if got := c.roundTrip(request[i:]); got.Body != want {
				t.Fatalf("split at %d: got %q, want %q", i, got.Body, want)
			}
		}
		for i := range len(request) {
			c.send(request[i : i+1])
		}
		if got := c.mustReadResponse(); got.Body != want {
			t.Errorf("byte by byte: got %q, want %q", got.Body, want)
		}
	}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	http1And2 := new(http.Protocols)
	http1And2.SetHTTP1(true)
	http1And2.SetUnencryptedHTTP2(true)
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), Protocols: http1And2})
	http2Only := new(http.Protocols)
	http2Only.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: http2Only}
	defer transport.CloseIdleConnections()
	for _, size := range []int{0, 100, 1 << 20} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.address+path, bytes.NewReader(make([]byte, size)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		got.Body.Close()
		if want := fmt.Sprintf("%d bytes <nil>", size); err != nil || got.ProtoMajor != 2 || !strings.Contains(string(body), want) {
			t.Errorf("got %s %q, error %v, want HTTP/2 and %q", got.Proto, body[:min(len(body), 300)], err, want)
		}
	}
}
