package console_test

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"basegate/budget"
	"basegate/console"
	"basegate/identity"
	"basegate/quota"
)

func TestAKeyIsMadeAndItsSecretShownOnce(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.as("ada@example.org")
	got := b.post("/keys", "name", "laptop", "month", "20M", "day", "500 000", "concurrency", "4")
	if got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.body)
	}
	secret := regexp.MustCompile(`acs-bm-[0-9A-Za-z]{43}`).FindString(got.body)
	i, err := s.keys.Authenticate(secret)
	if err != nil || i.Email != "ada@example.org" || i.Concurrency != 4 || i.KeyCaps.MonthTotal != quota.Limit(20e6) || i.KeyCaps.DayTotal != quota.Limit(500_000) {
		t.Errorf("the key is %+v, %v", i, err)
	}
	has(t, got.body, "curl -s http://basegate.example.org/v1/completions", "Bearer "+secret)
	page := b.get("/dashboard").body
	has(t, page, "laptop", secret[:13], "20\u202f000\u202f000")
	lacks(t, page, secret)
}

func TestAKeyThatCannotBeIsRefusedInWords(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	_, err := s.accounts.Set(t.Context(), "ada@example.org", func(f *identity.AccountFields) { f.Caps.MonthTotal = quota.Limit(1000) })
	must(t, err)
	b := s.as("ada@example.org")
	for _, c := range []struct{ name, month, concurrency, want string }{
		{"", "", "", "it is empty"},
		{"x", "many", "", "A budget is a number of tokens"},
		{"x", "-5", "", "A budget is a number of tokens"},
		{"x", "9999999999M", "", "A budget is a number of tokens"},
		{"x", "1001", "", "monthly budget 1001 is above 1000 of ada@example.org"},
		{"x", "", "0", "Concurrency is"},
		{"x\x00", "", "", "control characters"},
	} {
		got := b.post("/keys", "name", c.name, "month", c.month, "concurrency", c.concurrency)
		if got.status != http.StatusUnprocessableEntity {
			t.Errorf("%+v: %d", c, got.status)
		}
		has(t, got.body, c.want, `role="alert"`)
	}
	all, err := s.keys.List(t.Context())
	if err != nil || len(all) != 0 {
		t.Errorf("keys: %v %v", all, err)
	}
}

func TestKeysArePausedResumedChangedAndRevoked(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, secret := s.key("ada@example.org", "laptop")
	b := s.as("ada@example.org")
	for _, c := range []struct {
		change string
		want   error
	}{{"pause", identity.ErrKeyPaused}, {"resume", nil}, {"revoke", identity.ErrKeyRevoked}} {
		if c.change == "revoke" {
			got := b.post("/keys/"+k.ID, "name", "desk", "month", "7")
			if changed, err := s.keys.Find(t.Context(), k.ID); err != nil || changed.Name != "desk" || changed.Caps.MonthTotal != quota.Limit(7) {
				t.Errorf("change: %d, %+v, %v", got.status, changed, err)
			}
		}
		if got := b.post("/keys/" + k.ID + "/" + c.change); got.status != http.StatusSeeOther {
			t.Errorf("%s: %d %s", c.change, got.status, got.body)
		}
		if _, err := s.keys.Authenticate(secret); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.change, err)
		}
	}
	if got := b.post("/keys/" + k.ID + "/resume"); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "final") {
		t.Errorf("resume what is revoked: %d", got.status)
	}
	if got := b.post("/keys/" + k.ID + "/paint"); got.status != http.StatusNotFound {
		t.Errorf("an unknown change: %d", got.status)
	}
	has(t, b.get("/dashboard").body, "1 revoked key")
	changes, err := s.auditLog.List(t.Context(), 1)
	if err != nil || changes[0].Actor != "ada@example.org" || changes[0].Action != "revoke key" {
		t.Errorf("the audit log says %+v, %v", changes, err)
	}
}

func TestTheDashboardShowsSpendAndTellsWhatIsUsedUp(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	s.use(k, budget.Request{}, 1200, 34, "")
	b := s.as("ada@example.org")
	page := b.get("/dashboard").body
	has(t, page, "1\u202f234")
	lacks(t, page, "is used up")
	_, err := s.keys.Set(t.Context(), k.ID, func(f *identity.KeyFields) { f.Caps.MonthTotal = quota.Limit(2468) })
	must(t, err)
	has(t, b.get("/dashboard").body, "1\u202f234", "of 2\u202f468", `width="50%"`)
	_, err = s.keys.Set(t.Context(), k.ID, func(f *identity.KeyFields) { f.Caps.MonthInput = quota.Limit(1000) })
	must(t, err)
	_, err = s.accounts.Set(t.Context(), "ada@example.org", func(f *identity.AccountFields) { f.Caps.DayTotal = quota.Limit(1234) })
	must(t, err)
	has(t, b.get("/dashboard").body,
		"The monthly input budget of the key laptop is used up: 1\u202f200 of 1\u202f000 tokens.",
		"The daily budget of your account is used up: 1\u202f234 of 1\u202f234 tokens. No key works until")
}

func TestAModelThatIsDownIsToldInWords(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	page := s.as("ada@example.org").get("/dashboard").body
	has(t, page, "The model llama-8b does not answer")
	lacks(t, page, "127.0.0.1:9", "Warm</button>")
}

func TestAModelIsWarmedWhereItCanBe(t *testing.T) {
	var asked []string
	s := newSite(t, func(_ *console.Settings, p *console.Deps) {
		p.Warm = func(_ context.Context, id string) error {
			asked = append(asked, id)
			return nil
		}
	})
	s.account("ada@example.org", false)
	b := s.as("ada@example.org")
	if got := b.post("/models/llama-8b/warm"); got.status != http.StatusSeeOther || len(asked) != 1 || asked[0] != "llama-8b" {
		t.Errorf("%d, asked for %v", got.status, asked)
	}
	changes, err := s.auditLog.List(t.Context(), 1)
	if err != nil || changes[0].Action != "warm model" || changes[0].Actor != "ada@example.org" {
		t.Errorf("the audit log says %+v, %v", changes, err)
	}
	if got := b.post("/models/nothing/warm"); got.status != http.StatusNotFound {
		t.Errorf("no such model: %d", got.status)
	}
}
