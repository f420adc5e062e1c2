package console_test

import (
	"net/http"
	"testing"

	"basegate/budget/quota"
	"basegate/identity"
)

// A user could resume a key that the operator had paused, lift its caps and set its concurrency to 65,535.
func TestUserCannotUndoWhatTheOperatorHasSet(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	caps := quota.Caps{quota.MonthTotal: quota.Limit(1000)}
	k, _, err := s.keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: "k", Concurrency: 4, Caps: caps})
	must(t, err)
	free, _, err := s.keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: "free"})
	must(t, err)
	_, err = s.keys.Pause(t.Context(), k.ID)
	must(t, err)
	b := s.signIn("ada@example.org")
	wantStatus(t, "resume", b.post("/keys/"+k.ID+"/resume"), http.StatusUnprocessableEntity)
	for what, form := range map[string][]string{
		"remove the cap":        {"name", "k", "month", "", "concurrency", "4"},
		"raise the cap":         {"name", "k", "month", "1001", "concurrency", "4"},
		"raise the concurrency": {"name", "k", "month", "1000", "concurrency", "65535"},
		"reset the concurrency": {"name", "k", "month", "1000", "concurrency", ""},
	} {
		wantStatus(t, what, b.post("/keys/"+k.ID, form...), http.StatusUnprocessableEntity)
	}
	wantStatus(t, "a high concurrency where the operator has set none",
		b.post("/keys/"+free.ID, "name", "free", "concurrency", "65535"), http.StatusUnprocessableEntity)
	wantStatus(t, "a new key with a high concurrency",
		b.post("/keys", "name", "new", "concurrency", "65535"), http.StatusUnprocessableEntity)
	got, err := s.keys.Find(t.Context(), k.ID)
	must(t, err)
	if got.State != identity.KeyPaused || got.Caps != caps || got.Concurrency != 4 {
		t.Errorf("the user has changed the key to %+v", got)
	}
}

func TestPagesShowWhatTheOperatorHasSet(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("root@example.org", true)
	k, _ := s.key("ada@example.org", "k")
	b, root := s.signIn("ada@example.org"), s.signIn("root@example.org")
	page, adminPage := "/keys/"+k.ID, "/admin/keys/"+k.ID
	lacks(t, b.get(page).body, "the operator", "disabled")
	has(t, b.get(page).body, "up to 8)")
	has(t, b.get("/keys/new").body, "up to 8)")

	back := "/admin/accounts/" + k.AccountID
	wantRedirect(t, "change by an administrator", root.post(adminPage, "name", "k", "day", "5000", "concurrency", "12"), back)
	wantRedirect(t, "pause by an administrator", root.post(adminPage+"/pause"), back)
	has(t, b.get(page).body, "(set by the operator: up to 5,000)", `value="5000"`, `value="12" inputmode="numeric" disabled`,
		"The operator paused this key", `<button type="button" disabled>Resume key`)
	lacks(t, b.get(page).body, page+"/resume")
	has(t, b.get("/dashboard").body, "by the operator", `disabled aria-label="Resume k`)
	has(t, root.get(adminPage).body, "set by the operator", adminPage+"/resume")
	has(t, root.get(back).body, "by the operator", adminPage+"/resume")

	// The form of the user has no concurrency then, since browsers do not send disabled fields.
	wantRedirect(t, "lower the budget", b.post(page, "name", "mine", "day", "4k"), "/dashboard")
	got := b.post(page, "name", "mine", "day", "6k")
	wantStatus(t, "raise the budget", got, http.StatusUnprocessableEntity)
	has(t, got.body, "The operator has set this, so only the operator can change it: daily budget 6000 is above 5000.", `value="6k"`)
	changed, err := s.keys.Find(t.Context(), k.ID)
	must(t, err)
	if changed.Concurrency != 12 || changed.Caps[quota.DayTotal] != quota.Limit(4000) || changed.Name != "mine" {
		t.Errorf("got key %+v, want the new name, daily budget 4000 and concurrency 12", changed)
	}
	has(t, root.get("/admin/audit").body, "root@example.org", "daily budget unbounded → 5000", "concurrency default → 12",
		"active → paused by the operator", "daily budget 5000 → 4000", "name k → mine")

	wantRedirect(t, "resume by an administrator", root.post(adminPage+"/resume"), back)
	wantRedirect(t, "pause by the user", b.post(page+"/pause"), "/dashboard")
	wantRedirect(t, "resume by the user", b.post(page+"/resume"), "/dashboard")
}

// An administrator is the operator everywhere, also on the pages of their own keys.
func TestAdministratorIsTheOperatorOfTheirOwnKeys(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	k, _ := s.key("root@example.org", "k")
	b := s.signIn("root@example.org")
	page := "/keys/" + k.ID
	wantRedirect(t, "change", b.post(page, "name", "k", "concurrency", "500"), "/dashboard")
	wantRedirect(t, "pause", b.post(page+"/pause"), "/dashboard")
	has(t, b.get("/dashboard").body, "by the operator", page+"/resume")
	wantRedirect(t, "resume", b.post(page+"/resume"), "/dashboard")
	wantRedirect(t, "change again", b.post(page, "name", "k", "concurrency", "600"), "/dashboard")
	got, err := s.keys.Find(t.Context(), k.ID)
	must(t, err)
	if got.Concurrency != 600 || got.State != identity.KeyActive {
		t.Errorf("got key %+v, want it active with concurrency 600", got)
	}
}

func TestAdministratorsSetTheConcurrencyThatUsersCanChoose(t *testing.T) {
	s := newSite(t)
	ada := s.account("ada@example.org", false)
	s.account("root@example.org", true)
	b, root := s.signIn("ada@example.org"), s.signIn("root@example.org")
	page := "/admin/accounts/" + ada.ID
	wantStatus(t, "an invalid number", root.post(page, "name", "Ada", "concurrency", "none"), http.StatusUnprocessableEntity)
	wantRedirect(t, "set", root.post(page, "name", "Ada", "concurrency", "20"), page)
	has(t, root.get(page).body, `name="concurrency" value="20"`)
	has(t, b.get("/keys/new").body, "up to 20)")
	wantStatus(t, "a key with 20", b.follow(b.post("/keys", "name", "k", "concurrency", "20")), http.StatusOK)
	got := b.post("/keys", "name", "k", "concurrency", "21")
	wantStatus(t, "a key with 21", got, http.StatusUnprocessableEntity)
	has(t, got.body, "21 is above 20 of ada@example.org")
}
