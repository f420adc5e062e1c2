package mockvllm

import (
	"bytes"
	"cmp"
	"net"
	"net/http"
	"strconv"
	"time"
)

// maxBody limits a request body, in bytes. vLLM has no limit, but a broken test should fail rather than swap.
const maxBody = 256 << 20

const jsonType = "application/json"

// exchange is one request with its response and the fault that applies to it, if any.
type exchange struct {
	server        *Server
	w             http.ResponseWriter
	r             *http.Request
	arrived       time.Time
	body          []byte
	fault         *Fault
	faultsCleared <-chan struct{} // closed when the faults are cleared

	events, tokens int  // sent in a stream
	faultApplied   bool // to the stream
}

func (x *exchange) readBody() error {
	var body bytes.Buffer
	_, err := body.ReadFrom(http.MaxBytesReader(x.w, x.r.Body, maxBody))
	x.body = body.Bytes()
	return err
}

// hasFault reports whether a fault of this kind applies to the exchange.
func (x *exchange) hasFault(kind string) bool { return x.fault != nil && x.fault.Kind == kind }

// writeFailure writes an error response. Nothing may have been written before.
func (x *exchange) writeFailure(f *failure) {
	contentType := jsonType
	if x.server.spec.Rust && x.fault == nil {
		f = x.server.rustFailure(f)
	}
	if f.raw != nil {
		contentType = f.contentType
	}
	x.writeResponse(f.status, contentType, x.server.spec.errorBody(f))
}

func (x *exchange) writeJSON(body []byte) { x.writeResponse(http.StatusOK, jsonType, body) }

// writeResponse writes a plain response, damaged as the fault says.
func (x *exchange) writeResponse(status int, contentType string, body []byte) {
	if x.hasFault(faultGarbage) {
		body = []byte(cmp.Or(x.fault.Body, "<html>\x00\xff this is neither JSON nor an event </html>"))
	}
	header := x.w.Header()
	header["Content-Type"] = nil // an empty body has none; nil keeps net/http from sniffing one
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	if x.hasFault(faultResetMid) || x.hasFault(faultCut) {
		_, _ = x.w.Write(body[:len(body)/2])        // the response is broken anyway
		_ = http.NewResponseController(x.w).Flush() // as above
		x.endConn(x.hasFault(faultResetMid))
		return
	}
	_, _ = x.w.Write(body) // fails only if the client disconnected or the server is closing
}

// resetConn ends the connection with a TCP reset.
func (x *exchange) resetConn() { x.endConn(true) }

// closeConn ends the connection with an orderly close, before the response is complete.
func (x *exchange) closeConn() { x.endConn(false) }

func (x *exchange) endConn(reset bool) {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // not hijackable, as with httptest.ResponseRecorder
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0) // on failure the close is orderly, which still ends the connection
	}
	_ = conn.Close() // nothing depends on an orderly close
}
