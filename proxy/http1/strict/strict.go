// Package strict makes a net/http server refuse HTTP/1 request heads that a proxy in front may read differently: lines
// that end with a bare LF, and folded lines (obs-fold), which RFC 9112 lets a server accept and net/http does.
//
// A Conn follows the framing of a connection's requests, so it checks every head, and leaves all other rules to
// net/http. It does not decode chunks: a connection must end with a request that has a Transfer-Encoding, which
// NewHandler ensures. HTTP/2 passes unchecked.
//
// It also lets the handler see a request whose Expect net/http would refuse by itself: the value is empty then.
package strict

import (
	"bytes"
	"io"
	"net"
	"net/http"
)

// NewListener returns a listener that checks the request heads of the connections that l accepts.
func NewListener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewConn(c, nil), nil
}

// Conn is a client's connection whose request heads are checked while they are read.
type Conn struct {
	net.Conn
	source  io.Reader
	heads   scanner
	refused bool
	unread  string // what is left of refusal to return
}

// NewConn returns a connection that checks the request heads read from c, the first of which is next. prefix is what has been read
// of it already.
func NewConn(c net.Conn, prefix []byte) *Conn {
	if len(prefix) == 0 {
		return &Conn{Conn: c, source: c}
	}
	return &Conn{Conn: c, source: io.MultiReader(bytes.NewReader(prefix), c)}
}

// refusal replaces the rest of a connection from the first refused byte on. A NUL makes any line of a head invalid, so
// net/http responds with 400 and closes the connection, after it has responded to earlier requests. An error in place
// of it would cancel an earlier request that is still in flight.
const refusal = "\x00\r\n\r\n"

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if c.unread != "" {
		return c.readRefusal(p), nil
	}
	n, err := c.source.Read(p)
	if c.refused { // net/http reads on only to detect that the client disconnects
		clear(p[:n])
		return n, err
	}
	valid := c.heads.scan(p[:n], 0)
	for valid == n && err == nil && n < len(p) && c.heads.undecided() { // what is passed on cannot be blanked
		var more int
		more, err = c.source.Read(p[n:])
		n += more
		valid = c.heads.scan(p[:n], valid)
	}
	if valid == n {
		return n, err
	}
	c.refused, c.unread = true, refusal
	return valid + c.readRefusal(p[valid:]), nil
}

func (c *Conn) readRefusal(p []byte) int {
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n
}

// CloseWrite closes the sending side: net/http does so before it closes a connection whose request it has not read completely.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
