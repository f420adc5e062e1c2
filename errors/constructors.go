package errors

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// maxRetryAfter is the longest wait that the official SDKs obey; a longer one they ignore.
const maxRetryAfter = 60 * time.Second

// InvalidField is a field whose value cannot be taken: param names it, message says what was got and what is allowed.
func InvalidField(param, message string) error {
	return &Error{Code: InvalidRequest, Param: param, Message: valid(message)}
}

// UnknownField is a field that the API does not have; suggestion is the known one that it resembles, or empty.
func UnknownField(name, suggestion string) error {
	if suggestion == "" {
		return &Error{
			Code: InvalidRequest, Param: name,
			Message: fmt.Sprintf("unknown field %q: it would have no effect, so it is refused; leave it out", Clip(name)),
		}
	}
	return &Error{
		Code: InvalidRequest, Param: name,
		Message: fmt.Sprintf("unknown field %q, did you mean %q?", Clip(name), suggestion),
		Extras:  []Extra{{"suggestion", suggestion}},
	}
}

// MalformedJSON is a body that is not one JSON object; offset is the byte where that shows.
func MalformedJSON(offset int64, message string) error {
	return &Error{Code: BadJSON, Message: valid(message), Extras: []Extra{{"offset", offset}}}
}

// UnknownModel is a model id that the configuration does not have. suggestion is the short id to use, or empty.
func UnknownModel(got string, available []string, suggestion string) error {
	e := &Error{
		Code: ModelNotFound, Param: "model",
		Message: fmt.Sprintf("no model %q here; available: %s", Clip(got), strings.Join(available, ", ")),
		Extras:  []Extra{{"available", available}},
	}
	if suggestion != "" {
		e.Message = fmt.Sprintf("no model %q here: use the short id %q", Clip(got), suggestion)
		e.Extras = append(e.Extras, Extra{"suggestion", suggestion})
	}
	return e
}

// ContextTooLong is a prompt that does not fit the model together with what it asks for; all three are tokens.
func ContextTooLong(promptTokens, maxTokens, maxModelLen int64) error {
	return &Error{
		Code: ContextLengthExceeded, Param: "prompt",
		Message: fmt.Sprintf("the prompt has %d tokens and max_tokens asks for %d more, but the model's context is %d tokens; shorten the prompt or lower max_tokens",
			promptTokens, maxTokens, maxModelLen),
		Extras: []Extra{{"prompt_tokens", promptTokens}, {"max_tokens", maxTokens}, {"max_model_len", maxModelLen}},
	}
}

// NoChat answers the chat endpoint, which base models cannot serve.
func NoChat() error {
	return &Error{
		Code: ChatCompletionsUnsupported,
		Message: "these are base models without a chat template: send the text to continue to POST /v1/completions " +
			"(in the OpenAI SDKs client.completions.create, not client.chat.completions.create)",
	}
}

// BadKey is a key that is missing, malformed, unknown, paused or revoked: one answer for all, so that it tells an
// attacker nothing. The cause tells the log which.
func BadKey(cause error) error {
	return &Error{
		Code:    InvalidAPIKey,
		Message: `no valid API key: send "Authorization: Bearer acs-bm-…" with a key that is active`,
		cause:   cause,
	}
}

// NoSuchPath is a path that nothing is served under; hint may name what to use instead.
func NoSuchPath(method, path, hint string) error {
	message := fmt.Sprintf("nothing is served at %s %s", Clip(method), Clip(path))
	if hint == "" {
		hint = "the API is POST /v1/completions and GET /v1/models"
	}
	return &Error{Code: NotFound, Message: valid(message + "; " + hint)}
}

// WrongMethod is a known path under a method that it does not take; allow lists those that it does.
func WrongMethod(method, path, allow string) error {
	return &Error{
		Code:    MethodNotAllowed,
		Message: valid(fmt.Sprintf("%s does not take %s, use %s", Clip(path), Clip(method), allow)),
		allow:   allow,
	}
}

// BodyTooLarge is a request body over the limit, in bytes, counted after decompression.
func BodyTooLarge(limit int64) error {
	return &Error{
		Code:    RequestTooLarge,
		Message: fmt.Sprintf("the request body is larger than the %d bytes allowed here; send fewer or shorter prompts at a time", limit),
		Extras:  []Extra{{"limit_bytes", limit}},
	}
}

// UnknownEncoding is a Content-Encoding other than gzip.
func UnknownEncoding(got string) error {
	return &Error{
		Code:    UnsupportedEncoding,
		Message: fmt.Sprintf("Content-Encoding %q is not understood; send the body plain or as gzip", Clip(valid(got))),
	}
}

// Budget is a cap that refuses a request. Limit, Used and Reserved are tokens.
type Budget struct {
	Scope    string // key or account
	Window   string // month or day
	Meter    string // total, input or output
	Limit    int64
	Used     int64
	Reserved int64 // by requests in flight; no refusal rests on it
	ResetsAt time.Time
}

// windows are how people call a cap's window.
var windows = map[string]string{"month": "monthly", "day": "daily"}

// BudgetSpent is a request that a cap leaves no room for.
func BudgetSpent(b Budget) error {
	resets := b.ResetsAt.UTC().Format(time.RFC3339)
	return &Error{
		Code: BudgetExceeded,
		Message: fmt.Sprintf("the %s's %s %s budget has %d of %d tokens left, too few for this request; it resets at %s, and the operator can raise it",
			b.Scope, windows[b.Window], b.Meter, max(b.Limit-b.Used, 0), b.Limit, resets),
		Extras: []Extra{
			{"scope", b.Scope},
			{"window", b.Window},
			{"meter", b.Meter},
			{"limit", b.Limit},
			{"used", b.Used},
			{"reserved", b.Reserved},
			{"resets_at", resets},
		},
	}
}

// Unreachable is a backend that gave no HTTP answer at all, or fell silent, after so many attempts; what says which.
func Unreachable(what string, attempts int, cause error) error {
	return &Error{
		Code:    UpstreamUnreachable,
		Message: fmt.Sprintf("%s (%s); try again shortly", what, count(attempts, "attempt")),
		Extras:  []Extra{{"attempts", attempts}},
		cause:   cause,
	}
}

// UpstreamFailed is a failure that a backend answered with. code is one of the codes of type upstream_error, status
// the backend's HTTP status, message what to tell the client, cause for the log.
func UpstreamFailed(code Code, message string, status, attempts int, cause error) error {
	return &Error{
		Code:    code,
		Message: valid(message),
		Extras:  []Extra{{"upstream_status", status}, {"attempts", attempts}},
		cause:   cause,
	}
}

// UpstreamRefused is a request that a backend refused as the client's own mistake. message is vLLM's; it may quote
// the prompt and goes to the client alone.
func UpstreamRefused(message string, status int) error {
	if message == "" {
		message = fmt.Sprintf("the model server refused the request with status %d and no reason", status)
	}
	return &Error{Code: InvalidRequest, Message: valid(message), Extras: []Extra{{"upstream_status", status}}}
}

// Booting is a model that is being started: retry is the wait to recommend, elapsed and estimate the boot so far and
// in whole.
func Booting(model string, retry, elapsed, estimate time.Duration) error {
	retry = clampRetry(retry)
	return &Error{
		Code: ColdBoot,
		Message: fmt.Sprintf("%s is starting: %d of about %d seconds have passed; ask again in %d seconds",
			model, Seconds(elapsed), Seconds(estimate), Seconds(retry)),
		Extras: []Extra{
			{"retry_after_seconds", Seconds(retry)},
			{"boot_elapsed_seconds", Seconds(elapsed)},
			{"boot_estimate_seconds", Seconds(estimate)},
		},
		retryAfter: retry,
	}
}

// BreakerOpen is a model all of whose backends failed repeatedly and are being left alone; retry is the time until
// the first of them is tried again.
func BreakerOpen(model string, retry time.Duration) error {
	retry = clampRetry(retry)
	return &Error{
		Code: CircuitOpen,
		Message: fmt.Sprintf("every backend of %s has failed repeatedly; the next try is in %d seconds",
			model, Seconds(retry)),
		Extras:     []Extra{{"retry_after_seconds", Seconds(retry)}},
		retryAfter: retry,
	}
}

// Overload is the gateway itself having no room: reason says of what, retry when to come back.
func Overload(reason string, retry time.Duration, cause error) error {
	retry = clampRetry(retry)
	return &Error{
		Code:       Overloaded,
		Message:    fmt.Sprintf("%s; ask again in %d seconds", reason, Seconds(retry)),
		Extras:     []Extra{{"retry_after_seconds", Seconds(retry)}},
		retryAfter: retry,
		cause:      cause,
	}
}

// Unexpected is a fault of the gateway's own. The cause is logged under the request's id and never shown.
func Unexpected(cause error) error {
	return &Error{
		Code:    Internal,
		Message: "the gateway failed at this request; quote the request id when you report it",
		cause:   cause,
	}
}

// Clip shortens text from outside to what a message can carry.
func Clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func clampRetry(d time.Duration) time.Duration {
	return min(max(d, time.Second), maxRetryAfter)
}

// Seconds is a time in whole seconds, rounded up so that nobody comes back a moment too early.
func Seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
