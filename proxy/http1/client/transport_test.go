package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"basegate/internal/poll"
	"basegate/proxy/http1/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTransport(t *testing.T, change func(*client.Settings)) *client.Transport {
	t.Helper()
	s := client.Settings{ConnectTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	if change != nil {
		change(&s)
	}
	transport := client.New(s)
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// backend counts the connections that it has accepted, and those that are open.
type backend struct {
	*httptest.Server
	accepted, open atomic.Int64
}

func newBackend(t *testing.T, handler http.HandlerFunc) *backend {
	t.Helper()
	b := &backend{Server: httptest.NewUnstartedServer(handler)}
	b.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			b.accepted.Add(1)
			b.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			b.open.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	}
	t.Cleanup(b.Close)
	return b
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
	}
	fmt.Fprintf(w, "%s %s %s: %d bytes", r.Method, r.URL.RequestURI(), r.Header.Get("X-Test"), len(body))
}

func newRequest(ctx context.Context, t *testing.T, address, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func readBody(t *testing.T, response *http.Response) string {
	t.Helper()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// post sends a request and returns the body of the response.
func post(t *testing.T, transport *client.Transport, address, body string) string {
	t.Helper()
	response, err := transport.RoundTrip(newRequest(t.Context(), t, address, body))
	if err != nil {
		t.Fatal(err)
	}
	return readBody(t, response)
}

func TestConnectionIsReusedForRequestsOfAnySize(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, nil)
	for _, size := range []int{0, 1, 1 << 10, 16<<10 - 100, 16 << 10, 100 << 10, 5 << 20} {
		want := fmt.Sprintf("POST /a?b=c : %d bytes", size)
		if got := post(t, transport, b.URL+"/a?b=c", strings.Repeat("x", size)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if n := b.accepted.Load(); n != 1 {
		t.Errorf("%d connections were made, want 1", n)
	}
}

func TestRequestWithoutABody(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Test", "yes")
	response, err := newTransport(t, nil).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := readBody(t, response); got != "GET / yes: 0 bytes" {
		t.Errorf("got %q, want the echo of a GET", got)
	}
}

func TestConcurrentRequests(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, nil)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for j := range 50 {
				size := (i*50 + j) * 37
				response, err := transport.RoundTrip(newRequest(t.Context(), t, b.URL, strings.Repeat("y", size)))
				if err != nil {
					t.Error(err)
					return
				}
				if got, want := readBody(t, response), fmt.Sprintf("POST / : %d bytes", size); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
	all.Wait()
	if n := b.accepted.Load(); n > 32 {
		t.Errorf("%d connections were made for 32 concurrent requests", n)
	}
}

// vLLM closes a connection that has been idle for 5 s; a request on it would be lost.
func TestConnectionClosedByTheBackendIsNotReused(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, nil)
	for range 20 {
		post(t, transport, b.URL, "x")
		b.CloseClientConnections()
		poll.Until(t, "the connection is closed", func() bool { return b.open.Load() == 0 })
	}
}

func TestRequestWithCloseHasAConnectionOfItsOwn(t *testing.T) {
	b := newBackend(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Close) })
	b.Start()
	transport := newTransport(t, nil)
	post(t, transport, b.URL, "x")
	request := newRequest(t.Context(), t, b.URL, "x")
	request.Close = true
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	if got := readBody(t, response); got != "true" {
		t.Errorf("the backend got a request with Connection: close: %s, want true", got)
	}
	poll.Until(t, "its connection is closed", func() bool { return b.open.Load() == 1 })
	post(t, transport, b.URL, "x")
	if n := b.accepted.Load(); n != 2 {
		t.Errorf("%d connections were made for three requests, want 2: one is in the pool", n)
	}
}

func TestIdleConnectionsAreClosedAfterTheirTimeout(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, func(s *client.Settings) { s.IdleTimeout = 20 * time.Millisecond })
	for range 3 {
		post(t, transport, b.URL, "x")
		poll.Until(t, "the idle connection is closed", func() bool { return b.open.Load() == 0 })
	}
}

func TestBytesAfterAResponseAreNotTheNextResponse(t *testing.T) {
	address := serveRaw(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nsmuggle")
	})
	transport := newTransport(t, nil)
	for range 3 {
		if got := post(t, transport, address, ""); got != "ok" {
			t.Errorf("got %q, want ok", got)
		}
	}
}

func TestContextEndClosesTheConnection(t *testing.T) {
	arrived, disconnected := make(chan struct{}, 2), make(chan struct{}, 2)
	b := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/after-the-head" {
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		disconnected <- struct{}{}
	})
	b.Start()
	transport := newTransport(t, nil)
	errTest := errors.New("cancelled by the test")
	for _, path := range []string{"/before-the-head", "/after-the-head"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-arrived; cancel(errTest) }()
		response, err := transport.RoundTrip(newRequest(ctx, t, b.URL+path, "x"))
		if err == nil {
			_, err = io.ReadAll(response.Body)
			response.Body.Close()
		}
		if !errors.Is(err, errTest) {
			t.Errorf("%s: got error %v, want %v", path, err, errTest)
		}
		<-disconnected
	}
	poll.Until(t, "the connection is closed", func() bool { return b.open.Load() == 0 })
}

func TestClosingAnUnreadBodyClosesTheConnection(t *testing.T) {
	b := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			io.WriteString(w, "more")
			http.NewResponseController(w).Flush()
		}
	})
	b.Start()
	response, err := newTransport(t, nil).RoundTrip(newRequest(t.Context(), t, b.URL, "x"))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	poll.Until(t, "the connection is closed", func() bool { return b.open.Load() == 0 })
}

// serveRaw calls serve for each connection and returns the URL of the listener.
func serveRaw(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() { listener.Close(); all.Wait() })
	return "http://" + listener.Addr().String()
}

// readHead reads up to the empty line after the header fields.
func readHead(c net.Conn) {
	var head []byte
	one := make([]byte, 1)
	for !strings.HasSuffix(string(head), "\r\n\r\n") {
		if _, err := c.Read(one); err != nil {
			return
		}
		head = append(head, one[0])
	}
}

func TestInterimResponsesAreSkipped(t *testing.T) {
	address := serveRaw(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	if got := post(t, newTransport(t, nil), address, ""); got != "ok" {
		t.Errorf("got %q, want ok", got)
	}
}

func TestResponseBeforeTheWholeRequestIsReadIsReturned(t *testing.T) {
	address := serveRaw(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large")
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
	response, err := newTransport(t, nil).RoundTrip(newRequest(t.Context(), t, address, strings.Repeat("x", 8<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if got := readBody(t, response); response.StatusCode != http.StatusRequestEntityTooLarge || got != "too large" {
		t.Errorf("got %d %q, want 413 and the body", response.StatusCode, got)
	}
}

// watchedBody counts its reads that run, and those that begin after it was given back.
type watchedBody struct {
	rest          []byte
	given         atomic.Bool
	running, late atomic.Int64
}

func (b *watchedBody) Read(p []byte) (n int, err error) {
	if b.given.Load() {
		b.late.Add(1)
	}
	b.running.Add(1)
	defer b.running.Add(-1)
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n = copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *watchedBody) WriteTo(w io.Writer) (n int64, err error) {
	b.running.Add(1)
	defer b.running.Add(-1)
	for len(b.rest) > 0 && err == nil {
		if b.given.Load() {
			b.late.Add(1)
		}
		var written int
		written, err = w.Write(b.rest[:min(len(b.rest), 64<<10)])
		b.rest, n = b.rest[written:], n+int64(written)
	}
	return n, err
}

// The caller gives the buffer of a body back to a pool when RoundTrip returns.
func TestBodyIsNotReadAfterRoundTripHasReturned(t *testing.T) {
	for name, serve := range map[string]func(c net.Conn, cancel context.CancelFunc){
		"cancelled": func(c net.Conn, cancel context.CancelFunc) {
			readHead(c)
			cancel()
			io.Copy(io.Discard, c)
		},
		"answered early": func(c net.Conn, _ context.CancelFunc) {
			readHead(c)
			io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large")
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			address := serveRaw(t, func(c net.Conn) {
				defer close(ended)
				serve(c, cancel)
			})
			body := &watchedBody{rest: make([]byte, 8<<20)}
			r := newRequest(ctx, t, address, "x")
			r.Body, r.ContentLength = io.NopCloser(body), 8<<20
			response, err := newTransport(t, nil).RoundTrip(r)
			body.given.Store(true)
			running := body.running.Load()
			if err == nil {
				response.Body.Close()
			}
			cancel()
			<-ended
			if late := body.late.Load(); running+late > 0 {
				t.Errorf("%d reads ran when RoundTrip returned, and %d began after it", running, late)
			}
		})
	}
}

// Errors are logged, and what a backend sends may contain a prompt.
func TestInvalidResponseIsRejectedWithoutQuotingIt(t *testing.T) {
	for name, sent := range map[string]string{
		"nothing":             "",
		"a truncated head":    "HTTP/1.1 200 OK\r\nContent-",
		"not HTTP":            "SSH-2.0-OpenSSH_9.6\r\n",
		"an endless head":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20),
		"only interim":        strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100),
		"two lengths":         "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
		"text":                "a secret\r\n\r\n",
		"an invalid version":  "HTTP/secret 200 OK\r\n\r\n",
		"an invalid status":   "HTTP/1.1 secret OK\r\n\r\n",
		"an invalid field":    "HTTP/1.1 200 OK\r\na secret\r\n\r\n",
		"an invalid length":   "HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n",
		"an unknown encoding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: secret\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			address := serveRaw(t, func(c net.Conn) { readHead(c); io.WriteString(c, sent) })
			response, err := newTransport(t, nil).RoundTrip(newRequest(t.Context(), t, address, "x"))
			if err == nil {
				t.Fatalf("got %d %q, want an error", response.StatusCode, readBody(t, response))
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "SSH") {
				t.Errorf("the error quotes the response: %v", err)
			}
		})
	}
}

func TestTruncatedBodyIsAnError(t *testing.T) {
	for name, sent := range map[string]string{
		"of known length": "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nshort",
		"chunked":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			address := serveRaw(t, func(c net.Conn) { readHead(c); io.WriteString(c, sent) })
			response, err := newTransport(t, nil).RoundTrip(newRequest(t.Context(), t, address, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if got, err := io.ReadAll(response.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != "short" {
				t.Errorf("got body %q, error %v, want %q, %v", got, err, "short", io.ErrUnexpectedEOF)
			}
		})
	}
}

func TestLineBreakInAHeaderValueIsRejected(t *testing.T) {
	b := newBackend(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
	b.Start()
	req := newRequest(t.Context(), t, b.URL, "x")
	req.Header["X-Test"] = []string{"a\r\nX-Evil: b"}
	if _, err := newTransport(t, nil).RoundTrip(req); err == nil || !strings.Contains(err.Error(), "X-Test") {
		t.Errorf("got error %v, want one that names the header", err)
	}
}

func TestUnreachableBackendIsADialError(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	b.Close()
	_, err := newTransport(t, nil).RoundTrip(newRequest(t.Context(), t, b.URL, "x"))
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
		t.Errorf("got error %v, want a dial error", err)
	}
}

func TestTLS(t *testing.T) {
	b := newBackend(t, echo)
	b.EnableHTTP2 = true // the client negotiates HTTP/1.1
	b.StartTLS()
	trustBackend := func(s *client.Settings) {
		s.TLS = b.Client().Transport.(*http.Transport).TLSClientConfig
	}
	transport := newTransport(t, trustBackend)
	for range 2 {
		if got := post(t, transport, b.URL, "secret"); got != "POST / : 6 bytes" {
			t.Errorf("got %q, want the echo of 6 bytes", got)
		}
	}
	if n := b.accepted.Load(); n != 1 {
		t.Errorf("%d connections were made, want 1", n)
	}
	_, err := newTransport(t, nil).RoundTrip(newRequest(t.Context(), t, b.URL, "secret"))
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		t.Errorf("untrusted certificate: got error %v, want a verification error", err)
	}
}

// BenchmarkRoundTrip compares with net/http's transport; both figures include the cost of the same server.
func BenchmarkRoundTrip(b *testing.B) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, `{"choices":[]}`)
	})
	plain, secured := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secured.Close()
	trust := secured.Client().Transport.(*http.Transport).TLSClientConfig
	ours := client.New(client.Settings{ConnectTimeout: time.Second, IdleTimeout: time.Minute, TLS: trust})
	defer ours.CloseIdleConnections()
	standard := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100, TLSClientConfig: trust}
	defer standard.CloseIdleConnections()
	body := strings.Repeat("x", 1<<10)
	for scheme, url := range map[string]string{"http": plain.URL, "https": secured.URL} {
		for name, transport := range map[string]http.RoundTripper{"basegate": ours, "net/http": standard} {
			b.Run(scheme+", "+name, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, strings.NewReader(body))
						if err != nil {
							b.Error(err)
							return
						}
						response, err := transport.RoundTrip(req)
						if err != nil {
							b.Error(err)
							return
						}
						io.Copy(io.Discard, response.Body)
						response.Body.Close()
					}
				})
			})
		}
	}
}
