package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"basegate/internal/ssetest"
)

// Requests that every backend of the harness can serve.
const (
	plainRequest           = `{"model":"m","prompt":"x"}`
	streamRequest          = `{"model":"m","prompt":"x","max_tokens":3,"stream":true}`
	streamRequestWithUsage = `{"model":"m","prompt":"x","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`
)

// plainResponse is a response whose bytes change if it is decoded and encoded again.
const plainResponse = `{"id":"cmpl-1", "object":"text_completion","choices":[ {"index":0,"text":"caf\u00e9 ☕","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2},"big":1e400}`

// respondPlain responds to a request for several choices with plainResponse and as many choices.
func respondPlain(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	n := max(int(gjson.GetBytes(body, "n").Int()), 1)
	if prompts := gjson.GetBytes(body, "prompt"); prompts.IsArray() && gjson.GetBytes(body, "prompt.0").Type != gjson.Number {
		n *= len(prompts.Array())
	}
	var choices strings.Builder
	for i := range n {
		fmt.Fprintf(&choices, `{"index":%d,"text":"a","finish_reason":"stop"},`, i)
	}
	before, rest, _ := strings.Cut(plainResponse, "[ {")
	_, after, _ := strings.Cut(rest, "]")
	respond(http.StatusOK, "application/json", before+"["+strings.TrimSuffix(choices.String(), ",")+"]"+after)(w, r)
}

const doneEvent = ssetest.Done

var event = ssetest.Event
