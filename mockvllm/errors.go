package mockvllm

import (
	"fmt"
	"net/http"
	"strings"
)

// Values of "type" in vLLM's errors. The type of a schema error depends on the version (versionSpec.validationType).
const (
	badRequestError     = "BadRequestError"
	notFoundError       = "NotFoundError"
	internalServerError = "InternalServerError"
	internalSpaced      = "Internal Server Error"
)

// engineDeadV1 is the constant text of the V1 engine, engineDeadV0 that of the V0 engine.
const (
	engineDeadV1 = "EngineCore encountered an issue. See stack trace (above) for the root cause."
	engineDeadV0 = "Engine loop is not running. Inspect the stacktrace to find the original error: " +
		"RuntimeError('Engine process (pid 4711) died.')."
)

// failure is an error response. It has vLLM's usual shape unless raw is set.
type failure struct {
	status    int
	errorType string // "type"
	message   string
	param     string // "param"; empty means null
	value     string // the offending value, which some versions append to the message
	invalid   bool   // a VLLMValidationError, whose message ends with its parameter and value
	code      string // "code", if it is not the status

	raw         *string // the whole body, instead of the usual shape
	contentType string  // of raw
	asOK        bool    // sent with status 200
	engineError bool    // raised inside the engine, so a stream has already sent its 200
	closesConn  bool    // in a stream: closes the connection without an event
}

// Error implements error.
func (f *failure) Error() string { return f.message }

// badRequest is an error without a parameter.
func badRequest(format string, arguments ...any) *failure {
	return &failure{status: http.StatusBadRequest, errorType: badRequestError, message: fmt.Sprintf(format, arguments...)}
}

// invalidParam is an error about a parameter. Newer versions append its name to the message.
func invalidParam(param, format string, arguments ...any) *failure {
	f := badRequest(format, arguments...)
	f.param, f.invalid = param, true
	return f
}

// withValue sets the offending value, which newer versions append to the message.
func (f *failure) withValue(value any) *failure {
	f.value = fmt.Sprint(value)
	return f
}

// fromEngine marks the failure as raised inside the engine's generator.
func (f *failure) fromEngine() *failure {
	f.engineError = true
	return f
}

func textFailure(status int, text string) *failure {
	return &failure{status: status, message: text, raw: &text, contentType: "text/plain; charset=utf-8"}
}

// detailFailure is FastAPI's error: {"detail":"text"}.
func detailFailure(status int, text string) *failure {
	body := string(stringObject("detail", text))
	return &failure{status: status, message: text, raw: &body, contentType: "application/json"}
}

// stringFailure is an error whose "error" is a string: {"error":"text"}.
func stringFailure(status int, text string) *failure {
	body := string(stringObject("error", text))
	return &failure{status: status, message: text, raw: &body, contentType: "application/json"}
}

// stringObject encodes a JSON object with one string member.
func stringObject(key, text string) []byte {
	dst := appendString([]byte{'{'}, key)
	dst = append(dst, ':')
	dst = appendString(dst, text)
	return append(dst, '}')
}

// fullMessage returns the message as the version words it.
func (s *versionSpec) fullMessage(f *failure) string {
	if !s.namesParams || s.rust || !f.invalid {
		return f.message
	}
	if f.value == "" {
		return fmt.Sprintf("%s (parameter=%s)", f.message, f.param)
	}
	return fmt.Sprintf("%s (parameter=%s, value=%s)", f.message, f.param, f.value)
}

// errorBody encodes the failure as a plain response body.
func (s *versionSpec) errorBody(f *failure) []byte {
	if f.raw != nil {
		return []byte(*f.raw)
	}
	if s.errors == flatErrors {
		return s.appendError(nil, f, compactLayout, true)
	}
	body := append([]byte(nil), `{"error":`...)
	body = s.appendError(body, f, compactLayout, false)
	return append(body, '}')
}

// errorEvent encodes the failure as a stream event. vLLM writes it with json.dumps: ASCII, with spaces.
func (s *versionSpec) errorEvent(f *failure) []byte {
	event := append([]byte(nil), `data: {"error": `...)
	event = s.appendError(event, f, spacedLayout, s.errors == flatErrors)
	return append(event, "}\n\n"...)
}

// jsonLayout is one of vLLM's two JSON styles: pydantic's compact one and that of json.dumps.
type jsonLayout struct {
	comma, colon string
	ascii        bool
}

var (
	compactLayout = jsonLayout{comma: ",", colon: ":"}
	spacedLayout  = jsonLayout{comma: ", ", colon: ": ", ascii: true}
)

func (s *versionSpec) appendError(dst []byte, f *failure, l jsonLayout, flat bool) []byte {
	text := func(dst []byte, text string) []byte {
		if l.ascii {
			return appendASCII(dst, text)
		}
		return appendString(dst, text)
	}
	key := func(dst []byte, name string) []byte {
		return append(append(append(append(dst, '"'), name...), '"'), l.colon...)
	}
	dst = append(dst, '{')
	if flat {
		dst = append(text(key(dst, "object"), "error"), l.comma...)
	}
	dst = append(text(key(dst, "message"), s.fullMessage(f)), l.comma...)
	dst = append(text(key(dst, "type"), f.errorType), l.comma...)
	dst = key(dst, "param")
	if f.param != "" && s.namesParams {
		dst = text(dst, f.param)
	} else {
		dst = append(dst, "null"...)
	}
	dst = key(append(dst, l.comma...), "code")
	if f.code != "" && !s.rust {
		return append(text(dst, f.code), '}')
	}
	return fmt.Appendf(dst, "%d}", f.status)
}

// deadEngineFailure is the response of a dead engine to a request without a response yet.
func (s *versionSpec) deadEngineFailure() *failure {
	f := &failure{status: http.StatusInternalServerError, errorType: internalServerError, message: s.engineDead}
	switch s.deathPlain {
	case deathEmpty:
		empty := ""
		f.raw = &empty
	case deathInternal:
		f.errorType = internalSpaced
	case deathAsOK:
		f.asOK = true
	case deathInternalServer:
	}
	return f
}

// engineDeathInStream is the error of a stream whose engine dies.
func (s *versionSpec) engineDeathInStream() *failure {
	message := s.engineDead
	if s.v0 {
		message = engineDeadV0
	}
	return s.streamFailure(message)
}

// streamFailure is an unexpected exception with this text inside a stream.
func (s *versionSpec) streamFailure(message string) *failure {
	switch s.deathStream {
	case streamBadRequest:
		return badRequest("%s", message)
	case streamCut:
		return &failure{message: message, closesConn: true}
	case streamInternal:
	}
	return &failure{status: http.StatusInternalServerError, errorType: internalServerError, message: message}
}

// contextMessages are vLLM's messages for a request that is too long, oldest first. A context_length fault selects one
// by number, counted from 1; the last five are those of versions that clamp, the very last the Rust frontend's. {N} is
// the context length, {P} the prompt's tokens, {C} the completion's, {T} their sum; {K} is the prompt's characters, {M}
// their limit for {Q} tokens.
var contextMessages = []string{
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
	"max_tokens={C} cannot be greater than max_model_len={N}. Please request fewer output tokens.",
	"This model's maximum context length is {N} tokens. However, your prompt contains {P} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
	"This model's maximum context length is {N} tokens. However, your prompt contains at least {P} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
	"This model's maximum context length is {N} tokens. However, your prompt contains {K} characters (more than {M} characters, which is the upper bound for {Q} input tokens). Please reduce the length of the input prompt.",
	"This model's maximum context length is {N} tokens. However, your prompt fills it with {P} input tokens, leaving no room for output tokens. Please reduce the length of the input prompt.",
}

// Numbers of contextMessages.
const (
	wordingRequested = iota + 1
	wordingMessages
	wordingPromptV0
	wordingTooLarge
	wordingInput
	wordingDecoder
	wordingDecoderFull
	wordingOutput
	wordingAtLeast
	wordingCharacters
	wordingMaxTokens
	wordingFallback
	wordingMaxTokensClamped
	wordingPromptOver
	wordingPromptOverAtLeast
	wordingPromptCharacters
	wordingPromptFills
)

// contextCounts holds the numbers that a context message mentions.
type contextCounts struct {
	limit, prompt, completion            int
	characters, maxCharacters, maxPrompt int
}

func contextMessage(number int, m contextCounts) string {
	return strings.NewReplacer(
		"{N}", fmt.Sprint(m.limit), "{P}", fmt.Sprint(m.prompt), "{C}", fmt.Sprint(m.completion),
		"{T}", fmt.Sprint(m.prompt+m.completion), "{K}", fmt.Sprint(m.characters), "{M}", fmt.Sprint(m.maxCharacters),
		"{Q}", fmt.Sprint(m.maxPrompt),
	).Replace(contextMessages[number-1])
}
