// Package errors is the taxonomy of everything that the API refuses or fails at: one code a reason, and one table
// that says which HTTP status, OpenAI error type and retry advice belong to a code. It is imported as apierr.
//
// Whoever finds the fault calls the constructor of its code; nobody else writes a status number. What led to the
// fault inside the gateway is the cause: it is for the log, and the client never sees it.
package errors

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Code is the machine-readable reason, `error.code` in an answer.
type Code string

// The codes of the contract.
const (
	InvalidRequest             Code = "invalid_request"
	BadJSON                    Code = "bad_json"
	ModelNotFound              Code = "model_not_found"
	ContextLengthExceeded      Code = "context_length_exceeded"
	ChatCompletionsUnsupported Code = "chat_completions_unsupported"
	InvalidAPIKey              Code = "invalid_api_key"
	NotFound                   Code = "not_found"
	MethodNotAllowed           Code = "method_not_allowed"
	RequestTooLarge            Code = "request_too_large"
	UnsupportedEncoding        Code = "unsupported_encoding"
	BudgetExceeded             Code = "budget_exceeded"
	UpstreamUnreachable        Code = "upstream_unreachable"
	VLLMOutOfMemory            Code = "vllm_oom"
	VLLMContextLength          Code = "vllm_context_length"
	VLLMEngineDead             Code = "vllm_engine_dead"
	UpstreamServerError        Code = "upstream_server_error"
	ColdBoot                   Code = "modal_cold_boot"
	CircuitOpen                Code = "circuit_open"
	Overloaded                 Code = "overloaded"
	Internal                   Code = "internal_error"
)

// advice is what the x-should-retry header tells the official SDKs, which obey it over their own rules.
type advice string

const (
	adviceNone  advice = ""
	adviceNever advice = "false"
	adviceRetry advice = "true"
)

type row struct {
	status int
	kind   string // the OpenAI error type
	retry  advice
}

// table holds every code. The statuses stand here and nowhere else.
var table = map[Code]row{
	InvalidRequest:             {400, "invalid_request_error", adviceNever},
	BadJSON:                    {400, "invalid_request_error", adviceNever},
	ModelNotFound:              {400, "invalid_request_error", adviceNever},
	ContextLengthExceeded:      {400, "invalid_request_error", adviceNever},
	ChatCompletionsUnsupported: {400, "invalid_request_error", adviceNever},
	InvalidAPIKey:              {401, "authentication_error", adviceNever},
	NotFound:                   {404, "invalid_request_error", adviceNone},
	MethodNotAllowed:           {405, "invalid_request_error", adviceNone},
	RequestTooLarge:            {413, "invalid_request_error", adviceNever},
	UnsupportedEncoding:        {415, "invalid_request_error", adviceNone},
	BudgetExceeded:             {429, "insufficient_quota", adviceNever},
	UpstreamUnreachable:        {502, "upstream_error", adviceNone},
	VLLMOutOfMemory:            {502, "upstream_error", adviceNone},
	VLLMContextLength:          {502, "upstream_error", adviceNone},
	VLLMEngineDead:             {502, "upstream_error", adviceNone},
	UpstreamServerError:        {502, "upstream_error", adviceNone},
	ColdBoot:                   {503, "service_unavailable", adviceRetry},
	CircuitOpen:                {503, "service_unavailable", adviceNone},
	Overloaded:                 {503, "service_unavailable", adviceNone},
	Internal:                   {500, "server_error", adviceNone},
}

// Codes lists every code, sorted, for documentation and tests.
func Codes() []Code { return slices.Sorted(maps.Keys(table)) }

// Status is the HTTP status of an answer with this code.
func (c Code) Status() int { return table[c].status }

// Type is the OpenAI error type of this code.
func (c Code) Type() string { return table[c].kind }

// FromUpstream tells whether the code reports a failure of a backend, which X-Acs-Upstream-Error-Kind then repeats.
func (c Code) FromUpstream() bool { return table[c].kind == "upstream_error" }

// Extra is a further member of the error object.
type Extra struct {
	Name  string
	Value any
}

// Error is one refusal or failure as the client will see it, and its cause as the log will.
type Error struct {
	Code    Code
	Message string
	Param   string // the field's name; empty for none
	Extras  []Extra

	retryAfter time.Duration
	allow      string
	cause      error
}

// Error is the text for the log. It leaves out Message, which may quote the request or vLLM's words about it.
func (e *Error) Error() string {
	if e.cause != nil {
		return string(e.Code) + ": " + e.cause.Error()
	}
	return string(e.Code)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.cause }

// valid makes text from outside safe to put into JSON.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
