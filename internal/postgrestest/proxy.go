package postgrestest

import (
	"context"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Proxy stands between a server and its clients, and cuts connections at replies: it has the whole reply, so the statement is
// executed, and committed unless a transaction is open, when the client gets a part of the reply or none of it. It does
// not support COPY and TLS.
type Proxy struct {
	ctx      context.Context // ends with the test
	listener net.Listener
	group    sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	server    *Server
	accepted  int // connections
	cut       func(Reply) (after int, cut bool)
	cuts      int
	stop      func(Request) (after int, stop bool)
	resumed   chan struct{}      // closed unless the proxy is paused
	connected context.Context    // connections end with it
	cutAll    context.CancelFunc // ends connected
}

// Reply is what a server sends in response to one Query or Sync message, to ReadyForQuery inclusive, or to the startup of a
// connection.
type Reply struct {
	Statement string   // its text, of a pipeline those of all its statements; empty for the startup of a connection
	Arguments [][]byte // of the statement, of a pipeline those of the last one with arguments
	Executed  bool     // false if the statement was only parsed and described
	Text      []byte   // the messages
	Ends      []int    // offset of the end of each message
}

// Request is what a client sends before it waits for a Reply, but for the startup of a connection.
type Request Reply

// NewProxy starts a proxy of a server on a port of 127.0.0.1, until the test ends.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context())) // clean-ups of the test may use the proxy
	p := &Proxy{ctx: ctx, server: s, listener: listener, resumed: make(chan struct{})}
	close(p.resumed)
	p.connected, p.cutAll = context.WithCancel(ctx)
	p.group.Go(p.accept)
	tb.Cleanup(func() {
		stop()
		_ = listener.Close()
		p.Resume()
		p.group.Wait()
	})
	return p
}

// Address returns the address on which the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// URL returns the address of a database of the server through the proxy.
func (p *Proxy) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: p.Address(), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Move makes the address that of another server for new connections. Those that exist stay.
func (p *Proxy) Move(to *Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = to
}

// Accepted returns the number of connections that the proxy has accepted.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Cut sets the function that decides for each reply whether the connection is cut after so many of its bytes; nil cuts
// none. The calls of the function do not overlap.
func (p *Proxy) Cut(decide func(Reply) (after int, cut bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = decide
}

// Cuts returns the number of replies at which connections were cut.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// CutAll closes all connections.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAll()
	p.connected, p.cutAll = context.WithCancel(p.ctx)
}

// Pause stops all bytes until Resume. Connections stay open.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumed = make(chan struct{})
}

// Stop sets the function that decides for each request whether the proxy is paused when the server has so many of its bytes; nil
// pauses for none. After Resume the server gets the rest.
func (p *Proxy) Stop(decide func(Request) (after int, stop bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = decide
}

// Resume ends a Pause.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.resumed:
	default:
		close(p.resumed)
	}
}

func (p *Proxy) waitWhilePaused() {
	p.mu.Lock()
	resumed := p.resumed
	p.mu.Unlock()
	<-resumed
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.accepted++
		ctx, socket := p.connected, p.server.Socket()
		p.mu.Unlock()
		p.group.Go(func() { p.serve(ctx, client, socket) })
	}
}

// serve forwards the messages of one connection until either side closes it, or it is cut.
func (p *Proxy) serve(ctx context.Context, client net.Conn, socket string) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil { // the server is stopped
		return
	}
	ctx, end := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	pending := make(chan Reply, 64)
	var requests sync.WaitGroup
	requests.Go(func() {
		defer end()
		p.forwardRequests(ctx, client, server, pending)
	})
	p.forwardReplies(ctx, client, server, pending)
	end()
	requests.Wait()
}

// forwardRequests forwards what a client sends, and announces the replies that it expects.
func (p *Proxy) forwardRequests(ctx context.Context, client, server net.Conn, pending chan<- Reply) {
	messages := pgproto3.NewBackend(client, client)
	if !forwardStartup(messages, client, server) {
		return
	}
	prepared := map[string]string{}
	next, expected, bound := Reply{Executed: true}, true, false
	request := Request{}
	for {
		if expected {
			select {
			case pending <- next:
			case <-ctx.Done():
				return
			}
			next, expected, bound = Reply{}, false, false
		}
		message, err := messages.Receive()
		p.waitWhilePaused()
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *pgproto3.Parse:
			prepared[m.Name], next.Statement = m.Query, m.Query
		case *pgproto3.Bind:
			text := prepared[m.PreparedStatement]
			if bound { // one of several in a pipeline, of which one has arguments
				text = next.Statement + "; " + text
			}
			next.Statement, bound = text, true
			if len(m.Parameters) > 0 {
				next.Arguments = nil
			}
			for _, argument := range m.Parameters {
				next.Arguments = append(next.Arguments, slices.Clone(argument))
			}
		case *pgproto3.Execute:
			next.Executed = true
		case *pgproto3.Query:
			next, expected = Reply{Statement: m.String, Executed: true}, true
		case *pgproto3.Sync:
			expected = true
		}
		if request.Text, err = message.Encode(request.Text); err != nil {
			return
		}
		request.Ends = append(request.Ends, len(request.Text))
		if !expected && isOfPipeline(message) { // which clients send by one write
			continue
		}
		request.Statement, request.Arguments, request.Executed = next.Statement, next.Arguments, next.Executed
		if p.forwardRequest(request, server) != nil {
			return
		}
		request = Request{}
	}
}

// isOfPipeline reports whether a Sync follows a message.
func isOfPipeline(message pgproto3.FrontendMessage) bool {
	switch message.(type) {
	case *pgproto3.Parse, *pgproto3.Bind, *pgproto3.Describe, *pgproto3.Execute, *pgproto3.Close:
		return true
	}
	return false
}

func (p *Proxy) forwardRequest(r Request, server net.Conn) error {
	p.mu.Lock()
	after, stop := 0, false
	if p.stop != nil {
		after, stop = p.stop(r)
	}
	if stop {
		p.resumed = make(chan struct{})
	}
	p.mu.Unlock()
	if stop {
		if _, err := server.Write(r.Text[:after]); err != nil {
			return err
		}
		p.waitWhilePaused()
	}
	_, err := server.Write(r.Text[after:])
	return err
}

// forwardStartup forwards the first message of a connection, and declines encryption.
func forwardStartup(messages *pgproto3.Backend, client, server net.Conn) (ok bool) {
	for {
		message, err := messages.ReceiveStartupMessage()
		if err != nil {
			return false
		}
		switch message.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := client.Write([]byte{'N'}); err != nil {
				return false
			}
			continue
		}
		text, err := message.Encode(nil)
		if err == nil {
			_, err = server.Write(text)
		}
		return err == nil
	}
}

// forwardReplies forwards what a server sends: each reply when it is complete, so that it can be cut, and notifications
// between them.
func (p *Proxy) forwardReplies(ctx context.Context, client, server net.Conn, pending <-chan Reply) {
	messages := pgproto3.NewFrontend(server, server)
	var (
		text []byte
		ends []int
	)
	for {
		message, err := messages.Receive()
		p.waitWhilePaused()
		if err == nil {
			text, err = message.Encode(text)
		}
		if err != nil {
			_, _ = client.Write(text) // why the server has ended the connection
			return
		}
		ends = append(ends, len(text))
		_, ready := message.(*pgproto3.ReadyForQuery)
		_, notifies := message.(*pgproto3.NotificationResponse)
		switch {
		case ready:
			select {
			case r := <-pending:
				r.Text, r.Ends = text, ends
				after, cut := p.decide(r)
				if _, err := client.Write(text[:after]); err != nil || cut {
					return
				}
			case <-ctx.Done():
				return
			}
		case notifies && len(ends) == 1:
			if _, err := client.Write(text); err != nil {
				return
			}
		default:
			continue
		}
		text, ends = nil, nil
	}
}

// decide returns how many bytes of a reply to forward, and whether to cut the connection then.
func (p *Proxy) decide(r Reply) (after int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == nil {
		return len(r.Text), false
	}
	after, cut = p.cut(r)
	if !cut {
		return len(r.Text), false
	}
	p.cuts++
	return min(after, len(r.Text)), true
}
