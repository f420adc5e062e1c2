package bodyrate_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"basegate/internal/bodyrate"
)

// slowConn is the connection of a client that sends a number of bytes each second.
type slowConn struct {
	http.ResponseWriter
	deadline time.Time
	rate     int
	left     int
}

func (c *slowConn) SetReadDeadline(deadline time.Time) error {
	c.deadline = deadline
	return nil
}

func (c *slowConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(min(time.Second, time.Until(c.deadline)))
	if !time.Now().Before(c.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	n := min(c.rate, c.left, len(p))
	c.left -= n
	return n, nil
}

func TestBodyHasALeastRate(t *testing.T) {
	for _, c := range []struct {
		name        string
		rate, bytes int
		lasts       time.Duration // how long the body is read
		fails       bool
	}{
		{"one byte per second", 1, 1 << 20, 2 * bodyrate.Window, true},
		{"under the rate", bodyrate.MinBytes / 21, 16 << 20, 2 * bodyrate.Window, true},
		{"above the rate", bodyrate.MinBytes / 4, 1 << 20, 64 * time.Second, false},
		{"above the rate, but for too long", bodyrate.MinBytes / 4, 16 << 20, bodyrate.Timeout, true},
		{"short", 1, 15, 15 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &slowConn{ResponseWriter: httptest.NewRecorder(), rate: c.rate, left: c.bytes}
				r := bodyrate.New(conn, conn)
				time.Sleep(time.Hour) // a wait for something else
				began := time.Now()
				var err error
				for buffer := make([]byte, bodyrate.MinBytes); err == nil; {
					_, err = r.Read(buffer)
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
				if failed := err != nil; failed != c.fails {
					t.Errorf("got error %v, want a failure: %t", err, c.fails)
				}
				if lasted := time.Since(began); lasted != c.lasts {
					t.Errorf("the body was read for %v, want %v", lasted, c.lasts)
				}
				if r.End(); !conn.deadline.IsZero() {
					t.Error("the read deadline stays set after the body")
				}
			})
		})
	}
}

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipes) Close() error {
	close(l.closed)
	return nil
}

func (l pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (l pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	l.conns <- server
	return client, nil
}

// A server that stores what it has read may take its time, also after the end.
func TestTimeBetweenReadsDoesNotCount(t *testing.T) {
	http1, http2 := new(http.Protocols), new(http.Protocols)
	http1.SetHTTP1(true)
	http2.SetUnencryptedHTTP2(true)
	for name, protocols := range map[string]*http.Protocols{"HTTP/1": http1, "HTTP/2": http2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := func(w http.ResponseWriter, r *http.Request) {
					body := bodyrate.New(w, r.Body)
					var err error
					for buffer := make([]byte, bodyrate.MinBytes/2); err == nil; time.Sleep(time.Minute) {
						_, err = body.Read(buffer)
					}
					if !errors.Is(err, io.EOF) || r.Context().Err() != nil {
						t.Errorf("the body ended with %v, and the request with %v", err, r.Context().Err())
					}
					body.End()
				}
				listener := pipes{make(chan net.Conn), make(chan struct{})}
				server := &http.Server{Handler: http.HandlerFunc(store), Protocols: protocols}
				defer server.Close()
				go server.Serve(listener)
				transport := &http.Transport{DialContext: listener.dial, Protocols: protocols}
				defer transport.CloseIdleConnections()
				client := http.Client{Transport: transport}
				response, err := client.Post("http://server/", "text/plain", strings.NewReader(strings.Repeat("x", 40*bodyrate.MinBytes)))
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
			})
		})
	}
}
