package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/proxy/http1/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	path      = "/v1/completions"
	chatPath  = "/v1/chat/completions"
	waitLimit = time.Minute // limits every wait; long, for machines under load
)

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return listener
}

// testServer is a server whose Serve is running.
type testServer struct {
	*server.Server
	address  string
	serveErr chan error // receives the error of Serve
}

// serve starts a server on the listener and stops it at the end of the test.
func serve(tb testing.TB, listener net.Listener, fallback *http.Server) *testServer {
	tb.Helper()
	return serveWithContext(context.Background(), tb, listener, fallback)
}

func serveWithContext(baseContext context.Context, tb testing.TB, listener net.Listener, fallback *http.Server) *testServer {
	tb.Helper()
	if fallback.ErrorLog == nil {
		fallback.ErrorLog = zap.NewStdLog(zap.NewNop())
	}
	s := &testServer{server.New(baseContext, []string{path, chatPath}, fallback), listener.Addr().String(), make(chan error, 1)}
	go func() { s.serveErr <- s.Serve(listener) }()
	tb.Cleanup(func() {
		s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			tb.Errorf("Shutdown after Close: %v", err)
		}
	})
	return s
}

func start(tb testing.TB, handler http.HandlerFunc) *testServer {
	tb.Helper()
	return serve(tb, listen(tb), &http.Server{Handler: handler})
}

// client is the client's end of a connection. It sends raw bytes.
type client struct {
	*net.TCPConn
	tb     testing.TB
	reader *bufio.Reader
}

func dial(tb testing.TB, address string) *client {
	tb.Helper()
	c, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(waitLimit))
	return &client{c.(*net.TCPConn), tb, bufio.NewReader(c)}
}

func (c *client) send(text string) {
	c.tb.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.tb.Fatal(err)
	}
}

// post returns a request that the fast path serves; the fields are complete lines.
func post(body string, fields ...string) string { return postTo(path, body, fields...) }

// postTo is post for one of the paths.
func postTo(path, body string, fields ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s", path, strings.Join(fields, ""), len(body), body)
}

// response is a response as the client parses it.
type response struct {
	Line   string
	Header http.Header
	Close  bool
	Body   string
}

// readResponse reads a response and its body.
func (c *client) readResponse() (response, error) {
	got, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return response{}, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	return response{got.Proto + " " + got.Status, got.Header, got.Close, string(body)}, err
}

func (c *client) mustReadResponse() response {
	c.tb.Helper()
	got, err := c.readResponse()
	if err != nil {
		c.tb.Fatalf("read response: got %+v, error %v", got, err)
	}
	return got
}

func (c *client) roundTrip(request string) response {
	c.tb.Helper()
	c.send(request)
	return c.mustReadResponse()
}

// readToEnd reads until the server closes the connection. A timeout is an error, a reset is not.
func (c *client) readToEnd() string {
	c.tb.Helper()
	rest, err := io.ReadAll(c.reader)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		c.tb.Errorf("the server did not close the connection; it sent %q", rest)
	}
	return string(rest)
}

// receive receives a value, and fails the test after waitLimit. The description completes "waiting until …".
func receive[T any](tb testing.TB, description string, from <-chan T) T {
	tb.Helper()
	timeout := time.NewTimer(waitLimit)
	defer timeout.Stop()
	select {
	case v := <-from:
		return v
	case <-timeout.C:
		tb.Fatalf("timed out after %v waiting until %s", waitLimit, description)
		panic("unreachable")
	}
}

// echo responds with everything that it knows about the request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprintf(w, "%s %q %q %s, host %q, length %d, close %t, encoding %q, trailer %v, address %t\n%q\n%d bytes %v\n", r.Method, r.URL,
		r.RequestURI, r.Proto, r.Host, r.ContentLength, r.Close, r.TransferEncoding, r.Trailer, r.RemoteAddr != "", r.Header, len(body), err)
	w.Write(body)
}

func TestConnectionIsReusedForRequestsOfAnySize(t *testing.T) {
	s := start(t, echo)
	c := dial(t, s.address)
	for _, size := range []int{0, 1, 1 << 10, 4 << 10, 100 << 10, 5 << 20} {
		body := strings.Repeat("x", size)
		go io.WriteString(c, post(body))
		got := c.mustReadResponse()
		if want := fmt.Sprintf("%d bytes <nil>\n%s", size, body); !strings.HasSuffix(got.Body, want) || got.Close {
			t.Errorf("body of %d bytes: got a response of %d bytes, close %t, want the echo on an open connection", size, len(got.Body), got.Close)
		}
	}
}

// The first part of a body may arrive with the head or after it.
func TestRequestSentInManyPieces(t *testing.T) {
	s := start(t, echo)
	c := dial(t, s.address)
	for range 3 {
		for piece := range slices.Chunk([]byte(post(strings.Repeat("0123456789", 500))), 61) {
			c.send(string(piece))
		}
		if got := c.mustReadResponse(); !strings.HasSuffix(got.Body, strings.Repeat("0123456789", 500)) {
			t.Errorf("got a response of %d bytes that does not end with the body sent", len(got.Body))
		}
	}
}

func TestHandlerCannotChangeTheNextRequest(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.URL.String()+" "+r.Header.Get("X-Mark")+r.PathValue("mark"))
		r.URL.Path, r.URL.RawQuery = "/elsewhere", "a=b"
		r.Header.Set("X-Mark", "marked")
		r.SetPathValue("mark", "marked")
	})
	c := dial(t, s.address)
	for _, p := range []string{path, path, chatPath, path} {
		if got := c.roundTrip(postTo(p, "")); got.Body != p+" " {
			t.Errorf("the handler got %q, want %q", got.Body, p+" ")
		}
	}
}

func TestOneConnectionServesEveryPathWithoutHandoff(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%T %s %s %s %v", w, r.URL, r.RequestURI, body, err)
	})
	c := dial(t, s.address)
	for _, p := range []string{path, chatPath, chatPath, path, chatPath} {
		if got, want := c.roundTrip(postTo(p, "hello")), fmt.Sprintf("*server.response %s %s hello <nil>", p, p); got.Body != want {
			t.Errorf("got %q, want %q", got.Body, want)
		}
	}
	if got := c.roundTrip(postTo("/v1/chat", "hello")); !strings.HasPrefix(got.Body, "*http.response ") {
		t.Errorf("another path: got %q, want net/http's response", got.Body)
	}
}
