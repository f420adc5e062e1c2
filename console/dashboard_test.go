package console_test

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/identity"
)

func TestCreatedKeyShowsItsSecretOnce(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	got := b.follow(b.post("/keys", "name", "laptop", "month", "20M", "day", "500 000", "concurrency", "4"))
	if got.status != http.StatusOK {
		t.Fatalf("create: got %d %s, want 200", got.status, got.body)
	}
	secret := regexp.MustCompile(`acs-bm-[0-9A-Za-z]{43}`).FindString(got.body)
	i, err := s.keys.Authenticate(t.Context(), secret)
	if err != nil || i.Email != "ada@example.org" || i.Concurrency != 4 ||
		i.KeyCaps[quota.MonthTotal] != quota.Limit(20e6) || i.KeyCaps[quota.DayTotal] != quota.Limit(500_000) {
		t.Errorf("got key %+v, %v, want what the form said", i, err)
	}
	has(t, got.body, "curl -s http://basegate.example.org/v1/completions", "Bearer "+secret)
	page := b.get("/dashboard").body
	has(t, page, "laptop", secret[:13], "20,000,000")
	lacks(t, page, secret)
}

func TestInvalidKeyIsRefusedWithAReason(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	_, err := s.accounts.Set(t.Context(), "ada@example.org", func(f *identity.Account) {
		f.Caps[quota.MonthTotal] = quota.Limit(1000)
	})
	must(t, err)
	b := s.signIn("ada@example.org")
	k, _ := s.key("ada@example.org", "laptop")
	for _, c := range []struct{ name, month, concurrency, want string }{
		{"laptop", "", "", "The account has another key of this name"},
		{"", "", "", "it is empty"},
		{"x", "many", "", "is not a budget"},
		{"x", "-5", "", "is not a budget"},
		{"x", "9999999999M", "", "is not a budget"},
		{"x", "1001", "", "monthly budget 1001 is above 1000 of ada@example.org"},
		{"x", "", "0", "Concurrent requests: enter"},
		{"x\x00", "", "", "control characters"},
	} {
		got := b.post("/keys", "name", c.name, "month", c.month, "concurrency", c.concurrency)
		if got.status != http.StatusUnprocessableEntity {
			t.Errorf("%+v: got %d, want 422", c, got.status)
		}
		has(t, got.body, c.want, `role="alert"`)
	}
	all, err := s.keys.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("got keys %v, %v, want none but %s", all, err, k.ID)
	}
}

func TestKeysArePausedResumedChangedAndRevoked(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, secret := s.key("ada@example.org", "laptop")
	b := s.signIn("ada@example.org")
	for _, c := range []struct {
		action string
		want   error
	}{{"pause", identity.ErrKeyPaused}, {"resume", nil}, {"revoke", identity.ErrKeyRevoked}} {
		if c.action == "revoke" {
			got := b.post("/keys/"+k.ID, "name", "desk", "month", "7")
			changed, err := s.keys.Find(t.Context(), k.ID)
			if err != nil || changed.Name != "desk" || changed.Caps[quota.MonthTotal] != quota.Limit(7) {
				t.Errorf("change: got %d and key %+v, %v, want the name and the cap of the form", got.status, changed, err)
			}
		}
		wantStatus(t, c.action, b.post("/keys/"+k.ID+"/"+c.action), http.StatusSeeOther)
		if _, err := s.keys.Authenticate(t.Context(), secret); !errors.Is(err, c.want) {
			t.Errorf("authenticate after %s: got %v, want %v", c.action, err, c.want)
		}
	}
	resumed := b.post("/keys/" + k.ID + "/resume")
	wantStatus(t, "resume a revoked key", resumed, http.StatusUnprocessableEntity)
	has(t, resumed.body, "final")
	wantStatus(t, "an unknown action", b.post("/keys/"+k.ID+"/paint"), http.StatusNotFound)
	has(t, b.get("/dashboard").body, "1 revoked key")
	changes, _, err := s.auditLog.Find(t.Context(), identity.AuditFilter{}, "", 1)
	if err != nil || changes[0].Actor != "ada@example.org" || changes[0].Action != "revoke key" {
		t.Errorf("got audit log %+v, %v", changes, err)
	}
}

func TestDashboardShowsUsageAndWarnsOfUsedUpBudgets(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	s.addRequest(k, budget.Request{Address: "192.0.2.7"}, 1200, 34, "")
	b := s.signIn("ada@example.org")
	page := b.get("/dashboard").body
	has(t, page, "1,234", `from <code class="id">192.0.2.7</code>`)
	has(t, b.get("/keys/"+k.ID).body, "from 192.0.2.7")
	lacks(t, page, "used up")
	_, err := s.keys.Set(t.Context(), k.ID, func(f *identity.Key) { f.Caps[quota.MonthTotal] = quota.Limit(2468) })
	must(t, err)
	has(t, b.get("/dashboard").body, "1,234", "of 2,468", `width="50%"`)
	_, err = s.keys.Set(t.Context(), k.ID, func(f *identity.Key) { f.Caps[quota.MonthInput] = quota.Limit(1000) })
	must(t, err)
	_, err = s.accounts.Set(t.Context(), "ada@example.org", func(f *identity.Account) {
		f.Caps[quota.DayTotal] = quota.Limit(1234)
	})
	must(t, err)
	has(t, b.get("/dashboard").body,
		"Key laptop: monthly prompt token budget used up (1,200 of 1,000 tokens). Resets ",
		"Account: daily budget used up (1,234 of 1,234 tokens). Resets ")
}

func TestKeysAreFilteredByNameAndSecret(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	b := s.signIn("ada@example.org")
	var last string
	for _, name := range []string{"laptop", "Cluster 100%", "cluster 100x", "d", "e", "f"} {
		_, last = s.key("ada@example.org", name)
		if name == "e" {
			lacks(t, b.get("/dashboard").body, "Filter keys") // five are seen at a glance
		}
	}
	s.key("eve@example.org", "cluster of another")
	has(t, b.get("/dashboard").body, "Filter keys")
	listed := regexp.MustCompile(`<th scope="row"><a href="/keys/[^"]*">([^<]*)</a>`)
	for search, want := range map[string]string{
		"cluster": "Cluster 100%, cluster 100x", "100%": "Cluster 100%", "aptop": "laptop", last[:13] + "…": "f", "none": "", "\x00": "",
	} {
		page := b.get("/dashboard?keys=" + url.QueryEscape(search)).body
		var got []string
		for _, m := range listed.FindAllStringSubmatch(page, -1) {
			got = append(got, m[1])
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q: got %v, want %s", search, got, want)
		}
		lacks(t, page, "First steps")
	}
}

func TestDashboardWarnsOfAModelThatIsDown(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	page := s.signIn("ada@example.org").get("/dashboard").body
	has(t, page, "llama-8b is down.")
	lacks(t, page, "127.0.0.1:9", "Start</button>")
}

func TestModelIsWarmedOnRequest(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	wantStatus(t, "a model that the gateway cannot start", b.post("/models/llama-8b/warm"), http.StatusConflict)

	s.manage("cold")
	has(t, b.get("/dashboard").body, `action="/models/cold/warm"`)
	wantRedirect(t, "warm", b.post("/models/cold/warm"), "/dashboard#models")
	has(t, s.signIn("root@example.org").get("/admin/models").body, "launch, requested at the console: /nowhere/start-vllm")
	changes, _, err := s.auditLog.Find(t.Context(), identity.AuditFilter{Action: "warm model"}, "", 1)
	if err != nil || len(changes) != 1 || changes[0].Subject != "cold" || changes[0].Actor != "ada@example.org" {
		t.Errorf("got audit log %+v, %v", changes, err)
	}
	wantStatus(t, "an unknown model", b.post("/models/nothing/warm"), http.StatusNotFound)
}
