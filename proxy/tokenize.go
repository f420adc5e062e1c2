package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"basegate/breaker"
	"basegate/budget"
	"basegate/budget/receipt"
	"basegate/internal/ratelimit"
	"basegate/proxy/stream"
	"basegate/validate"
)

// errNoResult is the cause of a response of the tokenizer without the member that holds the result.
var errNoResult = errors.New("the response of the tokenizer has no result")

// tokenizerCall is one of the two endpoints of vLLM's tokenizer.
type tokenizerCall struct {
	path     string
	validate func(body []byte, memory validate.Memory) (*validate.Request, error)
	result   string        // the member of the response that holds the result
	kind     jsontext.Kind // of its value
	receipt  string        // the kind of a receipt's entry
}

var (
	tokenizeCall   = &tokenizerCall{"/tokenize", validate.Tokenize, "tokens", '[', receipt.Tokenization}
	detokenizeCall = &tokenizerCall{"/detokenize", validate.Detokenize, "prompt", '"', receipt.Detokenization}
)

// tokenize serves POST /v1/tokenize.
func (s *Server) tokenize(x *exchange) error { return s.callTokenizer(x, tokenizeCall) }

// detokenize serves POST /v1/detokenize.
func (s *Server) detokenize(x *exchange) error { return s.callTokenizer(x, detokenizeCall) }

// freeText is how much an account may send to the tokenizer while its budget or that of the key is used up, in bytes.
const freeText = 10 << 20

// freeTextRate is freeText a minute.
var freeTextRate = ratelimit.Settings{Interval: time.Minute / freeText, Burst: freeText, MaxKeys: 1 << 16}

// AllowFreeText refuses text for the tokenizer if a budget of the payer is used up, and freeText of the last minute too. The
// error is one of the API.
func (s *Server) AllowFreeText(p budget.Payer, bytes int64) error {
	exceeded := s.ledger.Exhausted(p)
	if exceeded == nil || bytes <= 0 {
		return nil
	}
	if bytes <= freeText && s.freeText.Take(p.Account, int(bytes)) == 0 {
		return nil
	}
	return freeTextExceeded(exceeded)
}

// callTokenizer takes the steps of a completion that do not concern its cost: the tokenizer is free, up to freeText a minute
// for an account whose budget is used up. A receipt is not: what is kept for ever needs a budget that lasts.
func (s *Server) callTokenizer(x *exchange, call *tokenizerCall) error {
	defer x.memory.Release()
	defer x.releaseBody()
	withReceipt := false
	if err := s.authenticate(x); err != nil {
		return err
	}
	announced := max(x.r.ContentLength, 0)
	if err := s.AllowFreeText(x.caller.payer, announced); err != nil {
		return err
	}
	rules := func(x *exchange, body []byte) (*validate.Request, error) {
		if err := s.AllowFreeText(x.caller.payer, int64(len(body))-announced); err != nil { // it was compressed, or came in chunks
			return nil, err
		}
		return call.validate(body, &x.memory)
	}
	if err := s.readAuthenticated(x, s.receiptRules(rules, &withReceipt)); err != nil {
		return err
	}
	if withReceipt {
		if err := s.checkBudget(x); err != nil {
			return err
		}
		s.beginReceipt(x)
	}
	if err := x.awaitModel(); err != nil {
		return err
	}
	if err := s.acquireSlot(x); err != nil {
		return err
	}
	defer x.slot.Release()
	x.memory.SetRunning()
	response, err := s.forward(x, call.send)
	if err != nil {
		return err
	}
	defer response.close()
	if err := x.writeReceipt(call.receipt, response.plain.bytes); err != nil {
		return err
	}
	return s.sendBody(x, cmp.Or(response.Header.Get("Content-Type"), "application/json"), response.plain.bytes)
}

// send is the sender of the call. It receives the whole response.
func (c *tokenizerCall) send(s *Server, x *exchange, p *response) breaker.Outcome {
	var err error
	upstream := x.request.Upstream(validate.Edits{Model: x.model.Checkpoint()})
	p.Response, err = s.roundTrip(p.ctx, x, p.lease.Backend, p.lease.URL(c.path), upstream) //nolint:bodyclose // by close
	switch {
	case err != nil:
		return p.noResponse(x, err)
	case p.StatusCode != http.StatusOK:
		return p.classifyError(x)
	}
	if err := p.plain.read(p.Response, x.settings.MaxAnswerBytes, &x.memory); err != nil {
		return p.readFailure(x, err)
	}
	x.timings.upstream = time.Since(x.timings.sent)
	return c.check(p.plain.bytes)
}

// check classifies a body that came with status 200.
func (c *tokenizerCall) check(body []byte) breaker.Outcome {
	malformed := func(cause error) breaker.Outcome {
		return breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: cause}
	}
	object := stream.NewObject(stream.Limits{})
	if err := object.Parse(body); err != nil {
		return malformed(err)
	}
	switch {
	case object.IsError():
		return breaker.Classify(http.StatusOK, body)
	case !hasMember(body, c.result, c.kind):
		return malformed(errNoResult)
	default:
		return breaker.Outcome{}
	}
}

// hasMember reports whether a JSON object has a member with that name and kind of value. It copies no value: a response can
// be as large as upstream.max_answer_bytes.
func hasMember(object []byte, name string, kind jsontext.Kind) bool {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if opening, err := decoder.ReadToken(); err != nil || opening.Kind() != '{' {
		return false
	}
	for decoder.PeekKind() == '"' {
		token, err := decoder.ReadToken()
		if err != nil {
			return false
		}
		if token.String() == name {
			return decoder.PeekKind() == kind
		}
		if decoder.SkipValue() != nil {
			return false
		}
	}
	return false
}

// tokenizerFault reports whether the outcome of a call of the tokenizer says something about completions of the backend.
// Success does not, because the tokenizer of a dead engine still responds; nor does a backend without these paths.
func tokenizerFault(o breaker.Outcome) bool {
	return o.Class != breaker.Success && o.Status != http.StatusNotFound && o.Status != http.StatusMethodNotAllowed
}
