package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"basegate/breaker"
	"basegate/validate"
)

var errNoChoices = errors.New("the answer has not the choices that were asked for")

// plainBuffers hold whole answers on their way.
var plainBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// whole takes a whole answer in hand and makes sure that it is one, before its status goes to the client: vLLM sends
// errors under 200, and a body can break off.
func (a *answer) whole(x *exchange) (v breaker.Outcome) {
	a.buffer = plainBuffers.Get().(*bytes.Buffer) //nolint:errcheck // the pool holds nothing else
	a.buffer.Reset()
	if a.ContentLength > 0 {
		a.buffer.Grow(int(min(a.ContentLength, maxEvent)) + bytes.MinRead)
	}
	if _, err := a.buffer.ReadFrom(a.Body); err != nil {
		return a.broken(x, err)
	}
	x.upstream = time.Since(x.sent)
	a.cost, v = x.readPlain(a.buffer.Bytes())
	return v
}

// plain brings a whole answer to the client, once its charge is on disk.
func (s *Server) plain(x *exchange, a *answer) error {
	if !a.cost.known {
		a.cost = s.measure(x)
	}
	if err := x.settle(a.cost, http.StatusOK, ""); err != nil {
		return err
	}
	body := a.buffer.Bytes()
	if a.bestOf == validate.EmulateBestOf {
		body = chooseBest(body, x.request)
	}
	return s.deliver(x, a.Header.Get("Content-Type"), tagged(body, x.request.RawUser()))
}

// keepAnswer is the largest buffer of an answer that goes back to the pool, in bytes.
const keepAnswer = 1 << 20

func releaseBuffer(b *bytes.Buffer) {
	if b.Cap() <= keepAnswer {
		plainBuffers.Put(b)
	}
}

// readPlain judges a whole body that came under 200, and finds what it cost.
func (x *exchange) readPlain(body []byte) (usage, breaker.Outcome) {
	var t told
	if err := t.read(body); err != nil {
		return usage{}, breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: err}
	}
	if t.failed() {
		return usage{}, breaker.Classify(http.StatusOK, body)
	}
	if len(t.choices) == 0 {
		return usage{}, breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: errNoChoices}
	}
	if slices.ContainsFunc(t.choices, func(c choice) bool { return c.aborted() }) {
		return usage{}, breaker.Outcome{Class: breaker.Aborted, Status: http.StatusOK}
	}
	cost := t.cost()
	if !cost.known {
		x.delivered = make([]delivered, len(t.choices))
		for i := range t.choices {
			x.delivered[i].take(&t.choices[i])
		}
	}
	return cost, breaker.Outcome{}
}

// tagged is body with the request's user tag as its last member.
func tagged(body, user []byte) [][]byte {
	end := bytes.LastIndexByte(body, '}')
	if user == nil || end < 0 {
		return [][]byte{body}
	}
	return [][]byte{body[:end], []byte(`,"user":`), user, body[end:]}
}

// deliver sends a whole body.
func (s *Server) deliver(x *exchange, contentType string, pieces [][]byte) error {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	h := x.w.Header()
	h.Set("Content-Type", cmp.Or(contentType, "application/json"))
	h.Set("Content-Length", strconv.Itoa(size))
	s.setHeaders(x, "")
	x.status = http.StatusOK
	x.boundWrites()
	x.w.WriteHeader(x.status)
	for _, p := range pieces {
		if _, err := x.w.Write(p); err != nil {
			return errClientGone
		}
	}
	x.finished = true
	return nil
}
