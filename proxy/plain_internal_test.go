package proxy

import (
	"encoding/json"
	"slices"
	"testing"

	"basegate/breaker"
	"basegate/validate"
)

// What a backend says in a plain answer is served only where it is JSON with choices; it costs no less than nothing; and
// what the gateway writes into it leaves it JSON.
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
		cost, v := x.readPlain(body)
		if v.Class != breaker.Success {
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q is served", body)
		}
		if cost.prompt < 0 || cost.completion < 0 {
			t.Errorf("%q costs %+v", body, cost)
		}
		if !cost.known && len(x.delivered) == 0 {
			t.Errorf("%q: nothing tells what it costs", body)
		}
		if whole := slices.Concat(tagged(body, []byte(`"me"`))...); !json.Valid(whole) {
			t.Errorf("%q with a tag is %q", body, whole)
		}
		r := &validate.Request{Prompts: 1, N: max(1, int64(n%16)), Logprobs: validate.Absent, PromptLogprobs: validate.Absent}
		r.BestOf = max(r.N, int64(bestOf%16))
		if best := chooseBest(body, r); !json.Valid(best) {
			t.Errorf("the best of %q are %q", body, best)
		}
	})
}
