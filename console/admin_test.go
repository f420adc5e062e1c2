package console_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"basegate/breaker"
	"basegate/budget"
	"basegate/budget/quota"
	"basegate/console"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/gateway/notify"
	"basegate/identity"
)

func TestAdministratorsChangeAccountsAndKeys(t *testing.T) {
	s := newSite(t)
	root := s.account("root@example.org", true)
	ada := s.account("ada@example.org", false)
	k, secret := s.key("ada@example.org", "laptop")
	session := s.signIn("ada@example.org")
	b := s.signIn("root@example.org")
	page := "/admin/accounts/" + ada.ID
	if got := b.post(page, "name", "Ada", "month", "1k", "admin", ""); got.location() != page {
		t.Fatalf("change account: got %d %s, want a redirect to %s", got.status, got.body, page)
	}
	a, err := s.accounts.Find(t.Context(), "ada@example.org")
	must(t, err)
	if a.Name != "Ada" || a.Caps[quota.MonthTotal] != quota.Limit(1000) || a.Admin {
		t.Errorf("got account %+v, want the name, the cap and no administrator", a)
	}
	wantStatus(t, "a key's cap above its account's",
		b.post("/admin/keys/"+k.ID, "name", "desk", "month", "2k"), http.StatusUnprocessableEntity)
	wantRedirect(t, "change key", b.post("/admin/keys/"+k.ID, "name", "desk", "month", "900"), page)
	got := b.post(page, "name", "Ada", "month", "800")
	has(t, got.body, "lower or revoke these first", "desk")
	b.post("/admin/keys/" + k.ID + "/pause")
	if _, err := s.keys.Authenticate(t.Context(), secret); !errors.Is(err, identity.ErrKeyPaused) {
		t.Errorf("a paused key: got %v, want ErrKeyPaused", err)
	}
	wantRedirect(t, "disable", b.post(page+"/disable"), page)
	wantStatus(t, "the session of a disabled account", session.get("/dashboard"), http.StatusSeeOther)
	b.post(page + "/enable")
	has(t, b.follow(b.post(page+"/invite")).body, "/invitation/")
	has(t, b.get("/admin/audit").body, "disable account", "enable account", "change key", "pause key", "invite")

	own := "/admin/accounts/" + root.ID
	wantStatus(t, "disable the own account", b.post(own+"/disable"), http.StatusUnprocessableEntity)
	b.post(own, "name", "Root") // without the field for administrators
	wantStatus(t, "administration after saving the own account", b.get("/admin/accounts"), http.StatusOK)
}

func TestAdministratorsSeeTheUsageOfAllAccounts(t *testing.T) {
	s, _ := newSiteWithUsage(t)
	s.account("root@example.org", true)
	b := s.signIn("root@example.org")
	lacks(t, b.get("/usage?by=key").body, "cluster")
	has(t, b.get("/usage?account=all&by=key").body, "cluster", "1,541")
	has(t, b.get("/usage?account=all&by=account").body, "By Account", "1,541")
	a, err := s.accounts.Find(t.Context(), "ada@example.org")
	must(t, err)
	has(t, b.get("/usage?by=key&account="+a.ID).body, "cluster", "1,541")
}

func TestAdminModelsPageShowsOutcomesAndWarmWindows(t *testing.T) {
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
		lease, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{})
		must(t, err)
		lease.Report(class, false)
		lease.Release()
	}
	s.account("root@example.org", true)
	page := s.signIn("root@example.org").get("/admin/models").body
	has(t, page, "gpu1", "H100", "fri 18:00 to 06:00 Europe/Prague")
	newest, older := strings.Index(page, "client_gone"), strings.Index(page, "out_of_memory")
	if newest < 0 || newest > older {
		t.Errorf("got the newest outcome at %d and an older one at %d, want the newest first", newest, older)
	}
}

func TestFeedbackIsStoredShownAndSentToTheOperators(t *testing.T) {
	var sent []notify.Feedback
	s := newSite(t, func(_ *console.Settings, d *console.Deps) {
		d.Feedback = func(f notify.Feedback) { sent = append(sent, f) }
	})
	s.account("ada@example.org", true)
	b := s.signIn("ada@example.org")
	wantRedirect(t, "feedback", b.post("/feedback", "page", "/usage", "request_id", "req_1", "message", "It is <slow>."), "/usage")
	has(t, b.get("/usage").body, "Thank you for the feedback.")
	has(t, b.get("/admin/feedback").body, "It is &lt;slow&gt;.", "req_1", "ada@example.org", "/usage")

	anonymous := s.browser()
	has(t, anonymous.follow(anonymous.post("/feedback", "page", "/sign-in", "message", "m")).body, "Thank you", `href="/sign-in"`)
	want := []notify.Feedback{
		{Account: "ada@example.org", Page: "/usage", RequestID: "req_1", Message: "It is <slow>."}, {Page: "/sign-in", Message: "m"},
	}
	if diff := cmp.Diff(want, sent, cmpopts.IgnoreFields(notify.Feedback{}, "Time")); diff != "" {
		t.Errorf("sent to the operators (-want +got):\n%s", diff)
	}

	for _, c := range []struct{ message, requestID string }{
		{"", ""}, {strings.Repeat("x", 5001), ""}, {"x", strings.Repeat("x", 101)},
	} {
		got := b.post("/feedback", "message", c.message, "request_id", c.requestID)
		if got.status != http.StatusUnprocessableEntity {
			t.Errorf("message %.10q, request id %.10q: got %d, want 422", c.message, c.requestID, got.status)
		}
	}
	tooLong := b.post("/feedback", "message", strings.Repeat("x", 70_000))
	if tooLong.status != http.StatusRequestEntityTooLarge && tooLong.status != http.StatusUnprocessableEntity {
		t.Errorf("a form of 70 kB: got %d, want 413 or 422", tooLong.status)
	}
	anonymous = s.browser()
	for range 10 {
		anonymous.post("/feedback", "message", "hello")
	}
	wantStatus(t, "the eleventh form without signing in",
		anonymous.post("/feedback", "message", "hello"), http.StatusTooManyRequests)
}

// Every route is requested with ids of an account, by another user and without signing in.
func TestUsersCannotReadOrChangeOtherAccounts(t *testing.T) {
	s := newSite(t)
	ada := s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	k, secret := s.key("ada@example.org", "secret-project")
	s.addRequest(k, budget.Request{ID: "req_ADA", User: "ada-tag", Workload: "batch"}, 4321, 1, "")
	saved := s.signIn("ada@example.org").savePrompt("secret-study", `{"text":"secret-words"}`)
	s.signIn("ada@example.org").saveAgain(saved, 1, "secret-study", `{"text":"secret-words"}`)
	before := s.adasState()
	for name, b := range map[string]*browser{"eve": s.signIn("eve@example.org"), "nobody": s.browser()} {
		for _, r := range console.Routes() {
			method, path, _ := strings.Cut(r, " ")
			if path == "/sign-out" || path == "/account/sign-out-everywhere" {
				continue
			}
			path = fillParameters(path, ":key", k.ID, ":account", ada.ID, ":action", "revoke", ":model", "llama-8b", ":id", saved, ":version", "1")
			path += "?account=" + ada.ID + "&key=" + k.ID + "&by=key&what=requests"
			var got response
			switch {
			case method == http.MethodGet:
				got = b.get(path)
			case strings.HasPrefix(path, "/console/api/"):
				got = b.sendJSON(method, path, `{"name":"mine now","model":"llama-8b","version":1,"document":{}}`)
			default:
				got = b.post(path, "email", "ada@example.org", "name", "mine now", "month", "1",
					"password", "a guess at it", "account", ada.ID)
			}
			if strings.HasPrefix(path, "/admin") && got.status == http.StatusOK {
				t.Errorf("%s %s as %s: got 200, want an error or a redirect", method, path, name)
			}
			if page, _, _ := strings.Cut(path, "?"); page != "/sign-in" && page != "/request-access" {
				for _, private := range []string{
					"secret-project", "secret-study", "secret-words", k.Prefix, secret, "req_ADA", "ada-tag", "4,321", "4321",
				} {
					if strings.Contains(got.body, private) {
						t.Errorf("%s %s as %s: the response contains %q", method, path, name, private)
					}
				}
			}
		}
	}
	if after := s.adasState(); after != before {
		t.Errorf("the account was %s and is %s", before, after)
	}
}

// adasState returns the account of ada@example.org with its keys and prompts.
func (s *site) adasState() string {
	s.t.Helper()
	a, err := s.accounts.Find(s.t.Context(), "ada@example.org")
	must(s.t, err)
	keys, err := s.keys.ListOf(s.t.Context(), a.ID, 0)
	must(s.t, err)
	var prompts string
	text := `SELECT coalesce(group_concat(name || version || object), '') FROM prompts WHERE account_id = $1`
	if s.db.Postgres() != nil {
		text = strings.Replace(text, "group_concat(name || version || object)", "string_agg(name || version || object, '')", 1)
	}
	must(s.t, s.db.Read().QueryRowContext(s.t.Context(), text, a.ID).Scan(&prompts))
	return fmt.Sprintf("%+v %+v %s", a, keys, prompts)
}

// databaseContent returns the rows of the database, except columns that reading a page may update.
func (s *site) databaseContent() string {
	s.t.Helper()
	var all strings.Builder
	for _, query := range []string{
		"SELECT id || state || name || CAST(admin AS TEXT) || coalesce(CAST(caps AS TEXT), '') FROM accounts",
		"SELECT id || state || name FROM keys",
		"SELECT hash FROM passwords",
		"SELECT hex(token_hash) FROM invitations",
		"SELECT hex(token_hash) FROM sessions",
		"SELECT hex(token_hash) || used_at FROM known_browsers",
		"SELECT account_id FROM access_requests",
		"SELECT id FROM audit",
		"SELECT id FROM feedback",
		"SELECT request_id FROM requests",
		"SELECT id || version || updated_at || object || hex(words) FROM prompts",
	} {
		if s.db.Postgres() != nil {
			query = strings.NewReplacer("hex(token_hash)", "encode(token_hash, 'hex')", "hex(words)", "encode(words, 'hex')").Replace(query)
		}
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

func TestGETRequestsChangeNothing(t *testing.T) {
	s, k := newSiteWithUsage(t)
	root := s.account("root@example.org", true)
	must(t, s.accounts.RequestAccess(t.Context(), identity.AccessRequest{Email: "bea@example.org", Name: "Bea", Purpose: "poems"}))
	_, token, err := s.accounts.Invite(t.Context(), "ada@example.org")
	must(t, err)
	b := s.signIn("root@example.org")
	prompt := b.savePrompt("A study", `{}`)
	b.saveAgain(prompt, 1, "A study", `{}`)
	before := s.databaseContent()
	for _, r := range console.Routes() {
		_, path, _ := strings.Cut(r, " ") // includes the paths of POST, whose handlers GET must not call
		path = fillParameters(path, ":key", k.ID, ":account", root.ID, ":action", "revoke", ":token", token,
			":model", "llama-8b", ":id", prompt, ":version", "1")
		got := b.get(path + "?by=day&email=bea@example.org&name=x&message=x&password=" + url.QueryEscape(password))
		if got.status >= http.StatusInternalServerError {
			t.Errorf("%s: got %d, want no server error", path, got.status)
		}
	}
	if after := s.databaseContent(); after != before {
		t.Errorf("the database contained\n%s\nand contains\n%s", before, after)
	}
}
