package proxy

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/usage"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/identity"
	"basegate/proxy/stream"
	"basegate/validate"
)

// exchange is one request and its response. The handler's steps fill it in from top to bottom.
type exchange struct {
	w        http.ResponseWriter
	r        *http.Request
	id       string
	settings *Settings // in force when the request arrived
	endpoint endpoint

	caller      caller
	request     *validate.Request    // nil before the body has been validated
	body        []byte               // of which that request was made, in a pooled buffer; nil for a line of a batch
	model       *fleet.Model         // nil before it has been found
	memory      admission.Allocation // what the request holds, its response included
	turns       *admission.Turns     // of calls of the tokenizer
	prompt      prompt
	scoring     *scoring // nil unless the request is a log-likelihood
	reservation budget.Reservation
	attempts    attempts
	charge      charge
	delivery    delivery
	receipt     *receiptState // nil unless the request asked for one
	replay      *replayState  // nil unless the request asked for an earlier response
	trace       *trace        // nil unless telemetry is on
	timings     timings
}

// caller is the client, as its key identifies it, and the payer.
type caller struct {
	address    string
	onBehalfOf *delegation  // of the console or a batch; nil for the bearer of a key
	line       *line        // of a batch; nil for a live request
	dialect    *dialectCall // nil for a request in the API's own form
	identity   identity.Principal
	payer      budget.Payer // with the caps in force
}

// attempts are the attempts made so far.
type attempts struct {
	count       int
	tried       []fleet.FailedAttempt
	failed      []usage.Attempt // that failed, for the ledger; nil for nearly all requests
	usable      fleet.Filter    // of backends that can serve the request's fields; nil: of all
	backend     *fleet.Backend  // of the last attempt; nil before the first
	fingerprint uint64          // of the body; see killers
	allBusy     bool            // the last attempt found its backend busy, and no other one was left
	model       *fleet.Model    // see exchange.serving; nil before the first
	notLoaded   error           // why the last backend that was passed over has not loaded the adapter
	working     bool            // the backend is working on the request, or was when the client disconnected
}

func (a *attempts) failedAt(b *fleet.Backend) bool {
	return slices.ContainsFunc(a.tried, func(t fleet.FailedAttempt) bool { return t.Backend == b })
}

// charge is what the request costs.
type charge struct {
	usage   stream.Usage // what has been charged
	settled bool
	reports usage.Reported         // what the backend reports besides
	echoed  func(choice int) int64 // prompt tokens that each choice of a stream echoes; nil without echo
	stream  *stream.State          // of the stream that the client receives; nil for a plain response
	choices []stream.ChoiceUsage   // received from a backend that reported no usage
	reasons []string               // why the choices have finished; nil unless a trace, a receipt or a replay records it
}

// delivery is what the client has received.
type delivery struct {
	bodyRead      bool        // the request's body has been read to its end
	streaming     bool        // status and first event have been sent, so an error must be an event
	complete      bool        // the whole response has been sent
	status        int         // 0 before the header has been sent
	code          apierr.Code // empty on success
	failure       error       // the error sent to the client, with its cause
	deadlineSetAt time.Time   // when the write deadline was last moved
	keepalive     keepalive   // comments while a stream waits
}

// timings are the times that headers, the log and the ledger report.
type timings struct {
	arrived    time.Time
	booting    time.Duration // waiting for the model's boot
	loading    time.Duration // waiting for its adapter
	queued     time.Duration // waiting for a slot and for reservations of others
	sent       time.Time     // when the last attempt began
	upstream   time.Duration // from there to the failure, the whole response or the first event
	firstToken time.Duration // since arrived
	charged    time.Duration // since arrived
}

// exchangeContext is echo's context of a request under /v1.
type exchangeContext struct {
	echo.Context
	exchange *exchange
}

// idEncoding is the alphabet of request ids; it keeps the order of the encoded bytes.
var idEncoding = base32.HexEncoding.WithPadding(base32.NoPadding)

// newRequestID returns an id of the time in milliseconds and 80 random bits. Ids ascend with time, so that the rows of one
// transaction lie on the same pages of the ledger's index.
func newRequestID(now time.Time) string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], uint64(now.UnixMilli())<<16)
	rand.Read(id[6:]) // never fails
	return "req_" + idEncoding.EncodeToString(id[:])
}

// exchange is the middleware of every path under /v1, and below the prefixes of dialects. It creates the exchange, renders
// the error that the handler returns, and writes one log line.
func (s *Server) exchange(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !s.IsAPI(c.Request().URL.Path) {
			return next(c)
		}
		x := s.newExchange(c.Response().Writer, c.Request())
		if d := x.settings.dialectOf(c.Request().URL.Path); d != nil {
			x.caller.dialect = &dialectCall{Dialect: d}
		}
		return s.run(x, func() error { return s.route(x, c, next) })
	}
}

func (s *Server) route(x *exchange, c echo.Context, next echo.HandlerFunc) error {
	switch {
	case !x.expectsNothingElse():
		x.w.Header().Set("Connection", "close") // the client may send its body or wait for leave to do so
		return apierr.UnknownExpectation()
	case x.allowOrigin():
		return x.answerPreflight()
	case x.caller.dialect != nil:
		return s.dialect(x)
	default:
		return RoutingError(c, next(&exchangeContext{c, x}))
	}
}

func (s *Server) newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	now := time.Now()
	x := &exchange{w: w, r: r, id: newRequestID(now), settings: s.settings.Load(), turns: s.turns, timings: timings{arrived: now}}
	x.caller.address = x.settings.ClientAddress(r)
	w.Header().Set("X-Request-Id", x.id)
	s.beginTrace(x)
	return x
}

// run calls the handler unless the gateway is draining, and responds with its error if it returns one.
func (s *Server) run(x *exchange, handler func() error) error {
	defer s.finish(x)
	if !s.begin() {
		x.w.Header().Set("Connection", "close")
		return s.fail(x, apierr.Overload(apierr.Draining, "the gateway is shutting down", time.Second, nil))
	}
	defer s.end()
	return s.fail(x, s.handle(x, handler))
}

// handle calls the handler. What the request holds is free again before a client that sends slowly receives its error.
func (s *Server) handle(x *exchange, handler func() error) error {
	defer x.memory.Release()
	defer x.endReceipt()
	defer x.releaseBody()
	return s.recoverPanic(x, handler)
}

// releaseBody ends the use of the request's body, which no attempt reads any more: see Deps.Transport.
func (x *exchange) releaseBody() {
	if x.request != nil {
		x.request.ForgetBody()
	}
	putBodyBuffer(x.body)
	x.body = nil
}

// recoverPanic returns a panic of the handler as an error. It logs the frames but not the value, which may hold a prompt.
func (s *Server) recoverPanic(x *exchange, handler func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			panic(v)
		}
		s.deps.Log.Error("panic", zap.String("request_id", x.id), zap.Strings("frames", frames()))
		err = apierr.Unexpected(errPanic)
	}()
	return handler()
}

var errPanic = errors.New("the handler panicked; the log line \"panic\" of this request_id has the frames")

// frames returns the functions and lines of a panic, without arguments.
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

// cancelled reports whether the request was cancelled, for any of the causes that cancelErr tells apart.
func (x *exchange) cancelled() bool { return x.r.Context().Err() != nil }

func (x *exchange) cancelErr() error {
	switch cause := context.Cause(x.r.Context()); {
	case errors.Is(cause, errLost):
		return ledgerUnavailable(cause)
	case errors.Is(cause, errStopped):
		return apierr.BadKey(errStopped)
	case !errors.Is(cause, context.Canceled):
		return apierr.Overload(apierr.Draining, "the gateway is shutting down", time.Second, cause)
	default:
		return errClientGone
	}
}

// errClientGone is returned for a request whose client has disconnected.
var errClientGone = errors.New("the client disconnected")

// errLost is the cause of the end of a request whose reservation was lost.
var errLost = errors.New("the ledger is out of reach, or another gateway has ended this one's requests")

// cancelWhenFenced cancels the request if its reservation is lost, until the function that it returns is called.
func (x *exchange) cancelWhenFenced() (stop func()) {
	lost := x.reservation.Lost()
	if lost == nil {
		return func() {}
	}
	cancel, over := x.cancellable()
	detach := context.AfterFunc(lost, func() { cancel(errLost) })
	return func() {
		detach()
		over()
	}
}

// cancellable makes the request one that cancel ends, until over is called.
func (x *exchange) cancellable() (cancel context.CancelCauseFunc, over func()) {
	original := x.r
	ctx, cancel := context.WithCancelCause(original.Context())
	x.r = original.WithContext(ctx)
	return cancel, func() {
		x.r = original // before cancel, which does not mean that the client has disconnected
		cancel(nil)
	}
}

// delegation is an account with one of its keys, in whose name the console or a batch sends requests.
type delegation struct {
	account, key string
	preview      bool // an estimate of what the user is typing: neither the overview nor the refusals count it
}

// ServeOnBehalfOf serves a request of the console in the name of one of an account's keys, as path serves it:
// CompletionsPath, ChatPath, LoglikelihoodPath or EstimatePath. It does all that the API does (queue, budgets, ledger, errors, log), but needs
// no secret, and makes vLLM name tokens by their ids. The caller must have authenticated the account.
func (s *Server) ServeOnBehalfOf(account, key, path string, w http.ResponseWriter, r *http.Request) {
	served := routeOf(path)
	preview := path == EstimatePath
	if !preview { // a response may take long
		http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
	x := s.newExchange(w, r)
	x.caller.onBehalfOf, x.endpoint = &delegation{account: account, key: key, preview: preview}, served.endpoint
	_ = s.run(x, func() error { return served.serve(s, x) }) // the error has been sent
}

// asked returns the request as the client has sent it, which a log-likelihood's completion is not.
func (x *exchange) asked() *validate.Request {
	if x.scoring != nil {
		return x.scoring.asked
	}
	return x.request
}
