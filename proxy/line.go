package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"time"

	"basegate/budget"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/identity"
	"basegate/proxy/stream"
	"basegate/validate"
)

// Line is one request of a batch.
type Line struct {
	Batch        string
	Account, Key string
	Run          string // of the batch; empty if there is none
	Endpoint     string // its path
	Body         []byte
	Deadline     time.Time            // of the batch
	Replay       bool                 // a kept response may answer it
	Place        Place                // of AcquirePlace; the caller releases it. nil: the line only asks what it would wait for
	Memory       admission.Allocation // of the key; holds Body. ServeLine takes it over
}

// Place is the permission to run one line at a backend, beside its live requests.
type Place interface{ Release() }

// priority returns the line's priority at a backend that schedules by it: the deadline in seconds since 1970. The
// lowest is served first, so live requests, whose priority is 0, come before all lines.
func (l *Line) priority() int64 { return max(l.Deadline.Unix(), 1) }

// LineState is the outcome of a line.
type LineState int

// The states of a LineResult.
const (
	LineEnded     LineState = iota // Status and Body are the response
	LineWaits                      // it was not sent to a backend, and may be later
	LineCancelled                  // its context ended
)

// WaitReason is what a line waits for.
type WaitReason string

// The reasons of the API's contract.
const (
	WaitsForBudget   WaitReason = "budget"
	WaitsForModel    WaitReason = "model"
	WaitsForCapacity WaitReason = "capacity"
	WaitsForKey      WaitReason = "key"     // paused or expired
	WaitsForAccount  WaitReason = "account" // disabled, or not approved yet
	WaitsForWindow   WaitReason = "window"  // of a model that batches do not start
)

// LineResult is the result of a line.
type LineResult struct {
	State LineState

	RequestID string
	Status    int
	Body      []byte
	Code      apierr.Code  // empty on success
	Retryable bool         // another attempt may succeed: the backends failed, not the line
	Began     bool         // an attempt was made
	Usage     stream.Usage // what was charged

	// Settlement is the charge of a successful line, which the caller writes with the result. Release returns the memory
	// that the result holds; it is never nil.
	Settlement budget.Settlement
	Release    func()

	Reason   WaitReason // of LineWaits
	ResetsAt time.Time  // when the exhausted cap resets, or Never; zero if that is not the reason
}

// Never is when a cap for life resets, to lines that wait for it.
var Never = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// waitsForCap returns the error of a line that waits until a cap resets or is raised.
func waitsForCap(e *budget.Exceeded) error {
	return &lineWaitsError{WaitsForBudget, cmp.Or(e.ResetsAt, Never)}
}

// line is the state of an exchange that serves a line of a batch.
type line struct {
	Line
	place      *fleet.Place // where it runs, unless its prefix belongs elsewhere; nil if it has none
	settlement budget.Settlement
}

// lineWaitsError is the error of a line that cannot be sent to a backend yet.
type lineWaitsError struct {
	reason   WaitReason
	resetsAt time.Time
}

func (*lineWaitsError) Error() string { return "the line waits" }

// Allocate returns what counts the memory of a line of a key.
func (s *Server) Allocate(key string) admission.Allocation { return s.deps.Memory.Allocate(key) }

// ServeLine serves a line of a batch as its endpoint would, in the name of a key, with these differences: it uses
// no slot of the key but a place beside the live requests of a backend, it waits for nothing, its max_tokens is not
// lowered, and the charge of its success is left to the caller. If ctx ends and its cause is a context.Canceled, the line is
// charged as a request whose client has disconnected. A line without a place is judged as far as that needs no backend, and
// then waits for its model.
func (s *Server) ServeLine(ctx context.Context, l Line) LineResult {
	if !s.begin() {
		l.Memory.Release()
		return LineResult{State: LineWaits, Reason: WaitsForCapacity, Release: func() {}}
	}
	defer s.end()
	w, r := &lineResponse{header: http.Header{}}, lineRequest(ctx, l.Endpoint, l.Replay)
	r.Header.Set("X-Acs-Workload", "batch")
	if l.Run != "" {
		r.Header.Set(runHeader, l.Run)
	}
	x := s.newExchange(w, r)
	x.memory = l.Memory
	x.caller.onBehalfOf = &delegation{account: l.Account, key: l.Key}
	place, _ := l.Place.(*fleet.Place)
	x.caller.line = &line{Line: l, place: place}
	x.endpoint = routeOf(l.Endpoint).endpoint
	x.delivery.bodyRead = true
	err := s.recoverPanic(x, func() error { return s.generate(x) })
	if w := s.waits(x, err); w != nil {
		x.memory.Release()
		return LineResult{State: LineWaits, Reason: w.reason, ResetsAt: w.resetsAt, Release: func() {}}
	}
	if errors.Is(err, errClientGone) || (err != nil && x.cancelled()) {
		x.delivery.clientGone()
		s.finish(x)
		x.memory.Release()
		return LineResult{State: LineCancelled, Code: codeClientGone, Began: x.attempts.count > 0, Usage: x.charge.usage, Release: func() {}}
	}
	_ = s.fail(x, err) // renders the error into w
	s.finish(x)
	final := err != nil && apierr.From(err).Final()
	return LineResult{
		RequestID: x.id, Status: w.status, Body: w.body, Code: x.delivery.code, Retryable: errors.Is(err, errStopped) || !final && (x.delivery.code.FromUpstream() ||
			x.delivery.code.Status() == http.StatusServiceUnavailable), Began: x.attempts.count > 0, Usage: x.charge.usage,
		Settlement: x.caller.line.settlement, Release: x.memory.Release,
	}
}

// lineRequest returns the request of a line to its endpoint, without the body.
func lineRequest(ctx context.Context, endpoint string, replay bool) *http.Request {
	r := (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: endpoint}, Header: http.Header{}, Body: http.NoBody}).WithContext(ctx)
	if replay {
		r.Header.Set(apierr.ReplayHeader, "true")
	}
	return r
}

// waits returns what a line waits for that failed with err, or nil if that is its response. Before its first attempt it waits for a
// breaker to close, and before its reservation for a key that works again, for memory, for the ledger, and without a place for a model
// that is configured again.
func (s *Server) waits(x *exchange, err error) *lineWaitsError {
	if w, ok := errors.AsType[*lineWaitsError](err); ok || err == nil {
		return w
	}
	switch e := apierr.From(err); {
	case e.Code == apierr.CircuitOpen && x.attempts.count == 0:
		return &lineWaitsError{reason: WaitsForModel}
	case x.reservation != nil:
	case e.Code == apierr.InvalidAPIKey:
		return &lineWaitsError{reason: keyReason(err)}
	case e.Code == apierr.Overloaded && (e.Shortage == apierr.NoMemory || e.Shortage == apierr.NoDatabase):
		return &lineWaitsError{reason: WaitsForCapacity}
	case e.Code == apierr.ModelNotFound && x.caller.line.place == nil:
		if _, known := s.deps.Fleet.Model(x.request.Model); !known {
			return &lineWaitsError{reason: WaitsForModel}
		}
	}
	return nil
}

var errStreamInBatch = apierr.InvalidField("stream", "stream: got true; the lines of a batch are not streamed; remove it")

// usePlace moves the line's place to where the line's prefix belongs, if there is room, and limits its attempts to it.
func (s *Server) usePlace(x *exchange) error {
	place := x.caller.line.place
	if place == nil {
		return s.askBudget(x)
	}
	place.Prefer(x.promptPrefix(), x.routing())
	if !x.attempts.usable(place.Backend) { // another backend of the model has the request's fields
		return &lineWaitsError{reason: WaitsForCapacity}
	}
	x.attempts.usable = func(other *fleet.Backend) bool { return other == place.Backend }
	if err := x.model.CheckServable(x.routing()); err != nil { // the breaker may be open to the key alone
		return x.unavailable(err)
	}
	return nil
}

// askBudget returns what a line waits for that has no place: for its budget, if not even the fewest tokens that it can have fit,
// otherwise for its model.
func (s *Server) askBudget(x *exchange) error {
	r := x.request
	demand := x.demand()
	demand.MinTokens, demand.PromptTokens = demand.MaxTokens, int64(r.Prompts)
	switch {
	case r.Kind == validate.Tokens && r.Truncate == 0:
		demand.PromptTokens = r.PromptTokens
	case r.Kind == validate.Pairs: // one prompt may do for all
		demand.PromptTokens, demand.Candidates = 1, 1
	}
	balance, err := s.deps.Ledger.ReadBalance(x.r.Context(), x.caller.payer)
	if err != nil {
		return x.lineBudgetErr(demand, err)
	}
	if refused := balance.Estimate(demand).Refused; refused != nil {
		return x.lineBudgetErr(demand, refused)
	}
	return &lineWaitsError{reason: WaitsForModel}
}

// lineBudgetErr returns the error of a line whose demand the ledger has refused with err.
func (x *exchange) lineBudgetErr(demand budget.Demand, err error) error {
	exceeded, isExceeded := errors.AsType[*budget.Exceeded](err)
	switch {
	case errors.Is(err, budget.ErrReserved):
		return &lineWaitsError{reason: WaitsForBudget}
	case isExceeded && budget.Balance{Payer: x.caller.payer}.Estimate(demand).LimitedBy == nil: // it would fit if nothing were used
		return waitsForCap(exceeded)
	default:
		return x.reserveErr(err)
	}
}

// keyReason returns what the lines of a key wait for that may not be used.
func keyReason(err error) WaitReason {
	switch {
	case errors.Is(err, identity.ErrKeysUnreadable):
		return WaitsForCapacity
	case errors.Is(err, identity.ErrAccountDisabled), errors.Is(err, identity.ErrAccountPending):
		return WaitsForAccount
	}
	return WaitsForKey
}

// Standing tells whether a key may send lines at the moment.
type Standing struct {
	Reason   WaitReason // WaitsForBudget, WaitsForKey or WaitsForAccount; empty: it may
	ResetsAt time.Time  // of the exhausted cap, or Never
	Revoked  bool       // the key will never be used again
	Caps     int64      // differs after a cap of the key, its parent or its account has changed
}

// Standing tells whether a key may send lines at the moment. It does not wait for the database.
func (s *Server) Standing(key string) Standing {
	i, err := s.deps.Keys.Lookup(key)
	if err != nil {
		return Standing{Reason: keyReason(err), Revoked: errors.Is(err, identity.ErrKeyRevoked)}
	}
	payer := s.Payer(&i)
	h := fnv.New64a()
	fmt.Fprintf(h, "%v %v", payer.KeyCaps, payer.AccountCaps)
	if payer.Parent != nil {
		fmt.Fprintf(h, " %v", payer.Parent.Caps)
	}
	standing := Standing{Caps: int64(h.Sum64())}
	if e := s.exhausted(payer); e != nil {
		standing.Reason, standing.ResetsAt = WaitsForBudget, cmp.Or(e.ResetsAt, Never)
	}
	return standing
}

// lineResponse keeps the response to a line in memory.
type lineResponse struct {
	header http.Header
	status int
	body   []byte
}

func (w *lineResponse) Header() http.Header { return w.header }

func (w *lineResponse) WriteHeader(status int) { w.status = status }

func (w *lineResponse) Write(p []byte) (int, error) {
	w.body = append(w.body, p...)
	return len(p), nil
}

// CheckedLine is a line whose body is valid.
type CheckedLine struct {
	Model  string // its short id
	Tokens int64  // an estimate of the most that the line costs: its completions in full, and of text a token for bytesPerToken bytes
}

// bytesPerToken is about the length of a token of a text.
const bytesPerToken = 4

// LineCheck validates the body of a line for an endpoint.
type LineCheck func(endpoint string, body []byte) (CheckedLine, error)

// Checker returns what validates the bodies of lines as the key sends them; see CheckLine.
func (s *Server) Checker(ctx context.Context, account, key string, replay bool) (LineCheck, error) {
	principal, err := s.deps.Keys.Identify(ctx, account, key)
	if err != nil {
		return nil, err
	}
	return func(endpoint string, body []byte) (CheckedLine, error) {
		return s.CheckLine(ctx, principal, endpoint, body, replay)
	}, nil
}

// CheckLine validates the body of a line for an endpoint as far as that needs neither a tokenizer nor a budget, for a
// key. With replay, the line asks for the response of an earlier request. The error is one of package errors.
func (s *Server) CheckLine(ctx context.Context, key identity.Principal, endpoint string, body []byte, replay bool) (CheckedLine, error) {
	x := &exchange{w: &lineResponse{header: http.Header{}}, r: lineRequest(ctx, endpoint, replay), settings: s.settings.Load()}
	x.caller.identity, x.caller.line = key, &line{}
	x.endpoint = routeOf(endpoint).endpoint
	x.memory = s.deps.Memory.Allocate(key.KeyID)
	defer x.memory.Release()
	if err := x.memory.Grow(int64(len(body))); err != nil {
		return CheckedLine{}, bufferFull(err)
	}
	if err := s.parse(x, body); err != nil {
		return CheckedLine{}, err
	}
	if err := x.checkKnownLength(); err != nil {
		return CheckedLine{}, err
	}
	prompt := int64(len(body)) / bytesPerToken
	if x.request.Kind == validate.Tokens {
		prompt = x.request.PromptTokens
	}
	demand := x.demand().Normalized()
	return CheckedLine{x.model.ID(), prompt + demand.Output(demand.MaxTokens)}, nil
}

// AcquirePlace returns a place for a line of a batch at a backend of the model, or says what the line would wait for. It
// starts the model if start is true. The caller must release the place.
func (s *Server) AcquirePlace(model string, perBackend int, start bool) (Place, WaitReason) {
	m, ok := s.deps.Fleet.Model(model)
	if !ok {
		return nil, WaitsForModel
	}
	place, err := m.AcquirePlace(fleet.Caller{}, perBackend)
	switch {
	case err == nil:
		return place, ""
	case errors.Is(err, fleet.ErrNoPlace):
		return nil, WaitsForCapacity
	}
	if start {
		m.EnsureServable(fleet.Caller{}) //nolint:errcheck // the line waits, whatever becomes of the boot
	}
	return nil, WaitsForModel
}
