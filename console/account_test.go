package console_test

import (
	"net/http"
	"testing"
)

func TestInvitationSetsThePasswordOnceAndSignsIn(t *testing.T) {
	s := newSite(t)
	_, token, err := s.accounts.Invite(t.Context(), "ada@example.org")
	must(t, err)
	b := s.browser()
	path := "/invitation/" + token
	has(t, b.get(path).body, "ada@example.org")
	got := b.post(path, "password", password, "repeated", password+"!")
	wantStatus(t, "two different passwords", got, http.StatusUnprocessableEntity)
	got = b.post(path, "password", "short", "repeated", "short")
	wantStatus(t, "a short password", got, http.StatusUnprocessableEntity)
	if got := b.post(path, "password", password, "repeated", password); got.location() != "/dashboard" {
		t.Fatalf("accept: got %d %s, want a redirect to the dashboard", got.status, got.body)
	}
	has(t, b.get("/dashboard").body, "ada@example.org")
	again := s.browser().post(path, "password", password, "repeated", password)
	for _, got := range []response{s.browser().get(path), again} {
		wantStatus(t, "a used invitation", got, http.StatusNotFound)
		has(t, got.body, "This invitation is over")
	}
}

func TestAccessRequestsAreApprovedOrDeclined(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	b := s.browser()
	wantStatus(t, "an invalid e-mail address",
		b.post("/request-access", "email", "nobody", "name", "N", "purpose", "P"), http.StatusUnprocessableEntity)
	for _, email := range []string{"ada@example.org", "eve@example.org", "root@example.org"} { // the last has an account
		got := b.post("/request-access", "email", email, "name", "Ada", "purpose", "Steering <vectors>")
		wantStatus(t, email, got, http.StatusOK)
	}
	root := s.signIn("root@example.org")
	has(t, root.get("/admin/accounts").body, "ada@example.org", "eve@example.org", "Steering &lt;vectors&gt;")
	got := root.post("/admin/approve", "email", "ada@example.org")
	has(t, got.body, "http://basegate.example.org/invitation/")
	wantStatus(t, "decline", root.post("/admin/decline", "email", "eve@example.org"), http.StatusSeeOther)
	lacks(t, root.get("/admin/accounts").body, "eve@example.org", "Steering")
	has(t, root.get("/admin/audit").body, "approve account", "decline account", "root@example.org")
	for range 10 {
		got = b.post("/request-access", "email", "x@example.org", "name", "X", "purpose", "P")
	}
	wantStatus(t, "the fourteenth form of an address", got, http.StatusTooManyRequests)
}

func TestPasswordChangeNeedsTheCurrentPasswordAndEndsOtherSessions(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b, other := s.signIn("ada@example.org"), s.signIn("ada@example.org")
	next := password + " two"
	for _, c := range []struct{ present, password, repeated string }{
		{"wrong wrong", next, next}, {password, next, "else"}, {password, "short", "short"},
	} {
		got := b.post("/account/password", "present", c.present, "password", c.password, "repeated", c.repeated)
		if got.status != http.StatusUnprocessableEntity {
			t.Errorf("%+v: got %d, want 422", c, got.status)
		}
	}
	got := b.post("/account/password", "present", password, "password", next, "repeated", next)
	if got.status != http.StatusOK {
		t.Fatalf("change: got %d %s, want 200", got.status, got.body)
	}
	wantStatus(t, "the session that changed the password", b.get("/dashboard"), http.StatusOK)
	wantStatus(t, "another session", other.get("/dashboard"), http.StatusSeeOther)
}

func TestSignOutEverywhereEndsEverySession(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b, other := s.signIn("ada@example.org"), s.signIn("ada@example.org")
	if got := b.post("/account/sign-out-everywhere"); got.location() != "/sign-in" {
		t.Errorf("got %d to %q, want a redirect to /sign-in", got.status, got.location())
	}
	for name, session := range map[string]*browser{"this session": b, "another session": other} {
		wantStatus(t, name, session.get("/dashboard"), http.StatusSeeOther)
	}
}
