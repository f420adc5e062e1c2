package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"basegate/breaker"
	"basegate/validate"
)

var (
	errNotJSON   = errors.New("what the backend sent is not a JSON object")
	errNoChoices = errors.New("the answer has not the choices that were asked for")
)

// plainBuffers hold whole answers on their way.
var plainBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// plain takes a whole answer in hand, makes sure that it is one, and delivers it. The status goes to the client only
// then: vLLM sends errors under 200, and a body can break off.
func (s *Server) plain(x *exchange, a *answer) (breaker.Verdict, error) {
	buffer := plainBuffers.Get().(*bytes.Buffer) //nolint:errcheck // the pool holds nothing else
	defer releaseBuffer(buffer)
	buffer.Reset()
	if a.ContentLength > 0 {
		buffer.Grow(int(min(a.ContentLength, maxEvent)) + bytes.MinRead)
	}
	if _, err := buffer.ReadFrom(a.Body); err != nil {
		return s.failedAttempt(x, a.lease, a.broken(x, err)), nil
	}
	x.upstream = time.Since(x.sent)
	body := buffer.Bytes()
	cost, v := x.readPlain(body)
	if v.Class != breaker.Success {
		return s.failedAttempt(x, a.lease, v), nil
	}
	s.succeededAttempt(x, a.lease)
	if !cost.known {
		cost = s.measure(x)
	}
	if err := x.settle(cost, http.StatusOK, ""); err != nil {
		return breaker.Verdict{}, err
	}
	if a.bestOf == validate.EmulateBestOf {
		body = chooseBest(body, x.request)
	}
	return breaker.Verdict{}, s.deliver(x, a.Header.Get("Content-Type"), tagged(body, x.request.RawUser()))
}

// keepAnswer is the largest buffer of an answer that goes back to the pool, in bytes.
const keepAnswer = 1 << 20

func releaseBuffer(b *bytes.Buffer) {
	if b.Cap() <= keepAnswer {
		plainBuffers.Put(b)
	}
}

// readPlain judges a whole body that came under 200, and finds what it cost.
func (x *exchange) readPlain(body []byte) (usage, breaker.Verdict) {
	top, err := readMembers(body)
	if err != nil {
		return usage{}, breaker.Verdict{Class: breaker.Garbled, Status: http.StatusOK, Cause: err}
	}
	if breaker.FoundError(top.failure, top.object) {
		return usage{}, breaker.Answer(http.StatusOK, body)
	}
	cost := usageOf(top.usage)
	x.delivered = nil // of an attempt before this one
	choices, aborted := 0, false
	top.choices.ForEach(func(_, choice gjson.Result) bool {
		choices++
		c := readChoice(choice)
		aborted = aborted || c.aborted()
		if !cost.known {
			x.delivered = append(x.delivered, delivered{})
			x.delivered[choices-1].take(c.text, c.logprobs)
		}
		return true
	})
	switch {
	case aborted:
		return usage{}, breaker.Verdict{Class: breaker.Aborted, Status: http.StatusOK}
	case choices == 0:
		return usage{}, breaker.Verdict{Class: breaker.Garbled, Status: http.StatusOK, Cause: errNoChoices}
	}
	return cost, breaker.Verdict{}
}

// members are what the gateway looks at in vLLM's JSON, in a plain answer and in an event alike.
type members struct {
	failure, object, choices, usage gjson.Result
}

// readMembers finds them in one pass. They share the bytes of body, so they are good only as long as those are.
func readMembers(body []byte) (members, error) {
	var m members
	if !jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return m, errNotJSON
	}
	object := gjson.Parse(unsafe.String(unsafe.SliceData(body), len(body))) //nolint:gosec // saves a copy of every answer and event
	if !object.IsObject() {
		return m, errNotJSON
	}
	object.ForEach(func(name, value gjson.Result) bool {
		switch name.Str {
		case "error":
			m.failure = value
		case "object":
			m.object = value
		case "choices":
			m.choices = value
		case "usage":
			m.usage = value
		}
		return true
	})
	return m, nil
}

// choice is one of an answer's, or of an event's.
type choice struct {
	index, text, logprobs, finish gjson.Result
}

func readChoice(raw gjson.Result) (c choice) {
	raw.ForEach(func(name, value gjson.Result) bool {
		switch name.Str {
		case "index":
			c.index = value
		case "text":
			c.text = value
		case "logprobs":
			c.logprobs = value
		case "finish_reason":
			c.finish = value
		}
		return true
	})
	return c
}

// finished tells whether vLLM is done with the choice; it aborted one that it gave up.
func (c *choice) finished() bool { return c.finish.Type == gjson.String }
func (c *choice) aborted() bool  { return c.finish.Str == finishAbort }

// finishAbort is the finish_reason of an answer that vLLM gave up; it comes under 200.
const finishAbort = "abort"

func usageOf(u gjson.Result) usage {
	if !u.IsObject() {
		return usage{}
	}
	return usage{prompt: u.Get("prompt_tokens").Int(), completion: u.Get("completion_tokens").Int(), known: true}
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
