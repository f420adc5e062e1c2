package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"basegate/validate"
)

// setUserTag returns the user tag of a request to its client: as it is if it is printable ASCII and has no blank at an end,
// where a header's value would lose it; otherwise as percent-encoded UTF-8 in a header of another name.
func setUserTag(h http.Header, r *validate.Request) {
	if tag, ok := r.UserTag(); ok && strings.TrimSpace(tag) == tag {
		h.Set("X-Acs-User", tag)
	} else if r.User != "" {
		h.Set("X-Acs-User-Encoded", strings.ReplaceAll(url.QueryEscape(r.User), "+", "%20"))
	}
}
