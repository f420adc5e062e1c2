package proxy

import (
	"net/http"
	"slices"
	"strings"
)

// exposedHeaders are the headers of responses that scripts of another origin may read.
var exposedHeaders = strings.Join([]string{
	"X-Request-Id", "Retry-After", "x-should-retry",
	"X-Acs-Upstream-Model", "X-Acs-Upstream-Gpu", "X-Acs-Upstream-Error-Kind",
	"X-Acs-Max-Tokens-Clamped", "X-Acs-User", "X-Acs-User-Encoded", "X-Acs-Receipt", "X-Acs-Replay", "X-Acs-Replay-Of",
	"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
}, ", ")

// preflightMaxAge is how long browsers may remember the response to a preflight, in seconds: Chromium's limit.
const preflightMaxAge = "7200"

// servedMethods are those of all routes, extensions included.
const servedMethods = "DELETE, GET, PATCH, POST"

// allowOrigin lets scripts of a configured origin read the response, and reports whether the request is a preflight of
// such an origin. Credentials are never allowed: a script has to send a key. If no origin is configured, it does nothing.
func (x *exchange) allowOrigin() (isPreflight bool) {
	allowed := x.settings.CORSOrigins
	if len(allowed) == 0 {
		return false
	}
	h := x.w.Header()
	h.Add("Vary", "Origin")
	origin := x.r.Header.Get("Origin")
	if !slices.Contains(allowed, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
	return x.r.Method == http.MethodOptions && x.r.Header.Get("Access-Control-Request-Method") != ""
}

// answerPreflight grants the headers that the browser asks for, as far as the API knows them.
func (x *exchange) answerPreflight() error {
	h := x.w.Header()
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", servedMethods)
	if granted := grantedHeaders(x.r.Header.Values("Access-Control-Request-Headers")); granted != "" {
		h.Set("Access-Control-Allow-Headers", granted)
	}
	h.Set("Access-Control-Max-Age", preflightMaxAge)
	x.discardBody()
	x.delivery.status, x.delivery.complete = http.StatusNoContent, true
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}

// grantedHeaders returns the requested headers that a script may send, separated by commas.
func grantedHeaders(requested []string) string {
	var granted []string
	for name := range strings.SplitSeq(strings.Join(requested, ","), ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		switch {
		case name == "authorization", name == "content-type", name == "idempotency-key",
			strings.HasPrefix(name, "x-stainless-"), strings.HasPrefix(name, "x-acs-"):
			if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" { // the API's names and those of the SDKs
				granted = append(granted, name)
			}
		}
	}
	return strings.Join(granted, ", ")
}
