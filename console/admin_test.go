package console_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"basegate/breaker"
	"basegate/budget"
	"basegate/config"
	"basegate/console"
	"basegate/identity"
	"basegate/quota"
)

func TestAdministratorsChangeAccountsAndKeys(t *testing.T) {
	s := newSite(t)
	root := s.account("root@example.org", true)
	ada := s.account("ada@example.org", false)
	k, secret := s.key("ada@example.org", "laptop")
	session := s.as("ada@example.org")
	b := s.as("root@example.org")
	page := "/admin/accounts/" + ada.ID
	if got := b.post(page, "name", "Ada", "month", "1k", "admin", ""); got.to() != page {
		t.Fatalf("change: %d %s", got.status, got.body)
	}
	a, err := s.accounts.Find(t.Context(), "ada@example.org")
	must(t, err)
	if a.Name != "Ada" || a.Caps.MonthTotal != quota.Limit(1000) || a.Admin {
		t.Errorf("it is %+v", a)
	}
	if got := b.post("/admin/keys/"+k.ID, "name", "desk", "month", "2k"); got.status != http.StatusUnprocessableEntity {
		t.Errorf("above the account: %d", got.status)
	}
	if got := b.post("/admin/keys/"+k.ID, "name", "desk", "month", "900"); got.to() != page {
		t.Errorf("change key: %d", got.status)
	}
	got := b.post(page, "name", "Ada", "month", "800")
	has(t, got.body, "lower or revoke these first", "desk")
	b.post("/admin/keys/" + k.ID + "/pause")
	if _, err := s.keys.Authenticate(secret); !errors.Is(err, identity.ErrKeyPaused) {
		t.Errorf("paused: %v", err)
	}
	if got := b.post(page + "/disable"); got.to() != page {
		t.Errorf("disable: %d", got.status)
	}
	if got := session.get("/dashboard"); got.status != http.StatusSeeOther {
		t.Errorf("the session of a disabled account: %d", got.status)
	}
	b.post(page + "/enable")
	has(t, b.post(page+"/invite").body, "/invitation/")
	has(t, b.get("/admin/audit").body, "disable account", "enable account", "change key", "pause key", "invite")

	own := "/admin/accounts/" + root.ID
	if got := b.post(own + "/disable"); got.status != http.StatusUnprocessableEntity {
		t.Errorf("to disable oneself: %d", got.status)
	}
	b.post(own, "name", "Root")
	if got := b.get("/admin/accounts"); got.status != http.StatusOK {
		t.Errorf("whoever saves their own account is shut out: %d", got.status)
	}
}

func TestAdministratorsSeeUsageOfAll(t *testing.T) {
	s, _ := busySite(t)
	s.account("root@example.org", true)
	b := s.as("root@example.org")
	lacks(t, b.get("/usage").body, "cluster")
	has(t, b.get("/usage?account=all").body, "cluster", "1\u202f541", `id="by-account"`)
	a, err := s.accounts.Find(t.Context(), "ada@example.org")
	must(t, err)
	has(t, b.get("/usage?account="+a.ID).body, "cluster", "1\u202f541")
}

func TestBackendsAreShownWithTheirLastOutcomesAndWindows(t *testing.T) {
	s := newSite(t)
	backend, err := url.Parse("http://127.0.0.1:9")
	must(t, err)
	prague, err := time.LoadLocation("Europe/Prague")
	must(t, err)
	s.reload(config.Model{
		ID: "llama-8b", Checkpoint: "org/llama-8b", Backends: []config.Backend{{Name: "gpu1", URL: backend, GPU: "H100"}},
		WarmWindows: []config.Window{{Days: 1 << time.Friday, From: 18 * time.Hour, To: 6 * time.Hour, Location: prague}},
	})
	m, _ := s.fleet.Model("llama-8b")
	for _, class := range []breaker.Class{breaker.Success, breaker.OutOfMemory, breaker.ClientGone} {
		lease, err := m.Acquire(nil)
		must(t, err)
		lease.Report(class)
		lease.Release()
	}
	s.account("root@example.org", true)
	page := s.as("root@example.org").get("/admin/models").body
	has(t, page, "gpu1", "H100", "closed", "Europe/Prague", "18:00–06:00", `x="75%" width="25%"`, `x="0%" width="25%"`)
	if !strings.Contains(strings.ReplaceAll(page, "\n", " "), "client_gone") || strings.Index(page, "client_gone") > strings.Index(page, "out_of_memory") {
		t.Error("the newest outcome is not the first")
	}
}

func TestFeedbackIsStoredShownAndAnnounced(t *testing.T) {
	got := make(chan map[string]string, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body map[string]string
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		got <- body
	}))
	defer hook.Close()
	address, err := url.Parse(hook.URL)
	must(t, err)
	s := newSite(t, func(s *console.Settings, _ *console.Deps) { s.FeedbackWebhook = address })
	s.account("ada@example.org", true)
	b := s.as("ada@example.org")
	sent := b.post("/feedback", "page", "/usage", "request_id", "req_1", "message", "It is <slow>.")
	has(t, sent.body, "Thank you", `href="/usage"`)
	body := <-got
	if body["account"] != "ada@example.org" || body["message"] != "It is <slow>." || body["request_id"] != "req_1" || !strings.Contains(body["text"], "/usage") {
		t.Errorf("the webhook got %v", body)
	}
	has(t, b.get("/admin/feedback").body, "It is &lt;slow&gt;.", "req_1", "ada@example.org", "/usage")

	hook.Close()
	if got := b.post("/feedback", "message", "no webhook"); got.status != http.StatusOK {
		t.Errorf("a webhook that fails: %d", got.status)
	}
	for _, c := range [][2]string{{"", ""}, {strings.Repeat("x", 5001), ""}, {"x", strings.Repeat("x", 101)}} {
		if got := b.post("/feedback", "message", c[0], "request_id", c[1]); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%.10q %.10q: %d", c[0], c[1], got.status)
		}
	}
	if got := b.post("/feedback", "message", strings.Repeat("x", 70_000)); got.status != http.StatusRequestEntityTooLarge && got.status != http.StatusUnprocessableEntity {
		t.Errorf("70 KB: %d", got.status)
	}
	stranger := s.browser()
	for range 10 {
		stranger.post("/feedback", "message", "hello")
	}
	if got := stranger.post("/feedback", "message", "hello"); got.status != http.StatusTooManyRequests {
		t.Errorf("the eleventh of a stranger: %d", got.status)
	}
}

// Every route is asked with the ids of another account, by everybody who may not know them.
func TestNobodySeesOrChangesWhatIsAnothers(t *testing.T) {
	s := newSite(t)
	ada := s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	k, secret := s.key("ada@example.org", "secret-project")
	s.use(k, budget.Request{ID: "req_ADA", User: "ada-tag", Workload: "batch"}, 4321, 1, "")
	saved := s.as("ada@example.org").savePrompt("secret-study", `{"text":"secret-words"}`)
	before := s.state()
	for who, b := range map[string]*browser{"eve": s.as("eve@example.org"), "a stranger": s.browser()} {
		for _, r := range console.Routes() {
			method, path, _ := strings.Cut(r, " ")
			if path == "/sign-out" || path == "/account/sign-out-everywhere" {
				continue
			}
			path = strings.NewReplacer(":key", k.ID, ":account", ada.ID, ":action", "revoke", ":model", "llama-8b", ":id", saved).Replace(path)
			path = filled(path) + "?account=" + ada.ID + "&key=" + k.ID + "&by=request&month=" + time.Now().UTC().Format("2006-01")
			var got answer
			switch {
			case method == http.MethodGet:
				got = b.get(path)
			case strings.HasPrefix(path, "/console/api/"):
				got = b.script(method, path, `{"name":"mine now","model":"llama-8b","version":1,"document":{}}`)
			default:
				got = b.post(path, "email", "ada@example.org", "name", "mine now", "month", "1", "password", "a guess at it", "account", ada.ID)
			}
			if strings.HasPrefix(path, "/admin") && got.status == http.StatusOK {
				t.Errorf("%s %s by %s: %d", method, path, who, got.status)
			}
			if page, _, _ := strings.Cut(path, "?"); page != "/sign-in" && page != "/request-access" {
				for _, private := range []string{"secret-project", "secret-study", "secret-words", k.Prefix, secret, "req_ADA", "ada-tag", "4\u202f321", "4321"} {
					if strings.Contains(got.body, private) {
						t.Errorf("%s %s tells %s %q", method, path, who, private)
					}
				}
			}
		}
	}
	if after := s.state(); after != before {
		t.Errorf("it was %s and is %s", before, after)
	}
}

// state is ada's account, keys and prompts.
func (s *site) state() string {
	s.t.Helper()
	a, err := s.accounts.Find(s.t.Context(), "ada@example.org")
	must(s.t, err)
	owned, err := s.keys.ListOf(s.t.Context(), a.ID)
	must(s.t, err)
	var prompts string
	must(s.t, s.db.Read().QueryRowContext(s.t.Context(),
		"SELECT coalesce(group_concat(name || version || document), '') FROM prompts WHERE account_id = $1", a.ID).Scan(&prompts))
	return fmt.Sprintf("%+v %+v %s", a, owned, prompts)
}

// content is everything that the database holds, but what reading pages must be allowed to do.
func (s *site) content() string {
	s.t.Helper()
	var all strings.Builder
	for _, query := range []string{
		"SELECT id || state || name || admin || coalesce(month_total, '') FROM accounts", "SELECT id || state || name FROM keys",
		"SELECT hash FROM passwords", "SELECT hex(token_hash) FROM invitations", "SELECT hex(token_hash) FROM sessions",
		"SELECT account_id FROM access_requests", "SELECT id FROM audit", "SELECT id FROM feedback", "SELECT request_id FROM requests",
		"SELECT id || version || updated_at FROM prompts",
	} {
		rows, err := s.db.Read().Query(query + " ORDER BY 1")
		must(s.t, err)
		for rows.Next() {
			var row string
			must(s.t, rows.Scan(&row))
			all.WriteString(row + "\n")
		}
		must(s.t, rows.Err())
		rows.Close()
	}
	return all.String()
}

func TestToLookAtPagesChangesNothing(t *testing.T) {
	s, k := busySite(t)
	root := s.account("root@example.org", true)
	must(t, s.accounts.RequestAccess(t.Context(), "bea@example.org", "Bea", "poems"))
	_, token, err := s.accounts.Invite(t.Context(), "ada@example.org")
	must(t, err)
	b := s.as("root@example.org")
	prompt := b.savePrompt("A study", `{}`)
	before := s.content()
	for _, r := range console.Routes() {
		_, path, _ := strings.Cut(r, " ") // those of POST too, which GET must not reach
		path = strings.NewReplacer(":key", k.ID, ":account", root.ID, ":action", "revoke", ":token", token, ":model", "llama-8b", ":id", prompt).Replace(path)
		got := b.get(filled(path) + "?by=day&email=bea@example.org&name=x&message=x&password=" + url.QueryEscape(password))
		if got.status >= http.StatusInternalServerError {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	if after := s.content(); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
}
