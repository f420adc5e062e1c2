package mockvllm

import (
	"fmt"
	"net/http"
	"strings"
)

// Values of "type" in vLLM's errors. The type of a schema error depends on the version (versionSpec.ValidationType).
const (
	badRequestError     = "BadRequestError"
	notFoundError       = "NotFoundError"
	internalServerError = "InternalServerError"
	internalSpaced      = "Internal Server Error"
)

// failure is an error response. It has vLLM's usual shape unless raw is set.
type failure struct {
	status    int
	errorType string // "type"
	message   string
	param     string // "param"; empty means null
	value     string // the offending value, which some versions append to the message
	invalid   bool   // a VLLMValidationError, whose message ends with its parameter and value

	raw         *string // the whole body, instead of the usual shape
	contentType string  // of raw
}

// Error implements error.
func (f *failure) Error() string { return f.message }

func newFailure(status int, errorType, format string, arguments ...any) *failure {
	return &failure{status: status, errorType: errorType, message: fmt.Sprintf(format, arguments...)}
}

func badRequest(format string, arguments ...any) *failure {
	return newFailure(http.StatusBadRequest, badRequestError, format, arguments...)
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

func internalError(message string) *failure {
	return newFailure(http.StatusInternalServerError, internalServerError, "%s", message)
}

func rawFailure(status int, contentType, body string) *failure {
	return &failure{status: status, raw: &body, contentType: contentType}
}

func textFailure(status int, text string) *failure {
	return rawFailure(status, "text/plain; charset=utf-8", text)
}

// memberFailure is an error that has one member with a text, such as FastAPI's {"detail":"text"}.
func memberFailure(status int, name form, text string) *failure {
	return rawFailure(status, jsonType, string(name.encode(object{string(name): text})))
}

// fullMessage returns the message as the version words it.
func (s *versionSpec) fullMessage(f *failure) string {
	if !s.NamesParams || s.Rust || !f.invalid {
		return f.message
	}
	if f.value == "" {
		return fmt.Sprintf("%s (parameter=%s)", f.message, f.param)
	}
	return fmt.Sprintf("%s (parameter=%s, value=%s)", f.message, f.param, f.value)
}

// errorBody encodes the failure as a plain response body.
func (s *versionSpec) errorBody(f *failure) []byte {
	switch {
	case f.raw != nil:
		return []byte(*f.raw)
	case s.Nested:
		return fmt.Appendf(nil, `{"error":%s}`, s.errorObject(f))
	}
	return s.errorObject(f)
}

// errorEvent encodes the failure as a stream event. vLLM writes it with json.dumps, with spaces.
func (s *versionSpec) errorEvent(f *failure) []byte {
	members := strings.ReplaceAll(strings.ReplaceAll(string(s.errorObject(f)), `":`, `": `), `,"`, `, "`)
	return []byte(`data: {"error": ` + members + "}\n\n")
}

func (s *versionSpec) errorObject(f *failure) []byte {
	o := object{"object": "error", "message": s.fullMessage(f), "type": f.errorType, "code": f.status}
	if f.param != "" && s.NamesParams {
		o["param"] = f.param
	}
	if s.Nested {
		return form("message type param code").encode(o)
	}
	return form("object message type param code").encode(o)
}

// deadEngine is the response of a dead engine to a request without a response yet.
func (s *versionSpec) deadEngine() *failure {
	f := internalError(s.Dead)
	if s.Dead == "" {
		f.raw = new(string)
	}
	return f
}

// streamFailure is an unexpected exception with this text inside a stream.
func (s *versionSpec) streamFailure(message string) *failure {
	if s.StreamStatus == http.StatusBadRequest { // as if the client were at fault
		return badRequest("%s", message)
	}
	return internalError(message)
}

// Numbers of the context messages in versions.yaml.
const (
	wordingRequested         = 1
	wordingTooLarge          = 4
	wordingInput             = 5
	wordingMaxTokensClamped  = 13
	wordingPromptOver        = 14
	wordingPromptOverAtLeast = 15
	wordingPromptCharacters  = 16
	wordingPromptFills       = 17
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
	).Replace(versions().ContextMessages[number-1])
}
