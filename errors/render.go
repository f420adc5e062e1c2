package errors

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// From returns the Error in err's tree, or an internal_error with err as its cause if there is none.
func From(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	errors.As(Unexpected(err), &e)
	return e
}

// SetHeaders sets the header fields of the error: X-Should-Retry, Retry-After, Allow, WWW-Authenticate.
func (e *Error) SetHeaders(h http.Header) {
	r := table[e.Code]
	if retry := cmp.Or(e.retry, r.retry); retry != adviceNone {
		h.Set("X-Should-Retry", string(retry))
	}
	if r.status == http.StatusServiceUnavailable || e.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(Seconds(clampRetry(e.retryAfter)), 10))
	}
	if e.allow != "" {
		h.Set("Allow", e.allow)
	}
	if e.Code == InvalidAPIKey {
		h.Set("WWW-Authenticate", "Bearer")
	}
}

// AppendJSON appends `{"error": {…}}` in OpenAI's format, without a line break.
func (e *Error) AppendJSON(dst []byte, requestID string) []byte {
	dst = append(dst, `{"error":{"code":`...)
	dst = appendString(dst, string(e.Code))
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Code.Type())
	dst = append(dst, `,"param":`...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, Clip(e.Param)) // the name of an unknown field may be as long as the body
	}
	if requestID != "" { // requests outside /v1 have none
		dst = append(dst, `,"request_id":`...)
		dst = appendString(dst, requestID)
	}
	for _, x := range e.Extras {
		value, err := json.Marshal(x.Value, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			continue // cannot happen: constructors only use values with a JSON encoding
		}
		dst = append(dst, ',')
		dst = appendString(dst, x.Name)
		dst = append(dst, ':')
		dst = append(dst, value...)
	}
	return append(dst, "}}"...)
}

func appendString(dst []byte, s string) []byte {
	out, err := jsontext.AppendQuote(dst, s)
	if err != nil { // s has invalid UTF-8
		out, _ = jsontext.AppendQuote(dst, valid(s)) // cannot fail: the text is valid
	}
	return out
}
