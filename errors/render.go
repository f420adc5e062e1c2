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
		h.Set("Retry-After", strconv.FormatInt(max(e.retryAfter, 1), 10))
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
	var param any
	if e.Param != "" {
		param = Clip(e.Param) // the name of an unknown field may be as long as the body
	}
	members := []Extra{{"code", e.Code}, {"message", e.Message}, {"type", e.Code.Type()}, {"param", param}}
	if requestID != "" { // requests outside /v1 have none
		members = append(members, Extra{"request_id", requestID})
	}
	dst = append(dst, `{"error":{`...)
	for i, x := range append(members, e.Extras...) {
		value, err := json.Marshal(x.Value, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			continue // cannot happen: constructors only use values with a JSON encoding
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), x.Name...), `":`...)
		dst = append(dst, value...)
	}
	return append(dst, "}}"...)
}
