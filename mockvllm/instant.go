package mockvllm

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// instantTokens is the length of an instant response whose request does not say how many tokens it wants.
const instantTokens = 16

// instantResponse serves completions with constant text and without the model. Only their length differs, so what
// they cost is a baseline for the cost of a proxy.
type instantResponse struct {
	model string
	event []byte // of one token
	last  []byte // the event with finish_reason
	limit int    // in tokens
}

func newInstantResponse(model string, limit int) *instantResponse {
	a := &instantResponse{model: model, limit: limit}
	a.event, a.last = encodeEvent(instantForm, a.object(1, nil)), encodeEvent(instantForm, a.object(1, finishLength))
	return a
}

const instantForm form = "id object created model choices usage?"

// object returns a response of some tokens.
func (a *instantResponse) object(tokens int, finish any) object {
	choice := form("index text logprobs finish_reason stop_reason").encode(object{
		"index": 0, "text": strings.Repeat(" word", tokens), "finish_reason": finish,
	})
	return object{"id": "cmpl-instant", "object": "text_completion", "created": 1767225600, "model": a.model, "choices": []any{choice}}
}

func instantUsage(tokens int) json.RawMessage {
	return usage("prompt_tokens total_tokens completion_tokens", 6, tokens)
}

// instantRequest holds the fields of a request that an instant response depends on.
type instantRequest struct {
	stream, usage bool
	tokens        int
	priority      int
}

func (a *instantResponse) parse(body []byte) instantRequest {
	fields := gjson.GetManyBytes(body, "stream", "max_tokens", "stream_options.include_usage", "priority")
	r := instantRequest{
		stream: fields[0].Bool(), tokens: int(fields[1].Int()), usage: fields[2].Bool(), priority: int(fields[3].Int()),
	}
	if r.tokens < 1 || r.tokens > a.limit {
		r.tokens = instantTokens
	}
	return r
}

func (a *instantResponse) serve(x *exchange) {
	if x.readBody() != nil {
		x.closeConn()
		return
	}
	r := a.parse(x.body)
	s := x.server
	release, err := s.queue.acquire(x.r.Context(), 1, r.priority)
	if err != nil {
		return // the client disconnected
	}
	defer release()
	wait := s.options.FirstDelay
	if !r.stream {
		wait += time.Duration(r.tokens) * s.options.TokenDelay
	}
	if wait > 0 && pause(x.r.Context(), wait) != nil {
		return
	}
	if !r.stream {
		o := a.object(r.tokens, finishLength)
		o["usage"] = instantUsage(r.tokens)
		x.writeJSON(instantForm.encode(o))
		return
	}
	x.w.Header().Set("Content-Type", eventStreamType)
	x.w.WriteHeader(http.StatusOK)
	delay := s.options.TokenDelay
	for i := range r.tokens {
		event := a.event
		if i == r.tokens-1 {
			event = a.last
		}
		if _, err := x.w.Write(event); err != nil {
			return
		}
		if delay > 0 && (http.NewResponseController(x.w).Flush() != nil || pause(x.r.Context(), delay) != nil) {
			return
		}
	}
	var end []byte
	if r.usage {
		o := a.object(0, nil)
		o["choices"], o["usage"] = []any{}, instantUsage(r.tokens)
		end = encodeEvent(instantForm, o)
	}
	_, _ = x.w.Write(append(end, doneEvent...)) // fails only if the client disconnected
}
