package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"basegate/budget/quota"
	"basegate/console"
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
		has(t, got.body, "no longer valid")
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
		wantRedirect(t, email, got, "/request-access/sent")
	}
	root := s.signIn("root@example.org")
	has(t, root.get("/admin/accounts").body, "ada@example.org", "eve@example.org", "Steering &lt;vectors&gt;", "192.0.2.0/24")
	got := root.follow(root.post("/admin/approve", "email", "ada@example.org"))
	has(t, got.body, "http://basegate.example.org/invitation/")
	wantStatus(t, "decline", root.post("/admin/decline", "email", "eve@example.org"), http.StatusSeeOther)
	has(t, root.get("/admin/accounts").body, "Request of eve@example.org declined.")
	lacks(t, root.get("/admin/accounts").body, "eve@example.org", "Steering")
	has(t, root.get("/admin/audit").body, "approve account", "decline account", "root@example.org")
	for range 10 {
		got = b.post("/request-access", "email", "x@example.org", "name", "X", "purpose", "P")
	}
	wantStatus(t, "the fourteenth form of an address", got, http.StatusTooManyRequests)
}

// An administrator gives an account its budgets and its role with the invitation. A later invitation changes neither.
func TestInvitationsGiveNewAccountsTheirBudgetsAndRole(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	b := s.browser()
	b.post("/request-access", "email", "ada@example.org", "name", "Ada", "purpose", "P")
	root := s.signIn("root@example.org")
	want := func(email, monthly string, admin bool) {
		t.Helper()
		a, err := s.accounts.Find(t.Context(), email)
		must(t, err)
		if got := a.Caps[quota.MonthTotal].String(); got != monthly || a.Admin != admin {
			t.Errorf("%s: got %s tokens a month, administrator %v; want %s, %v", email, got, a.Admin, monthly, admin)
		}
	}
	field := quota.Table[quota.MonthTotal].Field
	got := root.post("/admin/approve", "email", "ada@example.org", field, "many")
	wantStatus(t, "not a number", got, http.StatusUnprocessableEntity)
	has(t, got.body, "is not a budget", "Requests for access")
	wantStatus(t, "approve", root.post("/admin/approve", "email", "ada@example.org", field, "2M"), http.StatusSeeOther)
	want("ada@example.org", "2000000", false)
	wantStatus(t, "invite", root.post("/admin/invite", "email", "eve@example.org", field, "500k", "admin", "1"), http.StatusSeeOther)
	want("eve@example.org", "500000", true)
	wantStatus(t, "invite again", root.post("/admin/invite", "email", "eve@example.org"), http.StatusSeeOther)
	want("eve@example.org", "500000", true)
}

func TestNewAccountsAreProposedTheBudgetsOfTheConfiguration(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) { s.NewAccount[quota.MonthTotal] = quota.Limit(30_000_000) })
	s.account("root@example.org", true)
	s.browser().post("/request-access", "email", "ada@example.org", "name", "Ada", "purpose", "P")
	root := s.signIn("root@example.org")
	field := `<input name="` + quota.Table[quota.MonthTotal].Field + `" value="30000000"`
	page := root.get("/admin/accounts").body
	if got := strings.Count(page, field); got != 2 {
		t.Errorf("got the budget %d times, want it in the forms to approve and to invite:\n%s", got, page)
	}
	root.post("/admin/approve", "email", "ada@example.org", quota.Table[quota.MonthTotal].Field, "")
	if a, err := s.accounts.Find(t.Context(), "ada@example.org"); err != nil || a.Caps.Any() {
		t.Errorf("got account %+v, %v, want no limit, as the form says", a, err)
	}
}

// 500 strangers could close the form for requests, each with a request of their own.
func TestStrangersOfFewNetworksCannotCloseTheAccessRequestForm(t *testing.T) {
	s := newSite(t, addressFromHeader)
	b := s.browser()
	for i := range 520 {
		address := fmt.Sprintf("192.0.2.%d", i%250)
		if i%2 == 0 {
			address = fmt.Sprintf("2001:db8:0:%x::%x", i%200, i)
		}
		b.postFrom(address, "/request-access", "email", fmt.Sprintf("%d@example.org", i), "name", "N", "purpose", "P")
	}
	got := b.postFrom("198.51.100.1", "/request-access", "email", "bea@example.org", "name", "Bea", "purpose", "P")
	wantStatus(t, "a request from another network", got, http.StatusSeeOther)
	if _, err := s.accounts.Find(t.Context(), "bea@example.org"); err != nil {
		t.Errorf("the request was not recorded: %v", err)
	}
}

func TestAccessRequestsCanBeSwitchedOff(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) { s.AccessRequests = false })
	b := s.browser()
	lacks(t, b.get("/sign-in").body, "/request-access")
	has(t, b.get("/sign-in").body, "Ask an administrator for an")
	form := b.post("/request-access", "email", "bea@example.org", "name", "Bea", "purpose", "P")
	for what, got := range map[string]response{"page": b.get("/request-access"), "form": form} {
		wantStatus(t, what, got, http.StatusForbidden)
		has(t, got.body, "Requests for access are closed", "an invitation")
	}
	if _, err := s.accounts.Find(t.Context(), "bea@example.org"); err == nil {
		t.Error("the request was recorded")
	}
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
	wantRedirect(t, "change", got, "/account")
	has(t, b.get("/account").body, "Password changed.")
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
