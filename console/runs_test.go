package console_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/console"
	"basegate/identity"
)

// runKey makes a key that is part of a run.
func (s *site) runKey(parent identity.Key, name, run string, limit int64) identity.Key {
	s.t.Helper()
	holder := identity.WithActor(s.t.Context(), identity.Account{ID: parent.AccountID, Email: parent.Email})
	k, _, err := s.keys.Create(holder, identity.Key{
		Email: parent.Email, Parent: parent.ID, Name: name, Run: run, Caps: quota.Caps{quota.LifeTotal: quota.Limit(limit)},
	})
	must(s.t, err)
	return k
}

func TestPageOfARun(t *testing.T) {
	s := newSite(t)
	s.keys.Reload(identity.Settings{Children: true})
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	parent, _ := s.key("ada@example.org", "laptop")
	k := s.runKey(parent, "eval", "mmlu-7", 1000)
	s.addRequest(k, budget.Request{ID: "req_1", Model: "llama-8b", Run: "mmlu-7"}, 300, 100, "")
	s.addRequest(k, budget.Request{ID: "req_2", Model: "llama-8b", Run: "mmlu-7"}, 100, 0, "vllm_oom")
	s.addRequest(parent, budget.Request{ID: "req_3", Model: "llama-8b", Run: "label"}, 7, 0, "")
	b := s.signIn("ada@example.org")
	has(t, b.get("/usage/runs").body, `href="/usage/runs/mmlu-7"`, "running", `href="/usage/runs/label"`, ">label</span>")
	page := b.get("/usage/runs/mmlu-7").body
	has(t, page, "500 <span class=\"soft\">of 1,000", "500 tokens are left.", "Used up at this rate <time", "<polyline points=\"0,100 ", "llama-8b", "eval", "Stop run")
	has(t, page, ">not reported</dd>", ">not reported</td>")
	lacks(t, page, "Resume run", "laptop")
	label := b.get("/usage/runs/label").body
	has(t, label, "laptop", "names the run")
	lacks(t, label, "Stop run", "Raise</button>")

	r, err := s.ledger.Reserve(t.Context(), budget.Payer{Key: parent.ID, Account: parent.AccountID}, budget.Request{ID: "req_4", Model: "llama-8b", Run: "cached"},
		budget.Demand{PromptTokens: 80, Exact: true, Candidates: 1, MaxTokens: 1}, nil)
	must(t, err)
	must(t, r.Settle(t.Context(), budget.Outcome{Prompt: 80, Status: http.StatusOK, Backend: "gpu1", Reported: usage.Reported{CachedTokens: new(int64(60))}}))
	has(t, b.get("/usage/runs/cached").body, ">75.0\u202f%</dd>", ">75.0\u202f%</td>")

	has(t, b.follow(b.post("/usage/runs/mmlu-7/stop")).body, "Run mmlu-7 stopped.", "Resume run")
	if stopped, err := s.keys.Get(t.Context(), k.ID); err != nil || stopped.State != identity.KeyPaused || stopped.Stops != 1 {
		t.Errorf("got %+v, error %v, want it paused, with its requests ended", stopped, err)
	}
	has(t, b.follow(b.post("/usage/runs/mmlu-7/resume")).body, "Run mmlu-7 resumed.", "Stop run")
	has(t, b.follow(b.post("/usage/runs/mmlu-7/raise", "tokens", "2k")).body, "Run mmlu-7 raised.", "of 3,000", "2,500 tokens are left.")
	if got := b.post("/usage/runs/mmlu-7/raise", "tokens", "much"); got.status != http.StatusUnprocessableEntity || !regexp.MustCompile(`value="much"[^>]*aria-invalid`).MatchString(got.body) {
		t.Errorf("raised by no number: got %d %s", got.status, got.body)
	}
	has(t, b.get("/keys/"+parent.ID).body, "Keys that it has made", "eval", "mmlu-7")
	has(t, b.get("/keys/"+k.ID).body, "made by the key", `href="/usage/runs/mmlu-7"`)
	page = b.get("/dashboard").body
	has(t, page, `<a href="/keys/`+parent.ID+`#made">has made 1 key</a>`)
	lacks(t, page, "eval")

	eve := s.signIn("eve@example.org")
	if got := eve.get("/usage/runs/mmlu-7"); got.status != http.StatusNotFound {
		t.Errorf("another account's page: got %d", got.status)
	}
	for _, path := range []string{"/usage/runs/mmlu-7/stop", "/usage/runs/mmlu-7/raise"} {
		if got := eve.post(path, "tokens", "5"); got.status != http.StatusNotFound {
			t.Errorf("another account's %s: got %d", path, got.status)
		}
	}
	if got := b.get("/usage/runs/other"); got.status != http.StatusNotFound {
		t.Errorf("a run that does not exist: got %d", got.status)
	}
}

// An administrator has the same pages of every account's runs, and changes them as the operator.
func TestPagesOfRunsOfAllAccounts(t *testing.T) {
	s := newSite(t)
	s.keys.Reload(identity.Settings{Children: true})
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	s.account("root@example.org", true)
	var runs []string
	for _, email := range []string{"ada@example.org", "eve@example.org"} {
		parent, _ := s.key(email, "laptop")
		k := s.runKey(parent, "eval of "+email, "mmlu-7", 1000)
		s.addRequest(k, budget.Request{ID: "req_" + email, Model: "llama-8b", Run: "mmlu-7"}, 300, 100, "")
		runs = append(runs, "/admin/runs/"+k.AccountID+"/mmlu-7")
	}
	root := s.signIn("root@example.org")
	list := root.get("/admin/runs").body
	has(t, list, "Runs of all accounts", "ada@example.org", "eve@example.org", `action="`+runs[0]+`/stop"`, `href="`+runs[1]+`"`, "used up <time")
	lacks(t, root.get("/usage/runs").body, "mmlu-7")
	page := root.get(runs[0]).body
	has(t, page, "ada@example.org", "eval of ada", `href="/admin/keys/`, "600 tokens are left.", "Stop run")
	lacks(t, page, "eve@example.org")
	has(t, root.follow(root.post(runs[0]+"/stop")).body, "Run mmlu-7 stopped.", "Resume run")
	has(t, root.get(runs[1]).body, "Stop run")
	has(t, root.get(strings.TrimSuffix(strings.Replace(runs[1], "/runs/", "/accounts/", 1), "/mmlu-7")).body, `#made">has made 1 key</a>`)
	ada := s.signIn("ada@example.org")
	if got := ada.post("/usage/runs/mmlu-7/resume"); got.status != http.StatusForbidden && got.status != http.StatusUnprocessableEntity {
		t.Errorf("the holder resumes what the operator has stopped: got %d", got.status)
	}
	has(t, root.follow(root.post(runs[0]+"/resume")).body, "Run mmlu-7 resumed.")
	has(t, root.follow(root.post(runs[0]+"/raise", "tokens", "1k")).body, "of 2,000")
	for _, path := range append(runs, "/admin/runs") {
		if got := ada.get(path); got.status != http.StatusForbidden && got.status != http.StatusNotFound {
			t.Errorf("%s for another: got %d", path, got.status)
		}
	}
	if got := root.get("/admin/runs/nobody/mmlu-7"); got.status != http.StatusNotFound {
		t.Errorf("of no account: got %d", got.status)
	}
}

func TestBoxOfTheRightToMakeKeys(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	k, _ := s.key("ada@example.org", "laptop")
	right := func(want, changed bool) {
		t.Helper()
		k, err := s.keys.Get(t.Context(), k.ID)
		must(t, err)
		if s.keys.HasRight(k) != want || k.Children.Valid != changed {
			t.Errorf("got %+v, want the right %t, changed %t", k.Children, want, changed)
		}
	}
	save := func(fields ...string) {
		t.Helper()
		b.post("/keys/"+k.ID, append([]string{"name", "laptop"}, fields...)...)
	}
	save("children_shown", "1")
	right(false, false)
	save("children_shown", "1", "children", "1")
	right(true, true)
	has(t, b.get("/keys/"+k.ID).body, `name="children" value="1" checked`)
	save()
	right(true, true)
	save("children_shown", "1")
	right(false, true)
}

// A forecast needs the tokens of the last hours.
func TestForecastOfABudget(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		limit, used, recent int64
		at                  time.Time
		text                string
	}{
		"two hours at this rate": {1000, 600, 200, now.Add(2 * time.Hour), "400 tokens are left."},
		"nothing recently":       {1000, 600, 0, time.Time{}, "400 tokens are left."},
		"used up":                {1000, 1000, 500, time.Time{}, "The budget is used up."},
	} {
		t.Run(name, func(t *testing.T) {
			text, at := console.ForecastEnd(c.used, c.limit, c.recent, now.Add(-time.Hour), now)
			if text != c.text || !at.Equal(c.at) {
				t.Errorf("got %q, %v; want %q, %v", text, at, c.text, c.at)
			}
		})
	}
}

// Only an administrator gives the right, on the key's page, and sees the box.
func TestBoxOfTheRightToAddAdapters(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("root@example.org", true)
	user, operator := s.signIn("ada@example.org"), s.signIn("root@example.org")
	k, _ := s.key("ada@example.org", "laptop")
	right := func(want bool) {
		t.Helper()
		k, err := s.keys.Get(t.Context(), k.ID)
		must(t, err)
		if k.Adapters != want {
			t.Errorf("got the right %t, want %t", k.Adapters, want)
		}
	}
	if strings.Contains(user.get("/keys/"+k.ID).body, `name="adapters"`) {
		t.Error("the user sees the box")
	}
	user.post("/keys/"+k.ID, "name", "laptop", "adapters_shown", "1", "adapters", "1")
	right(false)
	operator.post("/admin/keys/"+k.ID, "name", "laptop", "adapters_shown", "1", "adapters", "1")
	right(true)
	has(t, operator.get("/admin/keys/"+k.ID).body, `name="adapters" value="1" checked`)
	user.post("/keys/"+k.ID, "name", "laptop") // a form without the box
	right(true)
	operator.post("/admin/keys/"+k.ID, "name", "laptop", "adapters_shown", "1")
	right(false)
}
