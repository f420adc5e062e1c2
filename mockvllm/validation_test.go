package mockvllm_test

import (
	"net/http"
	"strings"
	"testing"

	"basegate/mockvllm"
)

func TestInvalidRequestsGetVLLMsErrors(t *testing.T) {
	p := start(t, mockvllm.Options{MaxModelLen: 64})
	for body, want := range map[string]string{
		``:                                      `'loc': 'body', 'msg': 'Field required', 'input': 'None'`,
		`[1]`:                                   `Input should be a valid dictionary`,
		"{\"prompt\":\"\xff\"}":                 `{"detail":"There was an error parsing the body"}`,
		`{"prompt":""}`:                         `Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)","type":"BadRequestError","param":"prompt"`,
		`{"prompt":[]}`:                         `You must pass at least one prompt`,
		`{"prompt":[[]]}`:                       `The decoder prompt cannot be empty`,
		`{"prompt":["a",1]}`:                    `5 validation errors:`,
		`{"prompt":"x",}`:                       `Expecting property name enclosed in double quotes`,
		`{"prompt":"x","user":1}`:               `{'type': 'string_type', 'loc': 'body.user', 'msg': 'Input should be a valid string', 'input': '1'}`,
		`{"prompt":"x","stop":[1]}`:             `Input should be a valid string`,
		`{"prompt":[999999]}`:                   `Token id 999999 is out of vocabulary`,
		`{"prompt":"x","n":null}`:               `Input should be a valid integer`,
		`{"prompt":"x","n":0}`:                  `n must be at least 1, got 0.`,
		`{"prompt":"x","max_tokens":0}`:         `max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)`,
		`{"prompt":"x","temperature":-1}`:       `temperature must be non-negative, got -1.0.`,
		`{"prompt":"x","min_p":1.5}`:            `min_p must be in [0, 1], got 1.5.`,
		`{"prompt":"x","presence_penalty":3}`:   `presence_penalty must be in [-2, 2], got 3.0.`,
		`{"prompt":"x","repetition_penalty":0}`: `repetition_penalty must be greater than zero, got 0.0.`,
		`{"prompt":"x","stop":["a",""]}`:        `stop cannot contain an empty string.`,
		`{"prompt":"x","prompt_logprobs":1,"stream":true}`:       "`prompt_logprobs` are not available when `stream=True`.",
		`{"prompt":"x","prompt_logprobs":21}`:                    `Requested prompt logprobs of 21, which is greater than max allowed: 20`,
		`{"prompt":"x","logit_bias":{"5000":1}}`:                 `token_id(s) [5000] in logit_bias contain out-of-vocab token ids. Vocabulary size:`,
		`{"prompt":"x","max_tokens":65}`:                         `max_tokens=65 cannot be greater than max_model_len=64.`,
		`{"prompt":"` + strings.Repeat("xz ", 60) + `"}`:         `your prompt contains at least 65 input tokens, which exceeds this limit even without any output tokens.`,
		`{"prompt":[` + strings.Repeat("1,", 64) + `1]}`:         `your prompt contains 65 input tokens, which exceeds this limit even without any output tokens.`,
		`{"prompt":[` + strings.Repeat("1,", 63) + `1]}`:         `max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)`,
		`{"prompt":["x","` + strings.Repeat("y", 2000) + `"]}`:   `your prompt contains 2000 characters (more than 1088 characters`,
		`{"prompt":"x","stream_options":{"include_usage":true}}`: "Stream options can only be defined when `stream=True`.",
		`{"prompt":"x","allowed_token_ids":[99999]}`:             `token_id(s) [99999] in allowed_token_ids contain out-of-vocab token ids.`,
		`{"prompt":"x","suffix":""}`:                             `suffix is only supported for models with FIM completion rendering`,
	} {
		a := send(t, p, http.MethodPost, completions, body)
		if a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%.100s: got %d %s, want 400 with %s", body, a.status, a.body, want)
		}
	}
}

func TestOlderVersionsRejectMaxTokensOverTheContext(t *testing.T) {
	p := start(t, mockvllm.Options{MaxModelLen: 64, Version: "0.11.0"})
	for body, want := range map[string]string{
		`{"prompt":[1,2],"max_tokens":65}`:               `'max_tokens' or 'max_completion_tokens' is too large: 65.`,
		`{"prompt":[` + strings.Repeat("1,", 63) + `1]}`: `However, your request has 64 input tokens.`,
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
