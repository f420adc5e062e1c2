package mockvllm

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/wait"
)

// instantTokens is the length of an instant response whose request does not say how many tokens it wants.
const instantTokens = 16

const instantForm form = "id object created model choices usage?"

// instantObject returns a response of some tokens, which are constant.
func (s *Server) instantObject(tokens int, finish any) object {
	choice := form("index text logprobs finish_reason stop_reason").encode(object{
		"index": 0, "text": strings.Repeat(" word", tokens), "finish_reason": finish,
	})
	return object{"id": "cmpl-instant", "object": "text_completion", "created": 1767225600, "model": s.options.Models[0], "choices": []any{choice}}
}

func instantUsage(tokens int) json.RawMessage {
	return usage("prompt_tokens total_tokens completion_tokens", 6, tokens, nil)
}

// serveInstant responds to a completion with constant text and without the model. Only the length differs, so what it costs
// is a baseline for the cost of a proxy.
func (s *Server) serveInstant(x *exchange) {
	fields := gjson.GetManyBytes(x.body, "stream", "max_tokens", "stream_options.include_usage", "priority")
	tokens := int(fields[1].Int())
	if tokens < 1 || tokens > s.options.MaxModelLen {
		tokens = instantTokens
	}
	ctx, delay := x.r.Context(), s.options.TokenDelay
	release, err := s.queue.acquire(ctx, 1, int(fields[3].Int()))
	if err != nil {
		return // the client disconnected
	}
	defer release()
	if fields[0].Bool() {
		if wait.For(ctx, s.options.FirstDelay) {
			s.streamInstant(x, tokens, fields[2].Bool())
		}
		return
	}
	if wait.For(ctx, s.options.FirstDelay+time.Duration(tokens)*delay) {
		o := s.instantObject(tokens, finishLength)
		o["usage"] = instantUsage(tokens)
		x.writeJSON(instantForm.encode(o))
	}
}

func (s *Server) streamInstant(x *exchange, tokens int, withUsage bool) {
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.WriteHeader(http.StatusOK)
	ctx, delay := x.r.Context(), s.options.TokenDelay
	event := encodeEvent(instantForm, s.instantObject(1, nil))
	for i := range tokens {
		if i == tokens-1 {
			event = encodeEvent(instantForm, s.instantObject(1, finishLength))
		}
		if _, err := x.w.Write(event); err != nil {
			return
		}
		if delay > 0 && (http.NewResponseController(x.w).Flush() != nil || !wait.For(ctx, delay)) {
			return
		}
	}
	var end []byte
	if withUsage {
		o := s.instantObject(0, nil)
		o["choices"], o["usage"] = []any{}, instantUsage(tokens)
		end = encodeEvent(instantForm, o)
	}
	_, _ = x.w.Write(append(end, doneEvent...)) // fails only if the client disconnected
}
