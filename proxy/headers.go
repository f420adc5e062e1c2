package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

// setHeaders sets the headers of every response: backend, budget, user tag and timings. code is empty on success.
func (s *Server) setHeaders(x *exchange, code apierr.Code) {
	s.setBudgetHeaders(x)
	h := x.w.Header()
	if b := x.attempts.backend; b != nil {
		h.Set("X-Acs-Upstream-Model", x.model.Checkpoint())
		if b.GPU != "" {
			h.Set("X-Acs-Upstream-Gpu", b.GPU)
		}
	}
	if code.FromUpstream() || (code == apierr.Overloaded && x.attempts.allBusy) {
		h.Set("X-Acs-Upstream-Error-Kind", string(code))
	}
	if x.request != nil {
		setUserTag(h, x.request)
	}
	h.Set("Server-Timing", x.timings.header())
}

// setBudgetHeaders reports the remaining tokens of the tightest total cap, and whether max_tokens was lowered.
func (s *Server) setBudgetHeaders(x *exchange) {
	h := x.w.Header()
	if room, ok := s.ledger.Headroom(x.caller.payer); ok {
		h.Set("X-Ratelimit-Limit-Tokens", strconv.FormatInt(room.Limit, 10))
		h.Set("X-Ratelimit-Remaining-Tokens", strconv.FormatInt(room.Remaining, 10))
		h.Set("X-Ratelimit-Reset-Tokens", max(time.Until(room.ResetsAt).Round(time.Second), time.Second).String())
	}
	if x.reservation != nil && x.reservation.Clamped() {
		h.Set("X-Acs-Max-Tokens-Clamped", fmt.Sprintf("requested=%d,applied=%d,reason=budget", x.request.MaxTokens, x.reservation.MaxTokens()))
	}
}

// header returns the Server-Timing header, in milliseconds.
func (t *timings) header() string {
	header := "queue;dur=" + milliseconds(t.queued) + ", upstream;dur=" + milliseconds(t.upstream)
	if t.booting > 0 {
		header = "boot;dur=" + milliseconds(t.booting) + ", " + header
	}
	return header
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(inMilliseconds(d), 'f', 3, 64)
}

// forwarded are the client's headers that a backend receives.
var forwarded = []string{"Accept", "Traceparent", "Tracestate"}

// upstreamHeader returns the header for a backend. Nothing of the client's passes but forwarded. The request id is
// different for every attempt, because older versions of vLLM refuse a second request with the same one.
func (x *exchange) upstreamHeader(b *fleet.Backend) http.Header {
	h := make(http.Header, len(forwarded)+4)
	for _, name := range forwarded {
		if values := x.r.Header[name]; len(values) > 0 {
			h[name] = values
		}
	}
	h["Content-Type"] = []string{"application/json"}
	h["X-Request-Id"] = []string{x.id + "-" + string(rune('0'+x.attempts.count%10))}
	b.Authorize(h)
	return h
}

// setUserTag returns the user tag of a request to its client: as it is if it is printable ASCII and has no blank at an end,
// where a header's value would lose it; otherwise as percent-encoded UTF-8 in a header of another name.
func setUserTag(h http.Header, r *validate.Request) {
	if tag, ok := r.UserTag(); ok && strings.TrimSpace(tag) == tag {
		h.Set("X-Acs-User", tag)
	} else if r.User != "" {
		h.Set("X-Acs-User-Encoded", strings.ReplaceAll(url.QueryEscape(r.User), "+", "%20"))
	}
}
