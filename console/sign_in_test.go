package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"basegate/console"
	"basegate/internal/poll"
)

func TestSignInAndSignOut(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.browser()
	wantRedirect(t, "before signing in", b.get("/dashboard"), "/sign-in?next=%2Fdashboard")
	got := b.post("/sign-in", "email", "ada@example.org", "password", "something else")
	wantStatus(t, "a wrong password", got, http.StatusUnprocessableEntity)
	has(t, got.body, "Wrong e-mail address or password.", `value="ada@example.org"`)
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

func TestFailedSignInsAreDelayed(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	var got response
	poll.Until(t, "the right password comes within a delay", func() bool { // which doubles with each failure that counts
		b := s.browser()
		for range 12 {
			b.post("/sign-in", "email", "ada@example.org", "password", "wrong wrong")
		}
		got = b.post("/sign-in", "email", "ada@example.org", "password", password)
		return got.status == http.StatusTooManyRequests
	})
	has(t, got.body, "Too many attempts have failed. Try again in")
	if got.header.Get("Retry-After") == "" {
		t.Error("the response has no Retry-After")
	}
}

// Strangers who knew an account's address could keep its owner from signing in.
func TestStrangersCannotLockAnAccount(t *testing.T) {
	s := newSite(t, addressFromHeader)
	s.account("ada@example.org", false)
	b := s.browser()
	sign := func(address, password string) response {
		return b.postFrom(address, "/sign-in", "email", "ada@example.org", "password", password)
	}
	wantRedirect(t, "before", sign("192.0.2.1", password), "/dashboard")
	b.postFrom("192.0.2.1", "/sign-out")
	stranger := s.browser()
	for i := range 30 {
		stranger.postFrom(fmt.Sprintf("198.51.%d.1", i), "/sign-in", "email", "ada@example.org", "password", "a wrong password")
	}
	wantRedirect(t, "after 30 attempts of strangers", sign("192.0.2.1", password), "/dashboard")
}

// Sessions made with the old password in the moment of its change survived it.
func TestNoSessionOfTheOldPasswordSurvivesItsChange(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	var all sync.WaitGroup
	browsers := make(chan *browser, 4)
	for range cap(browsers) {
		b := s.browser()
		all.Go(func() {
			b.post("/sign-in", "email", "ada@example.org", "password", password)
			browsers <- b
		})
	}
	all.Go(func() {
		if err := s.sessions.SetPassword(t.Context(), "ada@example.org", password+"!"); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
	for range cap(browsers) {
		wantStatus(t, "a session of the old password", (<-browsers).get("/dashboard"), http.StatusSeeOther)
	}
}

func TestCookieOfAKnownBrowserOutlivesTheSession(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) {
		s.PublicURL = &url.URL{Scheme: "https", Host: "basegate.example.org"}
	})
	s.account("ada@example.org", false)
	got := s.browser().post("/sign-in", "email", "ada@example.org", "password", password)
	cookies := got.header.Values("Set-Cookie")
	if len(cookies) != 2 {
		t.Fatalf("got cookies %q, want those of the session and of the browser", cookies)
	}
	has(t, cookies[1], "__Host-basegate-browser=", "Max-Age=34560000", "HttpOnly", "Secure", "SameSite=Lax", "Path=/")
	lacks(t, strings.Join(s.browser().post("/sign-out").header.Values("Set-Cookie"), "\n"), "-browser")
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
			tag = strings.TrimSpace(tag) // data is not run
			if !strings.HasPrefix(tag, "src=") && !strings.HasPrefix(tag, `type="application/json"`) {
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
