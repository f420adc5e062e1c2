package proxy

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"basegate/admission"
	"basegate/budget"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/identity"
	"basegate/validate"
)

// exchange is one request and what has become known of it on its way.
type exchange struct {
	w        http.ResponseWriter
	r        *http.Request
	id       string
	arrived  time.Time
	address  string
	settings *Settings
	bodyRead bool // whole, so that none of it is still on its way

	guest       *guest // who asks from within; nil: whoever has the key
	identity    identity.Principal
	payer       budget.Payer // who is charged, with the caps in force
	request     *validate.Request
	model       *fleet.Model
	slot        *admission.Slot
	prompt      promptCount
	counting    counting
	reservation *budget.Reservation
	backend     *fleet.Backend // of the last attempt
	attempts    int
	asked       bool // a backend is, or was when the client left, at work on the request

	streaming bool // the status line and the first event are out: an error is now an event
	finished  bool // the answer is out whole
	status    int
	code      apierr.Code // empty for a success
	failure   error       // what the client was told, with its cause

	writesBound time.Time // when the deadline for writes was last moved

	echoed     func(choice int) int64 // tokens of the prompt in each choice, as counted before the first attempt; nil: none
	transcript *transcript            // of the stream that the client gets
	delivered  []delivered            // by choice, of an answer whose price the backend has not told
	usage      usage                  // what is charged
	settled    bool                   // the charge is made

	queued     time.Duration // in the key's queue, and for the reservations of others
	sent       time.Time     // to the backend, by the last attempt
	upstream   time.Duration // from there to the failure, the whole answer or the first event
	firstToken time.Duration // since the request arrived
}

// usage is what an answer cost, in tokens.
type usage struct {
	prompt, completion int64
	known              bool
}

// exchangeContext is echo's context of a request under /v1.
type exchangeContext struct {
	echo.Context
	exchange *exchange
}

func exchangeOf(c echo.Context) *exchange {
	return c.(*exchangeContext).exchange //nolint:errcheck,forcetypeassert // the middleware of the group makes it
}

// requestIDs are the alphabet of request ids, whose order is that of what they stand for.
var requestIDs = base32.HexEncoding.WithPadding(base32.NoPadding)

// newRequestID is the time in milliseconds and 80 random bits. The ledger's rows are found by their ids: as each is
// greater than the ones before, the rows of a transaction lie together in that index, and not each on a page of its own.
func newRequestID(now time.Time) string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], uint64(now.UnixMilli())<<16)
	rand.Read(id[6:]) // never fails
	return "req_" + requestIDs.EncodeToString(id[:])
}

// exchange is the middleware around every path under /v1: it begins the exchange, renders what the handler returns,
// and writes the one log line.
func (s *Server) exchange(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !IsAPI(c.Request().URL.Path) {
			return next(c)
		}
		x := s.begin(c.Response().Writer, c.Request())
		return s.run(x, func() error { return RoutingError(c, next(&exchangeContext{c, x})) })
	}
}

// begin makes the exchange of a request that has just come.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) *exchange {
	now := time.Now()
	x := &exchange{w: w, r: r, id: newRequestID(now), arrived: now, settings: s.settings.Load()}
	x.address = x.settings.ClientAddress(x.r)
	x.w.Header().Set("X-Request-Id", x.id)
	return x
}

// run has the request handled, and brings it to its end.
func (s *Server) run(x *exchange, handle func() error) error {
	defer s.finish(x)
	if !s.enter() {
		x.w.Header().Set("Connection", "close")
		return s.fail(x, apierr.Overload("the gateway is shutting down", time.Second, nil))
	}
	defer s.leave()
	return s.fail(x, s.guarded(x, handle))
}

// guarded turns a panic of the handler into an error. It keeps the frames of this goroutine and not the panic's
// value, which may hold a prompt.
func (s *Server) guarded(x *exchange, handle func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			panic(v)
		}
		s.log.Error("panic", zap.String("request_id", x.id), zap.Strings("frames", frames()))
		err = apierr.Unexpected(errPanic)
	}()
	return handle()
}

var errPanic = errors.New("panic, see the log line of its own")

// frames are the functions and lines under a panic, without arguments.
func frames() []string {
	var counters [32]uintptr
	rest := runtime.CallersFrames(counters[:runtime.Callers(4, counters[:])])
	var out []string
	for {
		f, more := rest.Next()
		out = append(out, f.Function+" "+f.File+":"+strconv.Itoa(f.Line))
		if !more {
			return out
		}
	}
}

// fail renders err to the client: as an answer, or as the last event of a stream that has begun. After a client that
// left there is nobody to tell.
func (s *Server) fail(x *exchange, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errClientGone) {
		x.status, x.code = statusClientGone, codeClientGone
		panic(http.ErrAbortHandler) // or the server would end the answer as if it were whole
	}
	e := apierr.From(err)
	x.code, x.failure = e.Code, e
	if e.Code == apierr.Internal {
		s.log.Error("internal error", zap.String("request_id", x.id), zap.Error(e))
	}
	if x.streaming {
		x.failStream(e)
		return nil
	}
	if x.status != 0 {
		panic(http.ErrAbortHandler) // a plain answer has begun: cut the connection, so that it does not look whole
	}
	x.discardBody()
	x.status = e.Code.Status()
	h := x.w.Header()
	e.SetHeaders(h)
	s.setHeaders(x, e.Code)
	h.Set("Content-Type", "application/json")
	body := append(e.AppendJSON(nil, x.id), '\n')
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.boundWrites()
	x.w.WriteHeader(x.status)
	if _, err := x.w.Write(body); err != nil {
		x.code = codeClientGone
	}
	return nil
}

// failStream ends a stream with one error event and no [DONE].
func (x *exchange) failStream(e *apierr.Error) {
	event := append([]byte("data: "), e.AppendJSON(nil, x.id)...)
	event = append(event, "\n\n"...)
	if err := x.send(event); err != nil {
		x.code = codeClientGone
	}
}

// send writes to the client and flushes, so that nothing waits in a buffer.
func (x *exchange) send(b []byte) error {
	x.boundWrites()
	if _, err := x.w.Write(b); err != nil { //nolint:gosec // JSON or events by its content type, which no browser takes for a page
		return errClientGone
	}
	if err := http.NewResponseController(x.w).Flush(); err != nil {
		return errClientGone
	}
	return nil
}

// setHeaders sets what every answer says of its backend, its budget and its times; code is empty for a success.
func (s *Server) setHeaders(x *exchange, code apierr.Code) {
	s.setBudgetHeaders(x)
	h := x.w.Header()
	if x.backend != nil {
		h.Set("X-Acs-Upstream-Model", x.model.Checkpoint())
		if x.backend.GPU != "" {
			h.Set("X-Acs-Upstream-Gpu", x.backend.GPU)
		}
	}
	if code.FromUpstream() {
		h.Set("X-Acs-Upstream-Error-Kind", string(code))
	}
	if x.request != nil {
		if tag, ok := x.request.UserTag(); ok {
			h.Set("X-Acs-User", tag)
		}
	}
	h.Set("Server-Timing", x.serverTiming())
}

// serverTiming is the Server-Timing header, in milliseconds.
func (x *exchange) serverTiming() string {
	return "queue;dur=" + milliseconds(x.queued) + ", upstream;dur=" + milliseconds(x.upstream)
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(inMilliseconds(d), 'f', 3, 64)
}

// What the log says of a client that left before its answer was whole: nginx's status, and a code of our own that
// no client ever sees.
const (
	statusClientGone             = 499
	codeClientGone   apierr.Code = "client_gone"
)

// errClientGone is the cause of a request whose client left.
var errClientGone = errors.New("the client left")

// over tells whether the request has come to its end from this side: the client left, or the gateway stops.
func (x *exchange) over() bool { return x.r.Context().Err() != nil }

// ending is the error of a request that is over.
func (x *exchange) ending() error {
	if cause := context.Cause(x.r.Context()); !errors.Is(cause, context.Canceled) {
		return apierr.Overload("the gateway is shutting down", time.Second, cause)
	}
	return errClientGone
}

// boundWrites limits how long a client that does not read can hold the request. Often called, it moves the deadline
// once a second, which costs an event nothing. The deadline is later by writeSlack: it must not pass while the stream
// waits for the backend, which ends a stream of HTTP/2, and the error event that tells of the backend's silence is to
// arrive. The server lifts it before it writes the next answer.
func (x *exchange) boundWrites() {
	now := time.Now()
	if now.Sub(x.writesBound) < time.Second {
		return
	}
	if http.NewResponseController(x.w).SetWriteDeadline(now.Add(x.settings.IdleTimeout+writeSlack)) == nil {
		x.writesBound = now
	}
}

// writeSlack is more than the second within which the deadline for writes is not moved.
const writeSlack = 3 * time.Second
