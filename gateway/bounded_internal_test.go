package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener for connections without a network, whose time is the bubble's.
type pipes struct {
	waiting chan net.Conn
	close   func()
	closed  chan struct{}
}

func newPipes() *pipes {
	closed := make(chan struct{})
	return &pipes{waiting: make(chan net.Conn), closed: closed, close: sync.OnceFunc(func() { close(closed) })}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.waiting:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) Close() error {
	p.close()
	return nil
}

// A page that nobody reads and a form that never comes to its end are given up, whoever asks.
func TestSlowClientsOfPagesAreGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		most    time.Duration
	}{
		"an answer that is not read":            {"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", pageTimeout + time.Second},
		"a form that breaks off":                {"POST /sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx", formTimeout + pageTimeout + time.Second},
		"a form that nobody wanted, broken off": {"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx", formTimeout + pageTimeout + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				socket := newPipes()
				server := &http.Server{Handler: bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.HasPrefix(r.URL.Path, "/sign-in") {
						io.Copy(io.Discard, r.Body)
					}
					io.WriteString(w, "ok")
				}))}
				gone := make(chan struct{})
				server.ConnState = func(_ net.Conn, s http.ConnState) {
					if s == http.StateClosed {
						close(gone)
					}
				}
				go server.Serve(socket)
				here, there := net.Pipe()
				defer here.Close()
				socket.waiting <- there
				began := time.Now()
				io.WriteString(here, c.request)
				<-gone
				if took := time.Since(began); took > c.most {
					t.Errorf("it took %v", took)
				}
				server.Shutdown(context.Background())
			})
		})
	}
}

// A second request must not hide in the body of the first: what net/http tells of neither of two lengths ends the
// connection.
func TestARequestOfDoubtfulLengthIsTheLastOfItsConnection(t *testing.T) {
	hidden := "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + hidden,
	} {
		synctest.Test(t, func(t *testing.T) {
			socket := newPipes()
			var served []string
			server := &http.Server{Handler: bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				served = append(served, r.URL.Path)
			}))}
			go server.Serve(socket)
			here, there := net.Pipe()
			defer here.Close()
			socket.waiting <- there
			go io.WriteString(here, request)
			answer, err := http.ReadResponse(bufio.NewReader(here), nil)
			if err != nil || !answer.Close {
				t.Errorf("%v, close %t", err, answer != nil && answer.Close)
			}
			io.Copy(io.Discard, here)
			server.Shutdown(context.Background())
			if len(served) != 1 {
				t.Errorf("served %q", served)
			}
		})
	}
}
