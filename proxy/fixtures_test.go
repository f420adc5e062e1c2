package proxy_test

import "basegate/internal/ssetest"

// Requests that every backend of the harness can serve.
const (
	plainRequest           = `{"model":"m","prompt":"x"}`
	streamRequest          = `{"model":"m","prompt":"x","max_tokens":3,"stream":true}`
	streamRequestWithUsage = `{"model":"m","prompt":"x","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`
)

// plainResponse is a response whose bytes change if it is decoded and encoded again.
const plainResponse = `{"id":"cmpl-1", "object":"text_completion","choices":[ {"index":0,"text":"caf\u00e9 ☕","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2},"big":1e400}`

const doneEvent = ssetest.Done

var event = ssetest.Event
