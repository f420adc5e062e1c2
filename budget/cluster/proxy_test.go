package cluster_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"basegate/internal/postgrestest"
)

// cutter is a proxy in front of PostgreSQL that breaks connections at chosen moments.
type cutter struct {
	listener net.Listener
	server   string
	replies  atomic.Int64 // that were forwarded since the start of the proxy
	every    atomic.Int64 // each such reply to a call is lost and its connection cut; 0 for none
	cuts     atomic.Int64 // connections cut
	group    sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool
	blocked chan struct{} // closed unless blocked
}

func newCutter(tb testing.TB, server *postgrestest.Server) *cutter {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	c := &cutter{listener: listener, server: server.Socket(), conns: map[net.Conn]bool{}, blocked: make(chan struct{})}
	close(c.blocked)
	c.group.Go(c.accept)
	tb.Cleanup(func() {
		listener.Close()
		c.unblock()
		c.cutAll()
		c.group.Wait()
	})
	return c
}

// url returns the address of a database through the proxy.
func (c *cutter) url(tb testing.TB, direct string) string {
	tb.Helper()
	u, err := url.Parse(direct)
	must(tb, err)
	return "postgres://postgres@" + c.listener.Addr().String() + "/" + strings.TrimPrefix(u.Path, "/") + "?sslmode=disable"
}

func (c *cutter) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "unix", c.server)
		if err != nil {
			client.Close()
			continue
		}
		c.mu.Lock()
		c.conns[client], c.conns[server] = true, true
		c.mu.Unlock()
		c.group.Go(func() {
			defer client.Close()
			defer server.Close()
			_, _ = io.Copy(server, gated{c, client})
		})
		c.group.Go(func() {
			defer client.Close()
			defer server.Close()
			c.replyTo(client, server)
		})
	}
}

// replyTo forwards what the server sends. A reply to a call of the ledger has a row whose first column is the status.
func (c *cutter) replyTo(client, server net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := gated{c, server}.Read(buffer)
		if err != nil {
			return
		}
		if strings.Contains(string(buffer[:n]), `"settled"`) {
			if every := c.every.Load(); every > 0 && c.replies.Add(1)%every == 0 {
				c.cuts.Add(1)
				return
			}
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// gated reads from a connection while the proxy is not blocked.
type gated struct {
	c    *cutter
	conn net.Conn
}

func (g gated) Read(into []byte) (int, error) {
	n, err := g.conn.Read(into)
	g.c.mu.Lock()
	blocked := g.c.blocked
	g.c.mu.Unlock()
	<-blocked
	return n, err
}

// block stops all bytes until unblock; connections stay open.
func (c *cutter) block() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked = make(chan struct{})
}

func (c *cutter) unblock() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.blocked:
	default:
		close(c.blocked)
	}
}

func (c *cutter) cutAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
	c.conns = map[net.Conn]bool{}
}
