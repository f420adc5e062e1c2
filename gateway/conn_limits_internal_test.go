package gateway

import (
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

// pipeListener accepts in-memory connections, whose deadlines use the clock of the synctest bubble.
type pipeListener struct {
	conns  chan net.Conn
	close  func()
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	closed := make(chan struct{})
	return &pipeListener{conns: make(chan net.Conn), closed: closed, close: sync.OnceFunc(func() { close(closed) })}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func TestSlowClientsOfPagesTimeOut(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		limit   time.Duration
	}{
		"response not read":          {"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", pageTimeout + time.Second},
		"incomplete form":            {"POST /sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx", formTimeout + pageTimeout + time.Second},
		"incomplete body not wanted": {"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx", formTimeout + pageTimeout + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := newPipeListener()
				server := &http.Server{Handler: limitConnections(func(string) bool { return false }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.HasPrefix(r.URL.Path, "/sign-in") {
						io.Copy(io.Discard, r.Body)
					}
					io.WriteString(w, "ok")
				}))}
				closed := make(chan struct{})
				server.ConnState = func(_ net.Conn, s http.ConnState) {
					if s == http.StateClosed {
						close(closed)
					}
				}
				go server.Serve(listener)
				client, accepted := net.Pipe()
				defer client.Close()
				listener.conns <- accepted
				start := time.Now()
				io.WriteString(client, c.request)
				<-closed
				if elapsed := time.Since(start); elapsed > c.limit {
					t.Errorf("the server closed the connection after %v, want at most %v", elapsed, c.limit)
				}
				server.Shutdown(context.Background())
			})
		})
	}
}
