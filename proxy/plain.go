package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"sync"
	"time"

	"basegate/breaker"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/proxy/stream"
	"basegate/validate"
)

var errIncomplete = errors.New("the response lacks a choice, or a choice that has finished")

// plainBuffers hold plain responses until they are sent.
var plainBuffers = sync.Pool{New: func() any { b := make([]byte, 0, minPlain); return &b }}

const (
	// minPlain is the first buffer for a plain response, in bytes; most are shorter.
	minPlain = 4 << 10
	// freePlain is the largest buffer that is pooled and not counted, in bytes: a running request may always hold as much.
	freePlain = 16 << 10
)

// plainBody is the whole body of a plain response. The zero value is that of a stream.
type plainBody struct {
	bytes  []byte
	pooled *[]byte
	buffer buffer
}

// read reads the body, of at most limit bytes. Its error is stream.ErrTooLarge, admission.ErrFull, or the backend's.
func (b *plainBody) read(resp *http.Response, limit int64, memory *admission.Allocation) (err error) {
	if resp.ContentLength > limit {
		return stream.ErrTooLarge
	}
	b.buffer = buffer{source: resp.Body, size: resp.ContentLength, trusted: limit, free: freePlain, memory: memory}
	b.pooled = plainBuffers.Get().(*[]byte)
	b.bytes, err = b.buffer.readAll((*b.pooled)[:0], limit)
	if err == nil && int64(len(b.bytes)) > limit {
		err = stream.ErrTooLarge
	}
	return err
}

// grow counts what editing the body takes besides.
func (b *plainBody) grow(bytes int64) error {
	err := b.buffer.memory.Grow(bytes)
	if err == nil {
		b.buffer.counted += bytes
	}
	return err
}

// release returns the buffer to its pool.
func (b *plainBody) release() {
	if b.pooled == nil {
		return
	}
	if cap(b.bytes) <= freePlain {
		*b.pooled = b.bytes
	}
	plainBuffers.Put(b.pooled)
	b.buffer.release()
	b.bytes, b.pooled = nil, nil
}

// receivePlain reads a whole plain response and checks it before its status is sent to the client: vLLM sends some errors
// with status 200, and a body can break off.
func (p *response) receivePlain(x *exchange) (outcome breaker.Outcome) {
	if err := p.plain.read(p.Response, x.settings.MaxAnswerBytes, &x.memory); err != nil {
		return p.readFailure(x, err)
	}
	x.timings.upstream = time.Since(x.timings.sent)
	choices := x.request.Choices()
	if p.bestOf == validate.EmulateBestOf {
		choices = x.request.Prompts * int(x.request.Candidates())
		if err := p.plain.grow(int64(len(p.plain.bytes)) + candidateBytes*int64(choices)); err != nil { // for chooseBest
			return p.readFailure(x, err)
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
	if x.receipt != nil {
		x.receipt.reasons = completion.FinishReasons()
	}
	if !usage.Known {
		x.charge.choices = completion.ChoiceUsage() // which takes the memory that completion has counted
		return usage, breaker.Outcome{}
	}
	completion.Release()
	return usage, breaker.Outcome{}
}

// relayPlain sends a plain response to the client after its charge is on disk.
func (s *Server) relayPlain(x *exchange, p *response) error {
	p.usage = s.chargeable(x, p.usage)
	body := p.plain.bytes
	if p.bestOf == validate.EmulateBestOf {
		body = chooseBest(body, x.request)
	}
	pieces := withUserTag(body, x.request.RawUser())
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
	if err := x.settle(p.usage, http.StatusOK, ""); err != nil {
		return err
	}
	pieces, err = x.withReceipt(pieces)
	if err != nil {
		return err
	}
	return s.sendBody(x, cmp.Or(p.Header.Get("Content-Type"), "application/json"), pieces...)
}

// withUserTag returns body, in pieces, with the request's user tag as its last member.
func withUserTag(body, user []byte) [][]byte {
	end := bytes.LastIndexByte(body, '}')
	if user == nil || end < 0 {
		return [][]byte{body}
	}
	return [][]byte{body[:end], []byte(`,"user":`), user, body[end:]}
}
