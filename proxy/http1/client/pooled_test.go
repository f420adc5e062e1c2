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

	"basegate/internal/poll"
	"basegate/proxy/http1/client"
	"basegate/proxy/stream"
)

// countingPool counts its buffers.
type countingPool struct {
	size  int
	inUse atomic.Int64
	gets  atomic.Int64
}

func (p *countingPool) get() []byte {
	p.inUse.Add(1)
	p.gets.Add(1)
	return make([]byte, p.size)
}

func (p *countingPool) put([]byte) { p.inUse.Add(-1) }

// readAll reads a body until an error, which it returns.
func (p *countingPool) readAll(body io.Reader) (string, error) {
	var all strings.Builder
	for {
		buffer, n, err := body.(stream.PooledReader).ReadPooled(p.get, p.put)
		all.Write(buffer[:n])
		if buffer != nil {
			p.put(buffer)
		}
		if err != nil {
			return all.String(), err
		}
	}
}

func TestReadPooledReturnsTheWholeBody(t *testing.T) {
	long := strings.Repeat("some words, ", 3000)
	for name, handler := range map[string]http.HandlerFunc{
		"chunked": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			flush(w)
			io.WriteString(w, long)
		},
		"received with the head": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long); flush(w) },
		"of known length": func(w http.ResponseWriter, _ *http.Request) {
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
					response, err := transport.RoundTrip(newRequest(t.Context(), t, b.URL, "x"))
					if err != nil {
						t.Fatal(err)
					}
					pool := &countingPool{size: size}
					got, err := pool.readAll(response.Body)
					response.Body.Close()
					if !errors.Is(err, io.EOF) || !strings.HasPrefix(long, got) || len(got) != len(long) && len(got) != 500 {
						t.Errorf("%s, TLS %t, buffers of %d: got %d bytes, error %v, want the whole body and EOF", name, secure, size, len(got), err)
					}
					if n := pool.inUse.Load(); n != 0 {
						t.Errorf("%s, TLS %t, buffers of %d: %d buffers were not put back", name, secure, size, n)
					}
				}
			}
			if n := b.accepted.Load(); n != 1 {
				t.Errorf("%s, TLS %t: %d connections were made, want 1", name, secure, n)
			}
		}
	}
}

func flush(w http.ResponseWriter) { w.(http.Flusher).Flush() }

// The next event wakes a waiting read, and so does the end of the request's context.
func TestReadPooledHoldsNoBufferWhileWaiting(t *testing.T) {
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
	response, err := transport.RoundTrip(newRequest(ctx, t, b.URL, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	pool := &countingPool{size: 64}
	read := make(chan string)
	readErr := make(chan error)
	go func() {
		for {
			buffer, n, err := response.Body.(stream.PooledReader).ReadPooled(pool.get, pool.put)
			if err != nil {
				readErr <- err
				return
			}
			read <- string(buffer[:n])
			pool.put(buffer)
		}
	}()
	for _, text := range []string{"one", "two"} {
		poll.Until(t, "the read waits without a buffer", func() bool { return pool.gets.Load() > 0 && pool.inUse.Load() == 0 })
		more <- text
		if got := <-read; got != text {
			t.Errorf("read %q, want %q", got, text)
		}
	}
	poll.Until(t, "the buffer is put back", func() bool { return pool.inUse.Load() == 0 })
	errTest := errors.New("cancelled by the test")
	cancel(errTest)
	if err := <-readErr; !errors.Is(err, errTest) {
		t.Errorf("the read failed with %v, want %v", err, errTest)
	}
	if n := pool.inUse.Load(); n != 0 {
		t.Errorf("%d buffers were not put back", n)
	}
}
