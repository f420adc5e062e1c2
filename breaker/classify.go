package breaker

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// Outcome is the result of one attempt.
type Outcome struct {
	Class   Class
	Doubt   Doubt  // what only /health can decide; see Judge
	Status  int    // the backend's HTTP status, or the one its error object names; 0 without a response
	Message string // vLLM's error text; it may quote the prompt, so it goes to the client only, by Redact, and never to the log
	Param   string // the request's field that vLLM names; it need not be one that the client sent
	Cause   error  // logged if the response itself does not say what is wrong
}

// Err returns the API error for the client after the given number of attempts at the model.
func (o Outcome) Err(model string, attempts int) error {
	row := o.Class.row()
	switch {
	case o.Class == ClientError:
		return apierr.UpstreamRefused(Redact(o.Message), o.Param, o.Status)
	case row.code == apierr.Overloaded:
		shortage := apierr.NoBackends
		if o.Class == LocalFault {
			shortage = apierr.NoConnections
		}
		return apierr.Overload(shortage, fmt.Sprintf(row.advice, model), overloadedRetry, o.logError())
	case row.code == apierr.UpstreamUnreachable:
		return apierr.Unreachable(fmt.Sprintf(row.advice, model), attempts, o.logError())
	default:
		return apierr.UpstreamFailed(row.code, o.clientMessage(), o.Status, attempts, o.logError())
	}
}

// overloadedRetry is when a client should retry after every backend was Busy, or after a LocalFault.
const overloadedRetry = 5 * time.Second

// clientMessage returns the class's advice. vLLM's text follows only if it is about the request: that of another failure
// can name addresses, paths or hardware of the operator.
func (o Outcome) clientMessage() string {
	if o.Message == "" || o.Class != ContextLength {
		return o.Class.row().advice
	}
	return fmt.Sprintf("%s (it said: %s)", o.Class.row().advice, Redact(o.Message))
}

// logError returns what may be logged: the class and either the cause or the status. It quotes nothing of the response.
func (o Outcome) logError() error {
	if o.Cause == nil {
		return fmt.Errorf("%s, status %d", o.Class, o.Status)
	}
	return fmt.Errorf("%s: %w", o.Class, o.Cause)
}

// Classify returns the outcome of a failed response: one with any status but 200, or one with status 200 whose body is
// an error object, which package stream detects.
func Classify(status int, body []byte) Outcome {
	e := parseError(body)
	if status == http.StatusOK {
		status = http.StatusInternalServerError
		if e.status >= 400 && e.status <= 599 {
			status = e.status
		}
	}
	class, doubt := classOf(status, e)
	return Outcome{Class: class, Doubt: doubt, Status: status, Message: clip(e.message), Param: fieldOf(e.param)}
}

// errorBody is a parsed error response.
type errorBody struct {
	message string
	param   string
	status  int  // HTTP status named by the error; 0 if it names none
	empty   bool // the response has no body
	own     bool // it has the form of vLLM's own errors
}

// parseError parses every form in which vLLM and the servers under it report an error: nested object, flat object,
// string, FastAPI's detail, plain text, empty body.
func parseError(body []byte) errorBody {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return errorBody{empty: true}
	}
	if body[0] != '{' {
		return errorBody{message: string(body)}
	}
	// A body may be cut off. Of that, gjson lacks only the end of a string; behind a complete object it reads nothing.
	object := gjson.Parse(string(bytes.TrimRight(body, `\`)) + `"`)
	switch e := object.Get("error"); {
	case e.IsObject():
		return errorBody{message: e.Get("message").String(), param: e.Get("param").Str, status: statusOf(e), own: true}
	case e.Type == gjson.String:
		return errorBody{message: e.Str, own: true}
	case object.Get("object").Str == "error":
		return errorBody{message: object.Get("message").String(), param: object.Get("param").Str, status: statusOf(object), own: true}
	case object.Get("detail").Exists():
		return errorBody{message: object.Get("detail").String(), own: true}
	default:
		return errorBody{message: object.Get("message").String()}
	}
}

// fieldOf returns the top-level field of a param such as body.prompt or body.stream_options.include_usage.
func fieldOf(param string) string {
	field, _, _ := strings.Cut(strings.TrimPrefix(param, "body."), ".")
	return field
}

// statusOf returns the HTTP status that an error object names, or 0. vLLM's Rust frontend sends a word as the code, so
// the error's type is checked too: a client error inside a stream must not count as a failure of the backend.
func statusOf(e gjson.Result) int {
	if code := int(e.Get("code").Int()); code != 0 {
		return code
	}
	switch e.Get("type").Str {
	case "invalid_request_error", "BadRequestError", "Bad Request":
		return http.StatusBadRequest
	default:
		return 0
	}
}

// messagePattern maps an error text of some vLLM version to a class. vLLM's messages can contain client text (a
// validation error quotes the request), so a pattern either is anchored at the start, which vLLM writes itself, or
// applies only to statuses that no client can provoke.
type messagePattern struct {
	class     Class
	minStatus int // the pattern applies to this status and above
	pattern   *regexp.Regexp
}

var messagePatterns = []messagePattern{
	// In a stream, versions 0.7 to 0.13 report a dead engine as a client error with code 400.
	{OutOfMemoryDead, 400, regexp.MustCompile(`(?is)^(engine loop is not running|background loop has errored|enginecore encountered an issue).*out of ?memory`)},
	{EngineDead, 400, regexp.MustCompile(`(?i)^(engine loop is not running|background loop (has errored|is not running)|enginecore encountered an issue|engine (core )?(is )?dead|(async|mq)?enginedeaderror)`)},
	{OutOfMemory, 400, regexp.MustCompile(`(?i)^(torch\.(cuda\.)?outofmemoryerror: )?cuda out of memory`)},
	{OutOfMemory, 500, regexp.MustCompile(`(?i)out of memory|outofmemoryerror|not enough gpu memory`)},
	{EngineDead, 500, regexp.MustCompile(`(?i)enginecore encountered an issue|enginedeaderror|engine loop is not running|background loop has errored|illegal memory access|engine (core )?(is )?dead`)},
	{ContextLength, 400, regexp.MustCompile(`(?i)^(this model's maximum context length|'max_tokens' or 'max_completion_tokens' is too large|max_tokens=\d+ cannot be greater than max_model_len|max_tokens must be at least 1, got (0|-\d)|you passed \d+ input (tokens|characters)|the (decoder |encoder )?prompt \((total )?length \d+\)|input length \(\d+\) exceeds|input prompt \(\d+ tokens\) is too long)`)},
	{ContextLength, 400, regexp.MustCompile(`(?i)^[^'"\x60=\[{]*(maximum context length|longer than the maximum model length|(prompt|input) .*is too long)`)},
	{Busy, 429, regexp.MustCompile(`(?i)engine is currently busy|currently scaling|cannot accept new requests|token backlog limit|generation is paused|too many requests|overloaded`)},
}

// classOf returns the class by status and text, and what is left in doubt about it.
func classOf(status int, e errorBody) (Class, Doubt) {
	if e.empty && status == http.StatusInternalServerError {
		return EngineDead, Empty
	}
	for _, p := range messagePatterns {
		if status >= p.minStatus && p.pattern.MatchString(e.message) {
			return p.class, Certain
		}
	}
	switch {
	case status == http.StatusTooManyRequests:
		return Busy, Certain
	case status == http.StatusBadRequest, status == http.StatusRequestEntityTooLarge, status == http.StatusUnprocessableEntity:
		return ClientError, Certain
	case status >= 400 && status <= 499:
		return Misconfigured, Certain
	case status == http.StatusServiceUnavailable && e.own:
		return ServerError, Unavailable
	case status == http.StatusInternalServerError || e.own:
		return ServerError, Failed
	default:
		return ServerError, Certain // a proxy's in between
	}
}

// maxMessage limits the error text kept from a response, in bytes.
const maxMessage = 4 << 10

// sourcePosition is a line of a program that vLLM uses, with the time before it: xgrammar begins its messages so.
var sourcePosition = regexp.MustCompile(`(\[\d\d:\d\d:\d\d\] )?/[^\s:"']+\.(c|cc|cpp|cu|cuh|h|hpp|py|rs):\d+:? ?`)

// clip returns an error text that is not too long, without the lines of programs.
func clip(message string) string {
	message = strings.TrimSpace(sourcePosition.ReplaceAllString(message, ""))
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

// location is a URL or a path of two or more segments; a quoted path ends with its quote, since it may have blanks.
var location = regexp.MustCompile(`(?i)\b[a-z][a-z0-9+.-]*://[^\s'"\x60<>,;)]+` +
	`|(^|[\s(\[{<=:,])\.{0,2}/[^\s'"\x60<>,;:)\]}/]+/[^\s'"\x60<>,;:)\]}]+` +
	`|['"\x60]\.{0,2}/[^'"\x60\n/]+/[^'"\x60\n]+`)

// Redact returns vLLM's text for a client, without the operator's addresses and paths. The API's own paths stay.
func Redact(message string) string {
	return location.ReplaceAllStringFunc(message, func(found string) string {
		start := strings.IndexAny(found, "./") // a quote or a separator is before it
		switch {
		case strings.Contains(found, "://"):
			return "[address]"
		case strings.HasPrefix(found[start:], "/v1/"):
			return found
		default:
			return found[:start] + "[path]"
		}
	})
}
