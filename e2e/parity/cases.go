package parity

// Case is one row of the matrix: a set of request fields that is sent plain and streamed.
type Case struct {
	Name   string
	Fields string // the JSON members after model and prompt; $A and $B are two token ids of the model
	Prompt string // the name of a built-in prompt; empty: text
	Modes  Modes

	// Refused marks a request that the gateway must refuse with 400 invalid_request. It is not sent to a backend.
	Refused bool
	// MayRefuse is the parameter that the gateway may refuse with 400 invalid_request, because the backends' version of vLLM
	// lacks it. A response must be identical all the same.
	MayRefuse string
}

// Modes says in which ways a case is sent.
type Modes uint8

// The modes of a case.
const (
	Both Modes = iota
	PlainOnly
	StreamOnly
)

// Matrix returns the cases that Run sends if Settings.Cases is empty.
func Matrix() []Case {
	var all []Case
	for _, part := range [][]Case{sampling, choices, outputs, prompts, streams, literals, vllmFields, refused} {
		all = append(all, part...)
	}
	return all
}

var sampling = []Case{
	{Name: "defaults and seed", Fields: `"seed": 1`},
	{Name: "max_tokens 1", Fields: `"max_tokens": 1, "temperature": 0`},
	{Name: "max_tokens 12", Fields: `"max_tokens": 12, "temperature": 0`},
	{Name: "temperature", Fields: `"temperature": 0.7, "seed": 2`},
	{Name: "temperature 2", Fields: `"temperature": 2, "seed": 3`},
	{Name: "top_p", Fields: `"top_p": 0.5, "seed": 4`},
	{Name: "top_k", Fields: `"top_k": 5, "seed": 5`},
	{Name: "top_k -1", Fields: `"top_k": -1, "seed": 6`},
	{Name: "min_p", Fields: `"min_p": 0.1, "seed": 7`},
	{Name: "presence_penalty", Fields: `"presence_penalty": 1.5, "temperature": 0`},
	{Name: "frequency_penalty", Fields: `"frequency_penalty": -1.5, "temperature": 0`},
	{Name: "repetition_penalty", Fields: `"repetition_penalty": 1.3, "temperature": 0`},
	{Name: "seed above 2^53", Fields: `"seed": 9007199254740993, "temperature": 2`},
	{Name: "logit_bias", Fields: `"logit_bias": {"$A": 100}, "temperature": 0, "max_tokens": 4`},
	{Name: "logit_bias of two tokens", Fields: `"logit_bias": {"$A": -100, "$B": 1.5}, "temperature": 0`},
	{Name: "logit_bias out of the vocabulary", Fields: `"logit_bias": {"99999999": 1}`},
}

var choices = []Case{
	{Name: "n 2", Fields: `"n": 2, "seed": 11, "max_tokens": 8`},
	{Name: "n 3 with logprobs", Fields: `"n": 3, "seed": 12, "logprobs": 2, "max_tokens": 6`},
	{Name: "n 2 of two prompts", Fields: `"n": 2, "seed": 13, "max_tokens": 6`, Prompt: "texts"},
	{Name: "n 2 with temperature 0", Fields: `"n": 2, "temperature": 0`},
	{Name: "best_of 1", Fields: `"best_of": 1, "temperature": 0`},
	{Name: "best_of 2, n 2", Fields: `"best_of": 2, "n": 2, "seed": 14, "max_tokens": 6`},
	{Name: "best_of 3", Fields: `"best_of": 3, "seed": 15, "max_tokens": 6`, Modes: PlainOnly},
	{Name: "best_of 3, n 2 with logprobs", Fields: `"best_of": 3, "n": 2, "seed": 16, "logprobs": 1, "max_tokens": 6`, Modes: PlainOnly},
	{Name: "best_of 2 of two prompts", Fields: `"best_of": 2, "seed": 17, "max_tokens": 6`, Prompt: "texts", Modes: PlainOnly},
	{Name: "best_of 2 with echo", Fields: `"best_of": 2, "seed": 18, "echo": true, "max_tokens": 4`, Modes: PlainOnly},
}

var outputs = []Case{
	{Name: "stop", Fields: `"stop": "e", "temperature": 0`},
	{Name: "four stops", Fields: `"stop": ["a", "the", "\n", "\u00e9"], "seed": 21`},
	{Name: "logprobs 0", Fields: `"logprobs": 0, "temperature": 0, "max_tokens": 4`},
	{Name: "logprobs 5", Fields: `"logprobs": 5, "temperature": 0, "max_tokens": 6`},
	{Name: "logprobs 20", Fields: `"logprobs": 20, "seed": 22, "max_tokens": 4`},
	{Name: "logprobs 0 with stop", Fields: `"logprobs": 0, "stop": ["e", "o"], "seed": 23`},
	{Name: "prompt_logprobs 0", Fields: `"prompt_logprobs": 0, "temperature": 0, "max_tokens": 2`, Modes: PlainOnly},
	{Name: "prompt_logprobs 2", Fields: `"prompt_logprobs": 2, "temperature": 0, "max_tokens": 2`, Modes: PlainOnly},
	{Name: "prompt_logprobs with logprobs", Fields: `"prompt_logprobs": 1, "logprobs": 1, "temperature": 0, "max_tokens": 2`, Modes: PlainOnly},
	{Name: "prompt_logprobs streamed", Fields: `"prompt_logprobs": 2`, Modes: StreamOnly},
	{Name: "echo", Fields: `"echo": true, "temperature": 0, "max_tokens": 4`},
	{Name: "echo with logprobs", Fields: `"echo": true, "logprobs": 2, "temperature": 0, "max_tokens": 4`},
	{Name: "echo with logprobs of a long prompt", Fields: `"echo": true, "logprobs": 5, "temperature": 0, "max_tokens": 1`, Prompt: "long"},
	{Name: "echo of token ids", Fields: `"echo": true, "temperature": 0, "max_tokens": 4`, Prompt: "ids"},
	// Streamed, vLLM 0.32 often fails at random with these.
	{Name: "echo with logprobs, n 2", Fields: `"echo": true, "logprobs": 1, "n": 2, "seed": 24, "max_tokens": 4`, Modes: PlainOnly},
	{Name: "user", Fields: `"user": "parity", "temperature": 0, "max_tokens": 4`},
	{Name: "user beyond ASCII", Fields: `"user": "p\u00e1r \"1\"", "temperature": 0, "max_tokens": 4`},
}

var prompts = []Case{
	{Name: "two prompts", Fields: `"temperature": 0, "max_tokens": 6`, Prompt: "texts"},
	{Name: "token ids", Fields: `"temperature": 0, "max_tokens": 6`, Prompt: "ids"},
	{Name: "two arrays of token ids", Fields: `"temperature": 0, "max_tokens": 6`, Prompt: "id arrays"},
	{Name: "two arrays of token ids, echo with logprobs", Fields: `"echo": true, "logprobs": 0, "temperature": 0, "max_tokens": 2`, Prompt: "id arrays"},
	{Name: "escapes and emoji", Fields: `"temperature": 0, "max_tokens": 8`, Prompt: "escapes"},
	{Name: "escapes and emoji, echo with logprobs", Fields: `"echo": true, "logprobs": 1, "temperature": 0, "max_tokens": 4`, Prompt: "escapes"},
	{Name: "a long prompt", Fields: `"temperature": 0, "max_tokens": 4`, Prompt: "long"},
	{Name: "an empty prompt", Fields: `"temperature": 0, "max_tokens": 4`, Prompt: "empty"},
	{Name: "a token id out of the vocabulary", Fields: `"temperature": 0, "max_tokens": 4`, Prompt: "unknown id"},
}

var streams = []Case{
	{Name: "include_usage", Fields: `"stream_options": {"include_usage": true}, "temperature": 0, "max_tokens": 6`, Modes: StreamOnly},
	{Name: "include_usage false", Fields: `"stream_options": {"include_usage": false}, "temperature": 0, "max_tokens": 6`, Modes: StreamOnly},
	{Name: "stream_options without members", Fields: `"stream_options": {}, "temperature": 0, "max_tokens": 6`, Modes: StreamOnly},
	{Name: "include_usage, n 2", Fields: `"stream_options": {"include_usage": true}, "n": 2, "seed": 31, "max_tokens": 6`, Modes: StreamOnly},
	{Name: "include_usage, echo with logprobs", Fields: `"stream_options": {"include_usage": true}, "echo": true, "logprobs": 1, "temperature": 0, "max_tokens": 4`, Modes: StreamOnly},
	{
		Name: "continuous_usage_stats", Modes: StreamOnly, MayRefuse: "stream_options",
		Fields: `"stream_options": {"include_usage": true, "continuous_usage_stats": true}, "temperature": 0, "max_tokens": 6`,
	},
	{
		Name: "continuous_usage_stats, n 2", Modes: StreamOnly, MayRefuse: "stream_options",
		Fields: `"stream_options": {"include_usage": true, "continuous_usage_stats": true}, "n": 2, "seed": 32, "max_tokens": 6`,
	},
}

// literals are spellings that a gateway which parses and writes a body again would change.
var literals = []Case{
	{Name: "null members", Fields: `"n": null, "stop": null, "logprobs": null, "user": null, "max_tokens": 4, "temperature": 0`},
	{Name: "max_tokens null", Fields: `"max_tokens": null, "temperature": 0`},
	{Name: "number literals", Fields: `"temperature": 0.70e0, "top_p": 9.0E-1, "seed": 41`},
	{Name: "an escaped name", Fields: `"max_tok\u0065ns": 4, "temperature": 0`},
	{Name: "spaces and line breaks", Fields: "\"temperature\"  :\t0 ,\r\n \"max_tokens\":4 "},
}

// vllmFields are fields that vLLM has and OpenAI has not.
var vllmFields = []Case{
	{Name: "min_tokens", Fields: `"min_tokens": 6, "max_tokens": 8, "seed": 51`, MayRefuse: "min_tokens"},
	{Name: "ignore_eos", Fields: `"ignore_eos": true, "max_tokens": 8, "temperature": 0`, MayRefuse: "ignore_eos"},
	{Name: "stop_token_ids", Fields: `"stop_token_ids": [$A, $B], "logit_bias": {"$A": 100}, "temperature": 0`, MayRefuse: "stop_token_ids"},
	{Name: "stop_token_ids with min_tokens", Fields: `"stop_token_ids": [$A], "min_tokens": 3, "max_tokens": 6, "temperature": 0`, MayRefuse: "stop_token_ids"},
	{Name: "include_stop_str_in_output", Fields: `"include_stop_str_in_output": true, "stop": "e", "temperature": 0`, MayRefuse: "include_stop_str_in_output"},
	{Name: "skip_special_tokens", Fields: `"skip_special_tokens": false, "temperature": 0, "max_tokens": 6`, MayRefuse: "skip_special_tokens"},
	{Name: "spaces_between_special_tokens", Fields: `"spaces_between_special_tokens": false, "temperature": 0, "max_tokens": 6`, MayRefuse: "spaces_between_special_tokens"},
	{Name: "add_special_tokens", Fields: `"add_special_tokens": false, "temperature": 0, "max_tokens": 6`, MayRefuse: "add_special_tokens"},
	{Name: "allowed_token_ids", Fields: `"allowed_token_ids": [$A, $B], "seed": 52, "max_tokens": 6`, MayRefuse: "allowed_token_ids"},
	{Name: "bad_words", Fields: `"bad_words": ["the", " a"], "seed": 53, "max_tokens": 6`, MayRefuse: "bad_words"},
	{Name: "truncate_prompt_tokens", Fields: `"truncate_prompt_tokens": 3, "temperature": 0, "max_tokens": 4`, MayRefuse: "truncate_prompt_tokens"},
	{Name: "truncate_prompt_tokens of ids", Fields: `"truncate_prompt_tokens": 2, "temperature": 0, "max_tokens": 4`, Prompt: "ids", MayRefuse: "truncate_prompt_tokens"},
	{Name: "truncate_prompt_tokens -1", Fields: `"truncate_prompt_tokens": -1, "temperature": 0, "max_tokens": 4`, MayRefuse: "truncate_prompt_tokens"},
	{Name: "return_tokens_as_token_ids", Fields: `"return_tokens_as_token_ids": true, "logprobs": 1, "temperature": 0, "max_tokens": 4`, MayRefuse: "return_tokens_as_token_ids"},
	{Name: "return_token_ids", Fields: `"return_token_ids": true, "temperature": 0, "max_tokens": 4`, MayRefuse: "return_token_ids"},
	{Name: "return_token_ids, n 2", Fields: `"return_token_ids": true, "n": 2, "seed": 54, "max_tokens": 4`, MayRefuse: "return_token_ids"},
	{Name: "cache_salt", Fields: `"cache_salt": "parity", "temperature": 0, "max_tokens": 4`, MayRefuse: "cache_salt"},
	{Name: "response_format text", Fields: `"response_format": {"type": "text"}, "temperature": 0, "max_tokens": 4`, MayRefuse: "response_format"},
	{Name: "response_format json_object", Fields: `"response_format": {"type": "json_object"}, "temperature": 0`, MayRefuse: "response_format"},
	{
		Name: "response_format json_schema", MayRefuse: "response_format",
		Fields: `"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "boolean"}}}, "temperature": 0`,
	},
	{Name: "structured_outputs choice", Fields: `"structured_outputs": {"choice": ["yes", "no"]}, "temperature": 0`, MayRefuse: "structured_outputs"},
	{Name: "structured_outputs regex", Fields: `"structured_outputs": {"regex": "[ab]{4}"}, "seed": 55`, MayRefuse: "structured_outputs"},
}

// refused are requests that vLLM accepts, coerces or ignores in some version, and that the gateway refuses.
var refused = []Case{
	{Name: "an unknown field", Fields: `"temprature": 0`, Refused: true},
	{Name: "a number in quotes", Fields: `"max_tokens": "4"`, Refused: true},
	{Name: "a fraction for an integer", Fields: `"max_tokens": 4.0`, Refused: true},
	{Name: "an exponent for an integer", Fields: `"max_tokens": 4e0`, Refused: true},
	{Name: "a boolean for a number", Fields: `"n": true`, Refused: true},
	{Name: "a number for a boolean", Fields: `"echo": 1`, Refused: true},
	{Name: "a field twice", Fields: `"max_tokens": 4, "max_tokens": 5`, Refused: true},
	{Name: "temperature over 2", Fields: `"temperature": 2.5`, Refused: true},
	{Name: "top_p 0", Fields: `"top_p": 0`, Refused: true},
	{Name: "top_k 0", Fields: `"top_k": 0`, Refused: true},
	{Name: "n over 16", Fields: `"n": 17`, Refused: true},
	{Name: "best_of under n", Fields: `"n": 2, "best_of": 1`, Refused: true},
	{Name: "best_of over n, streamed", Fields: `"best_of": 2`, Modes: StreamOnly, Refused: true},
	{Name: "an empty stop", Fields: `"stop": ""`, Refused: true},
	{Name: "five stops", Fields: `"stop": ["a", "b", "c", "d", "e"]`, Refused: true},
	{Name: "logprobs over the limit", Fields: `"logprobs": 1000000`, Refused: true},
	{Name: "stream_options, not streamed", Fields: `"stream_options": {"include_usage": true}`, Modes: PlainOnly, Refused: true},
	{Name: "suffix", Fields: `"suffix": "x"`, Refused: true},
	{Name: "use_beam_search", Fields: `"use_beam_search": true, "n": 2, "temperature": 0`, Refused: true},
	{Name: "priority", Fields: `"priority": 1`, Refused: true},
	{Name: "request_id", Fields: `"request_id": "parity"`, Refused: true},
	{Name: "kv_transfer_params", Fields: `"kv_transfer_params": {}`, Refused: true},
	{Name: "logits_processors", Fields: `"logits_processors": []`, Refused: true},
}
