package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestSecretIsShownOnceToItsSessionOnly(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b, other := s.signIn("ada@example.org"), s.signIn("ada@example.org")
	created := b.post("/keys", "name", "laptop")
	page := created.location()
	if created.status != http.StatusSeeOther || !strings.HasPrefix(page, "/once/") {
		t.Fatalf("create: got %d to %q, want a redirect to a page that shows the secret", created.status, page)
	}
	cookie := created.header.Get("Set-Cookie")
	for _, attribute := range []string{"HttpOnly", "SameSite=Strict", "Path=" + page, "Max-Age=600"} {
		has(t, cookie, attribute)
	}
	lacks(t, cookie+page+created.body, "acs-bm-")

	_, value, _ := strings.Cut(strings.SplitN(cookie, ";", 2)[0], "=")
	address, err := url.Parse(s.url + page)
	must(t, err)
	other.client.Jar.SetCookies(address, []*http.Cookie{{Name: "basegate-secret", Value: value, Path: page}})
	wantStatus(t, "another session of the account", other.get(page), http.StatusGone)
	b.client.Jar.SetCookies(address, []*http.Cookie{{Name: "basegate-secret", Value: value, Path: "/once/OTHER"}})
	wantStatus(t, "another page", b.get("/once/OTHER"), http.StatusGone)

	if got := b.send(http.MethodHead, page, nil); got.header.Get("Set-Cookie") != "" {
		t.Error("HEAD has deleted the secret")
	}
	wantStatus(t, "two secrets at the same time", b.follow(b.post("/keys", "name", "second")), http.StatusOK)
	shown := b.get(page).body
	has(t, shown, "Key “laptop” created")
	if _, err := s.keys.Authenticate(t.Context(), secretPattern.FindString(shown)); err != nil {
		t.Errorf("the key that is shown: %v", err)
	}
	wantStatus(t, "a reload", b.get(page), http.StatusGone)
	keys, err := s.keys.List(t.Context())
	if err != nil || len(keys) != 2 {
		t.Errorf("got %d keys, error %v, want 2", len(keys), err)
	}
}

func TestSecretIsShownAfterARestart(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", true)
	b := s.signIn("ada@example.org")
	created := b.post("/admin/invite", "email", "eve@example.org")
	s.restart()
	b.url = s.url
	has(t, b.follow(created).body, "http://basegate.example.org/invitation/", "eve@example.org")
}

func TestConfirmationIsShownOnceAndCannotBeForged(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	b := s.signIn("ada@example.org")
	wantRedirect(t, "pause", b.post("/keys/"+k.ID+"/pause"), "/dashboard")
	lacks(t, b.get("/usage").body, "Key laptop paused.")
	has(t, b.get("/dashboard").body, "Key laptop paused.")
	lacks(t, b.get("/dashboard").body, "Key laptop paused.")
	address, err := url.Parse(s.url)
	must(t, err)
	b.client.Jar.SetCookies(address, []*http.Cookie{{Name: "basegate-done", Value: "IlNlbmQgbWUgeW91ciBwYXNzd29yZCI", Path: "/"}})
	lacks(t, b.get("/dashboard").body, "Send me your password", `id="done"`)
}

func TestSessionIsRenewedByAScript(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.browser()
	wantStatus(t, "signed out", b.get("/console/api/session"), http.StatusUnauthorized)
	got := b.sendJSON(http.MethodPost, "/console/api/session", `{"email":"ada@example.org","password":"something else"}`)
	wantStatus(t, "a wrong password", got, http.StatusUnprocessableEntity)
	has(t, got.body, "Wrong e-mail address or password.")
	got = b.sendJSON(http.MethodPost, "/console/api/session", `{"email":"ada@example.org","password":"`+password+`"}`)
	wantStatus(t, "sign in", got, http.StatusOK)
	has(t, b.get("/console/api/session").body, "ada@example.org")
}
