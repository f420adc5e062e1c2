package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"basegate/http1/pooled"
)

// conn is a client's connection. One goroutine serves it, and lends a buffer where something has come.
type conn struct {
	net.Conn
	server *Server
	front  *front
	raw    syscall.RawConn
	lent   pooled.Reader
	like   *http.Request      // what all requests of the connection have in common
	leave  context.CancelFunc // ends their context: the client is gone
	phase  atomic.Int32
	number uint64 // of its watch; 0: it has none yet

	writesBound bool // a deadline for writes is set

	buffer     []byte // nil: nothing has come that was not read
	start, end int    // of what was not read
}

// The phases of a connection.
const (
	idle   int32 = iota // it waits for a request, or for the rest of its head, and may be closed
	busy                // at a request
	closed              // or about to be
)

func newConn(s *Server, f *front, connected net.Conn, raw syscall.RawConn) *conn {
	c := &conn{Conn: connected, server: s, front: f, raw: raw}
	ctx, leave := context.WithCancel(s.requests)
	c.leave = leave
	c.like = (&http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: s.path}, RequestURI: s.path,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: connected.RemoteAddr().String(),
	}).WithContext(ctx)
	return c
}

var buffers = sync.Pool{New: func() any { return new([headSize]byte) }}

func takeBuffer() []byte { return buffers.Get().(*[headSize]byte)[:] } //nolint:errcheck // the pool holds nothing else

func giveBuffer(b []byte) { buffers.Put((*[headSize]byte)(b[:headSize])) }

// release gives the buffer back.
func (c *conn) release() {
	if c.buffer != nil {
		giveBuffer(c.buffer)
		c.buffer = nil
	}
}

// serve answers request after request, until one ends the connection or is net/http's.
func (c *conn) serve() {
	given := false
	defer c.server.drop(c)
	defer c.leave()
	defer func() {
		if !given {
			c.hangUp()
		}
	}()
	timeout := c.server.rest.ReadHeaderTimeout
	for c.await(timeout) {
		x, err := c.read()
		other := errors.Is(err, errOther)
		if err != nil && !other || !c.phase.CompareAndSwap(idle, busy) {
			return
		}
		if other {
			given = true
			c.giveOver()
			return
		}
		if !c.answer(x) {
			return
		}
		timeout = c.server.rest.IdleTimeout
	}
}

// hangUp closes the connection, on its own goroutine.
func (c *conn) hangUp() {
	c.release()
	if c.number != 0 {
		c.server.watcher.forget(c.number)
	}
	c.Close()
}

// cut closes the connection whatever it is at, and closeIdle where it waits for a request.
func (c *conn) cut() {
	c.phase.Store(closed)
	c.Close()
	c.leave() // a descriptor that is closed is watched no more
}

func (c *conn) closeIdle() {
	if c.phase.CompareAndSwap(idle, closed) {
		c.Close()
	}
}

// giveOver leaves the connection to net/http, with what of a request has come.
func (c *conn) giveOver() {
	if c.number != 0 {
		c.server.watcher.unwatch(c.raw, c.number)
	}
	given := &begun{Conn: c.Conn, read: bytes.Clone(c.buffer[c.start:c.end])}
	c.release()
	c.SetDeadline(time.Time{}) //nolint:errcheck // fails on a closed one alone, which net/http will see
	c.front.give(given)
}

// deadline is when what begins now must have ended; 0 is no limit, as in net/http.
func deadline(timeout time.Duration) time.Time {
	if timeout <= 0 {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

// straysMost is how much of the line breaks is passed over that some clients send behind a body, in bytes; as in net/http.
const straysMost = 4

// await waits for a request to begin, and holds no buffer meanwhile. False: none will.
func (c *conn) await(timeout time.Duration) bool {
	if c.server.closing.Load() || c.SetReadDeadline(deadline(timeout)) != nil {
		return false
	}
	strays := 0
	if c.number == 0 {
		strays = straysMost // nothing has come before
	}
	for {
		buffer, n, err := c.lent.Read(c.raw, takeBuffer, giveBuffer)
		c.buffer, c.start, c.end = buffer, 0, n
		if err != nil {
			return false
		}
		for ; c.start < n && strays < straysMost && (buffer[c.start] == '\r' || buffer[c.start] == '\n'); c.start++ {
			strays++
		}
		if c.start < n {
			c.start, c.end = 0, copy(buffer, buffer[c.start:n])
			return true
		}
		c.release()
	}
}

// read reads the head of a request.
func (c *conn) read() (*exchange, error) {
	line := c.server.line
	for timed := c.number == 0; ; { // by await, for the first one
		come := c.buffer[:c.end]
		if n := min(len(line), len(come)); string(come[:n]) != line[:n] {
			return nil, errOther
		}
		if i := bytes.Index(come, headEnd); i >= 0 {
			h, err := parseHead(come[len(line) : i+len(headEnd)])
			if err != nil {
				return nil, err
			}
			return c.begin(h, i+len(headEnd))
		}
		if c.end == len(c.buffer) {
			return nil, errOther
		}
		if !timed {
			timed = true
			c.SetReadDeadline(deadline(c.server.rest.ReadHeaderTimeout)) //nolint:errcheck // fails on a closed one alone, as the read will
		}
		n, err := c.Read(c.buffer[c.end:])
		if c.end += n; n == 0 && err != nil {
			return nil, err //nolint:wrapcheck // nobody is told
		}
	}
}

// begin makes the exchange of a request whose body begins at start.
func (c *conn) begin(h head, start int) (*exchange, error) {
	if int64(c.end-start) > h.length {
		return nil, errOther // the next one has come with it
	}
	if c.number == 0 {
		var err error
		if c.number, err = c.server.watcher.watch(c.raw, c.leave); err != nil {
			return nil, errOther
		}
	}
	if int64(c.end-start) < h.length {
		c.SetReadDeadline(time.Time{}) //nolint:errcheck // fails on a closed one alone, as the read will
	}
	c.start = start
	x := &exchange{conn: c, request: *c.like, body: body{conn: c, left: h.length}, close: h.close}
	r := &x.request
	x.url = *c.like.URL
	r.URL = &x.url
	r.Host, r.Header, r.ContentLength, r.Close, r.Body = h.host, h.header, h.length, h.close, &x.body
	if h.length == 0 {
		r.Body = http.NoBody
	}
	if c.start == c.end {
		c.release()
	}
	return x, nil
}

// body reads the body of a request.
type body struct {
	conn   *conn
	left   int64 // bytes that nobody has read
	closed bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case b.left == 0:
		return 0, io.EOF
	}
	n, err := b.conn.readBody(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if errors.Is(err, io.EOF) && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.closed = true
	return nil
}

// readBody reads what has come with the head, and then from the connection itself.
func (c *conn) readBody(p []byte) (int, error) {
	if c.buffer == nil {
		return c.Read(p) //nolint:wrapcheck // net's own
	}
	n := copy(p, c.buffer[c.start:c.end])
	if c.start += n; c.start == c.end {
		c.release()
	}
	return n, nil
}

// lingerTimeout is net/http's.
const lingerTimeout = 500 * time.Millisecond

// linger waits for a client that is still sending to see the end of the connection: were it closed at once, the client
// would see it reset in place of the answer.
func (c *conn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(deadline(lingerTimeout)) != nil {
		return
	}
	c.release()
	buffer := takeBuffer()
	defer giveBuffer(buffer)
	for {
		if _, err := c.Read(buffer); err != nil {
			return
		}
	}
}
