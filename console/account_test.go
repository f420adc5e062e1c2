package console_test

import (
	"net/http"
	"testing"
)

func TestAnInvitationLeadsToTheDashboard(t *testing.T) {
	s := newSite(t)
	_, token, err := s.accounts.Invite(t.Context(), "ada@example.org")
	must(t, err)
	b := s.browser()
	path := "/invitation/" + token
	has(t, b.get(path).body, "ada@example.org")
	if got := b.post(path, "password", password, "repeated", password+"!"); got.status != http.StatusUnprocessableEntity {
		t.Errorf("two passwords: %d", got.status)
	}
	if got := b.post(path, "password", "short", "repeated", "short"); got.status != http.StatusUnprocessableEntity {
		t.Errorf("a short one: %d", got.status)
	}
	if got := b.post(path, "password", password, "repeated", password); got.to() != "/dashboard" {
		t.Fatalf("accept: %d %s", got.status, got.body)
	}
	has(t, b.get("/dashboard").body, "ada@example.org")
	for _, got := range []answer{s.browser().get(path), s.browser().post(path, "password", password, "repeated", password)} {
		if got.status != http.StatusNotFound {
			t.Errorf("used again: %d", got.status)
		}
		has(t, got.body, "This invitation is over")
	}
}

func TestAccessIsRequestedAndApprovedOrDeclined(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	b := s.browser()
	if got := b.post("/request-access", "email", "nobody", "name", "N", "purpose", "P"); got.status != http.StatusUnprocessableEntity {
		t.Errorf("no address: %d", got.status)
	}
	for _, email := range []string{"ada@example.org", "eve@example.org", "root@example.org"} { // the last has an account
		got := b.post("/request-access", "email", email, "name", "Ada", "purpose", "Steering <vectors>")
		if got.status != http.StatusOK {
			t.Errorf("%s: %d", email, got.status)
		}
	}
	root := s.as("root@example.org")
	has(t, root.get("/admin/accounts").body, "ada@example.org", "eve@example.org", "Steering &lt;vectors&gt;")
	got := root.post("/admin/approve", "email", "ada@example.org")
	has(t, got.body, "http://basegate.example.org/invitation/")
	if got := root.post("/admin/decline", "email", "eve@example.org"); got.status != http.StatusSeeOther {
		t.Errorf("decline: %d", got.status)
	}
	lacks(t, root.get("/admin/accounts").body, "eve@example.org", "Steering")
	has(t, root.get("/admin/audit").body, "approve account", "decline account", "root@example.org")
	for range 10 {
		got = b.post("/request-access", "email", "x@example.org", "name", "X", "purpose", "P")
	}
	if got.status != http.StatusTooManyRequests {
		t.Errorf("the fourteenth request of an address: %d", got.status)
	}
}

func TestAPasswordIsChangedByWhoKnowsIt(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b, other := s.as("ada@example.org"), s.as("ada@example.org")
	next := password + " two"
	for _, c := range [][3]string{{"wrong wrong", next, next}, {password, next, "else"}, {password, "short", "short"}} {
		if got := b.post("/account/password", "present", c[0], "password", c[1], "repeated", c[2]); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%v: %d", c, got.status)
		}
	}
	if got := b.post("/account/password", "present", password, "password", next, "repeated", next); got.status != http.StatusOK {
		t.Fatalf("change: %d %s", got.status, got.body)
	}
	if got := b.get("/dashboard"); got.status != http.StatusOK {
		t.Errorf("this session: %d", got.status)
	}
	if got := other.get("/dashboard"); got.status != http.StatusSeeOther {
		t.Errorf("the other session: %d", got.status)
	}
}

func TestSignOutEverywhereEndsEverySession(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b, other := s.as("ada@example.org"), s.as("ada@example.org")
	if got := b.post("/account/sign-out-everywhere"); got.to() != "/sign-in" {
		t.Errorf("%d %s", got.status, got.to())
	}
	for _, one := range []*browser{b, other} {
		if got := one.get("/dashboard"); got.status != http.StatusSeeOther {
			t.Errorf("afterwards: %d", got.status)
		}
	}
}
