package mockvllm

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tidwall/gjson"
)

// instantTokens is the length of an instant response whose request does not say how many tokens it wants.
const instantTokens = 16

// instantResponse serves completions with constant text and without the model. Only their length differs, so what
// they cost is a baseline for the cost of a proxy.
type instantResponse struct {
	event  []byte // of one token
	last   []byte // the event with finish_reason
	prefix []byte // of the usage event and of the plain response
	limit  int    // in tokens
}

func newInstantResponse(model string, limit int) *instantResponse {
	head := appendString([]byte(`{"id":"cmpl-instant","object":"text_completion","created":1767225600,"model":`), model)
	event := func(finish string) []byte {
		return []byte("data: " + string(head) + `,"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":` +
			finish + `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}` + "\n\n")
	}
	return &instantResponse{event: event("null"), last: event(`"length"`), prefix: head, limit: limit}
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
		x.writeJSON(a.plain(r.tokens))
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
	_, _ = x.w.Write(a.end(r)) // fails only if the client disconnected
}

// end returns the bytes that follow the tokens of a stream.
func (a *instantResponse) end(r instantRequest) []byte {
	var dst []byte
	if r.usage {
		dst = append(append(append(dst, "data: "...), a.prefix...), `,"choices":[],`...)
		dst = append(a.appendUsage(dst, r.tokens), "}\n\n"...)
	}
	return append(dst, doneEvent...)
}

// plain returns the body of a plain response.
func (a *instantResponse) plain(tokens int) []byte {
	dst := append(slices.Clone(a.prefix), `,"choices":[{"index":0,"text":"`...)
	for range tokens {
		dst = append(dst, " word"...)
	}
	dst = append(dst, `","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_logprobs":null}],`...)
	return append(a.appendUsage(dst, tokens), '}')
}

func (*instantResponse) appendUsage(dst []byte, tokens int) []byte {
	return fmt.Appendf(dst, `"usage":{"prompt_tokens":6,"total_tokens":%d,"completion_tokens":%d}`, 6+tokens, tokens)
}
