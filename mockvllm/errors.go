package mockvllm

import (
	"fmt"
	"net/http"
	"strings"
)

// Types that vLLM gives its errors; a schema error's type depends on the version (shape.validationType).
const (
	badRequestError     = "BadRequestError"
	notFoundError       = "NotFoundError"
	internalServerError = "InternalServerError"
	internalSpaced      = "Internal Server Error"
)

// deadEngine is the V1 engine's constant text, deadLoop the V0 engine's.
const (
	deadEngine = "EngineCore encountered an issue. See stack trace (above) for the root cause."
	deadLoop   = "Background loop has errored already."
)

// A failure is an error on its way to the client. It has vLLM's usual shape unless raw is set.
type failure struct {
	status  int
	kind    string // vLLM's "type"
	message string
	param   string // empty: null
	value   string // what param was given; part of the message where the version says so
	code    int    // 0: the status

	raw         *string // the whole body, in place of the usual shape
	contentType string  // of raw
	underOK     bool    // sent with status 200
	inEngine    bool    // found only once the stream's 200 has gone out
	cut         bool    // in a stream: no event, the connection ends
}

func (f *failure) Error() string { return f.message }

func badRequest(param, format string, arguments ...any) *failure {
	return &failure{
		status: http.StatusBadRequest, kind: badRequestError, message: fmt.Sprintf(format, arguments...), param: param,
	}
}

// of adds the offending value, which newer versions append to the message.
func (f *failure) of(value any) *failure {
	f.value = fmt.Sprint(value)
	return f
}

// engine marks a check that vLLM makes only inside the engine's generator.
func (f *failure) engine() *failure {
	f.inEngine = true
	return f
}

func plainText(status int, text string) *failure {
	return &failure{status: status, message: text, raw: &text, contentType: "text/plain; charset=utf-8"}
}

func detail(status int, text string) *failure {
	body := string(pair("detail", text))
	return &failure{status: status, message: text, raw: &body, contentType: "application/json"}
}

// stringError is shape C of vLLM's errors: {"error":"text"}.
func stringError(status int, text string) *failure {
	body := string(pair("error", text))
	return &failure{status: status, message: text, raw: &body, contentType: "application/json"}
}

// pair is a JSON object with one string.
func pair(key, text string) []byte {
	to := appendString([]byte{'{'}, key)
	to = append(to, ':')
	to = appendString(to, text)
	return append(to, '}')
}

// full is the message as this version words it.
func (s *shape) full(f *failure) string {
	if !s.namesParams || f.param == "" || f.value == "" {
		return f.message
	}
	return fmt.Sprintf("%s (parameter=%s, value=%s)", f.message, f.param, f.value)
}

// errorBody is the failure as a plain answer's body.
func (s *shape) errorBody(f *failure) []byte {
	if f.raw != nil {
		return []byte(*f.raw)
	}
	if s.errors == flatErrors {
		return s.appendError(nil, f, compact, true)
	}
	body := append([]byte(nil), `{"error":`...)
	body = s.appendError(body, f, compact, false)
	return append(body, '}')
}

// errorEvent is the failure as an event of a stream. vLLM writes it by json.dumps: ASCII, with spaces.
func (s *shape) errorEvent(f *failure) []byte {
	event := append([]byte(nil), `data: {"error": `...)
	event = s.appendError(event, f, spaced, s.errors == flatErrors)
	return append(event, "}\n\n"...)
}

// A layout is one of the two ways in which vLLM writes JSON.
type layout struct {
	comma, colon string
	ascii        bool
}

var (
	compact = layout{comma: ",", colon: ":"}
	spaced  = layout{comma: ", ", colon: ": ", ascii: true}
)

func (s *shape) appendError(to []byte, f *failure, l layout, flat bool) []byte {
	text := func(to []byte, text string) []byte {
		if l.ascii {
			return appendASCII(to, text)
		}
		return appendString(to, text)
	}
	key := func(to []byte, name string) []byte {
		return append(append(append(append(to, '"'), name...), '"'), l.colon...)
	}
	to = append(to, '{')
	if flat {
		to = append(text(key(to, "object"), "error"), l.comma...)
	}
	to = append(text(key(to, "message"), s.full(f)), l.comma...)
	to = append(text(key(to, "type"), f.kind), l.comma...)
	to = key(to, "param")
	if f.param != "" && s.namesParams {
		to = text(to, f.param)
	} else {
		to = append(to, "null"...)
	}
	code := f.code
	if code == 0 {
		code = f.status
	}
	to = fmt.Appendf(append(to, l.comma...), `"code"%s%d}`, l.colon, code)
	return to
}

// deathBefore is what a request gets from an engine that is dead, before anything was written.
func (s *shape) deathBefore() *failure {
	f := &failure{status: http.StatusInternalServerError, kind: internalServerError, message: deadEngine}
	switch s.death {
	case deathEmpty:
		empty := ""
		f.raw = &empty
	case deathInternal:
		f.kind = internalSpaced
	case deathUnderOK:
		f.underOK = true
	case deathInternalServer:
	}
	return f
}

// deathWithin is what a stream gets when the engine dies under it.
func (s *shape) deathWithin() *failure {
	message := deadEngine
	if s.v0 {
		message = deadLoop
	}
	return s.within(message)
}

// within is an unexpected exception with this text as a stream of this version shows it.
func (s *shape) within(message string) *failure {
	switch s.deathInStream {
	case streamBadRequest:
		return badRequest("", "%s", message)
	case streamCut:
		return &failure{message: message, cut: true}
	case streamInternal:
	}
	return &failure{status: http.StatusInternalServerError, kind: internalServerError, message: message}
}

// contextWordings are vLLM's ways to say that a request is too long, by the order of their age. A context_length
// fault chooses among them by number, counted from 1. {N} is the context, {P} the prompt, {C} the completion, {T}
// both.
var contextWordings = []string{
	"This model's maximum context length is {N} tokens. However, you requested {T} tokens ({P} in the messages, {C} in the completion). Please reduce the length of the messages or completion.",
	"This model's maximum context length is {N} tokens. However, you requested {P} tokens in the messages, Please reduce the length of the messages.",
	"The prompt (total length {P}) is too long to fit into the model (context length {N}). Make sure that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
	"'max_tokens' or 'max_completion_tokens' is too large: {C}. This model's maximum context length is {N} tokens and your request has {P} input tokens ({C} > {N} - {P}).",
	"This model's maximum context length is {N} tokens. However, your request has {P} input tokens. Please reduce the length of the input messages.",
	"The decoder prompt (length {P}) is longer than the maximum model length of {N}. Make sure that `max_model_len` is no smaller than the number of text tokens.",
	"The decoder prompt (length {P}) plus the number of requested output tokens (at least 1) is longer than the maximum model length of {N}. Make sure that `max_model_len` is no smaller than the number of text tokens (prompt + requested output tokens).",
	"This model's maximum context length is {N} tokens. However, you requested {C} output tokens and your prompt contains {P} input tokens, for a total of {T} tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
	"This model's maximum context length is {N} tokens. However, you requested {C} output tokens and your prompt contains at least {P} input tokens, for a total of at least {T} tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
	"This model's maximum context length is {N} tokens. However, you requested {C} output tokens and your prompt contains {K} characters (more than {M} characters, which is the upper bound for {Q} input tokens). Please reduce the length of the input prompt or the number of requested output tokens.",
	"max_tokens={C} cannot be greater than max_model_len=max_total_tokens={N}. Please request fewer output tokens.",
	"Input length ({P}) exceeds model's maximum context length ({N}).",
}

// Numbers of contextWordings.
const (
	wordRequested = iota + 1
	wordMessages
	wordPromptV0
	wordTooLarge
	wordInput
	wordDecoder
	wordDecoderFull
	wordOutput
	wordAtLeast
	wordCharacters
	wordMaxTokens
	wordFallback
)

// A measure holds the numbers that a wording may tell.
type measure struct {
	limit, prompt, completion   int
	characters, most, maxPrompt int
}

func wordContext(number int, m measure) string {
	return strings.NewReplacer(
		"{N}", fmt.Sprint(m.limit), "{P}", fmt.Sprint(m.prompt), "{C}", fmt.Sprint(m.completion),
		"{T}", fmt.Sprint(m.prompt+m.completion), "{K}", fmt.Sprint(m.characters), "{M}", fmt.Sprint(m.most),
		"{Q}", fmt.Sprint(m.maxPrompt),
	).Replace(contextWordings[number-1])
}
