package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	result  proxy.LineResult

	cached, reasoning int64 // tokens among those charged

	reason     proxy.WaitReason // of isUntried
	resetsAt   time.Time
	delay      time.Duration
	asked      bool // it has run without a place
	unreadable bool // the storage has failed, so other lines need not be tried
}

// errorObject is why a line has no response.
type errorObject struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// runLine runs a line. Without a place, it starts the model if nothing else is in the way of the line.
func (j *job) runLine(ref lineRef, place proxy.Place) outcome {
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
	l, refused := parseLine(text)
	if refused != nil {
		return newResult(ref, gjson.GetBytes(text, "custom_id").Str, &errorObject{"internal_error", "the line of the file has changed"},
			proxy.LineResult{Release: memory.Release})
	}
	settings := s.settings.Load()
	r := s.completer.ServeLine(j.ctx, proxy.Line{
		Batch: j.batch.ID, Account: j.batch.Account, Key: j.batch.Key, Run: j.batch.run, Endpoint: l.url, Body: l.body,
		Deadline: time.Unix(j.batch.ExpiresAt, 0), Place: place, Memory: memory, Replay: j.batch.replay,
	})
	switch r.State {
	case proxy.LineCancelled:
		why, ends := endings[context.Cause(j.ctx)]
		if !ends || !r.Began {
			return untried("", waitDelay)
		}
		return newResult(ref, l.customID, &errorObject{why.code, why.cut}, r)
	case proxy.LineWaits:
		reason, delay := r.Reason, waitDelay
		switch {
		case reason != proxy.WaitsForModel:
		case place != nil: // the breaker is open to the key
			delay = modelDelay
		case !settings.StartModels:
			reason = proxy.WaitsForWindow
		default:
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
	return newResult(ref, l.customID, nil, r)
}

// newResult returns the outcome of a line that has ended: with the response in r, or without one because of failure.
func newResult(ref lineRef, customID string, failure *errorObject, r proxy.LineResult) outcome {
	if failure == nil && !gjson.ValidBytes(r.Body) { // which the proxy has checked
		failure = &errorObject{"internal_error", "the response could not be encoded"}
	}
	text := encodeResult(customID, failure, &r)
	usage := gjson.GetBytes(r.Body, "usage")
	r.Body = nil // text has it
	return outcome{
		kind: isResult, line: ref, text: text, success: failure == nil && r.Code == "", result: r,
		cached:    min(usage.Get("prompt_tokens_details.cached_tokens").Int(), r.Usage.Prompt),
		reasoning: min(usage.Get("completion_tokens_details.reasoning_tokens").Int(), r.Usage.Completion),
	}
}

// encodeResult returns a line of an output or error file. The body is copied byte for byte: encoding/json would compact and escape it.
func encodeResult(customID string, failure *errorObject, r *proxy.LineResult) []byte {
	id, _ := json.Marshal(customID) // strings are never refused
	text := fmt.Appendf(nil, `{"id":%q,"custom_id":%s,`, newID("batch_req_"), id)
	if failure != nil {
		why, _ := json.Marshal(failure)
		return fmt.Appendf(text, `"response":null,"error":%s}`+"\n", why)
	}
	return fmt.Appendf(text, `"response":{"status_code":%d,"request_id":%q,"body":%s},"error":null}`+"\n", r.Status, r.RequestID, oneLine(r.Body))
}

// oneLine returns a body as one line: line feeds between its tokens are replaced by spaces; strings hold none.
func oneLine(body []byte) []byte {
	body = bytes.TrimRight(body, "\r\n")
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
