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

// said is what a client sends, and how many answers it then waits for before it goes on.
type said struct {
	text    string
	answers int
}

// fate is what a client has lived to see.
type fate struct {
	Answers []answer
	Kept    bool // another request on the connection is answered
}

// live plays a client. How an answer says its length is left to the server, and so is the time of day.
func live(t *testing.T, address string, script []said) fate {
	t.Helper()
	c := dial(t, address)
	defer c.Close()
	var f fate
	hear := func() bool {
		got, err := c.hear()
		if err != nil {
			return false
		}
		got.Header.Del("Date")
		got.Header.Del("Content-Length")
		f.Answers = append(f.Answers, got)
		return true
	}
	for _, s := range script {
		io.WriteString(c, s.text) // fails where the server has heard enough, which the answer tells
		for range s.answers {
			if !hear() {
				return f
			}
		}
	}
	io.WriteString(c, "GET /probe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	n := len(f.Answers)
	f.Kept = hear()
	f.Answers = f.Answers[:n]
	return f
}

// pair is a server of each kind, with the same handler.
type pair struct{ ours, standard string }

func startPair(t *testing.T, handler http.HandlerFunc) pair {
	t.Helper()
	listener := listen(t)
	standard := &http.Server{Handler: handler, MaxHeaderBytes: 64 << 10, ErrorLog: zap.NewStdLog(zap.NewNop())}
	ended := make(chan error, 1)
	go func() { ended <- standard.Serve(listener) }()
	t.Cleanup(func() { standard.Close(); <-ended })
	ours := serve(t, listen(t), &http.Server{Handler: handler, MaxHeaderBytes: 64 << 10})
	return pair{ours.address, listener.Addr().String()}
}

func (p pair) compare(t *testing.T, script ...said) {
	t.Helper()
	if d := cmp.Diff(live(t, p.standard, script), live(t, p.ours, script)); d != "" {
		t.Errorf("(-net/http +ours)\n%s", d)
	}
}

func lines(all ...string) string { return strings.Join(all, "\r\n") + "\r\n\r\n" }

const line = "POST " + path + " HTTP/1.1"

// A client sees no difference between the two servers.
func TestAnswersAreThoseOfTheStandardServer(t *testing.T) {
	p := startPair(t, echo)
	hidden := "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, script := range map[string][]said{
		"one":                           {{post("hello"), 1}},
		"one after another":             {{post("hello"), 1}, {post("", "X: 1\r\n", "x: 2\r\n", "X-Y:\t 3 \r\n"), 1}, {post("again"), 1}},
		"lower-case names":              {{line + "\r\nhost: a\r\ncontent-length: 2\r\nx-test: b\r\n\r\nhi", 1}},
		"close":                         {{post("hello", "Connection: close\r\n"), 1}},
		"close, in other letters":       {{post("hello", "cONNECTION: CLOSE\r\n"), 1}},
		"keep-alive":                    {{post("hello", "Connection: keep-alive\r\n"), 1}},
		"close in a list":               {{post("hello", "Connection: foo, close\r\n"), 1}},
		"close among others":            {{post("hello", "Connection: keep-alive\r\n", "Connection: close\r\n"), 1}},
		"HTTP/1.0":                      {{strings.Replace(post("hello"), "/1.1", "/1.0", 1), 1}},
		"HTTP/1.0 kept":                 {{strings.Replace(post("hello", "Connection: keep-alive\r\n"), "/1.1", "/1.0", 1), 1}},
		"HTTP/1.2":                      {{strings.Replace(post("hello"), "/1.1", "/1.2", 1), 1}},
		"HTTP/2.0":                      {{strings.Replace(post("hello"), "/1.1", "/2.0", 1), 1}},
		"no version":                    {{strings.Replace(post("hello"), " HTTP/1.1", "", 1), 1}},
		"a body of no bytes":            {{post(""), 1}, {post(""), 1}},
		"no length":                     {{lines(line, "Host: a"), 1}},
		"4 KB":                          {{post(strings.Repeat("x", 4<<10)), 1}, {post("y"), 1}},
		"1 MB":                          {{post(strings.Repeat("x", 1<<20)), 1}, {post("y"), 1}},
		"chunks":                        {{lines(line, "Host: a", "Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n", 1}, {post("y"), 1}},
		"chunks after a plain one":      {{post("y"), 1}, {lines(line, "Host: a", "Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n", 1}, {post("z"), 1}},
		"chunks with a trailer":         {{lines(line, "Host: a", "Transfer-Encoding: chunked", "Trailer: X") + "5\r\nhello\r\n0\r\nX: y\r\n\r\n", 1}},
		"leave to send":                 {{strings.TrimSuffix(post("hello", "Expect: 100-continue\r\n"), "hello"), 1}, {"hello", 1}},
		"leave to send, and sent":       {{post("hello", "Expect: 100-continue\r\n"), 2}},
		"another expectation":           {{post("hello", "Expect: more\r\n"), 1}},
		"two in one write":              {{post("one") + post("two"), 2}, {post("three"), 1}},
		"three after one":               {{post("zero"), 1}, {post("one") + post("two") + post("three"), 3}},
		"one and a half":                {{post("one") + post("two")[:30], 1}, {post("two")[30:], 1}},
		"one and a byte":                {{post("one") + "P", 1}, {post("two")[1:], 1}},
		"the next behind a long body":   {{post(strings.Repeat("x", 64<<10)) + post("two"), 2}},
		"a head, and its body later":    {{post("hello")[:len(post("hello"))-5], 0}, {"he", 0}, {"llo", 1}},
		"a line break before a request": {{post("one") + "\r\n" + post("two"), 2}},
		"a line break in front":         {{"\r\n" + post("one"), 1}},
		"a head over 4 KB":              {{post("hello", "X: "+strings.Repeat("x", 5<<10)+"\r\n"), 1}, {post("y"), 1}},
		"a head of 4 KB and 1 byte":     {{post("", "X: "+strings.Repeat("x", 4097-len(post(""))-len("X: \r\n"))+"\r\n"), 1}, {post("y"), 1}},
		"a head of 4 KB":                {{post("", "X: "+strings.Repeat("x", 4096-len(post(""))-len("X: \r\n"))+"\r\n"), 1}, {post("y"), 1}},
		"a head of 4 KB, and a body":    {{post("hello", "X: "+strings.Repeat("x", 4096-len(post(""))-len("X: \r\n"))+"\r\n"), 1}, {post("y"), 1}},
		"a head over 64 KB":             {{post("hello", "X: "+strings.Repeat("x", 80<<10)+"\r\n"), 1}},
		"another path":                  {{strings.Replace(post("hello"), path, "/v1/chat/completions", 1), 1}, {post("y"), 1}},
		"a longer path":                 {{strings.Replace(post("hello"), path, path+"/", 1), 1}},
		"a shorter path":                {{strings.Replace(post("hello"), path, path[:5], 1), 1}},
		"a query":                       {{strings.Replace(post("hello"), path, path+"?a=b", 1), 1}, {post("y"), 1}},
		"an absolute address":           {{strings.Replace(post("hello"), path, "http://b"+path, 1), 1}},
		"a path in other letters":       {{strings.Replace(post("hello"), path, "/v1/%63ompletions", 1), 1}},
		"GET":                           {{lines("GET "+path+" HTTP/1.1", "Host: a"), 1}, {post("y"), 1}},
		"a lower-case method":           {{strings.Replace(post("hello"), "POST", "post", 1), 1}},
		"OPTIONS":                       {{lines("OPTIONS * HTTP/1.1", "Host: a"), 1}, {post("y"), 1}},
		"PUT after a plain one":         {{post("y"), 1}, {strings.Replace(post("hello"), "POST", "PUT", 1), 1}},
		"two spaces":                    {{strings.Replace(post("hello"), "POST ", "POST  ", 1), 1}},
		"no host":                       {{lines(line, "Content-Length: 0"), 1}},
		"an empty host":                 {{lines(line, "Host:", "Content-Length: 0"), 1}},
		"two hosts":                     {{lines(line, "Host: a", "Host: b", "Content-Length: 0"), 1}},
		"a host with a space":           {{lines(line, "Host: a b", "Content-Length: 0"), 1}},
		"no colon":                      {{post("hello", "X\r\n"), 1}},
		"an empty name":                 {{post("hello", ": x\r\n"), 1}},
		"a space before the colon":      {{post("hello", "X : y\r\n"), 1}},
		"a name that is none":           {{post("hello", "X(: y\r\n"), 1}},
		"a name of rare marks":          {{post("hello", "X!#$%&'*+.^`|~: y\r\n"), 1}},
		"a control character":           {{post("hello", "X: \x01\r\n"), 1}},
		"a zero":                        {{post("hello", "X: a\x00b\r\n"), 1}},
		"not ASCII":                     {{post("hello", "X: grüß\r\n"), 1}, {post("y"), 1}},
		"a folded line":                 {{post("hello", "X: a\r\n b\r\n"), 1}},
		"a folded first line":           {{strings.Replace(post("hello"), "Host", " Host", 1), 1}},
		"bare line feeds":               {{strings.ReplaceAll(post("hello"), "\r\n", "\n"), 1}},
		"one bare line feed":            {{post("hello", "X: a\n"), 1}},
		"a bare carriage return":        {{post("hello", "X: a\rY: b\r\n"), 1}},
		"no HTTP":                       {{"SSH-2.0-OpenSSH_9.6\r\n\r\n", 1}},
		"TLS":                           {{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 1}},
		"pragma":                        {{post("hello", "Pragma: no-cache\r\n"), 1}},
		"an upgrade":                    {{post("hello", "Connection: Upgrade\r\n", "Upgrade: websocket\r\n"), 1}},
		"lengths that agree":            {{post("hello", "Content-Length: 5\r\n"), 1}, {post("y"), 1}},
		"lengths that do not":           {{post("hello"+hidden, "Content-Length: 5\r\n"), 1}},
		"lengths in a list":             {{lines(line, "Host: a", "Content-Length: 5, 5") + "hello", 1}},
		"a length with a sign":          {{lines(line, "Host: a", "Content-Length: +5") + "hello", 1}},
		"a length below zero":           {{lines(line, "Host: a", "Content-Length: -5") + "hello", 1}},
		"no number for a length":        {{lines(line, "Host: a", "Content-Length: five") + "hello", 1}},
		"a length with zeros":           {{lines(line, "Host: a", "Content-Length: 0005") + "hello", 1}, {post("y"), 1}},
		"a length and chunks":           {{lines(line, "Host: a", "Content-Length: 5", "Transfer-Encoding: chunked") + "0\r\n\r\n" + hidden, 2}},
		"chunks and a length":           {{lines(line, "Host: a", "Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n" + hidden, 2}},
		"unknown encoding":              {{lines(line, "Host: a", "Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", 1}},
		"encoding and a space":          {{lines(line, "Host: a", "Content-Length: 5", "Transfer-Encoding : chunked") + "0\r\n\r\n" + hidden, 1}},
		"encoding behind a line feed":   {{lines(line, "Host: a", "Content-Length: 5", "X: y\nTransfer-Encoding: chunked") + "0\r\n\r\n" + hidden, 2}},
		"encoding in a name of marks":   {{lines(line, "Host: a", "Content-Length: 5", "Transfer_Encoding: chunked") + "hello", 1}, {post("y"), 1}},
	} {
		t.Run(name, func(t *testing.T) { p.compare(t, script...) })
	}
}

// RFC 9112, 2.2: some old clients send a line break behind a body, which belongs to nothing. It is to cost the next
// request nothing.
func TestALineBreakBetweenTwoRequestsIsSkipped(t *testing.T) {
	p := startPair(t, echo)
	p.compare(t, said{post("one"), 1}, said{"\r\n" + post("two"), 1}, said{"\r\n", 0}, said{post("three"), 1})
	s := start(t, echo)
	c := dial(t, s.address)
	c.ask(post("one"))
	for range 10 {
		c.say("\r")
		runtime.Gosched() // so that the server comes to see it alone, sometimes
		c.say("\n")
		if got := c.ask(post("two")); got.Line != "HTTP/1.1 200 OK" {
			t.Fatalf("got %+v", got)
		}
	}
}

// A line break alone is no request: the connection may be idle for as long as it might have been without.
func TestALineBreakDoesNotShortenTheIdleTime(t *testing.T) {
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: 50 * time.Millisecond, IdleTimeout: time.Hour})
	c := dial(t, s.address)
	c.ask(post("one"))
	c.say("\r\n")
	<-time.NewTimer(200 * time.Millisecond).C
	if got := c.ask(post("two")); got.Line != "HTTP/1.1 200 OK" {
		t.Errorf("got %+v", got)
	}
}

// Where the pieces end, nobody is to see.
func TestAHeadMayBeSplitAnywhere(t *testing.T) {
	s := start(t, echo)
	request := post("hello", "X-Test: a\r\n")
	want := dial(t, s.address).ask(request).Body
	c := dial(t, s.address)
	for i := 1; i < len(request); i++ {
		c.say(request[:i])
		for range i % 8 { // so that the server comes to see it alone, sometimes
			runtime.Gosched()
		}
		if got := c.ask(request[i:]); got.Body != want {
			t.Fatalf("split at %d: got %q, want %q", i, got.Body, want)
		}
	}
	for i := range len(request) {
		c.say(request[i : i+1])
	}
	if got := c.mustHear(); got.Body != want {
		t.Errorf("byte by byte: got %q, want %q", got.Body, want)
	}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	s := serve(t, listen(t), &http.Server{Handler: http.HandlerFunc(echo), Protocols: both})
	only := new(http.Protocols)
	only.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: only}
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
			t.Errorf("%s %q %v", got.Proto, body[:min(len(body), 300)], err)
		}
	}
}
