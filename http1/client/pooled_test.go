package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"basegate/http1/client"
	"basegate/internal/poll"
)

// lender counts the buffers that are out.
type lender struct {
	size int
	out  atomic.Int64
	ever atomic.Int64
}

func (l *lender) take() []byte {
	l.out.Add(1)
	l.ever.Add(1)
	return make([]byte, l.size)
}

func (l *lender) give([]byte) { l.out.Add(-1) }

// readPooled reads a body to its end.
func (l *lender) readPooled(body io.Reader) (string, error) {
	var all strings.Builder
	for {
		buffer, n, err := body.(client.PooledReader).ReadPooled(l.take, l.give)
		all.Write(buffer[:n])
		if buffer != nil {
			l.give(buffer)
		}
		if err != nil {
			return all.String(), err
		}
	}
}

func TestABodyIsReadIntoWhatIsLent(t *testing.T) {
	long := strings.Repeat("some words, ", 3000)
	for name, handler := range map[string]http.HandlerFunc{
		"in chunks": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			flush(w)
			io.WriteString(w, long)
		},
		"with the head": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long); flush(w) },
		"of known size": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "36000")
			io.WriteString(w, long)
		},
		"byte by byte": func(w http.ResponseWriter, _ *http.Request) {
			for _, c := range []byte(long[:500]) {
				w.Write([]byte{c})
				flush(w)
			}
		},
	} {
		for _, secure := range []bool{false, true} {
			b := newBackend(t, handler)
			if secure {
				b.StartTLS()
			} else {
				b.Start()
			}
			roots := x509.NewCertPool()
			if secure {
				roots.AddCert(b.Certificate())
			}
			transport := newTransport(t, func(s *client.Settings) { s.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} })
			for range 3 {
				for _, size := range []int{7, 4096, 100_000} {
					answer, err := transport.RoundTrip(request(t.Context(), t, b.URL, "x"))
					if err != nil {
						t.Fatal(err)
					}
					l := &lender{size: size}
					got, err := l.readPooled(answer.Body)
					answer.Body.Close()
					if !errors.Is(err, io.EOF) || !strings.HasPrefix(long, got) || len(got) != len(long) && len(got) != 500 {
						t.Errorf("%s, secure %t, %d at a time: %d bytes, %v", name, secure, size, len(got), err)
					}
					if n := l.out.Load(); n != 0 {
						t.Errorf("%s, secure %t, %d at a time: %d buffers are out", name, secure, size, n)
					}
				}
			}
			if n := b.made.Load(); n != 1 {
				t.Errorf("%s, secure %t: %d connections", name, secure, n)
			}
		}
	}
}

func flush(w http.ResponseWriter) { w.(http.Flusher).Flush() }

// A stream that waits holds no buffer, and is woken by the next event as well as by the end of its context.
func TestWhoWaitsHoldsNoBuffer(t *testing.T) {
	more := make(chan string)
	b := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
		flush(w)
		for {
			select {
			case text := <-more:
				io.WriteString(w, text)
				flush(w)
			case <-r.Context().Done():
				return
			}
		}
	})
	b.Start()
	transport := newTransport(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	answer, err := transport.RoundTrip(request(ctx, t, b.URL, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	l := &lender{size: 64}
	read := make(chan string)
	failed := make(chan error)
	go func() {
		for {
			buffer, n, err := answer.Body.(client.PooledReader).ReadPooled(l.take, l.give)
			if err != nil {
				failed <- err
				return
			}
			read <- string(buffer[:n])
			l.give(buffer)
		}
	}()
	for _, text := range []string{"one", "two"} {
		poll.Until(t, "a read in vain, and the buffer given back", func() bool { return l.ever.Load() > 0 && l.out.Load() == 0 })
		more <- text
		if got := <-read; got != text {
			t.Errorf("got %q", got)
		}
	}
	poll.Until(t, "the buffer is given back", func() bool { return l.out.Load() == 0 })
	errEnough := errors.New("enough")
	cancel(errEnough)
	if err := <-failed; !errors.Is(err, errEnough) {
		t.Errorf("it ends with %v", err)
	}
	if n := l.out.Load(); n != 0 {
		t.Errorf("%d buffers are out", n)
	}
}
