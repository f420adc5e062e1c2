package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"basegate/breaker"
	"basegate/budget"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/keys"
	"basegate/validate"
)

// completion is POST /v1/completions, in the contract's order of judgement: what fails first answers.
func (s *Server) completion(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	body, err := s.readBody(x)
	if err != nil {
		return err
	}
	if x.request, err = validate.Completion(body, s.maxLogprobs); err != nil {
		return err
	}
	if x.model, err = s.findModel(x.request.Model); err != nil {
		return err
	}
	if err := s.awaitModel(x, int64(len(body))); err != nil {
		return err
	}
	if err := s.refuseSpent(x); err != nil {
		return err
	}
	if err := s.waitForSlot(x, int64(len(body))); err != nil {
		return err
	}
	defer x.slot.Release()
	if err := x.judgeLength(); err != nil {
		return err
	}
	if err := s.reserve(x, int64(len(body))); err != nil {
		return err
	}
	defer x.reservation.Release()
	return s.closeOut(x, s.answer(x))
}

// answer has a backend answer the request.
func (s *Server) answer(x *exchange) error {
	if x.request.Stream {
		x.echoed = x.echoes()
	}
	x.countMeanwhile()
	defer x.stopCounting()
	a, err := s.forward(x)
	if err != nil {
		return err
	}
	defer a.close()
	if x.request.Stream {
		return s.stream(x, a)
	}
	return s.plain(x, a)
}

// chat answers the chat endpoint, whatever the body.
func (s *Server) chat(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	return apierr.NoChat()
}

var errNoKey = errors.New("no bearer token")

// authenticate finds out who asks, and who pays.
func (s *Server) authenticate(x *exchange) error {
	identity, err := s.identify(x)
	x.identity, x.payer = identity, budget.Payer{}
	if err != nil {
		return apierr.BadKey(err)
	}
	x.payer = Payer(&identity)
	return nil
}

// identify takes the key from the one Authorization header, but for a guest, who has none.
func (s *Server) identify(x *exchange) (keys.Identity, error) {
	if x.guest != nil {
		return s.keys.Identify(x.guest.account, x.guest.key)
	}
	values := x.r.Header.Values("Authorization")
	if len(values) != 1 {
		return keys.Identity{}, errNoKey
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return keys.Identity{}, errNoKey
	}
	return s.keys.Authenticate(strings.TrimSpace(secret))
}

func (s *Server) maxLogprobs(model string) int {
	if m, ok := s.fleet.Model(model); ok {
		return m.MaxLogprobs()
	}
	return validate.DefaultMaxLogprobs
}

func (s *Server) findModel(id string) (*fleet.Model, error) {
	if m, ok := s.fleet.Model(id); ok {
		return m, nil
	}
	var available []string
	for _, m := range s.fleet.Models() {
		available = append(available, m.ID())
	}
	suggestion := ""
	if m, ok := s.fleet.ByCheckpoint(id); ok {
		suggestion = m.ID()
	}
	return nil, apierr.UnknownModel(id, available, suggestion)
}

// awaitModel has the model started where it does not run, and waits for that as long as its cold_wait allows. Who waits
// counts with those who wait for a slot, since both keep their bodies in memory.
func (s *Server) awaitModel(x *exchange, bytes int64) error {
	err := x.model.EnsureServable()
	if _, booting := errors.AsType[*fleet.BootingError](err); booting && x.model.ColdWait() > 0 {
		release, full := s.queue.ReserveMemory(bytes)
		if full != nil {
			return tooMuchWaits(full)
		}
		defer release()
		ctx, cancel := context.WithTimeout(x.r.Context(), x.model.ColdWait())
		defer cancel()
		err = x.model.AwaitBoot(ctx)
	}
	if err != nil {
		return x.unservable(err)
	}
	return nil
}

// unservable is the answer for a model that no attempt can be made at.
func (x *exchange) unservable(err error) error {
	if x.over() {
		return x.ending()
	}
	return x.model.APIError(err)
}

// bestOf decides what a backend gets of best_of. Only the engine of versions before 0.8 honours it; later ones
// refuse or ignore it, and a parameter is never silently ignored.
func bestOf(r *validate.Request, b *fleet.Backend) validate.BestOf {
	switch {
	case r.BestOf == 0 || honoursBestOf(b.Version()):
		return validate.KeepBestOf
	case r.BestOf == r.N:
		return validate.DropBestOf
	default:
		return validate.EmulateBestOf
	}
}

func honoursBestOf(version string) bool {
	minor, ok := strings.CutPrefix(version, "0.")
	return ok && len(minor) > 1 && minor[1] == '.' && minor[0] < '8'
}

// forwarded are the client's headers that a backend gets.
var forwarded = []string{"Accept", "Traceparent", "Tracestate"}

// upstreamHeader is what a backend gets: nothing of the client's but forwarded. The request id is fresh for every
// attempt, since older versions refuse a second request of the same name.
func (x *exchange) upstreamHeader(b *fleet.Backend) http.Header {
	h := make(http.Header, len(forwarded)+4)
	for _, name := range forwarded {
		if values := x.r.Header[name]; len(values) > 0 {
			h[name] = values
		}
	}
	h["Content-Type"] = []string{"application/json"}
	h["X-Request-Id"] = []string{x.id + "-" + string(rune('0'+x.attempts%10))}
	b.Authorize(h)
	return h
}

// failedAttempt notes what became of an attempt that brought nothing.
func (s *Server) failedAttempt(x *exchange, lease *fleet.Lease, v breaker.Outcome) breaker.Outcome {
	x.upstream = time.Since(x.sent)
	x.asked = v.Class == breaker.ClientGone // what has failed costs nothing
	lease.Report(v.Class)
	s.metrics.attempt(x.model.ID(), lease.Name, v.Class)
	return v
}

// succeededAttempt tells the breaker of a success: at a stream's first event, and not at its end, since what is reported
// after its state has changed is dropped.
func (s *Server) succeededAttempt(x *exchange, lease *fleet.Lease) {
	lease.Report(breaker.Success)
	s.metrics.attempt(x.model.ID(), lease.Name, breaker.Success)
}
