package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"basegate/breaker"
	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/receipt"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/internal/ratelimit"
	"basegate/proxy/stream"
)

// errNoResult is the cause of a response of the tokenizer without the member that holds the result.
var errNoResult = errors.New("the response of the tokenizer has no result")

// tokenizerCall is one of the two endpoints of vLLM's tokenizer.
type tokenizerCall struct {
	path    string
	result  string        // the member of the response that holds the result
	kind    jsontext.Kind // of its value
	receipt string        // the kind of a receipt's entry
}

var tokenizerCalls = map[endpoint]*tokenizerCall{
	tokenizeEndpoint:   {"/tokenize", "tokens", '[', receipt.Tokenization},
	detokenizeEndpoint: {"/detokenize", "prompt", '"', receipt.Detokenization},
}

func (x *exchange) tokenizer() *tokenizerCall { return tokenizerCalls[x.endpoint] }

// freeText is how much an account may send to the tokenizer while its budget or that of the key is used up, in bytes.
const freeText = 10 << 20

// freeTextRate is freeText a minute.
var freeTextRate = ratelimit.Settings{Interval: time.Minute / freeText, Burst: freeText, MaxKeys: 1 << 16}

// AllowFreeText refuses text for the tokenizer if a budget of the payer is used up, and freeText of the last minute too. The
// error is one of the API.
func (s *Server) AllowFreeText(p budget.Payer, bytes int64) error {
	exceeded := s.exhausted(p)
	if exceeded == nil || bytes <= 0 {
		return nil
	}
	if bytes <= freeText && s.freeText.Take(p.Account, int(bytes)) == 0 {
		return nil
	}
	b := apiBudget(exceeded)
	b.FreeText = freeText
	return apierr.BudgetSpent(b)
}

// callTokenizer takes the steps of a completion that do not concern its cost: the tokenizer is free, up to freeText a minute
// for an account whose budget is used up. A receipt is not: what is kept for ever needs a budget that lasts.
func (s *Server) callTokenizer(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	announced := max(x.r.ContentLength, 0)
	if err := s.AllowFreeText(x.caller.payer, announced); err != nil {
		return err
	}
	body, err := s.readBody(x)
	if err != nil {
		return err
	}
	if err := s.AllowFreeText(x.caller.payer, int64(len(body))-announced); err != nil { // it was compressed, or came in chunks
		return err
	}
	if err := s.parse(x, body); err != nil {
		return err
	}
	if x.receipt != nil {
		if err := s.checkBudget(x); err != nil {
			return err
		}
	}
	if err := x.awaitModel(); err != nil {
		return err
	}
	slot, err := s.deps.Ledger.Reserve(x.r.Context(), x.caller.payer, budget.Request{ID: x.id}, budget.Demand{SlotOnly: true}, requester{s, x})
	if err != nil {
		return x.reserveErr(err)
	}
	defer slot.Drop()
	x.memory.SetRunning()
	response, err := s.forward(x)
	if err != nil {
		return err
	}
	defer response.close()
	if err := x.writeReceipt(x.tokenizer().receipt, response.plain.bytes); err != nil {
		return err
	}
	return s.sendBody(x, http.StatusOK, cmp.Or(response.Header.Get("Content-Type"), "application/json"), response.plain.bytes)
}

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

// tokenizerInfo are the members of a tokenizer's configuration that clients receive. Others hold paths of the operator's.
var tokenizerInfo = []string{
	"bos_token", "eos_token", "pad_token", "tokenizer_class", "model_max_length", "added_tokens_decoder", "chat_template",
}

func (s *Server) showTokenizer(x *exchange) (err error) {
	if err := s.authenticate(x); err != nil {
		return err
	}
	if x.model, err = s.modelOf(x); err != nil {
		return err
	}
	x.memory = s.deps.Memory.Allocate(x.caller.identity.KeyID)
	if err := x.awaitModel(); err != nil {
		return err
	}
	release, err := x.awaitTurn(x.r.Context())
	switch {
	case errors.Is(err, admission.ErrFull):
		return bufferFull(err)
	case err != nil:
		return x.cancelErr()
	}
	defer release()
	ctx, cancel := context.WithTimeout(x.r.Context(), tokenizeTimeout)
	defer cancel()
	var info gjson.Result
	err = x.model.QueryReady(func(b *fleet.Backend) (err error) {
		x.attempts.backend = b
		info, err = b.TokenizerInfo(ctx)
		return err
	})
	switch {
	case errors.Is(err, fleet.ErrNoTokenizerInfo):
		return apierr.NoSuchPath(x.r.Method, x.r.URL.Path, "the server of "+x.model.ID()+" does not tell its tokenizer's configuration, which the operator can enable")
	case x.cancelled():
		return x.cancelErr()
	case err != nil:
		return apierr.Unreachable("the tokenizer of "+x.model.ID()+" did not answer", 1, err)
	}
	body := []byte{'{'}
	for _, name := range tokenizerInfo {
		if value := info.Get(name); value.Exists() {
			if len(body) > 1 {
				body = append(body, ',')
			}
			body = append(append(append(append(body, '"'), name...), `":`...), value.Raw...)
		}
	}
	x.discardBody()
	return s.sendBody(x, http.StatusOK, "application/json", append(body, '}'))
}
