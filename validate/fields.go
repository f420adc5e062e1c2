package validate

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// fieldID is the index of a field in fields.
type fieldID uint8

// fieldSet has the ids of some fields.
type fieldSet [math.MaxUint8 + 1]bool

// scope is the endpoints whose requests have a field. Those of the tokenizer list theirs.
type scope uint8

const (
	ofCompletion scope = 1 << iota
	ofChat
	notSent // to backends: the field is for the gateway, or says what holds without it

	ofBoth = ofCompletion | ofChat
)

// sent reports whether backends receive the field, which excludes those that only a Form has.
func (id fieldID) sent() bool { return int(id) < len(fields) && fields[id].scope&notSent == 0 }

// field is a row of the contract's field tables.
type field struct {
	name     string
	expected string // the values that are valid, for error messages
	read     Reader
	scope    scope
}

// Reader reads exactly one value that is not null. It returns errInvalid after it has recorded an invalid value, with the
// value read or not, and errors of syntax.
type Reader func(*parser, *field) error

// fields are the contract's field tables: they define what each field accepts.
var fields []field

// define adds a field to the tables. The order of the ids, which is that in which Go initializes variables, means nothing.
func define(in scope, name, expected string, read Reader) fieldID {
	fields = append(fields, field{name, expected, read, in})
	return fieldID(len(fields) - 1)
}

// Fields that only tables need have no name in the code.
var (
	fieldText            = define(0, "prompt", "a string", text(math.MaxInt, nil))
	fieldReturnTokenStrs = define(0, "return_token_strs", "true or false", boolean(func(r *Request, v bool) { r.returnTokenStrs = v }))
	fieldTokens          = define(0, "tokens", "an array of token ids (integers from 0 to 2147483647)", tokenIDs(0, math.MaxInt))

	fieldPrompt               = define(ofCompletion, "prompt", "a string, an array of strings, an array of token ids or an array of such arrays, none of the arrays empty", readPrompt)
	fieldBestOf               = define(ofCompletion, "best_of", "an integer from 1 to 16", Integer(1, 16, func(r *Request, v int64) { r.BestOf = v }))
	fieldLogprobs             = define(ofCompletion, "logprobs", "an integer from 0 to the model's limit (20 unless configured)", Integer(0, math.MaxInt64, func(r *Request, v int64) { r.Logprobs = clampInt(v) }))
	fieldPromptLogprobs       = define(ofCompletion, "prompt_logprobs", "an integer from 0 to the model's limit (20 unless configured)", Integer(0, math.MaxInt64, func(r *Request, v int64) { r.PromptLogprobs = clampInt(v) }))
	_                         = define(ofCompletion, "echo", "true or false", boolean(func(r *Request, v bool) { r.Echo = v }))
	fieldAddSpecialTokens     = define(ofCompletion, "add_special_tokens", "true or false", boolean(func(r *Request, v bool) { r.NoSpecialTokens = !v }))
	fieldTruncatePromptTokens = define(ofCompletion, "truncate_prompt_tokens", "-1 (to what fits the context) or an integer of at least 1", Integer(-1, math.MaxInt64, func(r *Request, v int64) { r.Truncate = v }))
	fieldTruncationSide       = define(ofCompletion, "truncation_side", `"left" or "right"`, oneOf("left", "right"))

	fieldModel                      = define(ofBoth, "model", "a string, the short id of a model from GET /v1/models", text(math.MaxInt, func(r *Request, v string) { r.Model = v }))
	fieldMaxTokens                  = define(ofBoth, "max_tokens", "an integer of at least 1", Integer(1, math.MaxInt64, func(r *Request, v int64) { r.MaxTokens = v }))
	_                               = define(ofBoth, "temperature", "a number from 0 to 2", number(0, 2, true))
	_                               = define(ofBoth, "top_p", "a number over 0, up to 1", number(0, 1, false))
	_                               = define(ofBoth, "top_k", "-1 (off) or an integer of at least 1", Integer(-1, math.MaxInt64, nil))
	_                               = define(ofBoth, "min_p", "a number from 0 to 1", number(0, 1, true))
	_                               = define(ofBoth, "presence_penalty", "a number from -2 to 2", number(-2, 2, true))
	_                               = define(ofBoth, "frequency_penalty", "a number from -2 to 2", number(-2, 2, true))
	_                               = define(ofBoth, "repetition_penalty", "a number over 0, up to 2", number(0, 2, false))
	_                               = define(ofBoth, "seed", "an integer within 64 bits, signed", Integer(math.MinInt64, math.MaxInt64, nil))
	fieldN                          = define(ofBoth, "n", "an integer from 1 to 16", Integer(1, 16, func(r *Request, v int64) { r.N = v }))
	_                               = define(ofBoth, "stop", "a string or 1 to 4 strings, none empty", readStop)
	fieldStream                     = define(ofBoth, "stream", "true or false", boolean(func(r *Request, v bool) { r.Stream = v }))
	fieldStreamOptions              = define(ofBoth, "stream_options", "an object with at the most include_usage and, beside it, continuous_usage_stats (true or false)", readStreamOptions)
	_                               = define(ofBoth, "logit_bias", "an object of token ids in decimal digits, each with a number from -100 to 100", readLogitBias)
	fieldUser                       = define(ofBoth, "user", "a string of up to 512 bytes", text(512, func(r *Request, v string) { r.User, r.HasUser = v, true }))
	_                               = define(ofBoth, "min_tokens", "an integer from 0 to max_tokens", Integer(0, math.MaxInt64, func(r *Request, v int64) { r.MinTokens = v }))
	_                               = define(ofBoth, "ignore_eos", "true or false", boolean(nil))
	_                               = define(ofBoth, "include_stop_str_in_output", "true or false", boolean(nil))
	_                               = define(ofBoth, "skip_special_tokens", "true or false", boolean(nil))
	fieldSpacesBetweenSpecialTokens = define(ofBoth, "spaces_between_special_tokens", "true or false", boolean(func(r *Request, v bool) { r.joinsSpecialTokens = !v }))
	_                               = define(ofBoth, "stop_token_ids", "an array of 1 to 128 token ids (integers from 0 to 2147483647)", tokenIDs(1, 128))
	_                               = define(ofBoth, "allowed_token_ids", "an array of 1 to 262144 token ids (integers from 0 to 2147483647)", tokenIDs(1, 1<<18))
	fieldBadWords                   = define(ofBoth, "bad_words", "an array of 1 to 128 strings, none empty", texts(128))
	fieldReturnTokensAsTokenIDs     = define(ofBoth, "return_tokens_as_token_ids", "true or false", boolean(nil))
	fieldReturnTokenIDs             = define(ofBoth, "return_token_ids", "true or false", boolean(func(r *Request, v bool) { r.returnTokenIDs = v }))
	fieldCacheSalt                  = define(ofBoth, "cache_salt", "a string of 1 to 128 characters without @, /, \\ and NUL, such as base64url", readCacheSalt)
	fieldLogprobTokenIDs            = define(ofBoth, "logprob_token_ids", "an array of 1 to 128 different token ids (integers from 0 to 2147483647)", distinctTokenIDs(128))
	fieldStreamInterval             = define(ofBoth, "stream_interval", "an integer from 1 to 1024", Integer(1, 1024, nil))
	fieldRepetitionDetection        = define(ofBoth, "repetition_detection", "an object of max_pattern_size, min_pattern_size and min_count, integers from 0 to 1024, with min_count at least 2 and min_pattern_size at most max_pattern_size", object((*parser).checkRepetitionDetection))
	fieldReturnWeightVersions       = define(ofBoth, "return_weight_versions", "true or false", boolean(nil))
	fieldXArgs                      = define(ofBoth, "vllm_xargs", "an object of the names that this model takes, each with a string, a number, a boolean or a list of them", object((*parser).readXArgs))
	fieldResponseFormat             = define(ofBoth, "response_format", `{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"name": …, "schema": …}}`, object((*parser).checkResponseFormat))
	fieldStructuredOutputs          = define(ofBoth, "structured_outputs", "an object with exactly one of json, regex, choice, grammar and json_object, and at the most disable_any_whitespace beside it", object((*parser).checkStructuredOutputs))

	fieldMessages             = define(ofChat, "messages", "an array of 1 to 2048 messages, such as {\"role\": \"user\", \"content\": …}", readMessages)
	fieldMaxCompletionTokens  = define(ofChat, "max_completion_tokens", "an integer of at least 1", Integer(1, math.MaxInt64, func(r *Request, v int64) { r.MaxTokens = v }))
	_                         = define(ofChat, "logprobs", "true or false; top_logprobs is the number of alternatives", boolean(func(r *Request, v bool) { r.chat.logprobs = v }))
	fieldTopLogprobs          = define(ofChat, "top_logprobs", "an integer from 0 to 20, or to the model's limit if that is lower", Integer(0, maxTopLogprobs, func(r *Request, v int64) { r.chat.topLogprobs = clampInt(v) }))
	fieldTools                = define(ofChat, "tools", `an array of up to 128 tools {"type": "function", "function": {"name": …}}`, readTools)
	fieldToolChoice           = define(ofChat, "tool_choice", `"none", "auto", "required" or {"type": "function", "function": {"name": …}}`, readToolChoice)
	_                         = define(ofChat, "parallel_tool_calls", "true or false", boolean(nil))
	fieldAddGenerationPrompt  = define(ofChat, "add_generation_prompt", "true or false", boolean(func(r *Request, v bool) { r.chat.noGenerationPrompt = !v }))
	fieldContinueFinalMessage = define(ofChat, "continue_final_message", "true or false", boolean(func(r *Request, v bool) { r.chat.continuesMessage = v }))
	fieldChatTemplateKwargs   = define(ofChat, "chat_template_kwargs", "an object of JSON values for the model's template, at most 4 levels deep", object((*parser).checkTemplateArguments))
	fieldReasoningEffort      = define(ofChat, "reasoning_effort", `"none", "minimal", "low", "medium" or "high"`, oneOf("none", "minimal", "low", "medium", "high"))
	fieldIncludeReasoning     = define(ofChat, "include_reasoning", "true or false", boolean(nil))

	fieldPromptCacheKey = define(ofBoth|notSent, "prompt_cache_key", "a string of up to 512 bytes", text(512, func(r *Request, v string) { r.PromptCacheKey = v }))
	_                   = define(ofChat|notSent, "safety_identifier", "a string of up to 512 bytes", text(512, nil))
	_                   = define(ofChat|notSent, "store", "false: responses are not stored", readStore)
	_                   = define(ofChat|notSent, "service_tier", `"auto" or "default": there is one tier of service; for work that can wait send X-Acs-Workload: batch, or a batch`, oneOf("auto", "default"))
	_                   = define(ofChat|notSent, "modalities", `["text"]: only text is served`, readModalities)
)

func init() {
	for id := range fieldID(len(fields)) {
		if fields[id].scope&ofCompletion != 0 {
			completion.fields = append(completion.fields, id)
		}
		if fields[id].scope&ofChat != 0 {
			chat.fields = append(chat.fields, id)
		}
	}
	for _, s := range []*schema{completion, chat, tokenize, detokenize, rootTokenize, rootDetokenize, questions} {
		s.table = fields
		s.byName = make(map[string]fieldID, len(s.fields))
		for _, id := range s.fields {
			s.byName[s.table[id].name] = id
		}
	}
}

func clampInt(v int64) int { return int(min(v, math.MaxInt32)) }

// number returns a reader of a field that is any JSON number from lo to hi, or over lo if that is not included.
func number(lo, hi float64, included bool) Reader {
	return func(p *parser, f *field) error {
		raw, err := p.readNumber(f)
		if err != nil {
			return err
		}
		v, err := strconv.ParseFloat(string(raw), 64)
		if err != nil {
			return p.invalid(f, Describe(raw)+", which no 64-bit float holds")
		}
		if v < lo || v > hi || v == lo && !included {
			return p.invalid(f, Describe(raw))
		}
		return nil
	}
}

// Integer returns a reader of a field that is an integer literal from lo to hi: no fraction, no exponent. Where -1 means off,
// 0 is not valid. store may be nil.
func Integer(lo, hi int64, store func(*Request, int64)) Reader {
	return func(p *parser, f *field) error {
		raw, err := p.readNumber(f)
		if err != nil {
			return err
		}
		v, err := strconv.ParseInt(string(raw), 10, 64)
		switch {
		case bytes.ContainsAny(raw, ".eE"):
			return p.invalid(f, Describe(raw)+", which is not written as an integer")
		case err != nil:
			return p.invalid(f, Describe(raw)+", which does not fit 64 bits")
		case v < lo || v > hi || lo == -1 && v == 0:
			return p.invalid(f, Describe(raw))
		case store != nil:
			store(p.request, v)
		}
		return nil
	}
}

func boolean(store func(*Request, bool)) Reader {
	return func(p *parser, f *field) error {
		kind := p.decoder.PeekKind()
		if kind != 't' && kind != 'f' {
			return p.invalidKind(f, "")
		}
		if err := p.skipValue(); err != nil {
			return err
		}
		if store != nil {
			store(p.request, kind == 't')
		}
		return nil
	}
}

func (p *parser) readNumber(f *field) ([]byte, error) {
	if p.decoder.PeekKind() == '"' {
		return nil, p.invalidKind(f, " (a number must not stand in quotes)")
	}
	return p.readScalar(f, '0')
}

// readScalar reads a value of one kind: '0' for a number, '"' for a string.
func (p *parser) readScalar(f *field, kind byte) ([]byte, error) {
	if byte(p.decoder.PeekKind()) != kind {
		return nil, p.invalidKind(f, "")
	}
	if kind == '"' {
		return p.readString()
	}
	raw, err := p.decoder.ReadValue()
	if err == nil && len(raw) > maxCopied {
		return nil, p.invalid(f, "a number of "+strconv.Itoa(len(raw))+" characters")
	}
	return raw, err
}

// invalidKind skips a value of the wrong kind and records it with a hint.
func (p *parser) invalidKind(f *field, hint string) error {
	value, err := p.skipInvalid()
	if err != nil {
		return err
	}
	return p.invalid(f, Describe(value)+hint)
}

// skipInvalid skips a value of the wrong kind and returns it. A duplicate name within it is the error then.
func (p *parser) skipInvalid() ([]byte, error) {
	start := p.valueStart()
	if err := p.skipValue(); err != nil {
		return nil, err
	}
	value := p.body[start:p.offset()]
	if name, found := duplicateName(value, maxCompared); found {
		return nil, p.duplicate(name)
	}
	return value, nil
}

// text returns a reader of a field that is a string of up to most bytes. store may be nil.
func text(most int, store func(*Request, string)) Reader {
	return func(p *parser, f *field) error {
		raw, err := p.readScalar(f, '"')
		if err != nil {
			return err
		}
		value := p.unquote(raw)
		if len(value) > most {
			return p.invalid(f, "a string of "+strconv.Itoa(len(value))+" bytes")
		}
		if store != nil {
			store(p.request, string(value))
		}
		return nil
	}
}

func oneOf(words ...string) Reader {
	return func(p *parser, f *field) error {
		raw, err := p.readScalar(f, '"')
		if err != nil {
			return err
		}
		if !slices.Contains(words, string(p.unquote(raw))) {
			return p.invalid(f, Describe(raw))
		}
		return nil
	}
}

func readStore(p *parser, f *field) error {
	if p.decoder.PeekKind() != 'f' {
		return p.invalidKind(f, "")
	}
	return p.skipValue()
}

func readModalities(p *parser, f *field) error {
	value, err := p.skipInvalid()
	if err != nil {
		return err
	}
	if all := gjson.ParseBytes(value); !all.IsArray() || all.Get("#").Int() != 1 || all.Get("0").Str != "text" {
		return p.invalid(f, Describe(value))
	}
	return nil
}

func readStop(p *parser, f *field) error {
	if p.decoder.PeekKind() == '[' {
		return texts(4)(p, f)
	}
	raw, err := p.readScalar(f, '"')
	if err == nil && len(raw) == len(`""`) {
		return p.invalid(f, "an empty string")
	}
	return err
}

// texts returns a reader of a field that is an array of 1 to most strings, none empty.
func texts(most int) Reader {
	return func(p *parser, f *field) error {
		return p.readSome(f, 1, most, "strings", func(int) error {
			raw, err := p.readScalar(f, '"')
			if err == nil && len(raw) == len(`""`) {
				return p.invalid(f, "an empty string among them")
			}
			return err
		})
	}
}

// readSome is readArray of least to most elements, which are of that kind.
func (p *parser) readSome(f *field, least, most int, kind string, read func(i int) error) error {
	n, err := p.readArray(f, read)
	if err == nil && (n < least || n > most) {
		return p.invalid(f, "an array of "+strconv.Itoa(n)+" "+kind)
	}
	return err
}

// readArray reads an array and calls read at each element, whose index is i, until that fails. It returns their number.
func (p *parser) readArray(f *field, read func(i int) error) (n int, err error) {
	if p.decoder.PeekKind() != '[' {
		return 0, p.invalidKind(f, "")
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return 0, err
	}
	for ; p.decoder.PeekKind() != ']'; n++ {
		if err := read(n); err != nil {
			return n, err
		}
	}
	_, err = p.decoder.ReadToken()
	return n, err
}

// maxBiases limits the token ids in logit_bias. No vocabulary has more, and all of them are kept to find those that occur
// twice.
const maxBiases = 1 << 18

// MaxParserMemory is the most that the parser counts in Limits.Memory, in bytes.
const MaxParserMemory = 8 * maxBiases

func readLogitBias(p *parser, f *field) error {
	if p.decoder.PeekKind() != '{' {
		return p.invalidKind(f, "")
	}
	p.tokenIDs = slices.Grow(p.tokenIDs[:0], 64)
	err := p.readBiases(f)
	if err != nil && !errors.Is(err, errInvalid) {
		return err
	}
	slices.Sort(p.tokenIDs)
	for i := 1; i < len(p.tokenIDs); i++ {
		if p.tokenIDs[i] == p.tokenIDs[i-1] {
			p.failure = nil // it occurs before what readBiases has found
			return p.duplicate(strconv.FormatInt(p.tokenIDs[i], 10))
		}
	}
	return err
}

// readBiases reads logit_bias and collects its token ids, up to the first invalid member.
func (p *parser) readBiases(f *field) error {
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	for p.decoder.PeekKind() != '}' {
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		name := p.unquote(raw)
		if !isTokenID(name) {
			return p.invalid(f, "the name "+strconv.Quote(apierr.Clip(string(name)))+", which is not a token id")
		}
		id, _ := strconv.ParseInt(string(name), 10, 64) // isTokenID allows no other form
		switch len(p.tokenIDs) {
		case 64:
			p.tokenIDs = slices.Grow(p.tokenIDs, maxPooled-64)
		case maxPooled:
			if err := p.grow(MaxParserMemory); err != nil {
				return err
			}
			p.tokenIDs = slices.Grow(p.tokenIDs, maxBiases-maxPooled)
		case maxBiases:
			return p.invalid(f, "more than "+strconv.Itoa(maxBiases)+" token ids")
		}
		p.tokenIDs = append(p.tokenIDs, id)
		raw, err = p.readScalar(f, '0')
		if err != nil {
			return err
		}
		if v, err := strconv.ParseFloat(string(raw), 64); err != nil || v < -100 || v > 100 {
			return p.invalid(f, "the bias "+Describe(raw))
		}
	}
	_, err := p.decoder.ReadToken()
	return err
}
