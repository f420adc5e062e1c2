package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"basegate/proxy/http1/pooled"
	"basegate/proxy/http1/strict"
)

// conn is a client's connection. One goroutine serves it, and holds a buffer only while there are unread bytes.
type conn struct {
	net.Conn
	server   *Server
	listener *handoffListener
	raw      syscall.RawConn
	reader   pooled.Reader
	template *http.Request      // what all requests of the connection have in common
	cancel   context.CancelFunc // ends the context of the connection's requests
	state    atomic.Int32
	watchID  uint64 // of its hang-up watch; 0 before its first request

	hasWriteDeadline bool

	buffer     []byte // nil if there are no unread bytes
	start, end int    // of the unread bytes in buffer
}

// The states of a connection.
const (
	stateIdle   int32 = iota // waiting for a request, or reading its head: Shutdown closes it
	stateActive              // handling a request
	stateClosed              // closed by Shutdown or Close
)

func newConn(s *Server, l *handoffListener, accepted net.Conn, raw syscall.RawConn) *conn {
	c := &conn{Conn: accepted, server: s, listener: l, raw: raw}
	ctx, cancel := context.WithCancel(s.baseContext)
	c.cancel = cancel
	c.template = (&http.Request{
		Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: accepted.RemoteAddr().String(),
	}).WithContext(ctx)
	return c
}

var buffers = sync.Pool{New: func() any { return new([headSize]byte) }}

func getBuffer() []byte { return buffers.Get().(*[headSize]byte)[:] }

func putBuffer(b []byte) { buffers.Put((*[headSize]byte)(b[:headSize])) }

func (c *conn) releaseBuffer() {
	if c.buffer != nil {
		putBuffer(c.buffer)
		c.buffer = nil
	}
}

// serve handles requests until the connection ends or is handed to net/http.
func (c *conn) serve() {
	handedOff := false
	defer c.server.remove(c)
	defer c.cancel()
	defer func() {
		if !handedOff {
			c.shut()
		}
	}()
	timeout := c.server.fallback.ReadHeaderTimeout
	for c.awaitRequest(timeout) {
		w, err := c.readRequest()
		fallback := errors.Is(err, errFallback)
		if err != nil && !fallback || !c.state.CompareAndSwap(stateIdle, stateActive) {
			return
		}
		if fallback {
			handedOff = true
			c.handoff()
			return
		}
		if !c.respond(w) {
			return
		}
		timeout = c.server.fallback.IdleTimeout
	}
}

// shut closes the connection and releases what it holds. Only the goroutine of serve may call it.
func (c *conn) shut() {
	c.releaseBuffer()
	if c.watchID != 0 {
		c.server.hangups.remove(c.watchID)
	}
	c.Close()
}

// abort closes the connection in any state.
func (c *conn) abort() {
	c.state.Store(stateClosed)
	c.Close()
	c.cancel() // the kernel reports no hang-up of a closed descriptor
}

func (c *conn) closeIfIdle() {
	if c.state.CompareAndSwap(stateIdle, stateClosed) {
		c.Close()
	}
}

// handoff gives the connection to net/http, together with the bytes read from it.
func (c *conn) handoff() {
	if c.watchID != 0 {
		c.server.hangups.unwatch(c.raw, c.watchID)
	}
	unread := bytes.Clone(c.buffer[c.start:c.end])
	c.releaseBuffer()
	c.SetDeadline(time.Time{})
	c.listener.handoff(strict.NewConn(c.Conn, unread))
}

// deadlineAfter returns the time at which timeout ends; as in net/http, 0 is no deadline.
func deadlineAfter(timeout time.Duration) time.Time {
	if timeout <= 0 {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

// maxStrayBytes limits the line breaks skipped before a request, as in net/http: some clients send them after a body.
const maxStrayBytes = 4

// awaitRequest blocks until the first bytes of a request are in the buffer, and holds no buffer while waiting. It
// returns false if the connection ends or times out first.
func (c *conn) awaitRequest(timeout time.Duration) bool {
	if c.server.closing.Load() || c.SetReadDeadline(deadlineAfter(timeout)) != nil {
		return false
	}
	strays := 0
	if c.watchID == 0 {
		strays = maxStrayBytes // none are allowed before the first request
	}
	for {
		buffer, n, err := c.reader.Read(c.raw, getBuffer, putBuffer)
		c.buffer, c.start, c.end = buffer, 0, n
		if err != nil {
			return false
		}
		for ; c.start < n && strays < maxStrayBytes && (buffer[c.start] == '\r' || buffer[c.start] == '\n'); c.start++ {
			strays++
		}
		if c.start < n {
			c.start, c.end = 0, copy(buffer, buffer[c.start:n])
			return true
		}
		c.releaseBuffer()
	}
}

// readRequest reads the head of a request, and returns errFallback if net/http must serve it.
func (c *conn) readRequest() (*response, error) {
	for hasDeadline := c.watchID == 0; ; { // awaitRequest has set that of the first head
		read := c.buffer[:c.end]
		matched, err := findRoute(c.server.routes, read)
		if err != nil {
			return nil, err
		}
		if i := bytes.Index(read, headEnd); i >= 0 { // no request line contains headEnd, so the route is known
			h, err := parseHead(read[len(matched.requestLine) : i+len(headEnd)])
			if err != nil {
				return nil, err
			}
			return c.newResponse(matched.path, h, i+len(headEnd))
		}
		if c.end == len(c.buffer) || hasBareLF(read) {
			return nil, errFallback
		}
		if !hasDeadline {
			hasDeadline = true
			c.SetReadDeadline(deadlineAfter(c.server.fallback.ReadHeaderTimeout))
		}
		n, err := c.Read(c.buffer[c.end:])
		if c.end += n; n == 0 && err != nil {
			return nil, err
		}
	}
}

// hasBareLF returns whether a line of an incomplete head ends without a CR: net/http refuses the request, and must not
// wait for the rest of a head that the client has ended in this way.
func hasBareLF(head []byte) bool {
	for line := range bytes.Lines(head) {
		if line[len(line)-1] == '\n' && !bytes.HasSuffix(line, lineEnd) {
			return true
		}
	}
	return false
}

// newResponse returns the response to a request of path, whose body begins at start in the buffer.
func (c *conn) newResponse(path string, h head, start int) (*response, error) {
	if int64(c.end-start) > h.length {
		return nil, errFallback // a pipelined request follows the body
	}
	if c.watchID == 0 {
		var err error
		if c.watchID, err = c.server.hangups.watch(c.raw, c.cancel); err != nil {
			return nil, errFallback
		}
	}
	if int64(c.end-start) < h.length {
		c.SetReadDeadline(time.Time{})
	}
	c.start = start
	w := &response{conn: c, request: *c.template, body: body{conn: c, left: h.length}, close: h.close}
	r := &w.request
	w.url.Path = path
	r.URL, r.RequestURI = &w.url, path
	r.Host, r.Header, r.ContentLength, r.Close, r.Body = h.host, h.header, h.length, h.close, &w.body
	if h.length == 0 {
		r.Body = http.NoBody
	}
	if c.start == c.end {
		c.releaseBuffer()
	}
	return w, nil
}

// body is the body of a request.
type body struct {
	conn   *conn
	left   int64 // bytes not read yet
	closed bool
}

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

func (b *body) Close() error {
	b.closed = true
	return nil
}

// readBody reads the bytes received with the head first, then from the connection.
func (c *conn) readBody(p []byte) (int, error) {
	if c.buffer == nil {
		return c.Read(p)
	}
	n := copy(p, c.buffer[c.start:c.end])
	if c.start += n; c.start == c.end {
		c.releaseBuffer()
	}
	return n, nil
}

// lingerTimeout is net/http's.
const lingerTimeout = 500 * time.Millisecond

// linger closes the sending side and discards what the client still sends, until it has closed too or lingerTimeout has
// passed: if the connection were closed with bytes unread, the client would see a reset instead of the response.
func (c *conn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(deadlineAfter(lingerTimeout)) != nil {
		return
	}
	c.releaseBuffer()
	buffer := getBuffer()
	defer putBuffer(buffer)
	for {
		if _, err := c.Read(buffer); err != nil {
			return
		}
	}
}
