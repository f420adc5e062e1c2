package proxy

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	apierr "basegate/errors"
)

// The status and the code that the log and the ledger record for a client that disconnected before its response was
// complete: nginx's status, and a code that no client ever sees.
const (
	statusClientGone             = 499
	codeClientGone   apierr.Code = "client_gone"
)

// clientGone records that the client has disconnected before its response was complete.
func (d *delivery) clientGone() { d.status, d.code = statusClientGone, codeClientGone }

// fail sends err to the client: as a response, or as the last event of a stream that has begun.
func (s *Server) fail(x *exchange, err error) error {
	if err == nil {
		return nil
	}
	d := &x.delivery
	if errors.Is(err, errClientGone) {
		d.clientGone()
		panic(http.ErrAbortHandler) // otherwise the server would end the response as if it were complete
	}
	e := apierr.From(err)
	d.code, d.failure = e.Code, e
	if e.Code == apierr.Internal {
		s.log.Error("internal error", zap.String("request_id", x.id), zap.Error(e))
	}
	if body := x.timedOut(e); body != nil {
		return s.sendTimeout(x, body, e.Code)
	}
	switch {
	case d.streaming:
		s.sendErrorEvent(x, e)
	case d.status != 0:
		panic(http.ErrAbortHandler) // a plain response has begun: cutting the connection shows that it is incomplete
	default:
		s.sendError(x, e)
	}
	return nil
}

// sendError sends an error as the whole response.
func (s *Server) sendError(x *exchange, e *apierr.Error) {
	x.discardBody()
	e.SetHeaders(x.w.Header())
	body := append(x.appendError(nil, e), '\n')
	s.writeHeader(x, e.Status(), "application/json", len(body), e.Code)
	if _, err := x.w.Write(body); err != nil {
		x.delivery.clientGone()
	}
}

// sendTimeout sends the response of a dialect to a request that has timed out, which is no error there.
func (s *Server) sendTimeout(x *exchange, body []byte, code apierr.Code) error {
	s.writeHeader(x, http.StatusOK, "application/json", len(body), code)
	if _, err := x.w.Write(body); err != nil {
		x.delivery.clientGone()
	}
	return nil
}

// sendErrorEvent ends a stream with one error event and no [DONE].
func (s *Server) sendErrorEvent(x *exchange, e *apierr.Error) {
	event := append(s.lateHeaders(x, e), "data: "...)
	event = x.appendError(event, e)
	event = append(event, "\n\n"...)
	if err := x.send(event); err != nil {
		x.delivery.clientGone()
	}
}

// writeHeader sends status and header of a response of known length; code is empty on success.
func (s *Server) writeHeader(x *exchange, status int, contentType string, length int, code apierr.Code) {
	s.setHeaders(x, code)
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(length))
	x.delivery.status = status
	x.extendWriteDeadline()
	x.w.WriteHeader(status)
}

// sendBody sends a whole successful response, whose body may be in several pieces.
func (s *Server) sendBody(x *exchange, contentType string, pieces ...[]byte) error {
	length := 0
	for _, p := range pieces {
		length += len(p)
	}
	s.writeHeader(x, http.StatusOK, contentType, length, "")
	for _, p := range pieces {
		if _, err := x.w.Write(p); err != nil {
			return errClientGone
		}
	}
	x.delivery.complete = true
	return nil
}

// send writes part of a stream and flushes it.
func (x *exchange) send(b []byte) error {
	defer x.delivery.keepalive.hold()()
	x.extendWriteDeadline()
	if _, err := x.w.Write(b); err != nil {
		return errClientGone
	}
	if err := http.NewResponseController(x.w).Flush(); err != nil {
		return errClientGone
	}
	return nil
}

// extendWriteDeadline limits how long a client that does not read can hold the request. It moves the deadline at most
// once a second, so that calling it for every event costs nothing. The deadline is later than the idle timeout by
// writeSlack: over HTTP/2 an expired deadline ends the stream even without a write, and the error event that reports the
// idle timeout must still be sent. The server clears the deadline before the connection's next response.
func (x *exchange) extendWriteDeadline() {
	now := time.Now()
	if now.Sub(x.delivery.deadlineSetAt) < time.Second {
		return
	}
	if http.NewResponseController(x.w).SetWriteDeadline(now.Add(x.settings.IdleTimeout+writeSlack)) == nil {
		x.delivery.deadlineSetAt = now
	}
}

// writeSlack is longer than the second in which the write deadline is not moved.
const writeSlack = 3 * time.Second
