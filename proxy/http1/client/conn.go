package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"basegate/proxy/http1/pooled"
)

const (
	// readSize is the size of the buffer that a response head is read into, in bytes.
	readSize = 4 << 10
	// writeSize limits how much of a request is sent by the first write, head included, in bytes.
	writeSize = 16 << 10
	// maxHead limits a response head, interim responses included, in bytes.
	maxHead = 1 << 20
	// maxInterim limits how many responses are read to find one that is not a 1xx.
	maxInterim = 5
)

var (
	errHead    = errors.New("the response head is longer than 1 MiB")
	errInterim = errors.New("too many 1xx responses")
	errNoHTTP  = errors.New("the response is not valid HTTP")
	errField   = errors.New("the header field has a control character")
)

// pastDeadline makes every pending read and write fail at once.
var pastDeadline = time.Unix(1, 0)

// conn is a connection to a backend. It carries one request at a time, whose goroutine owns it.
type conn struct {
	net.Conn
	origin       origin
	reader       *bufio.Reader   // reads a head, and the bytes received with it; nil if there are none
	raw          syscall.RawConn // the TCP socket; nil if the connection has none
	pooledReader pooled.Reader
	check        connCheck
	headLeft     int64       // bytes that the response head may still have
	stopWatch    func() bool // ends watchContext
	idleSince    time.Time
	records      *recordConn // below TLS; nil without TLS

	unexpectedBytes bool // the backend sent more than its response
}

func newConn(o origin, connected net.Conn) *conn {
	c := &conn{Conn: connected, origin: o, raw: pooled.RawConn(connected)}
	c.check.tryPeek = c.check.peek
	return c
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readSize) }}

func (c *conn) getReader() {
	c.reader = readers.Get().(*bufio.Reader)
	c.reader.Reset(headReader{c})
}

// putReader returns the buffered reader to the pool: a waiting connection holds no buffer.
func (c *conn) putReader() {
	if c.reader != nil {
		c.reader.Reset(nil)
		readers.Put(c.reader)
		c.reader = nil
	}
}

// buffered returns the number of bytes received with the head and not yet read.
func (c *conn) buffered() int {
	if c.reader == nil {
		return 0
	}
	return c.reader.Buffered()
}

// Read reads the bytes received with the head first, then from the connection.
func (c *conn) Read(p []byte) (int, error) {
	if c.buffered() > 0 {
		return c.reader.Read(p)
	}
	return c.Conn.Read(p)
}

// headReader reads from the connection and fails once the head has exceeded its limit.
type headReader struct{ *conn }

func (r headReader) Read(p []byte) (int, error) {
	if r.headLeft <= 0 {
		return 0, errHead
	}
	n, err := r.Conn.Read(p)
	r.headLeft -= int64(n)
	return n, err
}

// watchContext makes reads and writes fail as soon as ctx ends.
func (c *conn) watchContext(ctx context.Context) {
	c.stopWatch = context.AfterFunc(ctx, func() { c.SetDeadline(pastDeadline) })
}

func (c *conn) discard() {
	c.stopWatch()
	c.putReader()
	c.Close()
}

func (c *conn) roundTrip(req *http.Request) (*http.Response, error) {
	writeErr := c.writeRequest(req)
	if errors.Is(writeErr, errField) {
		return nil, writeErr
	}
	// A backend may refuse a request, and close, before it has read the whole request: its response counts then.
	response, err := c.readHead(req)
	if err != nil && writeErr != nil {
		return nil, writeErr
	}
	return response, err
}

var writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeSize); return &b }}

// writeRequest writes the head and the beginning of the body in one write, then the rest of the body.
func (c *conn) writeRequest(req *http.Request) error {
	buffer := writeBuffers.Get().(*[]byte)
	defer writeBuffers.Put(buffer)
	out, err := appendHead((*buffer)[:0], req)
	if err != nil {
		return err
	}
	rest := req.ContentLength
	if room := min(int64(cap(out)-len(out)), rest); room > 0 {
		n, err := io.ReadFull(req.Body, out[len(out):len(out)+int(room)])
		if err != nil {
			return fmt.Errorf("read the request's body: %w", err)
		}
		out, rest = out[:len(out)+n], rest-room
	}
	if _, err := c.Write(out); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if rest == 0 {
		return nil
	}
	n, err := io.Copy(c.Conn, req.Body)
	switch {
	case err != nil:
		return fmt.Errorf("send: %w", err)
	case n != rest:
		return fmt.Errorf("read the request's body: %w", io.ErrUnexpectedEOF)
	}
	return nil
}

func appendHead(to []byte, req *http.Request) ([]byte, error) {
	to = append(to, req.Method...)
	to = append(to, ' ')
	to = append(to, req.URL.RequestURI()...)
	to = append(to, " HTTP/1.1\r\nHost: "...)
	to = append(to, req.URL.Host...)
	for name, values := range req.Header {
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) { // a line break, for example, would let a value add fields or a request
				return nil, fmt.Errorf("%s: %w", name, errField)
			}
			to = append(to, "\r\n"...)
			to = append(to, name...)
			to = append(to, ": "...)
			to = append(to, v...)
		}
	}
	if req.Close {
		to = append(to, "\r\nConnection: close"...)
	}
	if req.Body != nil {
		to = append(to, "\r\nContent-Length: "...)
		to = strconv.AppendInt(to, req.ContentLength, 10)
	}
	return append(to, "\r\n\r\n"...), nil
}

// readHead reads response heads until one that is not a 1xx.
func (c *conn) readHead(req *http.Request) (*http.Response, error) {
	c.getReader()
	c.headLeft = maxHead
	defer func() { c.headLeft = math.MaxInt64 }()
	for range maxInterim {
		response, err := http.ReadResponse(c.reader, req)
		if err != nil {
			return nil, redact(err)
		}
		if response.StatusCode >= http.StatusOK {
			return response, nil
		}
	}
	return nil, errInterim
}

// redact replaces an error in which net/http quotes a response that it cannot parse: the response may contain a prompt
// or a completion, and errors are logged.
func redact(err error) error {
	var netErr net.Error
	if errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errHead) {
		return err
	}
	return errNoHTTP
}

// readPooled reads as body.ReadPooled does.
func (c *conn) readPooled(get func() []byte, put func([]byte)) (buffer []byte, n int, err error) {
	if c.buffered() > 0 || c.raw == nil || c.records != nil { // under TLS the socket carries ciphertext
		buffer = get()
		n, err = c.Read(buffer)
		return buffer, n, err
	}
	c.putReader()
	return c.pooledReader.Read(c.raw, get, put)
}

// body is a response body. Once it has been read to its end and closed, the connection is reused.
type body struct {
	reader    io.Reader
	transport *Transport
	conn      *conn
	ctx       context.Context
	connClose bool // the backend closes the connection after this response
	complete  bool // read to its end
	closed    bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.reader.Read(p)
	return n, b.readErr(err)
}

// readErr returns the error for the caller of a read, and records the end of the body.
func (b *body) readErr(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		b.complete = true
		return io.EOF
	default:
		return contextCause(b.ctx, err)
	}
}

// ReadPooled implements stream.PooledReader.
func (b *body) ReadPooled(get func() []byte, put func([]byte)) (buffer []byte, n int, err error) {
	if b.closed {
		return nil, 0, http.ErrBodyReadAfterClose
	}
	if chunked, ok := b.reader.(*chunkedReader); ok {
		buffer, n, err = chunked.readPooled(get, put)
	} else {
		buffer = get()
		n, err = b.reader.Read(buffer)
	}
	return buffer, n, b.readErr(err)
}

func (b *body) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	contextAlive := b.conn.stopWatch()
	unread := b.conn.buffered() > 0 || b.conn.unexpectedBytes
	b.conn.putReader()
	if contextAlive && b.complete && !b.connClose && !unread {
		b.transport.putIdle(b.conn)
		return nil
	}
	return b.conn.Close()
}
