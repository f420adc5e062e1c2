package console_test

import (
	"net/http"
	"regexp"
	"testing"
	"time"

	"basegate/console"
	"basegate/identity"
)

var secretPattern = regexp.MustCompile(`acs-bm-[0-9A-Za-z]{43}`)

func TestUserChoosesExpiryAndModelsOfAKey(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	has(t, b.get("/keys/new").body, `type="date" name="expires" value=""`, `name="models" value="llama-8b" >`)
	wantStatus(t, "create", b.follow(b.post("/keys", "name", "k", "expires", "2100-01-31", "models_shown", "1", "models", "llama-8b")), http.StatusOK)
	keys, err := s.keys.List(t.Context())
	must(t, err)
	k := keys[0]
	if want := time.Date(2100, 1, 31, 0, 0, 0, 0, time.UTC); !k.ExpiresAt.Equal(want) || k.Models.String() != "llama-8b" || !k.Operator.ExpiresAt.IsZero() {
		t.Errorf("got key %+v", k)
	}
	page := "/keys/" + k.ID
	has(t, b.get(page).body, `value="2100-01-31"`, `value="llama-8b" checked`, "expires <time")
	has(t, b.get("/dashboard").body, "expires <time", "only llama-8b")

	wantRedirect(t, "a form without these fields", b.post(page, "name", "renamed"), "/dashboard")
	if got, err := s.keys.Find(t.Context(), k.ID); err != nil || !got.ExpiresAt.Equal(k.ExpiresAt) || got.Models != k.Models || got.Name != "renamed" {
		t.Errorf("got key %+v, error %v, want its expiry and models unchanged", got, err)
	}
	for what, form := range map[string][]string{
		"a day that has passed": {"expires", "2020-01-01"}, "no day": {"expires", "soon"}, "another model": {"models_shown", "1", "models", "x"},
	} {
		wantStatus(t, what, b.post(page, append(form, "name", "k")...), http.StatusUnprocessableEntity)
		wantStatus(t, what, b.post("/keys", append(form, "name", "k")...), http.StatusUnprocessableEntity)
	}
	wantRedirect(t, "remove both", b.post(page, "name", "k", "expires", "", "models_shown", "1"), "/dashboard")
	if got, err := s.keys.Find(t.Context(), k.ID); err != nil || !got.ExpiresAt.IsZero() || !got.Models.Any() {
		t.Errorf("got key %+v, error %v, want no expiry and any model", got, err)
	}
}

func TestNewKeysExpireAsConfiguredUnlessTheUserChooses(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) { s.KeyLifetime = 48 * time.Hour })
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	has(t, b.get("/keys/new").body, `name="expires" value="`+time.Now().UTC().Add(48*time.Hour).Format(time.DateOnly))
	wantStatus(t, "without the field", b.follow(b.post("/keys", "name", "a")), http.StatusOK)
	wantStatus(t, "with an empty field", b.follow(b.post("/keys", "name", "b", "expires", "")), http.StatusOK)
	keys, err := s.keys.List(t.Context())
	must(t, err)
	if a, b := keys[0], keys[1]; a.ExpiresAt.IsZero() || !b.ExpiresAt.IsZero() {
		t.Errorf("got expiries %v and %v, want one as configured and none", a.ExpiresAt, b.ExpiresAt)
	}
}

func TestPagesShowAndKeepTheExpiryAndModelsOfTheOperator(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("root@example.org", true)
	k, _ := s.key("ada@example.org", "k")
	_, err := s.keys.Set(t.Context(), k.ID, func(f *identity.Key) { f.ExpiresAt = time.Date(2100, 1, 31, 9, 30, 0, 0, time.UTC) })
	must(t, err)
	b, root := s.signIn("ada@example.org"), s.signIn("root@example.org")
	page := "/keys/" + k.ID
	has(t, b.get(page).body, "set by the operator: 31 Jan 2100, 09:30:00 UTC at the latest")
	wantRedirect(t, "the same day", b.post(page, "name", "k", "expires", "2100-01-31", "models_shown", "1"), "/dashboard")
	if got, err := s.keys.Find(t.Context(), k.ID); err != nil || got.ExpiresAt.Hour() != 9 {
		t.Errorf("got key %+v, error %v, want the time of day unchanged", got, err)
	}
	wantStatus(t, "a later day", b.post(page, "name", "k", "expires", "2100-02-01"), http.StatusUnprocessableEntity)
	wantStatus(t, "never", b.post(page, "name", "k", "expires", ""), http.StatusUnprocessableEntity)
	wantRedirect(t, "models by an administrator", root.post("/admin/keys/"+k.ID, "name", "k", "models_shown", "1", "models", "llama-8b"), "/admin/accounts/"+k.AccountID)
	wantRedirect(t, "none checked", b.post(page, "name", "k", "models_shown", "1"), "/dashboard")
	if got, err := s.keys.Find(t.Context(), k.ID); err != nil || got.Models.String() != "llama-8b" {
		t.Errorf("got key %+v, error %v, want the models of the operator", got, err)
	}
}

func TestUserRotatesOwnKeysOnly(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("root@example.org", true)
	k, old := s.key("ada@example.org", "k")
	b, root := s.signIn("ada@example.org"), s.signIn("root@example.org")
	page := "/keys/" + k.ID
	has(t, b.get(page).body, `action="`+page+`/rotate"`)
	got := b.follow(b.post(page+"/rotate", "grace", "1h"))
	secret := secretPattern.FindString(got.body)
	if got.status != http.StatusOK || secret == "" || secret == old {
		t.Fatalf("rotate: got %d %s", got.status, got.body)
	}
	for _, given := range []string{old, secret} {
		if p, err := s.keys.Authenticate(t.Context(), given); err != nil || p.KeyID != k.ID {
			t.Errorf("during the grace: got %+v, error %v", p, err)
		}
	}
	if shown := b.get(page).body; secretPattern.MatchString(shown) {
		t.Error("the key's page shows a secret")
	}
	has(t, b.get("/dashboard").body, "old secret works until")
	wantStatus(t, "a grace that is not offered", b.post(page+"/rotate", "grace", "9999h"), http.StatusUnprocessableEntity)
	lacks(t, root.get("/admin/keys/"+k.ID).body, "/rotate")
	wantStatus(t, "by an administrator", root.post("/admin/keys/"+k.ID+"/rotate", "grace", "0"), http.StatusNotFound)
	wantStatus(t, "of another user", root.post(page+"/rotate", "grace", "0"), http.StatusNotFound)
}
