package proxy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"basegate/breaker"
	"basegate/budget"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/internal/wait"
	"basegate/proxy/stream"
	"basegate/validate"
)

const (
	// backoffBase doubles with every attempt at the same backend, up to maxBackoff.
	backoffBase = 100 * time.Millisecond
	maxBackoff  = time.Second
	// maxErrorBody limits how much of an error's body is read, in bytes.
	maxErrorBody = 1 << 20
)

// errTimeout is the cause of an attempt that the watchdog cancelled.
var errTimeout = errors.New("the backend was silent for too long")

// maxLost is how often a request may lose its adapter before that counts as a failed attempt.
const maxLost = 20

// forward makes attempts until one brings a response, no further one is allowed, or the request is cancelled. The class
// of the last outcome decides whether another attempt follows, and at which backends. The response has been checked as
// far as possible before any of it is sent to the client; the caller must close it.
func (s *Server) forward(x *exchange) (*response, error) {
	var last breaker.Outcome
	once := false // a RetryElsewhereOnce has been used
	lost := 0     // attempts whose adapter another gateway has unloaded for one of its own, which is no failure
	x.attempts.model = x.model.Current()
	prefix := x.prefix()
	before := x.attempts.count // of a request that is sent once more in another form
	for x.attempts.count-before-lost < x.settings.Attempts {
		lease, err := s.acquire(x, prefix)
		if err != nil && x.attempts.count == before {
			lease, err = s.acquireAfterBoot(x, err, prefix)
		}
		if err != nil {
			if x.attempts.count == before || x.cancelled() {
				return nil, x.unavailable(err)
			}
			break
		}
		if err := x.loadAdapter(lease); err != nil {
			lease.Release()
			if x.cancelled() {
				return nil, x.cancelErr()
			}
			x.passOver(lease, err)
			prefix = x.prefix()
			continue
		}
		x.attempts.count++
		if err := x.backOff(lease); err != nil {
			lease.Release()
			return nil, err
		}
		response, outcome := s.attempt(x, lease)
		if response != nil {
			return response, nil
		}
		if outcome.Class == breaker.ClientGone || x.cancelled() {
			return nil, x.cancelErr()
		}
		if x.attempts.count == before+1 || outcome.Class != breaker.Busy { // a busy backend does not hide the failure of another
			last = outcome
		}
		if outcome.Class == breaker.AdapterGone && lost < maxLost {
			lost++
			continue
		}
		retry := outcome.Class.Retry()
		if retry == breaker.RetryNever || retry == breaker.RetryElsewhereOnce && once {
			break
		}
		once = once || retry == breaker.RetryElsewhereOnce
		x.attempts.tried = append(x.attempts.tried, fleet.FailedAttempt{Backend: lease.Backend, RetrySame: retry == breaker.RetryAnywhere})
	}
	x.attempts.allBusy = last.Class == breaker.Busy
	return nil, s.attemptErr(x, last)
}

// routing returns what decides which backends the request may use.
func (x *exchange) routing() fleet.Caller {
	return fleet.Caller{Key: x.caller.identity.KeyID, Filter: x.attempts.usable}
}

// acquire leases a backend for the next attempt. If those that suit are full, a completion waits for its account's turn there;
// a line of a batch has its place already, and a call of the tokenizer takes none of the engine's.
func (s *Server) acquire(x *exchange, prefix fleet.Prefix) (*fleet.Lease, error) {
	routing := x.routing()
	if x.reservation != nil && x.caller.line == nil {
		routing.Account = x.caller.identity.AccountID
	}
	lease, err := x.serving().Acquire(x.attempts.tried, routing, prefix)
	if errors.Is(err, fleet.ErrFull) {
		began := time.Now()
		x.delivery.keepalive.waitingFor(waitingForTurn)
		endQueue := x.trace.child("queue")
		lease, err = x.serving().AcquireInTurn(x.r.Context(), x.attempts.tried, routing, prefix)
		x.delivery.keepalive.waitingFor(waitingForFirstEvent)
		endQueue()
		x.timings.queued += time.Since(began)
	}
	if err != nil || x.timings.queued < reauthenticateAfter {
		return lease, err
	}
	if _, err := s.identify(x); err != nil {
		lease.Release()
		x.caller.payer = budget.Payer{} // the response must not show the budget of a key that no longer works
		return nil, x.refuseKey(err)
	}
	return lease, nil
}

// reauthenticateAfter is how long a request must have waited, for its reservation and its turn, for its key to be looked up
// again: it may have been paused, or its secret replaced.
const reauthenticateAfter = time.Second

// acquireAfterBoot leases a backend for the first attempt if the model has been stopped since awaitModel, as it may
// have been while the request waited for a slot or for its reservation. err is that of Acquire. It waits for what is
// left of cold_wait.
func (s *Server) acquireAfterBoot(x *exchange, err error, prefix fleet.Prefix) (*fleet.Lease, error) {
	if _, booting := errors.AsType[*fleet.BootingError](err); !booting {
		return nil, err
	}
	if err := x.awaitModel(); err != nil {
		return nil, err
	}
	return s.acquire(x, prefix)
}

// prefix returns what decides on the backend of a completion. Calls of the tokenizer have no reservation and no prefix.
func (x *exchange) prefix() fleet.Prefix {
	if x.reservation == nil {
		return fleet.Prefix{}
	}
	return x.promptPrefix()
}

// promptPrefix returns what the prompt begins with, or the key that the client sent for it. vLLM reads no cache for a prompt that
// it scores.
func (x *exchange) promptPrefix() fleet.Prefix {
	switch r := x.request; {
	case r.Scored():
		return fleet.Prefix{}
	case r.PromptCacheKey != "":
		return x.serving().KeyPrefix(r.CacheSalt(), r.PromptCacheKey, len(r.PromptJSON()))
	default:
		return x.serving().Prefix(r.CacheSalt(), r.PromptJSON())
	}
}

func (s *Server) attemptErr(x *exchange, o breaker.Outcome) error {
	if o.Class.Gone() && x.reservation != nil && s.killers.has(x.attempts.fingerprint) {
		return apierr.EngineKiller(o.Status, x.attempts.count)
	}
	return x.outcomeErr(o)
}

// outcomeErr returns the API error for an outcome. A param of vLLM's is kept if it names a field that the client sent.
func (x *exchange) outcomeErr(o breaker.Outcome) error {
	o.Param = x.request.SentAs(o.Param)
	return o.Err(x.model.ID(), x.attempts.count)
}

// backOff waits before a backend is tried again (full jitter), so that requests that failed together do not return together.
func (x *exchange) backOff(lease *fleet.Lease) error {
	bound := backoffBase / 2
	for _, t := range x.attempts.tried {
		if t.Backend == lease.Backend {
			bound = min(2*bound, maxBackoff)
		}
	}
	if bound < backoffBase {
		return nil // not tried yet
	}
	if !wait.For(x.r.Context(), rand.N(bound)) {
		return x.cancelErr()
	}
	return nil
}

// attempt sends the request to one backend. It returns a response, or the outcome that says why there is none; in that
// case nothing has been sent to the client.
func (s *Server) attempt(x *exchange, lease *fleet.Lease) (*response, breaker.Outcome) {
	p := &response{lease: lease}
	p.ctx, p.cancel = context.WithCancelCause(x.r.Context())
	p.watchdog.start(x.settings.FirstByteTimeout, p.cancel)
	p.arrived()
	lease.WhenRefused(p.endIfSilent)
	succeeded := false
	defer func() {
		if !succeeded {
			p.close()
		}
	}()
	x.attempts.backend, x.attempts.working = lease.Backend, true
	x.timings.sent = time.Now()
	endAttempt := x.trace.beginAttempt(lease.Backend)
	outcome := x.adapterGone(lease, s.judge(x, p, s.send(x, p)))
	endAttempt(outcome)
	if outcome.Class == breaker.Success && x.request.Stream {
		lease.Begin()
		s.metrics.attempt(x.model.Base().ID(), lease.Name, breaker.Success)
	} else {
		s.report(x, lease, outcome)
	}
	if outcome.Class != breaker.Success {
		return nil, outcome
	}
	succeeded = true
	return p, outcome
}

// report reports the outcome of an attempt to the breaker and the metrics. A stream that has begun counts as a success in
// the metrics at its first event, and is reported to the breaker when it ends.
func (s *Server) report(x *exchange, lease *fleet.Lease, outcome breaker.Outcome) {
	if outcome.Class != breaker.Success {
		x.timings.upstream = time.Since(x.timings.sent)
		x.recordAttempt(outcome.Class, outcome.Status, x.timings.upstream)
		x.attempts.working = outcome.Class == breaker.ClientGone // a failed attempt costs nothing
	}
	if x.reservation != nil || tokenizerFault(outcome) { // a call of the tokenizer has no reservation
		lease.Report(outcome.Class, x.attempts.failedAt(lease.Backend))
	}
	s.metrics.attempt(x.model.Base().ID(), lease.Name, outcome.Class)
}

// send sends the request to the backend of p and receives what must be known before any of the response is sent to the client:
// the whole of a plain response, the first event of a stream.
func (s *Server) send(x *exchange, p *response) breaker.Outcome {
	err := s.roundTrip(x, p)
	p.arrived()
	switch {
	case err != nil:
		return p.failure(x, err)
	case p.StatusCode != http.StatusOK:
		return p.classifyError(x)
	case x.request.Stream:
		return p.receiveFirstEvent(x)
	default:
		return p.receivePlain(x)
	}
}

// roundTrip sends the request and waits for the head of the response. It is apart from send so that what it needs of the stack is
// free while the response is read: with 8 KiB in all, a request costs half as much memory as with 16.
func (s *Server) roundTrip(x *exchange, p *response) error {
	address, edits := x.upstream(p)
	p.bestOf = edits.BestOf
	body := x.request.Upstream(edits)
	req := &http.Request{
		Method: http.MethodPost, URL: address, Host: address.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: x.upstreamHeader(p.lease.Backend), Body: io.NopCloser(body.Reader()), ContentLength: body.Size(),
	}
	resp, err := s.deps.Transport.RoundTrip(req.WithContext(p.ctx)) //nolint:bodyclose // by close
	if err != nil {
		return err //nolint:wrapcheck // failure classifies it
	}
	p.Response, resp.Request = resp, nil // a long stream must not keep the request in memory
	return nil
}

// upstream returns the address to which the request is sent at the backend, and the changes to its body.
func (x *exchange) upstream(p *response) (*url.URL, validate.Edits) {
	if c := x.tokenizer(); c != nil {
		return p.lease.URL(c.path), validate.Edits{Model: x.model.Checkpoint()}
	}
	x.reservation.SetBackend(p.lease.Name)
	edits := versionEdits(x.request, p.lease.Backend)
	if x.scoring != nil {
		edits.NextIDs = x.scoring.namesFor(p.lease.Backend)
	}
	edits.Model, edits.TokenIDs = x.serving().Served(), x.caller.onBehalfOf != nil && x.caller.line == nil
	if l := x.caller.line; l != nil && p.lease.SchedulesByPriority() {
		edits.Priority = l.priority()
	}
	if x.reservation.Clamped() || x.request.HasDefaultMaxTokens() {
		edits.MaxTokens = x.reservation.MaxTokens()
	}
	if x.isChat() {
		return p.lease.ChatURL(), edits
	}
	return p.lease.CompletionsURL(), edits
}

// response is a backend's response on its way to the client.
type response struct {
	*http.Response // nil before there is one

	lease    *fleet.Lease
	ctx      context.Context
	cancel   context.CancelCauseFunc
	watchdog watchdog
	arrival  atomic.Int64 // when something of the response last arrived, in nanoseconds since 1970; at first when the attempt began
	bestOf   validate.BestOf

	stream *eventStream // nil for a plain response
	plain  buffer       // of the whole body of a plain response
	usage  stream.Usage // of a plain response
}

// recordUsage records the usage that the backend reported, for its prefix cache.
func (p *response) recordUsage(x *exchange, usage stream.Usage) {
	p.lease.RecordUsage(fleet.Usage{Prompt: usage.Prompt, Completion: usage.Completion, Cached: x.charge.reports.CachedTokens})
}

func (p *response) close() {
	if p.stream != nil {
		p.stream.release()
	}
	p.plain.release()
	if p.Response != nil {
		p.Body.Close()
	}
	p.watchdog.stop()
	p.cancel(nil)
	p.lease.Release()
}

// failure classifies an attempt that brought no response, or one whose body could not be read to its end.
func (p *response) failure(x *exchange, err error) breaker.Outcome {
	o := breaker.Outcome{Class: breaker.Reset, Doubt: breaker.Broken, Cause: err}
	if p.Response != nil {
		o.Class, o.Status = breaker.Truncated, p.StatusCode
	}
	var op *net.OpError
	switch cause := context.Cause(p.ctx); {
	case x.cancelled():
		return breaker.Outcome{Class: breaker.ClientGone}
	case errors.Is(cause, errTimeout):
		return breaker.Outcome{Class: breaker.TimedOut, Cause: errTimeout}
	case errors.Is(cause, errNotListening):
		o.Class, o.Doubt, o.Cause = breaker.Aborted, breaker.Certain, errNotListening
	case errors.Is(err, stream.ErrTooLarge):
		o.Class, o.Doubt = breaker.TooLarge, breaker.Certain
	case errors.Is(err, admission.ErrFull), p.Response == nil && breaker.IsLocalFault(err):
		o.Class, o.Doubt = breaker.LocalFault, breaker.Certain
	case p.Response == nil && errors.As(err, &op) && op.Op == "dial":
		o.Class, o.Doubt = breaker.Refused, breaker.Certain
	}
	return o
}

// classifyError classifies a response with another status than 200, by its status and the beginning of its body.
func (p *response) classifyError(x *exchange) breaker.Outcome {
	b := buffer{source: p.Body, size: unknownSize, free: maxUncounted, memory: &x.memory}
	defer b.release()
	err := b.readAll(maxErrorBody)
	if err != nil && !errors.Is(err, admission.ErrFull) {
		if o := p.failure(x, err); o.Class != breaker.Truncated || len(b.bytes) == 0 {
			return o
		}
	}
	return breaker.Classify(p.StatusCode, b.bytes)
}

// judge asks the backend's /health for what an outcome leaves in doubt, and counts the death of an engine unless that says
// otherwise. With vLLM's Rust frontend, the server ends with its engine.
func (s *Server) judge(x *exchange, p *response, o breaker.Outcome) breaker.Outcome {
	if o.Doubt == breaker.Certain && !o.Class.Deadly() {
		return o
	}
	health := p.lease.Health(x.r.Context())
	o = o.Judge(health)
	died := o.Class.Deadly() && health != breaker.Healthy || o.Class == breaker.Ended && p.lease.Server().Rust
	if died && x.reservation != nil { // a call of the tokenizer reaches no engine
		s.killers.count(x.attempts.fingerprint, p.lease.Run())
	}
	return o
}

// errNotListening is the cause of an attempt that was silent while its backend refused connections.
var errNotListening = errors.New("the backend sent nothing more and refuses connections")

func (p *response) arrived() { p.arrival.Store(time.Now().UnixNano()) }

// endIfSilent ends the attempt at a backend that refuses connections, unless the server finishes what it has begun.
func (p *response) endIfSilent() {
	if time.Since(time.Unix(0, p.arrival.Load())) >= fleet.RefusedFor {
		p.cancel(errNotListening)
	}
}

// watchdog cancels an attempt at a backend that is silent for too long, without the time that the gateway and a slow client take.
type watchdog struct {
	timer   *time.Timer
	left    time.Duration // how long the backend may still be silent
	resumed time.Time
}

// start begins to wait for the backend. cancel is called with errTimeout after that much silence.
func (w *watchdog) start(left time.Duration, cancel context.CancelCauseFunc) {
	w.left, w.resumed = left, time.Now()
	w.timer = time.AfterFunc(left, func() { cancel(errTimeout) })
}

// stop stops waiting. It may be called more than once.
func (w *watchdog) stop() { w.timer.Stop() }

// progress is called when the backend has sent something that counts: from now on it may be silent for left.
func (w *watchdog) progress(left time.Duration) { w.left = left }

// noProgress is called, before resume, when the backend has sent something that does not count.
func (w *watchdog) noProgress() { w.left -= time.Since(w.resumed) }

func (w *watchdog) resume() {
	w.resumed = time.Now()
	w.timer.Reset(w.left)
}

// versionEdits returns the changes to a body that depend on the server of the backend.
//
// best_of: only the engine of versions before 0.8 honours it; later ones refuse or ignore it, and a parameter is never
// silently ignored. Structured output: see validate.Server.TakesGuided.
func versionEdits(r *validate.Request, b *fleet.Backend) validate.Edits {
	version := b.VLLM()
	edits := validate.Edits{Guided: b.Server().TakesGuided()}
	switch {
	case r.BestOf == 0 || version.Before(validate.Version{Minor: 8}):
		edits.BestOf = validate.KeepBestOf
	case r.BestOf == r.N:
		edits.BestOf = validate.DropBestOf
	default:
		edits.BestOf = validate.EmulateBestOf
	}
	return edits
}

// checkServers limits the request to the backends that can serve all its fields, as far as that is known of their servers. It
// refuses a request that no backend of the model can serve.
func (x *exchange) checkServers() error {
	x.attempts.usable = func(b *fleet.Backend) bool {
		_, unserved := x.request.Unserved(b.Server())
		return !unserved && x.choosesBest(b) && x.mayName(b)
	}
	backends := x.model.Backends()
	switch {
	case slices.ContainsFunc(backends, x.attempts.usable):
		return nil
	case !slices.ContainsFunc(backends, x.choosesBest):
		return apierr.BestOfUnsupported(x.model.ID())
	case !slices.ContainsFunc(backends, x.mayName):
		return apierr.InvalidField(namesField, namesField+": got it for "+x.model.ID()+", whose server it would make spoil "+
			"the log-probabilities of other requests; ask for the likeliest tokens with logprobs, or for continuations by POST "+LoglikelihoodPath)
	default:
		return x.unserved()
	}
}

// choosesBest reports whether the backend can serve the request's best_of, as far as that is known.
func (x *exchange) choosesBest(b *fleet.Backend) bool {
	r := x.request
	return r.BestOf <= r.N || !b.LacksLogprobs() || versionEdits(r, b).BestOf != validate.EmulateBestOf
}

// namesField is the field of tokens to name, that only some backends may receive.
const namesField = "logprob_token_ids"

// mayName reports whether the backend may receive the request's logprob_token_ids, if it has them.
func (x *exchange) mayName(b *fleet.Backend) bool {
	return b.TakesLogprobTokenIDs() || !x.request.Has(namesField)
}

// unserved returns the error of a request with a field that no backend of the model can serve: of the newest of them.
func (x *exchange) unserved() error {
	var newest *validate.Server
	var why validate.Unserved
	for _, b := range x.model.Backends() {
		u, unserved := x.request.Unserved(b.Server())
		if s := b.Server(); unserved && (newest == nil || newest.Version.Before(s.Version)) {
			newest, why = s, u
		}
	}
	switch {
	case newest != nil:
		return apierr.FieldUnserved(why.Field, why.Name, x.model.ID(), newest.String(), why.Reason)
	case x.request.BestOf > x.request.N:
		return apierr.BestOfUnsupported(x.model.ID())
	default:
		return apierr.Overload(apierr.NoBackends, "a server of "+x.model.ID()+" has just restarted", bufferFullRetry, nil)
	}
}
