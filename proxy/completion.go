package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/identity"
	"basegate/validate"
)

// generate serves a request that generates text, a live one or a line of a batch. Its steps are in the order that the HTTP
// contract defines: the first one that fails decides the response.
func (s *Server) generate(x *exchange) error {
	if err := s.readRequest(x); err != nil {
		return err
	}
	if sent, err := s.replayed(x); sent || err != nil {
		return err
	}
	defer x.leaveReplay()
	defer s.cancelWhenStopped(x)()
	if err := s.checkBudget(x); err != nil {
		return err
	}
	if err := x.checkKnownLength(); err != nil {
		return err
	}
	if err := s.refuseKiller(x); err != nil {
		return err
	}
	if err := s.beginKeepalive(x); err != nil {
		return err
	}
	defer x.delivery.keepalive.stop()
	if err := s.admit(x); err != nil {
		return err
	}
	if err := x.tokenizePairs(); err != nil {
		return err
	}
	if err := x.checkLength(); err != nil {
		return err
	}
	if err := x.resolveMaxTokens(); err != nil {
		return err
	}
	if err := s.reserveAny(x); err != nil {
		return err
	}
	defer x.reservation.Release()
	return s.settleFailure(x, s.relay(x))
}

func (s *Server) relay(x *exchange) error {
	defer x.cancelWhenFenced()()
	x.memory.SetRunning()
	if x.request.Stream {
		x.charge.echoed = x.echoedTokens()
	}
	x.startCounting()
	defer x.stopCounting()
	x.delivery.keepalive.waitingFor(waitingForFirstEvent)
	response, err := s.forward(x)
	if err == nil && x.scoring != nil {
		response, err = s.readScores(x, response)
	}
	x.delivery.keepalive.stop()
	if err != nil {
		return err
	}
	defer response.close()
	if x.request.Stream {
		return s.relayStream(x, response)
	}
	return s.relayPlain(x, response)
}

// readRequest authenticates a request, reads and validates its body and finds the model.
func (s *Server) readRequest(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	if x.caller.line != nil {
		return s.parse(x, x.caller.line.Body)
	}
	if x.endpoint == chatEndpoint && len(s.chatModels(x)) == 0 {
		return apierr.NoChat(nil)
	}
	body, err := s.readBody(x)
	if err != nil {
		return err
	}
	return s.parse(x, body)
}

var errNoKey = errors.New("no bearer token")

func (s *Server) authenticate(x *exchange) error {
	identity, err := s.identify(x)
	x.caller.identity, x.caller.payer = identity, budget.Payer{}
	if err != nil {
		return x.refuseKey(err)
	}
	x.caller.payer = s.Payer(&identity)
	return nil
}

// identify looks up the key in the one Authorization header. The requests of the console and of batches name their key instead.
func (s *Server) identify(x *exchange) (identity.Principal, error) {
	if d := x.caller.onBehalfOf; d != nil {
		return s.deps.Keys.Identify(x.r.Context(), d.account, d.key)
	}
	secret, found := Bearer(x.r.Header)
	if !found {
		return identity.Principal{}, errNoKey
	}
	return s.deps.Keys.Authenticate(x.r.Context(), secret)
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

// Payer returns the payer of a key's requests with its caps and slots.
func (s *Server) Payer(i *identity.Principal) budget.Payer {
	settings := s.settings.Load()
	return Payer(i, settings.ConcurrencyPerKey, settings.ConcurrencyPerAccount)
}

// Payer returns the payer of a key's requests with its caps, and its slots where perKey and perAccount are those of the configuration.
func Payer(i *identity.Principal, perKey, perAccount int) budget.Payer {
	p := budget.Payer{
		Key: i.KeyID, Account: i.AccountID, KeyCaps: i.KeyCaps, AccountCaps: i.AccountCaps,
		Slots: i.MaxRunning(perKey), Expires: i.ExpiresAt,
	}
	if parent := i.Parent; parent != nil {
		p.Parent = &budget.ParentKey{ID: parent.KeyID, Caps: parent.KeyCaps, Slots: parent.MaxRunning(perKey), Expires: parent.ExpiresAt}
	}
	if perAccount > 0 {
		p.AccountSlots = i.MaxRunningOfAccount(perAccount)
	}
	return p
}

// largeBody is the size, in bytes, from which bodies are parsed a few at a time: parsing takes milliseconds for each
// megabyte, which small requests would otherwise wait for.
const largeBody = 256 << 10

// LargeBodies returns the places to parse large bodies, for metrics.
func (s *Server) LargeBodies() *admission.Turns { return s.largeBodies }

// parse validates the body and finds the model. If a receipt was asked for, it begins the receipt.
func (s *Server) parse(x *exchange, body []byte) (err error) {
	if err := s.validateInTurn(x, body); err != nil {
		return err
	}
	if err := x.checkRun(); err != nil {
		return err
	}
	if err := s.beginReceipt(x); err != nil {
		return err
	}
	if err := x.beginReplay(); err != nil {
		return err
	}
	if x.model, err = s.modelOf(x); err != nil {
		return err
	}
	if err := x.checkServers(); err != nil {
		return err
	}
	return x.beginScoring()
}

func (s *Server) validateInTurn(x *exchange, body []byte) (err error) {
	if len(body) >= largeBody {
		turn, err := s.largeBodies.Acquire(x.r.Context(), x.caller.identity.AccountID)
		if err != nil {
			return x.cancelErr()
		}
		defer turn.Release()
	}
	x.request, err = s.validate(x, body)
	if errors.Is(err, admission.ErrFull) {
		return bufferFull(err)
	}
	return err
}

// validate validates a body by the rules of the endpoint. Its error is an API error, or that of the memory.
func (s *Server) validate(x *exchange, body []byte) (r *validate.Request, err error) {
	if x.endpoint == tokenizeEndpoint {
		return validate.Tokenize(body, isRoot(x.r.URL.Path), &x.memory)
	}
	if x.endpoint == detokenizeEndpoint {
		return validate.Detokenize(body, isRoot(x.r.URL.Path), &x.memory)
	}
	limits := validate.Limits{
		Model:        func(id string) validate.Model { return s.modelLimits(x, id) },
		MaxSequences: x.settings.SequencesPerRequest, Receipts: s.deps.Receipts != nil, Estimate: x.endpoint == estimateEndpoint, Memory: &x.memory,
	}
	switch d := x.caller.dialect; {
	case d != nil:
		d.Translation, err = d.parse(body, limits)
		r = d.Request
	case x.endpoint == chatEndpoint, x.endpoint == estimateEndpoint && s.estimatesChat(x, body):
		r, err = validate.Chat(body, limits)
		if r == nil {
			return nil, err
		}
		if m, ok := s.lookup(x, r.Model); ok && !m.Chat() { // whatever the body has besides
			return r, apierr.NoChat(s.chatModels(x))
		}
	case x.endpoint == loglikelihoodEndpoint, x.endpoint == estimateEndpoint && gjson.GetBytes(body, "endpoint").Str == LoglikelihoodPath:
		r, err = validate.Loglikelihood(body, limits)
	default:
		r, err = validate.Completion(body, limits)
	}
	if err != nil {
		return r, err
	}
	if x.caller.line != nil && r.Stream {
		return nil, errStreamInBatch
	}
	if m, ok := s.lookup(x, r.Model); ok && r.Kind != validate.Messages && !m.Completions() {
		return r, apierr.NoCompletions(r.NameOf("model"), r.Model)
	}
	return r, nil
}

// modelLimits returns what a body is checked against that names a model. findModel refuses one that the key may not use.
func (s *Server) modelLimits(x *exchange, id string) validate.Model {
	m, ok := s.lookup(x, id)
	if !ok {
		return validate.UnknownModel
	}
	return validate.Model{MaxLogprobs: m.MaxLogprobs(), DefaultMaxTokens: m.ChatDefaultMaxTokens(), XArgs: m.XArgs()}
}

// estimatesChat reports whether the body of an estimate is that of a chat completion: it has messages, or neither messages
// nor a prompt, for a model that only chats.
func (s *Server) estimatesChat(x *exchange, body []byte) bool {
	if len(s.chatModels(x)) > 0 && gjson.GetBytes(body, "messages").Exists() {
		return true
	}
	if gjson.GetBytes(body, "prompt").Exists() {
		return false
	}
	m, ok := s.lookup(x, gjson.GetBytes(body, "model").Str)
	return ok && !m.Completions()
}

// checkBudget refuses a request of a key or an account with an exhausted cap, before it waits in the queue.
func (s *Server) checkBudget(x *exchange) error {
	e := s.exhausted(x.caller.payer)
	switch {
	case e == nil:
		return nil
	case x.caller.line != nil:
		return waitsForCap(e)
	default:
		return x.budgetExceeded(e)
	}
}

// admit waits for the model. A line of a batch has a place instead.
func (s *Server) admit(x *exchange) error {
	if x.caller.line != nil {
		return s.usePlace(x)
	}
	return x.awaitModel()
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
		began, endBoot := time.Now(), x.trace.child("boot")
		err = x.model.AwaitBoot(ctx, x.routing())
		endBoot()
		x.timings.booting += time.Since(began)
		x.delivery.keepalive.waitingFor(waitingForFirstEvent)
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
	case errors.Is(err, fleet.ErrNoOtherBackend) && x.attempts.notLoaded != nil:
		return x.adapterUnavailable()
	default:
		return x.model.APIError(err)
	}
}

// bufferFullRetry is when a client should retry that was refused because too much is buffered.
const bufferFullRetry = 5 * time.Second

func bufferFull(cause error) error {
	return apierr.Overload(apierr.NoMemory, "too much is waiting here already", bufferFullRetry, cause)
}
