package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"basegate/console"
)

func TestSigningInLeadsToTheDashboardAndOutAgain(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.browser()
	if got := b.get("/dashboard"); got.status != http.StatusSeeOther || got.to() != "/sign-in?next=%2Fdashboard" {
		t.Fatalf("signed out: %d %s", got.status, got.to())
	}
	got := b.post("/sign-in", "email", "ada@example.org", "password", "something else")
	if got.status != http.StatusUnprocessableEntity {
		t.Errorf("a wrong password: %d", got.status)
	}
	has(t, got.body, "is wrong", `value="ada@example.org"`)
	lacks(t, got.body, "something else")
	got = b.post("/sign-in", "email", "ADA@example.org", "password", password, "next", "/dashboard")
	if got.status != http.StatusSeeOther || got.to() != "/dashboard" {
		t.Fatalf("sign in: %d %s", got.status, got.to())
	}
	cookie := got.header.Get("Set-Cookie")
	has(t, cookie, "HttpOnly", "SameSite=Lax", "Path=/")
	has(t, b.get("/dashboard").body, "ada@example.org")
	if got := b.post("/sign-out"); got.to() != "/sign-in" {
		t.Errorf("sign out: %d %s", got.status, got.to())
	}
	if got := b.get("/dashboard"); got.status != http.StatusSeeOther {
		t.Errorf("after signing out: %d", got.status)
	}
	token, _, _ := strings.Cut(strings.TrimPrefix(cookie, "basegate="), ";")
	if _, err := s.sessions.Account(t.Context(), token); err == nil {
		t.Error("the session of the old cookie lives on")
	}
}

func TestSigningInLeadsToNoOtherSite(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	for _, next := range []string{"https://evil.example", "//evil.example", `/\evil.example`, "javascript:alert(1)", ""} {
		got := s.browser().post("/sign-in", "email", "ada@example.org", "password", password, "next", next)
		if got.to() != "/dashboard" {
			t.Errorf("%q leads to %q", next, got.to())
		}
	}
}

func TestTheCookieIsSecureWhereTheGatewayIs(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) {
		s.PublicURL = &url.URL{Scheme: "https", Host: "basegate.example.org"}
	})
	s.account("ada@example.org", false)
	got := s.browser().post("/sign-in", "email", "ada@example.org", "password", password)
	has(t, got.header.Get("Set-Cookie"), "__Host-basegate=", "Secure")
	has(t, got.header.Get("Strict-Transport-Security"), "max-age=")
}

func TestAttemptsToSignInAreLimited(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.browser()
	for range 10 {
		b.post("/sign-in", "email", "ada@example.org", "password", "wrong wrong")
	}
	got := b.post("/sign-in", "email", "ada@example.org", "password", password)
	if got.status != http.StatusTooManyRequests {
		t.Errorf("after ten: %d", got.status)
	}
	has(t, got.body, "Too many attempts")
}

func TestAnotherSiteCanMakeABrowserChangeNothing(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.as("ada@example.org")
	for _, r := range console.Routes() {
		method, path, _ := strings.Cut(r, " ")
		if method == http.MethodGet {
			continue
		}
		path = filled(path)
		for name, header := range map[string][]string{
			"another site":        {"Sec-Fetch-Site", "cross-site"},
			"a neighbour":         {"Sec-Fetch-Site", "same-site"},
			"an old browser":      {"Sec-Fetch-Site", "", "Origin", "https://evil.example"},
			"one of no origin":    {"Sec-Fetch-Site", "", "Origin", "null"},
			"another port's page": {"Sec-Fetch-Site", "", "Origin", "http://127.0.0.1:1"},
		} {
			got := b.send(method, path, url.Values{}, header...)
			if got.status != http.StatusForbidden || !strings.Contains(strings.ToLower(got.body), "another site") {
				t.Errorf("%s %s from %s: %d", method, path, name, got.status)
			}
		}
	}
	if got := b.get("/dashboard"); got.status != http.StatusOK {
		t.Errorf("the session: %d", got.status)
	}
	own := b.send(http.MethodPost, "/sign-out", url.Values{}, "Sec-Fetch-Site", "", "Origin", "http://basegate.example.org")
	if own.status != http.StatusSeeOther {
		t.Errorf("an old browser behind a proxy that changes the host: %d", own.status)
	}
}

func TestEveryAnswerForbidsWhatPagesDoNotNeed(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", true)
	b := s.as("ada@example.org")
	paths := []string{"/sign-in", "/admin/nowhere", "/static/none/x.js"}
	for _, r := range console.Routes() {
		if path, ok := strings.CutPrefix(r, "GET "); ok {
			paths = append(paths, filled(path))
		}
	}
	for _, path := range paths {
		got := b.get(path)
		if got.status >= http.StatusInternalServerError {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
		has(t, got.header.Get("Content-Security-Policy"), "default-src 'none'", "script-src 'self';", "frame-ancestors 'none'")
		lacks(t, got.header.Get("Content-Security-Policy"), "unsafe", "http:", "https:")
		if !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") {
			continue
		}
		lacks(t, strings.ReplaceAll(got.body, "http://www.w3.org/2000/svg", ""), " style=", "<style", " onclick=", "javascript:", `src="http`, `src="//`)
		for _, tag := range strings.Split(got.body, "<script")[1:] {
			if !strings.HasPrefix(strings.TrimSpace(tag), "src=") {
				t.Errorf("%s: a script within the page: %.80s", path, tag)
			}
		}
	}
}

// filled replaces the parameters of a route's path.
func filled(path string) string {
	return regexp.MustCompile(`:[a-z]+`).ReplaceAllString(path, "x")
}
