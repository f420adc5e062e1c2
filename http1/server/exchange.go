package server

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// exchange is a request and its answer: the http.ResponseWriter, with the deadlines and the flush that
// http.ResponseController asks for. Answers of 1xx, and those that have no body by their status, are not for it.
type exchange struct {
	conn    *conn
	request http.Request
	body    body
	url     url.URL // the handler's own

	header  http.Header
	begun   bool   // the head is out, or waits to go
	chunked bool   // the answer does not say its length
	left    int64  // bytes of the answer that are to come, where it says
	close   bool   // the connection ends with it
	bounded bool   // the handler has said how long writes may take
	out     []byte // what waits to go out; nil while nothing does
	err     error  // of the first write that failed
}

// answer has the handler answer the request. True: another may follow on the connection.
func (c *conn) answer(x *exchange) bool {
	if !c.handle(x) {
		return false
	}
	c.release()
	switch {
	case !x.close:
		return c.phase.CompareAndSwap(busy, idle)
	case x.body.left > 0:
		c.linger()
	}
	return false
}

// handle runs the handler. False: the connection is good for nothing more.
func (c *conn) handle(x *exchange) (whole bool) {
	defer func() {
		x.body.closed = true
		x.failed(errOver)
		v := recover()
		if v == nil {
			return
		}
		x.giveOut()
		if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			c.server.logf("http: panic of a handler, and its stack: %s", debug.Stack()) // not its value, which may hold what was sent
		}
	}()
	c.server.rest.Handler.ServeHTTP(x, &x.request)
	return x.finish()
}

// errOver is what a write behind the handler's end gets.
var errOver = errors.New("the handler has returned")

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header {
	if x.header == nil {
		x.header = make(http.Header, likelyFields)
	}
	return x.header
}

// likelyFields is how many headers an answer has room for at first.
const likelyFields = 12

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if x.begun {
		x.conn.server.logf("http: superfluous WriteHeader(%d)", status)
		return
	}
	x.begun = true
	h := x.Header()
	length, err := strconv.ParseUint(h.Get("Content-Length"), 10, 62)
	x.left, x.chunked = int64(length), err != nil
	x.close = x.close || x.body.left > 0 || x.conn.server.closing.Load() || strings.EqualFold(h.Get("Connection"), "close")
	if x.close {
		h.Set("Connection", "close")
	}
	h.Del("Transfer-Encoding") // is not the handler's
	if x.chunked {
		h.Set("Transfer-Encoding", "chunked")
		h.Del("Content-Length")
	}
	if h.Get("Date") == "" {
		h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	x.out = appendHead(x.room(), status, h)
	x.header = nil // a stream that is held would hold it too
}

// appendHead appends the status line and the headers, in the order of their names.
func appendHead(to []byte, status int, h http.Header) []byte {
	to = append(to, "HTTP/1.1 "...)
	to = strconv.AppendInt(to, int64(status), 10)
	to = append(to, ' ')
	to = append(to, http.StatusText(status)...)
	var some [2 * likelyFields]string
	names := some[:0]
	for name := range h {
		if name != "" && !strings.ContainsFunc(name, notInName) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range h[name] {
			to = append(to, "\r\n"...)
			to = append(to, name...)
			to = append(to, ": "...)
			to = append(to, notInValue.Replace(value)...)
		}
	}
	return append(to, "\r\n\r\n"...)
}

// notInValue is what would end a header's value, and let another header or an answer follow.
var notInValue = strings.NewReplacer("\r", " ", "\n", " ")

// Write implements io.Writer.
func (x *exchange) Write(p []byte) (int, error) {
	if !x.begun {
		x.WriteHeader(http.StatusOK)
	}
	switch {
	case x.err != nil:
		return 0, x.err
	case len(p) == 0:
		return 0, nil // in chunks it would be the end
	case x.chunked:
		x.out = append(strconv.AppendInt(x.room(), int64(len(p)), 16), "\r\n"...)
		x.put(p, "\r\n")
	case int64(len(p)) > x.left:
		return 0, http.ErrContentLength
	default:
		x.left -= int64(len(p))
		x.put(p, "")
	}
	if x.err != nil {
		return 0, x.err
	}
	return len(p), nil
}

// room is what waits to go out, with room to append to.
func (x *exchange) room() []byte {
	if x.out == nil {
		x.out = takeBuffer()[:0]
	}
	return x.out
}

// put adds to what waits where it has room for that, and else sends it all.
func (x *exchange) put(p []byte, behind string) {
	out := x.room()
	if len(out)+len(p)+len(behind) <= cap(out) {
		x.out = append(append(out, p...), behind...)
		return
	}
	x.bound()
	all := net.Buffers{out, p, []byte(behind)}
	_, err := all.WriteTo(x.conn.Conn)
	x.failed(err)
	x.out = out[:0]
}

// FlushError is asked for by http.ResponseController.
func (x *exchange) FlushError() error {
	if !x.begun {
		x.WriteHeader(http.StatusOK)
	}
	if len(x.out) > 0 && x.err == nil {
		x.bound()
		_, err := x.conn.Write(x.out)
		x.failed(err)
	}
	x.giveOut()
	return x.err
}

// failed keeps why a write failed. Nothing goes out after it.
func (x *exchange) failed(err error) {
	if x.err == nil {
		x.err = err
	}
}

// giveOut gives the buffer of what has gone out back.
func (x *exchange) giveOut() {
	if x.out != nil {
		giveBuffer(x.out)
		x.out = nil
	}
}

// finish ends the answer. False: it could not be brought to its end.
func (x *exchange) finish() bool {
	if !x.begun {
		if x.Header().Get("Content-Length") == "" {
			x.header.Set("Content-Length", "0")
		}
		x.WriteHeader(http.StatusOK)
	}
	if x.chunked {
		x.put(nil, "0\r\n\r\n")
	}
	return x.FlushError() == nil && (x.chunked || x.left == 0)
}

// SetReadDeadline is asked for by http.ResponseController. It bounds how long the body may take; where that has come, it
// costs nothing.
func (x *exchange) SetReadDeadline(t time.Time) error {
	if c := x.conn; x.body.left > int64(c.end-c.start) {
		return c.SetReadDeadline(t) //nolint:wrapcheck // net's own
	}
	return nil
}

// SetWriteDeadline is asked for by http.ResponseController. It holds until the answer is out.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.bounded, x.conn.writesBound = true, !t.IsZero()
	return x.conn.SetWriteDeadline(t) //nolint:wrapcheck // net's own
}

// bound lifts the deadline of the answer before, where the handler has not set another: that is later than at its end,
// and most set one.
func (x *exchange) bound() {
	if !x.bounded && x.conn.writesBound {
		x.failed(x.SetWriteDeadline(time.Time{}))
	}
}
