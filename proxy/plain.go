package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"sync"
	"time"

	"basegate/breaker"
	"basegate/stream"
	"basegate/validate"
)

var errNoChoices = errors.New("the response has no choices")

// plainBuffers hold plain responses until they are sent.
var plainBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const (
	// maxPooledPlain is the largest buffer that is returned to the pool, in bytes.
	maxPooledPlain = 1 << 20
	// maxPlainPrealloc limits what a backend's Content-Length makes the gateway allocate at once, in bytes.
	maxPlainPrealloc = 256 << 20
)

func putPlainBuffer(b *bytes.Buffer) {
	if b.Cap() <= maxPooledPlain {
		plainBuffers.Put(b)
	}
}

// receivePlain reads a whole plain response and checks it before its status is sent to the client: vLLM sends some errors
// with status 200, and a body can break off.
func (p *response) receivePlain(x *exchange) (outcome breaker.Outcome) {
	p.body = plainBuffers.Get().(*bytes.Buffer) //nolint:errcheck // the pool holds nothing else
	p.body.Reset()
	if p.ContentLength > 0 {
		p.body.Grow(int(min(p.ContentLength, maxPlainPrealloc)) + bytes.MinRead)
	}
	if _, err := p.body.ReadFrom(p.Body); err != nil {
		return p.readFailure(x, err)
	}
	x.timings.upstream = time.Since(x.timings.sent)
	p.usage, outcome = x.checkPlain(p.body.Bytes())
	return outcome
}

// checkPlain classifies a plain body that came with status 200, and returns its usage. If the backend reported none, the
// exchange keeps the choices to count them.
func (x *exchange) checkPlain(body []byte) (stream.Usage, breaker.Outcome) {
	var completion stream.Object
	if err := completion.Parse(body); err != nil {
		return stream.Usage{}, breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: err}
	}
	switch {
	case completion.IsError():
		return stream.Usage{}, breaker.Classify(http.StatusOK, body)
	case completion.NumChoices() == 0:
		return stream.Usage{}, breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: errNoChoices}
	case completion.Aborted():
		return stream.Usage{}, breaker.Outcome{Class: breaker.Aborted, Status: http.StatusOK}
	}
	usage := completion.Usage()
	if !usage.Known {
		x.charge.choices = completion.ChoiceUsage()
	}
	return usage, breaker.Outcome{}
}

// relayPlain sends a plain response to the client after its charge is on disk.
func (s *Server) relayPlain(x *exchange, p *response) error {
	if !p.usage.Known {
		p.usage = s.countUsage(x)
	}
	if err := x.settle(p.usage, http.StatusOK, ""); err != nil {
		return err
	}
	body := p.body.Bytes()
	if p.bestOf == validate.EmulateBestOf {
		body = chooseBest(body, x.request)
	}
	return s.sendBody(x, cmp.Or(p.Header.Get("Content-Type"), "application/json"), withUserTag(body, x.request.RawUser())...)
}

// withUserTag returns body, in pieces, with the request's user tag as its last member.
func withUserTag(body, user []byte) [][]byte {
	end := bytes.LastIndexByte(body, '}')
	if user == nil || end < 0 {
		return [][]byte{body}
	}
	return [][]byte{body[:end], []byte(`,"user":`), user, body[end:]}
}
