package proxy

import (
	"encoding/json"
	"slices"
	"testing"

	"basegate/breaker"
	"basegate/validate"
)

// A plain response is accepted only if it is JSON with choices. Its usage is never negative, and it stays valid JSON
// when the gateway edits it.
func FuzzPlain(f *testing.F) {
	for _, body := range []string{
		`{"id":"c","choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`,
		`{"choices":[{"index":1,"text":"b","logprobs":{"token_logprobs":[-1,null],"tokens":["a","b"]},"finish_reason":"length","prompt_logprobs":[null,{"5":{"logprob":-0.5}}]},{"index":0,"text":"a"}]}`,
		`{"choices":[{"index":0,"finish_reason":"abort"}]}`, `{"error":{"message":"x","type":"y","code":500}}`, `{"object":"error","message":"x"}`,
		`{"choices":[],"usage":null}`, `{"choices":"x"}`, `{"choices":[1,"x",null,[]],"usage":{"prompt_tokens":-5,"completion_tokens":1e300}}`,
		`{"choices":"x","choices":[{"index":0,"text":"a"}]}`, `{"usage":{"prompt_tokens":"9","completion_tokens":true},"choices":[{"text":"a"}]} `, `{`, `[]`, ``,
	} {
		f.Add([]byte(body), byte(2), byte(1))
	}
	f.Fuzz(func(t *testing.T, body []byte, bestOf, n byte) {
		x := new(exchange)
		usage, outcome := x.checkPlain(body, 1<<20)
		if outcome.Class != breaker.Success {
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q was accepted, but is not JSON", body)
		}
		if usage.Prompt < 0 || usage.Completion < 0 {
			t.Errorf("the usage of %q is %+v", body, usage)
		}
		if !usage.Known && len(x.charge.choices) == 0 {
			t.Errorf("%q: neither the usage nor the choices are known", body)
		}
		if tagged := slices.Concat(appendMember([][]byte{body}, []byte(`"user":"me"`))...); !json.Valid(tagged) {
			t.Errorf("%q with a user tag is %q", body, tagged)
		}
		r := &validate.Request{Prompts: 1, N: max(1, int64(n%16)), Logprobs: validate.Absent, PromptLogprobs: validate.Absent}
		r.BestOf = max(r.N, int64(bestOf%16))
		if best := chooseBest(body, r); !json.Valid(best) {
			t.Errorf("the best choices of %q are %q, which is not JSON", body, best)
		}
	})
}
