// Package errors is the taxonomy of the API's errors: one code per reason, and one table that maps each code to its
// HTTP status, OpenAI error type and retry advice. It is imported as apierr.
//
// The code that detects an error calls a constructor of this package; no other package writes a status number. The
// cause of an error inside the gateway is for the log only: clients never receive it. The headers and the JSON are
// rendered here; sending them is left to the caller.
package errors

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Code is the machine-readable reason, `error.code` in a response.
type Code string

// The codes of the API's contract.
const (
	InvalidRequest             Code = "invalid_request"
	BadJSON                    Code = "bad_json"
	ModelNotFound              Code = "model_not_found"
	ContextLengthExceeded      Code = "context_length_exceeded"
	ChatCompletionsUnsupported Code = "chat_completions_unsupported"
	InvalidAPIKey              Code = "invalid_api_key"
	PermissionDenied           Code = "permission_denied"
	NotFound                   Code = "not_found"
	MethodNotAllowed           Code = "method_not_allowed"
	AdapterExists              Code = "adapter_exists"
	FileInUse                  Code = "file_in_use"
	BatchNotCancellable        Code = "batch_not_cancellable"
	IdempotencyConflict        Code = "idempotency_conflict"
	RequestTooLarge            Code = "request_too_large"
	StorageQuotaExceeded       Code = "storage_quota_exceeded"
	UnsupportedEncoding        Code = "unsupported_encoding"
	BudgetExceeded             Code = "budget_exceeded"
	TooManyBatches             Code = "too_many_batches"
	TooManyKeys                Code = "too_many_keys"
	UpstreamUnreachable        Code = "upstream_unreachable"
	VLLMOutOfMemory            Code = "vllm_oom"
	VLLMContextLength          Code = "vllm_context_length"
	VLLMEngineDead             Code = "vllm_engine_dead"
	UpstreamServerError        Code = "upstream_server_error"
	AdapterUnavailable         Code = "adapter_unavailable"
	ColdBoot                   Code = "modal_cold_boot"
	CircuitOpen                Code = "circuit_open"
	Overloaded                 Code = "overloaded"
	StorageUnavailable         Code = "storage_unavailable"
	Internal                   Code = "internal_error"
)

// advice is the value of the x-should-retry header, which in the official SDKs overrides their own rules.
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

// table contains every code. It is the only place with status numbers.
var table = map[Code]row{
	InvalidRequest:             {400, "invalid_request_error", adviceNever},
	BadJSON:                    {400, "invalid_request_error", adviceNever},
	ModelNotFound:              {400, "invalid_request_error", adviceNever},
	ContextLengthExceeded:      {400, "invalid_request_error", adviceNever},
	ChatCompletionsUnsupported: {400, "invalid_request_error", adviceNever},
	InvalidAPIKey:              {401, "authentication_error", adviceNever},
	PermissionDenied:           {403, "permission_error", adviceNever},
	NotFound:                   {404, "invalid_request_error", adviceNever},
	MethodNotAllowed:           {405, "invalid_request_error", adviceNone},
	AdapterExists:              {409, "invalid_request_error", adviceNever},
	FileInUse:                  {409, "invalid_request_error", adviceNever},
	BatchNotCancellable:        {409, "invalid_request_error", adviceNever},
	IdempotencyConflict:        {409, "invalid_request_error", adviceNever},
	RequestTooLarge:            {413, "invalid_request_error", adviceNever},
	StorageQuotaExceeded:       {413, "invalid_request_error", adviceNever},
	UnsupportedEncoding:        {415, "invalid_request_error", adviceNever},
	BudgetExceeded:             {429, "insufficient_quota", adviceNever},
	TooManyBatches:             {429, "invalid_request_error", adviceNever},
	TooManyKeys:                {429, "invalid_request_error", adviceNever},
	UpstreamUnreachable:        {502, "upstream_error", adviceNone},
	VLLMOutOfMemory:            {502, "upstream_error", adviceNever},
	VLLMContextLength:          {502, "upstream_error", adviceNever},
	VLLMEngineDead:             {502, "upstream_error", adviceNone},
	UpstreamServerError:        {502, "upstream_error", adviceNone},
	AdapterUnavailable:         {502, "upstream_error", adviceNever},
	ColdBoot:                   {503, "service_unavailable", adviceRetry},
	CircuitOpen:                {503, "service_unavailable", adviceNone},
	Overloaded:                 {503, "service_unavailable", adviceNone},
	StorageUnavailable:         {503, "service_unavailable", adviceNone},
	Internal:                   {500, "server_error", adviceNone},
}

// Codes returns every code, sorted. Tests compare them with the documentation.
func Codes() []Code { return slices.Sorted(maps.Keys(table)) }

// Status returns the HTTP status of this code.
func (c Code) Status() int { return table[c].status }

// Type returns the OpenAI error type of this code.
func (c Code) Type() string { return table[c].kind }

// FromUpstream returns whether the code reports a failure of a backend. X-Acs-Upstream-Error-Kind repeats such a code.
func (c Code) FromUpstream() bool { return table[c].kind == "upstream_error" }

// Extra is an additional member of the error object.
type Extra struct {
	Name  string
	Value any
}

// Error is an error response to a client, with the cause for the log.
type Error struct {
	Code    Code
	Message string
	Param   string // the name of the field in error; empty if there is none
	Extras  []Extra

	Shortage Shortage // of Overloaded; not sent to the client

	status     int    // 0: that of Code
	retry      advice // adviceNone: that of Code
	retryAfter int64  // seconds
	allow      string
	cause      error
}

// refuse returns an Error about the field param, or about no field if that is empty.
func refuse(code Code, param, format string, args ...any) *Error {
	return &Error{Code: code, Param: param, Message: valid(fmt.Sprintf(format, args...))}
}

// with adds a member to the error object.
func (e *Error) with(name string, value any) *Error {
	e.Extras = append(e.Extras, Extra{name, value})
	return e
}

// withAttempts adds the members of a failure at backends. The status is null where none has sent a response.
func (e *Error) withAttempts(status, attempts int) *Error {
	var received any
	if status != 0 {
		received = status
	}
	return e.with("upstream_status", received).with("attempts", attempts)
}

// after tells the client to wait for that many seconds, in the header and in the error object.
func (e *Error) after(seconds int64) *Error {
	e.retryAfter = seconds
	return e.with("retry_after_seconds", seconds)
}

// because sets the cause, which only the log receives.
func (e *Error) because(cause error) *Error {
	e.cause = cause
	return e
}

// Status returns the HTTP status of a response with this error.
func (e *Error) Status() int {
	if e.status != 0 {
		return e.status
	}
	return e.Code.Status()
}

// Final reports whether this very request is not to be sent again, whatever its code says.
func (e *Error) Final() bool { return e.retry == adviceNever }

// Error returns the text for the log. It leaves out Message, which may quote the request or vLLM's message about it.
func (e *Error) Error() string {
	if e.cause != nil {
		return string(e.Code) + ": " + e.cause.Error()
	}
	return string(e.Code)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// valid replaces invalid UTF-8 in text from outside, so that it can be put into JSON.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
