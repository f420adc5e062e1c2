package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"slices"
	"time"

	"basegate/breaker"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/proxy/stream"
	"basegate/validate"
)

var errIncomplete = errors.New("the response lacks a choice, or a choice that has finished")

// freePlain is the largest buffer that is not counted, in bytes: a running request may always hold as much.
const freePlain = initialBuffer

// readPlain reads the whole body of a plain response. Its error is stream.ErrTooLarge, admission.ErrFull, or the backend's.
func (p *response) readPlain(x *exchange) error {
	limit := x.settings.MaxAnswerBytes
	if p.ContentLength > limit {
		return stream.ErrTooLarge
	}
	p.plain = buffer{source: p.Body, size: p.ContentLength, trusted: limit, free: freePlain, memory: &x.memory}
	err := p.plain.readAll(limit)
	if err == nil && int64(len(p.plain.bytes)) > limit {
		err = stream.ErrTooLarge
	}
	return err
}

// receivePlain reads a whole plain response and checks it before its status is sent to the client: vLLM sends some errors
// with status 200, and a body can break off.
func (p *response) receivePlain(x *exchange) (outcome breaker.Outcome) {
	if err := p.readPlain(x); err != nil {
		return p.failure(x, err)
	}
	x.timings.upstream = time.Since(x.timings.sent)
	if c := x.tokenizer(); c != nil {
		return c.check(p.plain.bytes)
	}
	choices := x.request.Choices()
	if p.bestOf == validate.EmulateBestOf {
		choices = x.request.Prompts * int(x.request.Candidates())
		if err := p.plain.hold(int64(len(p.plain.bytes)) + candidateBytes*int64(choices)); err != nil { // for chooseBest
			return p.failure(x, err)
		}
	}
	p.usage, outcome = x.checkPlain(p.plain.bytes, choices)
	if outcome.Class == breaker.Success && p.bestOf == validate.EmulateBestOf && !hasLogprobs(p.plain.bytes) {
		p.lease.SetLacksLogprobs()
		return breaker.Outcome{
			Class: breaker.ClientError, Status: http.StatusOK, Param: "best_of", Message: apierr.BestOfUnsupportedText(x.model.ID()),
		}
	}
	return outcome
}

// checkPlain classifies a plain body that came with status 200, and returns its usage. If the backend reported none, the
// exchange keeps the choices to count them. choices is the number of them that were asked for.
func (x *exchange) checkPlain(body []byte, choices int) (stream.Usage, breaker.Outcome) {
	completion := stream.NewObject(stream.Limits{Choices: choices, Memory: &x.memory})
	failed := func(class breaker.Class, cause error) (stream.Usage, breaker.Outcome) {
		completion.Release()
		return stream.Usage{}, breaker.Outcome{Class: class, Status: http.StatusOK, Cause: cause}
	}
	if err := completion.Parse(body); err != nil {
		if errors.Is(err, admission.ErrFull) {
			return failed(breaker.LocalFault, err)
		}
		return failed(breaker.Malformed, err)
	}
	switch {
	case completion.IsError():
		completion.Release()
		return stream.Usage{}, breaker.Classify(http.StatusOK, body)
	case completion.Aborted():
		return failed(breaker.Aborted, nil)
	case !completion.IsComplete(choices):
		return failed(breaker.Malformed, errIncomplete)
	}
	usage := completion.Usage()
	x.charge.reports = parseReported(completion.Details())
	if x.trace.sampled() || x.receipt != nil {
		x.charge.reasons = completion.FinishReasons()
	}
	if !usage.Known {
		x.charge.choices = completion.ChoiceUsage() // which takes the memory that completion has counted
		return usage, breaker.Outcome{}
	}
	completion.Release()
	return usage, breaker.Outcome{}
}

// relayPlain sends a plain response to the client after its charge is on disk.
func (s *Server) relayPlain(x *exchange, p *response) (err error) {
	p.usage = s.chargeable(x, p.usage)
	p.recordUsage(x, p.usage)
	body := p.plain.bytes
	if p.bestOf == validate.EmulateBestOf {
		body = chooseBest(body, x.request)
	}
	if x.scoring != nil {
		if body, err = x.loglikelihood(p.usage); err != nil {
			return err
		}
	}
	pieces := withUser([][]byte{body}, x.request)
	translated, err := x.caller.dialect.translate(x, body)
	switch {
	case err != nil:
		return err
	case translated != nil:
		pieces = [][]byte{translated}
	}
	if err := x.sealPlain(p, pieces); err != nil {
		return err
	}
	contentType := cmp.Or(p.Header.Get("Content-Type"), "application/json")
	if err := x.settleAndKeep(p, p.usage, contentType, body, nil, s.deps.Log); err != nil {
		return err
	}
	return s.sendPlain(x, contentType, pieces)
}

// sendPlain sends a plain response, with its receipt if there is one: the header, and onchain_data if it is to be in the body.
func (s *Server) sendPlain(x *exchange, contentType string, pieces [][]byte) error {
	if x.receipt != nil {
		x.setReceiptHeader()
	}
	if x.receipt != nil && x.receipt.embed {
		onchain, err := x.onchainData()
		if err != nil {
			return err
		}
		pieces = appendMember(pieces, append([]byte(`"onchain_data":`), onchain...))
	}
	return s.sendBody(x, http.StatusOK, contentType, pieces...)
}

// withUser adds the user tag of a request to a plain response.
func withUser(pieces [][]byte, r *validate.Request) [][]byte {
	user := r.RawUser()
	if user == nil {
		return pieces
	}
	return appendMember(pieces, slices.Concat([]byte(`"user":`), user))
}

// appendMember adds a last member to a JSON object in pieces.
func appendMember(pieces [][]byte, member []byte) [][]byte {
	last := len(pieces) - 1
	end := bytes.LastIndexByte(pieces[last], '}')
	if end < 0 {
		return pieces
	}
	out := append([][]byte{}, pieces[:last]...)
	return append(out, pieces[last][:end], []byte(","), member, pieces[last][end:])
}
