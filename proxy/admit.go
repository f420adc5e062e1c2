package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"time"

	"basegate/budget"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/identity"
	"basegate/validate"
)

var errNoKey = errors.New("no bearer token")

// authenticate finds the key of the request and its payer.
func (s *Server) authenticate(x *exchange) error {
	identity, err := s.identify(x)
	x.caller.identity, x.caller.payer = identity, budget.Payer{}
	if err != nil {
		return x.refuseKey(err)
	}
	x.caller.payer = Payer(&identity)
	return nil
}

// identify looks up the key in the one Authorization header. The console's requests name their key instead.
func (s *Server) identify(x *exchange) (identity.Principal, error) {
	if p := x.caller.onBehalfOf; p != nil {
		return s.keys.Identify(x.r.Context(), p.account, p.key)
	}
	secret, found := Bearer(x.r.Header)
	if !found {
		return identity.Principal{}, errNoKey
	}
	return s.keys.Authenticate(x.r.Context(), secret)
}

// Bearer returns the token of the one Authorization header; false if there is none, there are several, or it has another scheme.
func Bearer(h http.Header) (token string, found bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	return strings.TrimSpace(token), strings.EqualFold(scheme, "Bearer")
}

// Payer returns the payer of a key's requests with its caps.
func Payer(i *identity.Principal) budget.Payer {
	return budget.Payer{Key: i.KeyID, Account: i.AccountID, KeyCaps: i.KeyCaps, AccountCaps: i.AccountCaps}
}

// bodyRules parses and validates a body by the rules of an endpoint. Its error is an API error, or that of the memory.
type bodyRules func(x *exchange, body []byte) (*validate.Request, error)

// readRequest takes the first steps of every endpoint with a body: it authenticates the request, reads and validates its
// body and finds the model. The caller must release x.memory.
func (s *Server) readRequest(x *exchange, rules bodyRules) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	return s.readAuthenticated(x, rules)
}

// readAuthenticated is readRequest after the authentication.
func (s *Server) readAuthenticated(x *exchange, rules bodyRules) error {
	x.memory = s.queue.Allocate(x.caller.identity.KeyID)
	body, err := x.readBody()
	if err != nil {
		return err
	}
	if err := s.parse(x, body, rules); err != nil {
		return err
	}
	if x.model, err = s.findModel(x, x.request.Model); err != nil {
		return err
	}
	return x.checkServers()
}

// largeBody is the size, in bytes, from which bodies are parsed a few at a time: parsing takes milliseconds for each
// megabyte, which small requests would otherwise wait for.
const largeBody = 256 << 10

// newLargeBodies returns places to parse large bodies, as many as half of the processors.
func newLargeBodies() *admission.Turns { return admission.NewTurns(max(1, runtime.GOMAXPROCS(0)/2), 0) }

// LargeBodies returns the places to parse large bodies, for metrics.
func (s *Server) LargeBodies() *admission.Turns { return s.largeBodies }

// parse parses and validates the body.
func (s *Server) parse(x *exchange, body []byte, rules bodyRules) (err error) {
	if len(body) >= largeBody {
		turn, err := s.largeBodies.Acquire(x.r.Context(), x.caller.identity.AccountID)
		if err != nil {
			return x.cancelErr()
		}
		defer turn.Release()
	}
	x.request, err = rules(x, body)
	if errors.Is(err, admission.ErrFull) {
		return bufferFull(err)
	}
	return err
}

// validateCompletion are the rules of a completion.
func (s *Server) validateCompletion(x *exchange, body []byte) (*validate.Request, error) {
	r, err := validate.Completion(body, validate.Limits{
		MaxLogprobs: s.maxLogprobs, MaxSequences: x.settings.SequencesPerRequest, XArgs: s.xargs(x),
		Receipts: s.receipts != nil, Memory: &x.memory,
	})
	if err == nil {
		if m, ok := s.fleet.Model(r.Model); ok && mayUse(&x.caller.identity, m) && !m.Completions() {
			return r, apierr.NoCompletions("model", r.Model)
		}
	}
	return r, err
}

func (s *Server) maxLogprobs(model string) int {
	if m, ok := s.fleet.Model(model); ok {
		return m.MaxLogprobs()
	}
	return validate.DefaultMaxLogprobs
}

// xargs returns the names that vllm_xargs may have for the models that the key may use.
func (s *Server) xargs(x *exchange) func(model string) (names []string, known bool) {
	return func(model string) ([]string, bool) {
		m, ok := s.lookup(x, model)
		if !ok {
			return nil, false // findModel refuses it
		}
		return m.XArgs(), true
	}
}

// unlimitedWait is longer than any boot.
const unlimitedWait = 1<<63 - 1

// awaitModel starts the model if it does not run, and waits for it for up to its cold_wait, or with keepalive until its
// boot ends.
func (x *exchange) awaitModel() error {
	err := x.model.EnsureServable(x.routing())
	wait := x.model.ColdWait() - x.timings.booting
	if x.delivery.keepalive.interval > 0 {
		wait = unlimitedWait // until the boot ends: nothing closes the connection
	}
	if _, booting := errors.AsType[*fleet.BootingError](err); booting && wait > 0 {
		x.delivery.keepalive.waitingFor(x.bootComment)
		if full := x.memory.Grow(admission.WaitingCost); full != nil {
			return bufferFull(full)
		}
		defer x.memory.Shrink(admission.WaitingCost)
		ctx, cancel := context.WithTimeout(x.r.Context(), wait)
		defer cancel()
		began := time.Now()
		err = x.model.AwaitBoot(ctx, x.routing())
		x.timings.booting += time.Since(began)
	}
	if err != nil {
		return x.unavailable(err)
	}
	return nil
}

// unavailable returns the error of a model at which no attempt can be made.
func (x *exchange) unavailable(err error) error {
	switch {
	case x.cancelled():
		return x.cancelErr()
	case errors.Is(err, fleet.ErrUnsuitable):
		return x.unserved()
	default:
		return x.model.APIError(err)
	}
}

// acquireSlot waits until the key and its account have a free slot. The caller must release x.slot. After a long wait, the key is
// looked up again, because it may have been paused or its caps changed meanwhile.
//
// If the ledger gives out the slots of the key, this one only limits its calls of the tokenizer at this gateway; reserve
// replaces it.
func (s *Server) acquireSlot(x *exchange) error {
	queue := s.queue
	if s.slots != nil {
		queue = s.counts
	}
	began := time.Now()
	slot, err := queue.Enqueue(s.requester(x), &x.memory)
	if err == nil {
		if x.delivery.keepalive.interval > 0 {
			x.delivery.keepalive.waitingFor(func() string { return fmt.Sprintf("queued, %d before you", slot.Before()) })
		}
		err = slot.Wait(x.r.Context())
	}
	x.timings.queued = time.Since(began)
	switch {
	case errors.Is(err, admission.ErrFull):
		return bufferFull(err)
	case err != nil:
		return x.cancelErr()
	}
	x.slot = slot
	if x.timings.queued < reauthenticateAfter {
		return nil
	}
	if err := s.authenticate(x); err != nil {
		slot.Release()
		return err
	}
	return nil
}

// reauthenticateAfter is how long a request must have waited for its key to be looked up again.
const reauthenticateAfter = time.Second

// Limits returns how many requests of a key, and of its account, may run at a time.
func (s *Server) Limits(i *identity.Principal) admission.Limits {
	settings := s.settings.Load()
	l := admission.Limits{Key: i.MaxRunning(settings.ConcurrencyPerKey)}
	if n := settings.ConcurrencyPerAccount; n > 0 {
		l.Account = i.MaxRunningOfAccount(n)
	}
	return l
}

// requester returns the key of a request, which waits for its slots.
func (s *Server) requester(x *exchange) admission.Requester {
	i := &x.caller.identity
	return admission.Requester{Key: i.KeyID, Account: i.AccountID, Limits: s.Limits(i)}
}

// bufferFullRetry is when a client should retry that was refused because too much is buffered.
const bufferFullRetry = 5 * time.Second

func bufferFull(cause error) error {
	return apierr.Overload(apierr.NoMemory, "too much is waiting here already", bufferFullRetry, cause)
}
