package errors

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
)

// maxRetryAfter limits Retry-After: the official SDK for Go ignores a wait of a minute or more.
const maxRetryAfter = 59 * time.Second

// InvalidField returns the error for a field with an invalid value. The message says what was received and what is
// allowed.
func InvalidField(param, message string) error {
	return refuse(InvalidRequest, param, "%s", message)
}

// UnknownField returns the error for a field that the API does not have. suggestion is a known field with a similar
// name, or empty.
func UnknownField(name, suggestion string) error {
	if suggestion == "" {
		return refuse(InvalidRequest, name, "unknown field %q: not supported; remove it", Clip(name))
	}
	return refuse(InvalidRequest, name, "unknown field %q, did you mean %q?", Clip(name), suggestion).with("suggestion", suggestion)
}

// UnsupportedField returns the error for a field that vLLM has but this gateway does not take. instead is the field to
// use in its place, or empty.
func UnsupportedField(name, instead string) error {
	advice := "remove it"
	if instead != "" {
		advice = "use " + instead + " in its place"
	}
	return refuse(InvalidRequest, name, "field %q: vLLM has it, but this gateway does not support it; %s", name, advice)
}

// FieldUnserved returns the error for a field that no backend of the model can serve. param is the top-level field, server
// names the server that the model runs, and reason says what was expected and what to do.
func FieldUnserved(param, field, model, server, reason string) error {
	return refuse(InvalidRequest, param, "%s: got it for %s, which runs %s; %s", field, model, server, reason)
}

// BestOfUnsupported returns the error for a best_of that the model's backends cannot choose by.
func BestOfUnsupported(model string) error {
	return InvalidField("best_of", BestOfUnsupportedText(model))
}

// BestOfUnsupportedText is the message of BestOfUnsupported.
func BestOfUnsupportedText(model string) string {
	return fmt.Sprintf("best_of: the server of %s reports no log-probabilities of the tokens, by which the best completions are chosen; "+
		"drop best_of, or ask for all of them with n", model)
}

// MalformedJSON returns the error for a body that is not one JSON object. offset is the byte at which parsing failed.
func MalformedJSON(offset int64, message string) error {
	return refuse(BadJSON, "", "%s", message).with("offset", offset)
}

// UnknownModel returns the error for a model id that is not configured. field is the client's name of model, and suggestion
// the short id to use, or empty.
func UnknownModel(field, got string, available []string, suggestion string) error {
	if suggestion == "" {
		return refuse(ModelNotFound, field, "no model %q here; available: %s", Clip(got), strings.Join(available, ", ")).
			with("available", available)
	}
	return refuse(ModelNotFound, field, "no model %q here: use the short id %q", Clip(got), suggestion).
		with("available", available).with("suggestion", suggestion)
}

// ContextTooLong returns the error for a prompt that, together with max_tokens, exceeds the model's context. prompt is the
// field that holds it: "prompt" or "messages". field is that which asks for the output, such as max_tokens; it is empty for a
// request whose max_tokens is what the prompt leaves. The numbers are in tokens; if nothing can count the prompt, exact is
// false and promptTokens is the upper bound that its bytes give.
func ContextTooLong(prompt, field string, promptTokens, maxTokens, maxModelLen int64, exact bool) error {
	has, advice := fmt.Sprintf("the prompt has %d tokens", promptTokens), "shorten the "+prompt
	if !exact {
		has = fmt.Sprintf("the prompt may have %d tokens (%s)", promptTokens, ByBytes)
		if prompt == "prompt" && field != "" {
			advice = "send token ids, " + advice
		}
	}
	message := fmt.Sprintf("%s and %s asks for %d more, but the model's context is %d tokens; %s or lower %s", has, field, maxTokens, maxModelLen, advice, field)
	if field == "" {
		message = fmt.Sprintf("%s, which leaves no room for output in the model's context of %d tokens; %s", has, maxModelLen, advice)
	}
	return refuse(ContextLengthExceeded, prompt, "%s", message).
		with("prompt_tokens", promptTokens).with("max_tokens", maxTokens).with("max_model_len", maxModelLen)
}

// PairTooLong returns the error for a context with a continuation that are too long together, in tokens. field is the one to
// shorten.
func PairTooLong(field string, tokens, maxModelLen int64) error {
	return refuse(ContextLengthExceeded, field,
		"context and continuation have %d tokens together, but the model's context of %d tokens leaves room for %d; shorten the %s",
		tokens, maxModelLen, maxModelLen-1, field).
		with("prompt_tokens", tokens).with("max_tokens", 1).with("max_model_len", maxModelLen)
}

// ByBytes is the part of a message that says why an upper bound of the prompt's tokens was taken for their number.
const ByBytes = "judged by its bytes, since this model's server cannot count tokens"

// MaxTokensTooLarge returns the error for a max_tokens that leaves no room for a prompt. promptTokens is the number known
// so far, at least 1. field is the client's name of max_tokens.
func MaxTokensTooLarge(field string, promptTokens, maxTokens, maxModelLen int64) error {
	return refuse(ContextLengthExceeded, field,
		"%s asks for %d tokens, but the model's context is %d tokens and the prompt needs at least %d of them; lower %s",
		field, maxTokens, maxModelLen, promptTokens, field).
		with("prompt_tokens", promptTokens).with("max_tokens", maxTokens).with("max_model_len", maxModelLen)
}

// TotalTooLarge returns the error for a limit of prompt and output together that is larger than the model's context, in
// tokens. field is its name.
func TotalTooLarge(field string, total, maxModelLen int64) error {
	return refuse(ContextLengthExceeded, field,
		"%s: got %d for prompt and output together, but the model's context is %d tokens; lower or remove it",
		field, total, maxModelLen).with("max_tokens", total).with("max_model_len", maxModelLen)
}

// TotalTooSmall returns the error for a limit of prompt and output together that leaves no room for output. promptTokens is
// the number of the longest prompt, or if it is not exact the upper bound that its bytes give.
func TotalTooSmall(field string, promptTokens, total int64, exact bool) error {
	prompt := fmt.Sprintf("the prompt has %d", promptTokens)
	if !exact {
		prompt = fmt.Sprintf("the prompt may have %d (%s)", promptTokens, ByBytes)
	}
	return refuse(InvalidRequest, field,
		"%s: got %d tokens for prompt and output together, but %s; raise or remove it", field, total, prompt)
}

// NoChat returns the error of the chat endpoint for a base model. chat are the ids of the models that chat, if there are
// any.
func NoChat(chat []string) error {
	const advice = "send the text to continue to POST /v1/completions " +
		"(in the OpenAI SDKs client.completions.create, not client.chat.completions.create)"
	message := "these are base models without a chat template: " + advice
	if len(chat) > 0 {
		message = "this is a base model without a chat template; these models chat: " + strings.Join(chat, ", ") + "; or " + advice
	}
	return refuse(ChatCompletionsUnsupported, "", "%s", message)
}

// NoCompletions returns the error of the completions endpoint for a model that only chats. field is the client's name of
// model.
func NoCompletions(field, model string) error {
	return refuse(InvalidRequest, field, "%s: got %q, which only chats; send messages to POST /v1/chat/completions "+
		"(in the OpenAI SDKs client.chat.completions.create)", field, Clip(model))
}

// BadKey returns the error for a key that is missing, malformed, unknown, paused or revoked. The response is the same
// for all of them, so that an attacker learns nothing; the cause says which for the log.
func BadKey(cause error) error {
	return refuse(InvalidAPIKey, "", `no valid API key: send "Authorization: Bearer acs-bm-…" with a key that is active`).because(cause)
}

// ShortenedKey returns the error for a key that ends in an ellipsis, as pages show the beginning of a key.
func ShortenedKey(cause error) error {
	return refuse(InvalidAPIKey, "", "the key ends in an ellipsis, so it is only the beginning of a key: send all of it, as it was shown "+
		"once when the key was made, or make another key").because(cause)
}

// NoSuchPath returns the error for a path that is not served. hint, if not empty, says what to use instead.
func NoSuchPath(method, path, hint string) error {
	if hint == "" {
		hint = "the API is POST /v1/completions and GET /v1/models"
	}
	return refuse(NotFound, "", "nothing is served at %s %s; %s", Clip(method), Clip(path), hint)
}

// WrongMethod returns the error for a method that a path does not support. allow lists those that it does.
func WrongMethod(method, path, allow string) error {
	e := refuse(MethodNotAllowed, "", "%s does not take %s, use %s", Clip(path), Clip(method), allow)
	e.allow = allow
	return e
}

// UnknownExpectation returns the error for an Expect header other than 100-continue. The contract has no code for it.
func UnknownExpectation() error {
	e := refuse(InvalidRequest, "", "the Expect header: expected 100-continue; remove it")
	e.status = http.StatusExpectationFailed
	return e
}

// BodyTooLarge returns the error for a request body over the limit, in bytes after decompression.
func BodyTooLarge(limit int64) error {
	return refuse(RequestTooLarge, "",
		"the request body is larger than the %d bytes allowed here; send fewer or shorter prompts at a time", limit).
		with("limit_bytes", limit)
}

// UnknownEncoding returns the error for a Content-Encoding other than gzip.
func UnknownEncoding(got string) error {
	return refuse(UnsupportedEncoding, "", "Content-Encoding %q is not understood; send the body plain or as gzip", Clip(valid(got)))
}

// Budget is the state of a cap that refuses a request. Limit, Used and Reserved are in tokens.
type Budget struct {
	Scope    string // key or account
	Window   string // month or day
	Meter    string // total, input or output
	Limit    int64
	Used     int64
	Reserved int64     // by requests in flight; for information only: it never causes a refusal
	ResetsAt time.Time // zero: never

	PromptBound int64 // tokens that the prompt may have by its bytes, if nothing can count it; 0 if it was counted
	FreeText    int64 // bytes of text that the tokenizer takes a minute beyond the budget; 0 if the request is no text for it
}

// windows maps the window of a cap to its adjective in messages.
var windows = map[string]string{"life": "lifetime", "month": "monthly", "day": "daily"}

// BudgetSpent returns the error for a request that exceeds what a cap has left.
func BudgetSpent(b Budget) error {
	resets, resetsAt := "does not reset", any(nil)
	if !b.ResetsAt.IsZero() {
		resetsAt = b.ResetsAt.UTC().Format(time.RFC3339)
		resets = fmt.Sprintf("resets at %s", resetsAt)
	}
	request := "this request"
	if b.PromptBound > 0 {
		request = fmt.Sprintf("this request, whose prompt may have %d tokens (%s)", b.PromptBound, ByBytes)
	}
	if b.FreeText > 0 {
		request = fmt.Sprintf("more than the %d MiB of text a minute that the tokenizer takes beyond it", b.FreeText>>20)
	}
	return refuse(BudgetExceeded, "",
		"the %s's %s %s budget has %d of %d tokens left, too few for %s; it %s, and the operator can raise it",
		b.Scope, windows[b.Window], b.Meter, max(b.Limit-b.Used, 0), b.Limit, request, resets).
		with("scope", b.Scope).with("window", b.Window).with("meter", b.Meter).
		with("limit", b.Limit).with("used", b.Used).with("reserved", b.Reserved).with("resets_at", resetsAt)
}

// Unreachable returns the error for a model whose backends sent no HTTP response, or stopped sending. reason is the
// first part of the message.
func Unreachable(reason string, attempts int, cause error) error {
	return refuse(UpstreamUnreachable, "", "%s (%s); try again shortly", reason, english.Plural(attempts, "attempt", "")).
		with("attempts", attempts).because(cause)
}

// BootFailed returns the error for a model that could not be started. reason says why to the client, or is empty; retry is the time
// until the next boot. The cause may name what the operator runs, so only the log receives it.
func BootFailed(model, reason string, retry time.Duration, cause error) error {
	wait := waitSeconds(retry)
	if reason != "" {
		reason = ": " + reason
	}
	e := refuse(UpstreamUnreachable, "",
		"%s could not be started%s; it is started again for a request in %d seconds, so ask again then", model, reason, wait)
	e.retryAfter = wait
	return e.with("attempts", 0).because(cause)
}

// UpstreamFailed returns the error for a failure that a backend reported in its response. code must have the type
// upstream_error, status is the backend's HTTP status or 0 without a response, message is for the client and cause for the log.
func UpstreamFailed(code Code, message string, status, attempts int, cause error) error {
	return refuse(code, "", "%s", message).withAttempts(status, attempts).because(cause)
}

// EngineKiller returns the error for a request that two engines have died of, or beside, after attempts at backends. status
// is the last backend's, or 0 without a response.
func EngineKiller(status, attempts int) error {
	e := refuse(VLLMEngineDead, "", "two engines of the model crashed while they worked on this request, "+
		"so it is refused for ten minutes; change it, and report it to the operator")
	e.retry = adviceNever
	return e.withAttempts(status, attempts)
}

// UpstreamRefused returns the error for a request that a backend refused as the client's mistake. message is vLLM's: it
// may quote the prompt, so only the client receives it. param is the field that it is about, or empty.
func UpstreamRefused(message, param string, status int) error {
	if message == "" {
		message = fmt.Sprintf("the model server refused the request with status %d and no reason", status)
	}
	return refuse(InvalidRequest, param, "%s", message).with("upstream_status", status)
}

// Booting returns the error for a model that is starting. retry is the recommended wait, elapsed the duration of the
// boot so far, and estimate its expected total; 0 if unknown.
func Booting(model string, retry, elapsed, estimate time.Duration) error {
	wait, expected := waitSeconds(retry), ""
	if estimate > 0 {
		expected = fmt.Sprintf("of about %d ", Seconds(estimate))
	}
	return refuse(ColdBoot, "", "%s is starting: %d %sseconds have passed; ask again in %d seconds",
		model, Seconds(elapsed), expected, wait).
		after(wait).with("boot_elapsed_seconds", Seconds(elapsed)).with("boot_estimate_seconds", Seconds(estimate))
}

// BreakerOpen returns the error for a model with an open breaker on every backend. retry is the time until the first
// breaker is half-open.
func BreakerOpen(model string, retry time.Duration) error {
	wait := waitSeconds(retry)
	return refuse(CircuitOpen, "", "every backend of %s has failed repeatedly; the next try is in %s", model, english.Plural(int(wait), "second", "")).
		after(wait)
}

// Shortage is what a gateway lacks that refuses a request with Overloaded: a label of a metric.
type Shortage string

// The shortages.
const (
	NoMemory      Shortage = "memory"      // what requests hold has reached its limit
	NoDatabase    Shortage = "database"    // keys or the ledger cannot be read or written
	NoConnections Shortage = "connections" // file descriptors, ports or memory of the machine
	NoBackends    Shortage = "backends"    // every backend says that it is busy
	Draining      Shortage = "draining"    // the gateway is shutting down
)

// Shortages lists all of them.
var Shortages = []Shortage{NoMemory, NoDatabase, NoConnections, NoBackends, Draining}

// Overload returns the error for a request that the gateway itself has no capacity for. reason says for the client which
// capacity, and retry is the recommended wait.
func Overload(shortage Shortage, reason string, retry time.Duration, cause error) error {
	wait := waitSeconds(retry)
	e := refuse(Overloaded, "", "%s; ask again in %d seconds", reason, wait)
	e.Shortage = shortage
	return e.after(wait).because(cause)
}

// UntranslatableOutput returns the error for a response of a backend that cannot be put into the form of the request.
func UntranslatableOutput(message string) error {
	return refuse(UpstreamServerError, "", "%s", message)
}

// Unexpected returns the error for a fault of the gateway. The cause is logged with the request's id and never sent.
func Unexpected(cause error) error {
	return refuse(Internal, "", "the gateway failed at this request; quote the request id when you report it").because(cause)
}

// Clip shortens text from outside to 80 bytes and an ellipsis, so that a message can quote it.
func Clip(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// waitSeconds returns how long a client is told to wait that should retry after d.
func waitSeconds(d time.Duration) int64 { return Seconds(min(max(d, time.Second), maxRetryAfter)) }

// Seconds returns d in whole seconds, rounded up so that a client does not retry too early.
func Seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
