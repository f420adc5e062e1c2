package proxy_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

const origin = "https://lab.example.org"

func withOrigin(o *harnessOptions) {
	o.settings.CORSOrigins = []string{"https://other.example.org", origin}
}

func TestCORSIsOffUnlessConfigured(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	for _, method := range []string{http.MethodOptions, http.MethodPost} {
		req := h.newRequest(t.Context(), method, "/v1/completions", `{"model":"m","prompt":"x"}`)
		req.Header.Set("Origin", origin)
		req.Header.Set("Access-Control-Request-Method", http.MethodPost)
		got := h.do(req)
		if (got.status == http.StatusMethodNotAllowed) != (method == http.MethodOptions) || got.header.Get("Vary") != "" {
			t.Errorf("%s: got %d %v", method, got.status, got.header)
		}
		for name := range got.header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: got the header %s", method, name)
			}
		}
	}
}

func TestPreflightIsAnsweredBeforeTheKeyIsLookedFor(t *testing.T) {
	t.Parallel()
	h := newHarness(t, withOrigin, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	preflight := func(origin, headers string) response {
		req := h.newRequest(t.Context(), http.MethodOptions, "/v1/completions", "")
		req.Header.Del("Authorization")
		req.Header.Set("Origin", origin)
		req.Header.Set("Access-Control-Request-Method", http.MethodPost)
		req.Header.Set("Access-Control-Request-Headers", headers)
		return h.do(req)
	}
	got := preflight(origin, "Authorization,content-type, x-stainless-os,X-Acs-Workload,idempotency-key,cookie,x-other")
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin":      origin,
		"Access-Control-Allow-Methods":     "DELETE, GET, PATCH, POST",
		"Access-Control-Allow-Headers":     "authorization, content-type, x-stainless-os, x-acs-workload, idempotency-key",
		"Access-Control-Allow-Credentials": "",
	} {
		if have := got.header.Get(name); have != want {
			t.Errorf("%s: got %q, want %q", name, have, want)
		}
	}
	if got.status != http.StatusNoContent || got.header.Get("X-Request-Id") == "" || !strings.Contains(strings.Join(got.header.Values("Vary"), ","), "Origin") {
		t.Errorf("got %d %v, want 204", got.status, got.header)
	}
	if denied := preflight("https://evil.example.org", "authorization"); denied.status != http.StatusMethodNotAllowed || denied.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin: got %d %v", denied.status, denied.header)
	}
}

func TestResponsesToAConfiguredOriginCanBeRead(t *testing.T) {
	t.Parallel()
	h := newHarness(t, withOrigin, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	for what, key := range map[string]string{"a completion": "Bearer " + h.secret, "an error": "Bearer x"} {
		req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":"x"}`)
		req.Header.Set("Authorization", key)
		req.Header.Set("Origin", origin)
		got := h.do(req)
		exposed := got.header.Get("Access-Control-Expose-Headers")
		if got.header.Get("Access-Control-Allow-Origin") != origin || got.header.Get("Vary") != "Origin" {
			t.Errorf("%s: got %d %v", what, got.status, got.header)
		}
		for _, name := range []string{
			"X-Request-Id", "Retry-After", "x-should-retry", "X-Acs-Upstream-Model", "X-Acs-Upstream-Gpu", "X-Acs-Upstream-Error-Kind",
			"X-Acs-Max-Tokens-Clamped", "X-Acs-User", "X-Acs-User-Encoded", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
		} {
			if !slices.Contains(strings.Split(exposed, ", "), name) {
				t.Errorf("%s: %s is not exposed by %q", what, name, exposed)
			}
		}
	}
}

func TestUserTagsThatAreNotPrintableASCIIAreReturnedPercentEncoded(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	for user, want := range map[string][2]string{
		`run 7/a`:     {"run 7/a", ""},
		`žluť + 1`:    {"", "%C5%BElu%C5%A5%20%2B%201"},
		`a\r\nX-E: 1`: {"", "a%0D%0AX-E%3A%201"},
		``:            {"", ""},
		` a `:         {"", "%20a%20"},
		`a `:          {"", "a%20"},
		` `:           {"", "%20"},
	} {
		got := h.complete(`{"model":"m","prompt":"x","user":"` + user + `"}`)
		if plain, encoded := got.header.Get("X-Acs-User"), got.header.Get("X-Acs-User-Encoded"); plain != want[0] || encoded != want[1] {
			t.Errorf("%q: got X-Acs-User %q and X-Acs-User-Encoded %q, want %q", user, plain, encoded, want)
		}
	}
}
