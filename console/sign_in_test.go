package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"basegate/console"
)

func TestSignInAndSignOut(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.browser()
	wantRedirect(t, "before signing in", b.get("/dashboard"), "/sign-in?next=%2Fdashboard")
	got := b.post("/sign-in", "email", "ada@example.org", "password", "something else")
	wantStatus(t, "a wrong password", got, http.StatusUnprocessableEntity)
	has(t, got.body, "is wrong", `value="ada@example.org"`)
	lacks(t, got.body, "something else")
	got = b.post("/sign-in", "email", "ADA@example.org", "password", password, "next", "/dashboard")
	if got.status != http.StatusSeeOther || got.location() != "/dashboard" {
		t.Fatalf("sign in: got %d to %q, want a redirect to the dashboard", got.status, got.location())
	}
	cookie := got.header.Get("Set-Cookie")
	has(t, cookie, "HttpOnly", "SameSite=Lax", "Path=/")
	has(t, b.get("/dashboard").body, "ada@example.org")
	wantRedirect(t, "sign out", b.post("/sign-out"), "/sign-in")
	wantStatus(t, "after signing out", b.get("/dashboard"), http.StatusSeeOther)
	token, _, _ := strings.Cut(strings.TrimPrefix(cookie, "basegate="), ";")
	if _, err := s.sessions.Account(t.Context(), token); err == nil {
		t.Error("the session of the old cookie is still valid after signing out")
	}
}

func TestSignInRedirectsToThisSiteOnly(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	for _, next := range []string{"https://evil.example", "//evil.example", `/\evil.example`, "javascript:alert(1)", ""} {
		got := s.browser().post("/sign-in", "email", "ada@example.org", "password", password, "next", next)
		if got.location() != "/dashboard" {
			t.Errorf("next %q: got a redirect to %q, want /dashboard", next, got.location())
		}
	}
}

func TestSessionCookieIsSecureWithHTTPS(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) {
		s.PublicURL = &url.URL{Scheme: "https", Host: "basegate.example.org"}
	})
	s.account("ada@example.org", false)
	got := s.browser().post("/sign-in", "email", "ada@example.org", "password", password)
	has(t, got.header.Get("Set-Cookie"), "__Host-basegate=", "Secure")
	has(t, got.header.Get("Strict-Transport-Security"), "max-age=")
}

func TestSignInAttemptsAreLimited(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.browser()
	for range 10 {
		b.post("/sign-in", "email", "ada@example.org", "password", "wrong wrong")
	}
	got := b.post("/sign-in", "email", "ada@example.org", "password", password)
	wantStatus(t, "the right password after ten wrong ones", got, http.StatusTooManyRequests)
	has(t, got.body, "Too many attempts")
}

func TestCrossOriginRequestsAreRefused(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	for _, r := range console.Routes() {
		method, path, _ := strings.Cut(r, " ")
		if method == http.MethodGet {
			continue
		}
		path = fillParameters(path)
		for name, header := range map[string][]string{
			"another site":                  {"Sec-Fetch-Site", "cross-site"},
			"another origin of the site":    {"Sec-Fetch-Site", "same-site"},
			"another site, old browser":     {"Sec-Fetch-Site", "", "Origin", "https://evil.example"},
			"an opaque origin, old browser": {"Sec-Fetch-Site", "", "Origin", "null"},
			"another port, old browser":     {"Sec-Fetch-Site", "", "Origin", "http://127.0.0.1:1"},
		} {
			got := b.send(method, path, url.Values{}, header...)
			if got.status != http.StatusForbidden || !strings.Contains(strings.ToLower(got.body), "another site") {
				t.Errorf("%s %s from %s: got %d %s, want 403", method, path, name, got.status, got.body)
			}
		}
	}
	wantStatus(t, "the session afterwards", b.get("/dashboard"), http.StatusOK)
	own := b.send(http.MethodPost, "/sign-out", url.Values{}, "Sec-Fetch-Site", "", "Origin", "http://basegate.example.org")
	wantStatus(t, "the public URL's origin, old browser, behind a proxy that changes the host", own, http.StatusSeeOther)
}

func TestEveryResponseHasAContentSecurityPolicyThatItsPageSatisfies(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", true)
	b := s.signIn("ada@example.org")
	paths := []string{"/sign-in", "/admin/nowhere", "/static/none/x.js"}
	for _, r := range console.Routes() {
		if path, ok := strings.CutPrefix(r, "GET "); ok {
			paths = append(paths, fillParameters(path))
		}
	}
	for _, path := range paths {
		got := b.get(path)
		if got.status >= http.StatusInternalServerError {
			t.Errorf("%s: got %d %s, want no server error", path, got.status, got.body)
		}
		policy := got.header.Get("Content-Security-Policy")
		has(t, policy, "default-src 'none'", "script-src 'self';", "frame-ancestors 'none'")
		lacks(t, policy, "unsafe", "http:", "https:")
		if !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") {
			continue
		}
		lacks(t, strings.ReplaceAll(got.body, "http://www.w3.org/2000/svg", ""),
			" style=", "<style", " onclick=", "javascript:", `src="http`, `src="//`)
		for _, tag := range strings.Split(got.body, "<script")[1:] {
			if !strings.HasPrefix(strings.TrimSpace(tag), "src=") {
				t.Errorf("%s: got an inline script: %.80s", path, tag)
			}
		}
	}
}

// fillParameters replaces the parameters of a route's path with the values, which are pairs of a parameter and its
// value. A parameter without a value is replaced with x.
func fillParameters(path string, values ...string) string {
	return regexp.MustCompile(`:[a-z]+`).ReplaceAllString(strings.NewReplacer(values...).Replace(path), "x")
}
