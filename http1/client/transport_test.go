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

	"basegate/http1/client"
	"basegate/internal/poll"
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

// backend counts the connections that are made to it, and those that are open.
type backend struct {
	*httptest.Server
	made, open atomic.Int64
}

func newBackend(t *testing.T, handler http.HandlerFunc) *backend {
	t.Helper()
	b := &backend{Server: httptest.NewUnstartedServer(handler)}
	b.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			b.made.Add(1)
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

func request(ctx context.Context, t *testing.T, address, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func text(t *testing.T, answer *http.Response) string {
	t.Helper()
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func ask(t *testing.T, transport *client.Transport, address, body string) string {
	t.Helper()
	answer, err := transport.RoundTrip(request(t.Context(), t, address, body))
	if err != nil {
		t.Fatal(err)
	}
	return text(t, answer)
}

func TestRequestsFollowEachOtherOnOneConnection(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, nil)
	for _, size := range []int{0, 1, 1 << 10, 16<<10 - 100, 16 << 10, 100 << 10, 5 << 20} {
		want := fmt.Sprintf("POST /a?b=c : %d bytes", size)
		if got := ask(t, transport, b.URL+"/a?b=c", strings.Repeat("x", size)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if n := b.made.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

func TestARequestWithoutABody(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Test", "yes")
	answer, err := newTransport(t, nil).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, answer); got != "GET / yes: 0 bytes" {
		t.Errorf("got %q", got)
	}
}

func TestManyAtOnce(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, nil)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for j := range 50 {
				size := (i*50 + j) * 37
				answer, err := transport.RoundTrip(request(t.Context(), t, b.URL, strings.Repeat("y", size)))
				if err != nil {
					t.Error(err)
					return
				}
				if got, want := text(t, answer), fmt.Sprintf("POST / : %d bytes", size); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
	all.Wait()
	if n := b.made.Load(); n > 32 {
		t.Errorf("%d connections were made for 32 at once", n)
	}
}

// vLLM closes a connection that has been idle for 5 s; a request on it would be lost.
func TestAConnectionThatTheBackendClosedIsNotUsedAgain(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, nil)
	for range 20 {
		ask(t, transport, b.URL, "x")
		b.CloseClientConnections()
		poll.Until(t, "it is closed", func() bool { return b.open.Load() == 0 })
	}
}

func TestIdleConnectionsAreClosedInTime(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	transport := newTransport(t, func(s *client.Settings) { s.IdleTimeout = 20 * time.Millisecond })
	for range 3 {
		ask(t, transport, b.URL, "x")
		poll.Until(t, "nobody uses it", func() bool { return b.open.Load() == 0 })
	}
}

func TestWhatAConnectionSaysBetweenRequestsIsNoAnswer(t *testing.T) {
	address := raw(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nsmuggle")
	})
	transport := newTransport(t, nil)
	for range 3 {
		if got := ask(t, transport, address, ""); got != "ok" {
			t.Errorf("got %q", got)
		}
	}
}

func TestTheEndOfTheContextClosesTheConnection(t *testing.T) {
	arrived, left := make(chan struct{}, 2), make(chan struct{}, 2)
	b := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/begun" {
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	})
	b.Start()
	transport := newTransport(t, nil)
	enough := errors.New("enough")
	for _, path := range []string{"/silent", "/begun"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-arrived; cancel(enough) }()
		answer, err := transport.RoundTrip(request(ctx, t, b.URL+path, "x"))
		if err == nil {
			_, err = io.ReadAll(answer.Body)
			answer.Body.Close()
		}
		if !errors.Is(err, enough) {
			t.Errorf("%s: got %v", path, err)
		}
		<-left
	}
	poll.Until(t, "it is closed", func() bool { return b.open.Load() == 0 })
}

func TestABodyThatIsNotReadToItsEndClosesTheConnection(t *testing.T) {
	b := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			io.WriteString(w, "more")
			http.NewResponseController(w).Flush()
		}
	})
	b.Start()
	answer, err := newTransport(t, nil).RoundTrip(request(t.Context(), t, b.URL, "x"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	poll.Until(t, "it is closed", func() bool { return b.open.Load() == 0 })
}

// raw serves each connection by the function, which plays the backend by hand.
func raw(t *testing.T, serve func(net.Conn)) string {
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

// readHead reads up to the empty line behind the headers.
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

func TestAnswersOf1xxAreNotTheAnswer(t *testing.T) {
	address := raw(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell")
	})
	if got := ask(t, newTransport(t, nil), address, ""); got != "well" {
		t.Errorf("got %q", got)
	}
}

func TestABackendThatRefusesBeforeItHasReadIsHeard(t *testing.T) {
	address := raw(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!")
		c.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // the client has it then
		io.Copy(io.Discard, c)
	})
	answer, err := newTransport(t, nil).RoundTrip(request(t.Context(), t, address, strings.Repeat("x", 8<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, answer); answer.StatusCode != http.StatusRequestEntityTooLarge || got != "no!" {
		t.Errorf("got %d %q", answer.StatusCode, got)
	}
}

// The errors go to the log, and what a backend sends may hold a prompt.
func TestWhatIsNotAnAnswerIsRefusedAndNotQuoted(t *testing.T) {
	for name, says := range map[string]string{
		"nothing":             "",
		"half a head":         "HTTP/1.1 200 OK\r\nContent-",
		"no HTTP":             "SSH-2.0-OpenSSH_9.6\r\n",
		"an endless head":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20),
		"nothing but interim": strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100),
		"two lengths":         "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
		"words":               "a secret\r\n\r\n",
		"a version of words":  "HTTP/secret 200 OK\r\n\r\n",
		"a status of words":   "HTTP/1.1 secret OK\r\n\r\n",
		"words for a header":  "HTTP/1.1 200 OK\r\na secret\r\n\r\n",
		"a length of words":   "HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n",
		"a coding of words":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: secret\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			address := raw(t, func(c net.Conn) { readHead(c); io.WriteString(c, says) })
			answer, err := newTransport(t, nil).RoundTrip(request(t.Context(), t, address, "x"))
			if err == nil {
				t.Fatalf("got %d %q", answer.StatusCode, text(t, answer))
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "SSH") {
				t.Errorf("it quotes what was sent: %v", err)
			}
		})
	}
}

func TestABodyThatBreaksOffIsAnError(t *testing.T) {
	for name, says := range map[string]string{
		"of known length": "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nshort",
		"in chunks":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			address := raw(t, func(c net.Conn) { readHead(c); io.WriteString(c, says) })
			answer, err := newTransport(t, nil).RoundTrip(request(t.Context(), t, address, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if got, err := io.ReadAll(answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != "short" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestAHeaderCannotBringAnother(t *testing.T) {
	b := newBackend(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	b.Start()
	req := request(t.Context(), t, b.URL, "x")
	req.Header["X-Test"] = []string{"a\r\nX-Evil: b"}
	if _, err := newTransport(t, nil).RoundTrip(req); err == nil || !strings.Contains(err.Error(), "X-Test") {
		t.Errorf("got %v", err)
	}
}

func TestABackendThatIsNotThereIsADialError(t *testing.T) {
	b := newBackend(t, echo)
	b.Start()
	b.Close()
	_, err := newTransport(t, nil).RoundTrip(request(t.Context(), t, b.URL, "x"))
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
		t.Errorf("got %v", err)
	}
}

func TestTLS(t *testing.T) {
	b := newBackend(t, echo)
	b.EnableHTTP2 = true // is not taken
	b.StartTLS()
	trusting := func(s *client.Settings) {
		s.TLS = b.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // httptest's own
	}
	transport := newTransport(t, trusting)
	for range 2 {
		if got := ask(t, transport, b.URL, "secret"); got != "POST / : 6 bytes" {
			t.Errorf("got %q", got)
		}
	}
	if n := b.made.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
	_, err := newTransport(t, nil).RoundTrip(request(t.Context(), t, b.URL, "secret"))
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		t.Errorf("a stranger's certificate: %v", err)
	}
}

// BenchmarkRoundTrip is beside net/http's own transport; what the server costs is in both.
func BenchmarkRoundTrip(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, `{"choices":[]}`)
	}))
	defer server.Close()
	ours := client.New(client.Settings{ConnectTimeout: time.Second, IdleTimeout: time.Minute})
	defer ours.CloseIdleConnections()
	standard := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}
	defer standard.CloseIdleConnections()
	body := strings.Repeat("x", 1<<10)
	for name, transport := range map[string]http.RoundTripper{"basegate": ours, "net/http": standard} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, server.URL, strings.NewReader(body))
					if err != nil {
						b.Error(err)
						return
					}
					answer, err := transport.RoundTrip(req)
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
			})
		})
	}
}
