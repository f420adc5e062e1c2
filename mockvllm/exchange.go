package mockvllm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// maxBody bounds a request's body. vLLM does not, but a test that goes wrong should fail rather than swap.
const maxBody = 256 << 20

// An exchange is one request with its answer and the fault that strikes it, if any.
type exchange struct {
	server        *Server
	w             http.ResponseWriter
	r             *http.Request
	arrived       time.Time
	body          []byte
	fault         *Fault
	faultsCleared <-chan struct{} // closed when the faults are
}

func (x *exchange) readBody() error {
	var body bytes.Buffer
	if length := x.r.ContentLength; length > 0 && length <= maxBody {
		body.Grow(int(length) + bytes.MinRead)
	}
	n, err := body.ReadFrom(io.LimitReader(x.r.Body, maxBody+1))
	if err == nil && n > maxBody {
		err = fmt.Errorf("body over %d bytes", maxBody)
	}
	x.body = body.Bytes()
	return err
}

// hasFault tells whether the fault is of the kind.
func (x *exchange) hasFault(kind string) bool { return x.fault != nil && x.fault.Kind == kind }

// writeFailure answers with a failure; nothing of an answer has been written yet.
func (x *exchange) writeFailure(f *failure) {
	contentType := "application/json"
	if f.raw != nil {
		contentType = f.contentType
	}
	status := f.status
	if f.asOK || f.engineError && x.server.spec.engineErrorsAsOK {
		status = http.StatusOK
	}
	x.writeResponse(status, contentType, x.server.spec.errorBody(f))
}

// writeJSON answers 200 with a body.
func (x *exchange) writeJSON(body []byte) { x.writeResponse(http.StatusOK, "application/json", body) }

// writeResponse writes a plain answer, damaged as the fault wants it.
func (x *exchange) writeResponse(status int, contentType string, body []byte) {
	body = x.corruptBody(body)
	header := x.w.Header()
	header["Content-Type"] = nil // an empty body has none, and net/http must not guess one
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	switch {
	case x.hasFault(faultResetMid):
		x.writePartialBody(body)
		x.resetConn()
	case x.hasFault(faultCut):
		x.writePartialBody(body)
		x.closeConn()
	case x.hasFault(faultSlow):
		_ = x.writeSlowly(body) // the client has left, or the server is closing: nobody to tell
	default:
		_, _ = x.w.Write(body) // idem
	}
}

// writePartialBody sends the part of a body that goes out before it breaks off: half unless the fault says how much.
func (x *exchange) writePartialBody(body []byte) {
	part := x.fault.AfterBytes
	if part == 0 {
		part = len(body) / 2
	}
	_, _ = x.w.Write(body[:min(part, len(body))]) // the answer is to break anyway
	_ = http.NewResponseController(x.w).Flush()   // idem
}

// writeSlowly writes in slices with the fault's delay after each.
func (x *exchange) writeSlowly(data []byte) error {
	slice := x.fault.Slice
	if slice == 0 {
		slice = max(1, len(data))
	}
	for len(data) > 0 {
		part := data[:min(slice, len(data))]
		if _, err := x.w.Write(part); err != nil {
			return err
		}
		if err := http.NewResponseController(x.w).Flush(); err != nil {
			return err
		}
		if err := pause(x.r.Context(), x.fault.Delay); err != nil {
			return err
		}
		data = data[len(part):]
	}
	return nil
}

// resetConn ends the connection by a TCP resetConn, hangUp by an orderly close; neither finishes the answer.
func (x *exchange) resetConn() { x.endConn(true) }

func (x *exchange) closeConn() { x.endConn(false) }

func (x *exchange) endConn(abruptly bool) {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // no connection to take over, as in a recorder: the next best end
	}
	resetOrClose(conn, abruptly)
}

func resetOrClose(conn net.Conn, abruptly bool) {
	if tcp, ok := conn.(*net.TCPConn); ok && abruptly {
		_ = tcp.SetLinger(0) // without it the close is orderly, which still ends the connection
	}
	_ = conn.Close() // it is to be gone, however
}

// pause waits, unless the request ends first.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
