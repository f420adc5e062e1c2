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

// response is a request and the http.ResponseWriter of its response, with the deadlines and the flush that
// http.ResponseController calls. It does not support 1xx responses and statuses without a body.
type response struct {
	conn    *conn
	request http.Request
	body    body
	url     url.URL // the request's, which the handler may change

	header      http.Header
	wroteHeader bool   // the head is sent or in out
	chunked     bool   // the response has no Content-Length
	left        int64  // body bytes left to write, if the response has a Content-Length
	close       bool   // the connection ends with this response
	deadlineSet bool   // the handler has set a write deadline
	out         []byte // buffered bytes to send; nil if there are none
	err         error  // of the first write that failed
}

// respond calls the handler for a request. It returns true if the connection can carry another one.
func (c *conn) respond(w *response) bool {
	if !c.callHandler(w) {
		return false
	}
	c.releaseBuffer()
	switch {
	case !w.close:
		return c.state.CompareAndSwap(stateActive, stateIdle)
	case w.body.left > 0:
		c.linger()
	}
	return false
}

// callHandler runs the handler and completes the response. If it returns false, the connection must be closed.
func (c *conn) callHandler(w *response) (complete bool) {
	defer func() {
		w.body.closed = true
		w.setError(errHandlerReturned)
		v := recover()
		if v == nil {
			return
		}
		w.releaseOut()
		if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			logf(c.server.fallback, "http: panic in a handler: %s", debug.Stack()) // without its value, which may contain a prompt
		}
	}()
	c.server.fallback.Handler.ServeHTTP(w, &w.request)
	return w.finish()
}

// errHandlerReturned is the error of writes after the handler has returned.
var errHandlerReturned = errors.New("the handler has returned")

func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header, typicalFields)
	}
	return w.header
}

// typicalFields is the number of header fields that a response has room for initially.
const typicalFields = 12

func (w *response) WriteHeader(status int) {
	if w.wroteHeader {
		logf(w.conn.server.fallback, "http: superfluous WriteHeader(%d)", status)
		return
	}
	w.wroteHeader = true
	h := w.Header()
	length, err := strconv.ParseUint(h.Get("Content-Length"), 10, 62)
	w.left, w.chunked = int64(length), err != nil
	w.close = w.close || w.body.left > 0 || w.conn.server.closing.Load() || strings.EqualFold(h.Get("Connection"), "close")
	if w.close {
		h.Set("Connection", "close")
	}
	h.Del("Transfer-Encoding") // only the server chooses the encoding
	if w.chunked {
		h.Set("Transfer-Encoding", "chunked")
		h.Del("Content-Length")
	}
	if h.Get("Date") == "" {
		h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	w.out = appendHead(w.outBuffer(), status, h)
	w.header = nil // a waiting stream would hold it in memory
}

// appendHead appends the status line and the header fields, sorted by name.
func appendHead(to []byte, status int, h http.Header) []byte {
	to = append(to, "HTTP/1.1 "...)
	to = strconv.AppendInt(to, int64(status), 10)
	to = append(to, ' ')
	to = append(to, http.StatusText(status)...)
	var array [2 * typicalFields]string
	names := array[:0]
	for name := range h {
		if name != "" && !strings.ContainsFunc(name, invalidInName) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range h[name] {
			to = append(to, "\r\n"...)
			to = append(to, name...)
			to = append(to, ": "...)
			to = append(to, lineBreaks.Replace(value)...)
		}
	}
	return append(to, "\r\n\r\n"...)
}

// lineBreaks replaces line breaks in a field's value, which would start another field or another response.
var lineBreaks = strings.NewReplacer("\r", " ", "\n", " ")

func (w *response) Write(p []byte) (int, error) {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case len(p) == 0:
		return 0, nil // an empty chunk would end the body
	case w.chunked:
		w.out = append(strconv.AppendInt(w.outBuffer(), int64(len(p)), 16), "\r\n"...)
		w.write(p, "\r\n")
	case int64(len(p)) > w.left:
		return 0, http.ErrContentLength
	default:
		w.left -= int64(len(p))
		w.write(p, "")
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// outBuffer returns out, and gets a buffer for it if it has none.
func (w *response) outBuffer() []byte {
	if w.out == nil {
		w.out = getBuffer()[:0]
	}
	return w.out
}

// write appends p and suffix to out if they fit; otherwise it sends out, p and suffix.
func (w *response) write(p []byte, suffix string) {
	out := w.outBuffer()
	if len(out)+len(p)+len(suffix) <= cap(out) {
		w.out = append(append(out, p...), suffix...)
		return
	}
	w.clearDeadline()
	all := net.Buffers{out, p, []byte(suffix)}
	_, err := all.WriteTo(w.conn.Conn)
	w.setError(err)
	w.out = out[:0]
}

// FlushError implements the flush of http.ResponseController.
func (w *response) FlushError() error {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	if len(w.out) > 0 && w.err == nil {
		w.clearDeadline()
		_, err := w.conn.Write(w.out)
		w.setError(err)
	}
	w.releaseOut()
	return w.err
}

// setError records the first error of a write. Nothing is sent after it.
func (w *response) setError(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *response) releaseOut() {
	if w.out != nil {
		putBuffer(w.out)
		w.out = nil
	}
}

// finish sends the rest of the response. It returns false if the response is incomplete.
func (w *response) finish() bool {
	if !w.wroteHeader {
		if w.Header().Get("Content-Length") == "" {
			w.header.Set("Content-Length", "0")
		}
		w.WriteHeader(http.StatusOK)
	}
	if w.chunked {
		w.write(nil, "0\r\n\r\n")
	}
	return w.FlushError() == nil && (w.chunked || w.left == 0)
}

// SetReadDeadline implements that of http.ResponseController. It limits the time to read the body, and makes no system
// call if the whole body has been received.
func (w *response) SetReadDeadline(t time.Time) error {
	if c := w.conn; w.body.left > int64(c.end-c.start) {
		return c.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline implements that of http.ResponseController. The deadline holds until the response is complete.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.deadlineSet, w.conn.hasWriteDeadline = true, !t.IsZero()
	return w.conn.SetWriteDeadline(t)
}

// clearDeadline removes the write deadline that the previous response has left on the connection, unless the handler
// has set another. It runs before a write, not at the end of a response, because most handlers set a deadline of
// their own.
func (w *response) clearDeadline() {
	if !w.deadlineSet && w.conn.hasWriteDeadline {
		w.setError(w.SetWriteDeadline(time.Time{}))
	}
}
