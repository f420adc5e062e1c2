package mockvllm_test

import (
	"net/http"
	"strings"
	"testing"

	"basegate/mockvllm"
)

// TestValidationIsAsLaxAsPydantic sends bodies that a strict parser rejects and vLLM accepts.
func TestValidationIsAsLaxAsPydantic(t *testing.T) {
	p := start(t, mockvllm.Options{})
	for _, body := range []string{
		`{"prompt":"x","max_tokens":"16"}`,
		`{"prompt":"x","max_tokens":" 1_6 "}`,
		`{"prompt":"x","max_tokens":1e1}`,
		`{"prompt":"x","max_tokens":16.0}`,
		`{"prompt":"x","max_tokens":true}`,
		`{"prompt":"x","stream":"no","echo":0}`,
		`{"prompt":"x","temperature":"0.5","top_p":null}`,
		`{"prompt":"x","temprature":3,"guided_json":{},"best_of":9}`,
		`{"prompt":"x","max_tokens":0,"max_tokens":3}`,
		`{"prompt":[1.0,2.0]}`,
		`{"prompt":[["1"],[true]]}`,
		`{"prompt":"x","model":""}`,
		`{"prompt":"\u0000","user":null,"logit_bias":{"5":1e9}}`,
		"\ufeff" + ` {"prompt":"x"} `,
		`{"prompt":"x","stream_options":{}}`,
		`{"prompt":"x","top_k":-1,"seed":-1}`,
	} {
		if a := send(t, p, http.MethodPost, completions, body); a.status != 200 {
			t.Errorf("%s: got %d %s, want 200", body, a.status, a.body)
		}
	}
}

func TestInvalidRequestsGetVLLMsErrors(t *testing.T) {
	p := start(t, mockvllm.Options{MaxModelLen: 64})
	for body, want := range map[string]string{
		``:                                                 `'loc': 'body', 'msg': 'Field required', 'input': 'None'`,
		`[1]`:                                              `Input should be a valid dictionary`,
		`{"a"`:                                             `{'type': 'json_invalid', 'loc': 'body.4', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': \"Expecting ':' delimiter\"}}`,
		`{"prompt":"x"} x`:                                 `'loc': 'body.15'`,
		"{\"prompt\":\"\xff\"}":                            `{"detail":"There was an error parsing the body"}`,
		strings.Repeat("[", 5000):                          `{"detail":"There was an error parsing the body"}`,
		`{"prompt":""}`:                                    `Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)","type":"BadRequestError","param":"prompt"`,
		`{"prompt":[]}`:                                    `You must pass at least one prompt`,
		`{"prompt":[[]]}`:                                  `The decoder prompt cannot be empty`,
		`{"prompt":["a",1]}`:                               `5 validation errors:`,
		`{"prompt":[-1]}`:                                  `validation error`,
		`{"prompt":[999999]}`:                              `Token id 999999 is out of vocabulary`,
		`{"prompt":"\ud800"}`:                              `TextEncodeInput must be`,
		`{"prompt":"x","n":null}`:                          `Input should be a valid integer`,
		`{"prompt":"x","n":0}`:                             `n must be at least 1, got 0.`,
		`{"prompt":"x","max_tokens":16.5}`:                 `got a number with a fractional part`,
		`{"prompt":"x","max_tokens":0}`:                    `max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)`,
		`{"prompt":"x","min_tokens":20}`:                   `min_tokens must be less than or equal to max_tokens=16, got 20.`,
		`{"prompt":"x","temperature":-1}`:                  `temperature must be non-negative, got -1.0.`,
		`{"prompt":"x","temperature":NaN}`:                 `temperature must be a finite number, got nan.`,
		`{"prompt":"x","temperature":2.5}`:                 `temperature must be in [0, 2], got 2.5.`,
		`{"prompt":"x","top_k":-2}`:                        `top_k must be 0 (disable), or at least 1, got -2.`,
		`{"prompt":"x","min_p":1.5}`:                       `min_p must be in [0, 1], got 1.5.`,
		`{"prompt":"x","presence_penalty":3}`:              `presence_penalty must be in [-2, 2], got 3.0.`,
		`{"prompt":"x","repetition_penalty":0}`:            `repetition_penalty must be greater than zero, got 0.0.`,
		`{"prompt":"x","stop":["a",""]}`:                   `stop cannot contain an empty string.`,
		`{"prompt":"x","stop":["a","b","c","d","e"]}`:      `List should have at most 4 items after validation, not 5`,
		`{"prompt":"x","stop":[1]}`:                        `Input should be a valid string`,
		`{"prompt":"x","logprobs":-2}`:                     "`logprobs` must be a positive value or -1.",
		`{"prompt":"x","prompt_logprobs":1,"stream":true}`: "`prompt_logprobs` are not available when `stream=True`.",
		`{"prompt":"x","prompt_logprobs":21}`:              `Requested prompt logprobs of 21, which is greater than max allowed: 20`,
		`{"prompt":"x","logit_bias":{"5000":1}}`:           `token_id(s) [5000] in logit_bias contain out-of-vocab token ids. Vocabulary size:`,
		`{"prompt":"x","logit_bias":{"a":1}}`:              `invalid literal for int() with base 10: 'a'`,
		`{"prompt":"x","user":1}`:                          `Input should be a valid string`,
		`{"prompt":"x","max_tokens":65}`:                   `max_tokens=65 cannot be greater than max_model_len=64.`,
		`{"prompt":"` + strings.Repeat("xz ", 60) + `"}`:   `your prompt contains at least 65 input tokens, which exceeds this limit even without any output tokens.`,
		`{"prompt":[` + strings.Repeat("1,", 64) + `1]}`:   `your prompt contains 65 input tokens, which exceeds this limit even without any output tokens.`,
		`{"prompt":[` + strings.Repeat("1,", 63) + `1]}`:   `max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)`,
		`{"prompt":[` + strings.Repeat("1,", 59) + `1],"min_tokens":5}`: `min_tokens must be less than or equal to max_tokens=4, got 5.`,
		`{"prompt":["x","` + strings.Repeat("y", 2000) + `"]}`:          `your prompt contains 2000 characters (more than 1088 characters`,
		`{"prompt":"x","stream":true,"stream_options":"usage"}`:         `Input should be a valid dictionary`,
		`{"prompt":"x","stream_options":{"include_usage":true}}`:        "Stream options can only be defined when `stream=True`.",
		`{"prompt":"x","allowed_token_ids":[99999]}`:                    `allowed_token_ids contains out-of-vocab token id!`,
		`{"prompt":"x","suffix":""}`:                                    `suffix is only supported for models with FIM completion rendering`,
	} {
		a := send(t, p, http.MethodPost, completions, body)
		if a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%.100s: got %d %s, want 400 with %s", body, a.status, a.body, want)
		}
	}
}

func TestOlderVersionsRejectMaxTokensOverTheContext(t *testing.T) {
	p := start(t, mockvllm.Options{MaxModelLen: 64, Version: "0.27.0"})
	for body, want := range map[string]string{
		`{"prompt":"x","max_tokens":65}`:                       `max_tokens=65 cannot be greater than max_model_len=max_total_tokens=64.`,
		`{"prompt":"` + strings.Repeat("xz ", 60) + `"}`:       `your prompt contains at least 49 input tokens, for a total of at least 65 tokens.`,
		`{"prompt":[` + strings.Repeat("1,", 59) + `1]}`:       `you requested 16 output tokens and your prompt contains 60 input tokens, for a total of 76 tokens.`,
		`{"prompt":["x","` + strings.Repeat("y", 2000) + `"]}`: `your prompt contains 2000 characters (more than 816 characters`,
	} {
		a := send(t, p, http.MethodPost, completions, body)
		if a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%.100s: got %d %s, want 400 with %s", body, a.status, a.body, want)
		}
	}
}

func TestMaxTokensIsClampedToTheContextSilently(t *testing.T) {
	p := start(t, mockvllm.Options{MaxModelLen: 64})
	for _, prompt := range []int{1, 60, 63} {
		tokens := make([]int, prompt)
		c := complete(t, p, map[string]any{"prompt": tokens, "max_tokens": 64, "ignore_eos": true})
		if finish := *c.Choices[0].FinishReason; c.Usage.Completion != 64-prompt || finish != "length" {
			t.Errorf("%d tokens: got %d more and finish_reason %s, want %d and length", prompt, c.Usage.Completion, finish, 64-prompt)
		}
	}
}

func TestEngineChecksFailInsideTheStream(t *testing.T) {
	p := start(t, mockvllm.Options{})
	for _, body := range []string{
		`{"prompt":"x","stream":true,"logprobs":21}`,
		`{"prompt":[[]],"stream":true}`,
		`{"prompt":[5000],"stream":true}`,
		`{"prompt":"x","stream":true,"logit_bias":{"5000":1}}`,
	} {
		a := send(t, p, http.MethodPost, completions, body)
		if a.status != 200 || !strings.HasPrefix(a.body, `data: {"error": {"message": `) ||
			!strings.HasSuffix(a.body, `"code": 400}}`+"\n\ndata: [DONE]\n\n") {
			t.Errorf("%s: got %d %s, want 200 with an error event of code 400 and [DONE]", body, a.status, a.body)
		}
	}
}
