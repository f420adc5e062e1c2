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

	"basegate/http1/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	path     = "/v1/completions"
	patience = 20 * time.Second // of every wait: the machine may be busy
)

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return listener
}

// running is a server that serves.
type running struct {
	*server.Server
	address string
	served  chan error // what Serve has returned
}

// serve begins to serve; when the test ends, so does all that it began.
func serve(tb testing.TB, listener net.Listener, rest *http.Server) *running {
	tb.Helper()
	return serveWithin(context.Background(), tb, listener, rest)
}

func serveWithin(requests context.Context, tb testing.TB, listener net.Listener, rest *http.Server) *running {
	tb.Helper()
	if rest.ErrorLog == nil {
		rest.ErrorLog = zap.NewStdLog(zap.NewNop())
	}
	s := &running{server.New(requests, path, rest), listener.Addr().String(), make(chan error, 1)}
	go func() { s.served <- s.Serve(listener) }()
	tb.Cleanup(func() {
		s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			tb.Errorf("something is still running: %v", err)
		}
	})
	return s
}

func start(tb testing.TB, handler http.HandlerFunc) *running {
	tb.Helper()
	return serve(tb, listen(tb), &http.Server{Handler: handler})
}

// client is the other end of a connection, which speaks by hand.
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
	c.SetDeadline(time.Now().Add(patience))
	return &client{c.(*net.TCPConn), tb, bufio.NewReader(c)} //nolint:forcetypeassert // it was asked for
}

func (c *client) say(text string) {
	c.tb.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.tb.Fatal(err)
	}
}

// post is a request of the form that the server answers by itself; the fields are whole lines.
func post(body string, fields ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s", path, strings.Join(fields, ""), len(body), body)
}

// answer is what a client hears.
type answer struct {
	Line   string
	Header http.Header
	Close  bool
	Body   string
}

// hear reads an answer whole.
func (c *client) hear() (answer, error) {
	got, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return answer{}, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	return answer{got.Proto + " " + got.Status, got.Header, got.Close, string(body)}, err
}

func (c *client) mustHear() answer {
	c.tb.Helper()
	got, err := c.hear()
	if err != nil {
		c.tb.Fatalf("got %+v, %v", got, err)
	}
	return got
}

func (c *client) ask(request string) answer {
	c.tb.Helper()
	c.say(request)
	return c.mustHear()
}

// heard reads until the server ends the connection. That it waits in vain is an error, a reset is not.
func (c *client) heard() string {
	c.tb.Helper()
	rest, err := io.ReadAll(c.reader)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		c.tb.Errorf("the connection does not end, after %q", rest)
	}
	return string(rest)
}

func wait[T any](tb testing.TB, what string, from <-chan T) T {
	tb.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case v := <-from:
		return v
	case <-timeout.C:
		tb.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}

// echo answers with all that it was told.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprintf(w, "%s %q %q %s, host %q, length %d, close %t, encoding %q, trailer %v, address %t\n%q\n%d bytes %v\n", r.Method, r.URL,
		r.RequestURI, r.Proto, r.Host, r.ContentLength, r.Close, r.TransferEncoding, r.Trailer, r.RemoteAddr != "", r.Header, len(body), err)
	w.Write(body)
}

func TestRequestsFollowEachOtherOnOneConnection(t *testing.T) {
	s := start(t, echo)
	c := dial(t, s.address)
	for _, size := range []int{0, 1, 1 << 10, 4 << 10, 100 << 10, 5 << 20} {
		body := strings.Repeat("x", size)
		go io.WriteString(c, post(body))
		got := c.mustHear()
		if want := fmt.Sprintf("%d bytes <nil>\n%s", size, body); !strings.HasSuffix(got.Body, want) || got.Close {
			t.Errorf("%d bytes: got %d, close %t", size, len(got.Body), got.Close)
		}
	}
}

// A body may come at any pace, and its bytes with the head or behind it.
func TestABodyComesInManyPieces(t *testing.T) {
	s := start(t, echo)
	c := dial(t, s.address)
	for range 3 {
		for piece := range slices.Chunk([]byte(post(strings.Repeat("0123456789", 500))), 61) {
			c.say(string(piece))
		}
		if got := c.mustHear(); !strings.HasSuffix(got.Body, strings.Repeat("0123456789", 500)) {
			t.Errorf("got %d bytes", len(got.Body))
		}
	}
}

// What one handler does to its request is not to be seen by the next on the connection.
func TestRequestsShareNothingThatAHandlerChanges(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.URL.String()+" "+r.Header.Get("X-Mark")+r.PathValue("mark"))
		r.URL.Path, r.URL.RawQuery = "/elsewhere", "a=b"
		r.Header.Set("X-Mark", "marked")
		r.SetPathValue("mark", "marked")
	})
	c := dial(t, s.address)
	for range 2 {
		if got := c.ask(post("")); got.Body != path+" " {
			t.Errorf("got %q", got.Body)
		}
	}
}
