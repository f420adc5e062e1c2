package breaker

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// Verdict is what an attempt came to, with what a client may be told about it.
type Verdict struct {
	Class   Class
	Status  int    // the backend's HTTP status, or the one that its error names; 0 without an answer
	Message string // vLLM's own words; they may quote the prompt, so they go to the client alone
	Cause   error  // for the log, where the answer did not say itself what is wrong
}

// Err is the verdict as the client's error, after so many attempts at the model.
func (v Verdict) Err(model string, attempts int) error {
	row := v.Class.row()
	switch {
	case v.Class == ClientError:
		return apierr.UpstreamRefused(v.Message, v.Status)
	case row.code == apierr.UpstreamUnreachable:
		return apierr.Unreachable(fmt.Sprintf(row.advice, model), attempts, v.logged())
	default:
		return apierr.UpstreamFailed(row.code, v.explanation(), v.Status, attempts, v.logged())
	}
}

// explanation is the class's advice, with vLLM's words where it gave any.
func (v Verdict) explanation() string {
	if v.Message == "" {
		return v.Class.row().advice
	}
	return fmt.Sprintf("%s (it said: %s)", v.Class.row().advice, v.Message)
}

// logged is what the log may hold: the class, and either the status or what broke, which quotes nothing.
func (v Verdict) logged() error {
	if v.Cause == nil {
		return fmt.Errorf("%s, status %d", v.Class, v.Status)
	}
	return fmt.Errorf("%s: %w", v.Class, v.Cause)
}

// Answer classifies an answer of a backend that is not a plain success: any status but 200, or a body that
// FoundError has found to be an error under 200.
func Answer(status int, body []byte) Verdict {
	found := parse(body)
	if status == http.StatusOK {
		status = http.StatusInternalServerError
		if found.status >= 400 && found.status <= 599 {
			status = found.status
		}
	}
	return Verdict{Class: classify(status, found), Status: status, Message: clip(found.message)}
}

// FoundError tells from the members "error" and "object" of a JSON object's top level, as they stand there and nil where
// they do not, whether it is one of vLLM's errors. Several versions send errors under status 200, so no body is an
// answer before this was asked.
func FoundError(failure, object []byte) bool {
	return (len(failure) > 0 && string(failure) != "null") || string(object) == `"error"`
}

// found is an error in any of vLLM's shapes.
type found struct {
	message string
	status  int // what the error itself says; 0 for nothing
	empty   bool
}

// parse reads every shape that vLLM and the servers under it give an error: nested, flat, a string, FastAPI's detail,
// plain text, nothing.
func parse(body []byte) found {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return found{empty: true}
	}
	if body[0] != '{' {
		return found{message: string(body)}
	}
	object := gjson.ParseBytes(body)
	switch e := object.Get("error"); {
	case e.IsObject():
		return found{message: e.Get("message").String(), status: statusOf(e)}
	case e.Type == gjson.String:
		return found{message: e.Str}
	case object.Get("object").Str == "error":
		return found{message: object.Get("message").String(), status: statusOf(object)}
	case object.Get("detail").Exists():
		return found{message: object.Get("detail").String()}
	default:
		return found{message: object.Get("message").String()}
	}
}

// statusOf is the status that an error names; 0 for none. The code of vLLM's frontend in Rust is a word, so there the
// type tells: a client's mistake that comes in a stream must not pass for the backend's failure.
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

// wording is how some version of vLLM says something. Client text can stand in vLLM's messages (a validation error
// quotes the request), so a wording counts only where vLLM itself begins with it, or under a status that no client
// can provoke.
type wording struct {
	class   Class
	from    int // the lowest status that it counts under
	pattern *regexp.Regexp
}

var wordings = []wording{
	// Versions 0.7 to 0.13 report a dead engine in a stream as the client's error 400.
	{OutOfMemoryDead, 400, regexp.MustCompile(`(?is)^(engine loop is not running|background loop has errored|enginecore encountered an issue).*out of ?memory`)},
	{EngineDead, 400, regexp.MustCompile(`(?i)^(engine loop is not running|background loop (has errored|is not running)|enginecore encountered an issue|engine (core )?(is )?dead|(async|mq)?enginedeaderror)`)},
	{OutOfMemory, 400, regexp.MustCompile(`(?i)^(torch\.(cuda\.)?outofmemoryerror: )?cuda out of memory`)},
	{OutOfMemory, 500, regexp.MustCompile(`(?i)out of memory|outofmemoryerror|not enough gpu memory`)},
	{EngineDead, 500, regexp.MustCompile(`(?i)enginecore encountered an issue|enginedeaderror|engine loop is not running|background loop has errored|illegal memory access|engine (core )?(is )?dead`)},
	{ContextLength, 400, regexp.MustCompile(`(?i)^(this model's maximum context length|'max_tokens' or 'max_completion_tokens' is too large|max_tokens=\d+ cannot be greater than max_model_len|the (decoder |encoder )?prompt \((total )?length \d+\)|input length \(\d+\) exceeds|input prompt \(\d+ tokens\) is too long)`)},
	{ContextLength, 400, regexp.MustCompile(`(?i)^[^'"\x60=\[{]*(maximum context length|longer than the maximum model length|(prompt|input) .*is too long)`)},
	{Busy, 429, regexp.MustCompile(`(?i)engine is currently busy|currently scaling|cannot accept new requests|too many requests|overloaded`)},
}

func classify(status int, f found) Class {
	if f.empty && status == http.StatusInternalServerError {
		return EngineDead // what versions up to 0.8 answer when their engine has died
	}
	for _, w := range wordings {
		if status >= w.from && w.pattern.MatchString(f.message) {
			return w.class
		}
	}
	switch {
	case status == http.StatusTooManyRequests:
		return Busy
	case status >= 400 && status <= 499:
		return ClientError
	default:
		return ServerError
	}
}

// clip bounds what a backend can make the gateway carry and repeat.
func clip(message string) string {
	const most = 4 << 10
	message = strings.TrimSpace(message)
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + "…"
}
