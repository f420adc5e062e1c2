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

	"basegate/http1/pooled"
)

const (
	// readSize is the buffer for the head of an answer, in bytes.
	readSize = 4 << 10
	// writeSize is how much of a request goes out in one write with its head, in bytes.
	writeSize = 16 << 10
	// maxHead bounds the head of an answer, in bytes.
	maxHead = 1 << 20
	// maxInterim bounds how many answers of 1xx may come before the one that counts.
	maxInterim = 5
)

var (
	errHead    = errors.New("the head of the answer is longer than 1 MiB")
	errInterim = errors.New("too many answers of 1xx")
	errNoHTTP  = errors.New("what the backend sent is not HTTP")
	errField   = errors.New("a header holds a control character")
)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// conn is a connection to a backend. One request at a time owns it.
type conn struct {
	net.Conn
	origin  origin
	reader  *bufio.Reader   // of the head, and of what has come with it; nil between answers, and once it has been read to its end
	raw     syscall.RawConn // of the socket; nil where it has none
	lent    pooled.Reader
	silence silence
	head    int64       // bytes that the head of the answer may still have
	stop    func() bool // ends watch
	since   time.Time   // idle since
	beneath net.Conn    // TLS
	loose   bool        // it has sent more than it was asked for
}

func newConn(o origin, connected net.Conn) *conn {
	c := &conn{Conn: connected, beneath: connected, origin: o, raw: pooled.RawConn(connected)}
	c.silence.look = c.silence.try
	return c
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readSize) }}

// takeReader gets the buffer for a head.
func (c *conn) takeReader() {
	c.reader = readers.Get().(*bufio.Reader) //nolint:errcheck // the pool holds nothing else
	c.reader.Reset(headLimit{c})
}

// giveReader gives the buffer back: a connection that waits needs none.
func (c *conn) giveReader() {
	if c.reader != nil {
		c.reader.Reset(nil)
		readers.Put(c.reader)
		c.reader = nil
	}
}

// buffered is how much has come that nobody has read.
func (c *conn) buffered() int {
	if c.reader == nil {
		return 0
	}
	return c.reader.Buffered()
}

// Read reads what has come with the head, and then from the connection itself.
func (c *conn) Read(p []byte) (int, error) {
	if c.buffered() > 0 {
		return c.reader.Read(p) //nolint:wrapcheck // nothing but what is there
	}
	return c.Conn.Read(p) //nolint:wrapcheck // classified by who asked
}

// headLimit reads from the connection, and no more than the head may have while that is read.
type headLimit struct{ *conn }

func (l headLimit) Read(p []byte) (int, error) {
	if l.head <= 0 {
		return 0, errHead
	}
	n, err := l.Conn.Read(p)
	l.head -= int64(n)
	return n, err //nolint:wrapcheck // classified by who asked
}

// watch breaks the connection off when ctx ends.
func (c *conn) watch(ctx context.Context) {
	c.stop = context.AfterFunc(ctx, func() { c.SetDeadline(longAgo) }) //nolint:errcheck // fails on a closed one alone
}

// drop ends a connection that nothing more is to be had from.
func (c *conn) drop() {
	c.stop()
	c.giveReader()
	c.Close()
}

// ask sends the request and reads the head of its answer.
func (c *conn) ask(req *http.Request) (*http.Response, error) {
	sent := c.send(req)
	if errors.Is(sent, errField) {
		return nil, sent
	}
	// A backend that refuses a request may do so before it has read it all, and close.
	answer, err := c.receive(req)
	if err != nil && sent != nil {
		return nil, sent
	}
	return answer, err
}

var writeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeSize); return &b }}

// send writes the request: the head and the beginning of the body at once, then the rest.
func (c *conn) send(req *http.Request) error {
	buffer := writeBuffers.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
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

// appendHead appends the request line and the headers.
func appendHead(to []byte, req *http.Request) ([]byte, error) {
	to = append(to, req.Method...)
	to = append(to, ' ')
	to = append(to, req.URL.RequestURI()...)
	to = append(to, " HTTP/1.1\r\nHost: "...)
	to = append(to, req.URL.Host...)
	for name, values := range req.Header {
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) { // behind a control character a backend may read on as it likes
				return nil, fmt.Errorf("%s: %w", name, errField)
			}
			to = append(to, "\r\n"...)
			to = append(to, name...)
			to = append(to, ": "...)
			to = append(to, v...)
		}
	}
	if req.Body != nil {
		to = append(to, "\r\nContent-Length: "...)
		to = strconv.AppendInt(to, req.ContentLength, 10)
	}
	return append(to, "\r\n\r\n"...), nil
}

// receive reads the head of the answer that counts.
func (c *conn) receive(req *http.Request) (*http.Response, error) {
	c.takeReader()
	c.head = maxHead
	defer func() { c.head = math.MaxInt64 }()
	for range maxInterim {
		answer, err := http.ReadResponse(c.reader, req)
		if err != nil {
			return nil, unquoted(err)
		}
		if answer.StatusCode >= http.StatusOK {
			return answer, nil
		}
	}
	return nil, errInterim
}

// unquoted is an error without what net/http quotes of an answer that it cannot read: a prompt or a completion may be in
// it, and errors go to the log.
func unquoted(err error) error {
	var lost net.Error
	if errors.As(err, &lost) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errHead) {
		return err //nolint:wrapcheck // classified by who asked
	}
	return errNoHTTP
}

// readPooled is Lender's, for the connection.
func (c *conn) readPooled(take func() []byte, give func([]byte)) (buffer []byte, n int, err error) {
	if c.buffered() > 0 || c.raw == nil || c.Conn != c.beneath { // under TLS the socket has other bytes
		buffer = take()
		n, err = c.Read(buffer)
		return buffer, n, err
	}
	c.giveReader()
	return c.lent.Read(c.raw, take, give) //nolint:wrapcheck // classified by who asked
}

// PooledReader is a body from which can be read without a buffer to wait with.
type PooledReader interface {
	// ReadPooled is io.Reader's Read into a buffer from take that is taken only where there is something to put into it;
	// what is taken in vain goes back by give. The buffer is nil where nothing has been read.
	ReadPooled(take func() []byte, give func([]byte)) (buffer []byte, n int, err error)
}

var _ PooledReader = (*body)(nil)

// body is an answer's body. When it has been read to its end and is closed, the connection may serve again.
type body struct {
	from      io.Reader
	transport *Transport
	conn      *conn
	ctx       context.Context //nolint:containedctx // of the request
	last      bool            // the backend closes the connection behind this answer
	whole     bool
	closed    bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.from.Read(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.whole = true
		return n, io.EOF
	default:
		return n, caused(b.ctx, err)
	}
}

// ReadPooled implements Lender.
func (b *body) ReadPooled(take func() []byte, give func([]byte)) (buffer []byte, n int, err error) {
	if b.closed {
		return nil, 0, http.ErrBodyReadAfterClose
	}
	if from, ok := b.from.(*chunked); ok {
		buffer, n, err = from.readPooled(take, give)
	} else {
		buffer = take()
		n, err = b.from.Read(buffer)
	}
	switch {
	case errors.Is(err, io.EOF):
		b.whole = true
	case err != nil:
		err = caused(b.ctx, err)
	}
	return buffer, n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	quiet := b.conn.stop()
	clean := b.conn.buffered() == 0
	b.conn.giveReader()
	if quiet && b.whole && !b.last && !b.conn.loose && clean {
		b.transport.keep(b.conn)
		return nil
	}
	return b.conn.Close() //nolint:wrapcheck // nobody looks at it
}
