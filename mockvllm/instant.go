package mockvllm

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"
)

// instantTokens is what an instant answer holds unless the request says how many.
const instantTokens = 16

// An instantAnswer is the same for every request, but for its length: what it costs is what a proxy's own cost is
// measured against.
type instantAnswer struct {
	event  []byte // a token
	last   []byte // the one with finish_reason
	prefix []byte // of the usage event and the plain answer
}

func newInstantAnswer(model string) *instantAnswer {
	head := appendString([]byte(`{"id":"cmpl-instant","object":"text_completion","created":1767225600,"model":`), model)
	event := func(finish string) []byte {
		return []byte("data: " + string(head) + `,"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":` +
			finish + `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}` + "\n\n")
	}
	return &instantAnswer{event: event("null"), last: event(`"length"`), prefix: head}
}

// serve reads of the request only whether it streams, for how long and with which count.
func (a *instantAnswer) serve(x *exchange) {
	if x.readBody() != nil {
		x.hangUp()
		return
	}
	wanted := gjson.GetManyBytes(x.body, "stream", "max_tokens", "stream_options.include_usage")
	tokens := int(wanted[1].Int())
	if tokens < 1 || tokens > x.server.limit {
		tokens = instantTokens
	}
	if !wanted[0].Bool() {
		x.json(a.plain(tokens))
		return
	}
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.WriteHeader(http.StatusOK)
	var end []byte
	if wanted[2].Bool() {
		end = append(append(append(end, "data: "...), a.prefix...), `,"choices":[],`...)
		end = append(a.usage(end, tokens), "}\n\n"...)
	}
	end = append(end, doneEvent...)
	a.stream(x, tokens, end)
}

// stream sends everything in one write, or an event at a time if there is a delay between tokens.
func (a *instantAnswer) stream(x *exchange, tokens int, end []byte) {
	delay := x.server.options.TokenDelay
	if delay == 0 {
		_, _ = x.w.Write(bytes.Repeat(a.event, tokens-1)) // a client that left needs no answer
		_, _ = x.w.Write(append(bytes.Clone(a.last), end...))
		return
	}
	for i := range tokens {
		event := a.event
		if i == tokens-1 {
			event = a.last
		}
		if _, err := x.w.Write(event); err != nil {
			return
		}
		if http.NewResponseController(x.w).Flush() != nil || pause(x.r.Context(), delay) != nil {
			return
		}
	}
	_, _ = x.w.Write(end) // idem
}

func (a *instantAnswer) plain(tokens int) []byte {
	body := append(bytes.Clone(a.prefix), `,"choices":[{"index":0,"text":"`...)
	body = append(body, bytes.Repeat([]byte(" word"), tokens)...)
	body = append(body, `","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_logprobs":null}],`...)
	return append(a.usage(body, tokens), '}')
}

func (*instantAnswer) usage(to []byte, tokens int) []byte {
	to = append(to, `"usage":{"prompt_tokens":6,"total_tokens":`...)
	to = strconv.AppendInt(to, int64(6+tokens), 10)
	to = append(to, `,"completion_tokens":`...)
	return append(strconv.AppendInt(to, int64(tokens), 10), '}')
}
