package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/proxy"
)

// kind is the kind of an outcome.
type kind int

const (
	isResult  kind = iota // the line has ended, and text is its result
	isRetry               // it has failed and is tried again
	isUntried             // it has not run
)

// outcome is the result of one start of a line.
type outcome struct {
	kind    kind
	line    lineRef
	text    []byte // with its end of line
	success bool
	cut     bool // of isResult: the batch has ended while the line ran
	result  proxy.LineResult

	cached, reasoning int64 // tokens among those charged

	reason     proxy.WaitReason // of isUntried
	resetsAt   time.Time
	delay      time.Duration
	asked      bool // it has run without a place
	unreadable bool // the storage has failed, so other lines need not be tried
}

var parsers = sync.Pool{New: func() any { return newLineParser() }}

// resultObject is a line of an output or error file.
type resultObject struct {
	ID       string          `json:"id"`
	CustomID string          `json:"custom_id"`
	Response *responseObject `json:"response"`
	Error    *errorObject    `json:"error"`
}

type responseObject struct {
	Status    int             `json:"status_code"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
}

type errorObject struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// runLine runs a line. Without a place, it starts the model if nothing else is in the way of the line.
func (j *job) runLine(ref lineRef, place proxy.Place) outcome {
	o := j.sendLine(ref, place)
	o.asked = place == nil
	return o
}

func (j *job) sendLine(ref lineRef, place proxy.Place) outcome {
	if place != nil {
		defer place.Release()
	}
	s := j.service
	untried := func(reason proxy.WaitReason, delay time.Duration) outcome {
		return outcome{kind: isUntried, line: ref, reason: reason, delay: delay}
	}
	memory := s.completer.Allocate(j.batch.Key)
	if memory.Grow(ref.length) != nil { // before it is read, since many lines may be long
		return untried(proxy.WaitsForCapacity, waitDelay)
	}
	text, err := j.readLine(j.ctx, ref)
	if err != nil {
		memory.Release()
		if j.ctx.Err() == nil {
			s.log.Warn("a line of a batch cannot be read", zap.String("batch", j.batch.ID), zap.Error(err))
		}
		o := untried(proxy.WaitsForCapacity, storageDelay)
		o.unreadable = true
		return o
	}
	l, err := parseLine(text)
	if err != nil {
		return newResult(ref, resultObject{
			CustomID: gjson.GetBytes(text, "custom_id").Str,
			Error:    &errorObject{"internal_error", "the line of the file has changed"},
		}, proxy.LineResult{Release: memory.Release})
	}
	settings := s.settings.Load()
	r := s.completer.ServeLine(j.ctx, proxy.Line{
		Batch: j.batch.ID, Account: j.batch.Account, Key: j.batch.Key, Endpoint: l.url, Body: l.body,
		Deadline: time.Unix(j.batch.ExpiresAt, 0), Place: place, Memory: memory,
	})
	switch r.State {
	case proxy.LineCancelled:
		why, ends := endings[context.Cause(j.ctx)]
		if !ends || !r.Began {
			return untried("", waitDelay)
		}
		o := newResult(ref, resultObject{CustomID: l.customID, Error: &errorObject{why.code, why.cut}}, r)
		o.cut = true
		return o
	case proxy.LineWaits:
		reason, delay := r.Reason, waitDelay
		switch {
		case reason != proxy.WaitsForModel:
		case !settings.StartModels:
			reason = proxy.WaitsForWindow
		case place == nil:
			started, now := s.completer.AcquirePlace(j.batch.Models[ref.model], s.perBackend(), true)
			if started != nil { // it runs already
				started.Release()
				return untried("", 0)
			}
			reason, delay = now, modelDelay
		}
		o := untried(reason, delay)
		o.resetsAt = r.ResetsAt
		return o
	case proxy.LineEnded:
	}
	if ref.attempts++; r.Retryable && ref.attempts < settings.Attempts {
		r.Release()
		return outcome{kind: isRetry, line: ref}
	}
	return newResult(ref, resultObject{
		CustomID: l.customID, Response: &responseObject{r.Status, r.RequestID, r.Body},
	}, r)
}

// parseLine parses a line that has passed the validation.
func parseLine(text []byte) (line, error) {
	p := parsers.Get().(*lineParser)
	defer parsers.Put(p)
	l, refused := p.parse(text)
	if refused != nil {
		return line{}, refused
	}
	return l, nil
}

// newResult returns the outcome of a line that has ended.
func newResult(ref lineRef, o resultObject, r proxy.LineResult) outcome {
	o.ID = newID("batch_req_")
	text, err := encodeResult(o)
	if err != nil { // the body is no JSON, which the proxy has checked
		o.Response, o.Error = nil, &errorObject{"internal_error", "the response could not be encoded"}
		text, _ = encodeResult(o)
	}
	usage := gjson.GetBytes(r.Body, "usage")
	r.Body = nil // text has it
	return outcome{
		kind: isResult, line: ref, text: text, success: o.Response != nil && r.Code == "", result: r,
		cached:    min(usage.Get("prompt_tokens_details.cached_tokens").Int(), r.Usage.Prompt),
		reasoning: min(usage.Get("completion_tokens_details.reasoning_tokens").Int(), r.Usage.Completion),
	}
}

// encodeResult encodes a result. The body is copied byte for byte, without its end of line: encoding/json would compact
// and escape it.
func encodeResult(o resultObject) ([]byte, error) {
	var body []byte
	if o.Response != nil {
		body = trimmed(o.Response.Body)
		if !gjson.ValidBytes(body) {
			return nil, errNotJSON
		}
		o.Response = &responseObject{o.Response.Status, o.Response.RequestID, json.RawMessage("0")}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode a result: %w", err)
	}
	if o.Response == nil {
		return append(text, '\n'), nil
	}
	const end = `0},"error":null}`
	out := make([]byte, 0, len(text)+len(body)+1)
	out = append(out, text[:len(text)-len(end)]...)
	out = append(out, body...)
	return append(out, end[1:]+"\n"...), nil
}

var errNotJSON = errors.New("the body is not JSON")

// trimmed returns a body as one line: line feeds between its tokens are replaced by spaces; strings hold none.
func trimmed(body []byte) []byte {
	for len(body) > 0 && (body[len(body)-1] == '\n' || body[len(body)-1] == '\r') {
		body = body[:len(body)-1]
	}
	for i, c := range body {
		if c == '\n' || c == '\r' {
			body[i] = ' '
		}
	}
	return body
}

// readLine reads a line of the input file.
func (j *job) readLine(ctx context.Context, ref lineRef) ([]byte, error) {
	r := &fileReader{ctx: ctx, service: j.service, parts: j.input, offset: ref.offset, size: ref.offset + ref.length}
	defer r.Close()
	text := make([]byte, ref.length)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("read the file of a batch: %w", err)
	}
	return text, nil
}
