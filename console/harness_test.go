package console_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/tidwall/gjson"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/budget"
	"basegate/config"
	"basegate/console"
	"basegate/database"
	"basegate/fleet"
	"basegate/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const password = "correct horse battery"

// site is a console on a socket, over a real database.
type site struct {
	*console.Console
	t        *testing.T
	url      string
	path     string // of the database
	db       *database.DB
	keys     *identity.Keys
	accounts *identity.Accounts
	sessions *identity.Sessions
	auditLog *identity.AuditLog
	ledger   *budget.Ledger
	fleet    *fleet.Fleet
}

func newSite(t *testing.T, change ...func(*console.Settings, *console.Deps)) *site {
	t.Helper()
	path := filepath.Join(t.TempDir(), "console.db")
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	t.Cleanup(func() { db.Close() })
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	s := &site{
		t: t, path: path, db: db,
		keys: store.Keys, accounts: store.Accounts, sessions: store.Sessions, auditLog: store.AuditLog,
		ledger: budget.New(db, zap.NewNop(), budget.Settings{}),
	}
	must(t, s.keys.Start(t.Context()))
	t.Cleanup(s.keys.Close)
	must(t, s.ledger.Start(t.Context()))
	t.Cleanup(s.ledger.Close)
	backend, err := url.Parse("http://127.0.0.1:9")
	must(t, err)
	s.fleet = fleet.New([]config.Model{{
		ID: "llama-8b", Checkpoint: "org/llama-8b", MaxLogprobs: 20,
		Backends: []config.Backend{{Name: "gpu1", URL: backend, GPU: "H100"}},
	}}, fleetSettings, http.DefaultTransport, nil, zap.NewNop())
	settings := console.Settings{
		PublicURL:     &url.URL{Scheme: "http", Host: "basegate.example.org"},
		ClientAddress: func(*http.Request) string { return "192.0.2.1" },
	}
	parts := console.Deps{
		Keys: s.keys, Accounts: s.accounts, Sessions: s.sessions, AuditLog: s.auditLog,
		Ledger: s.ledger, Fleet: s.fleet, DB: db, Transport: &http.Transport{DisableKeepAlives: true}, Log: zap.NewNop(),
	}
	parts.Completer = refuser{}
	for _, c := range change {
		c(&settings, &parts)
	}
	s.Console = console.New(settings, parts)
	e := echo.New()
	s.Mount(e)
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

var fleetSettings = fleet.Settings{
	Breaker: breaker.Settings{ConsecutiveFailures: 5, OpenFor: time.Minute, HalfOpenRequests: 1},
}

// reload gives the fleet other models.
func (s *site) reload(models ...config.Model) { s.fleet.Reload(models, fleetSettings) }

// account makes an account with the password.
func (s *site) account(email string, admin bool) identity.Account {
	s.t.Helper()
	a, err := s.accounts.Create(s.t.Context(), identity.NewAccount{Email: email, Admin: admin})
	must(s.t, err)
	must(s.t, s.sessions.SetPassword(s.t.Context(), email, password))
	return a
}

// browser keeps cookies, and says where its requests come from, as browsers do.
type browser struct {
	*site
	client *http.Client
}

func (s *site) browser() *browser {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	must(s.t, err)
	client := &http.Client{
		Jar:           jar,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &browser{site: s, client: client}
}

// as is a browser in which the account is signed in.
func (s *site) as(email string) *browser {
	s.t.Helper()
	b := s.browser()
	if got := b.post("/sign-in", "email", email, "password", password); got.status != http.StatusSeeOther {
		s.t.Fatalf("sign in as %s: %d %s", email, got.status, got.body)
	}
	return b
}

// answer is what a browser got.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) to() string { return a.header.Get("Location") }

func (b *browser) get(path string) answer { return b.send(http.MethodGet, path, nil) }

// post sends a form of names and values by turns.
func (b *browser) post(path string, fields ...string) answer {
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	return b.send(http.MethodPost, path, form)
}

func (b *browser) send(method, path string, form url.Values, header ...string) answer {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(form.Encode()))
	must(b.t, err)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.client.Do(req)
	must(b.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(b.t, err)
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// script sends JSON, as the workbench's scripts do.
func (b *browser) script(method, path, body string) answer {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	must(b.t, err)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.client.Do(req)
	must(b.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(b.t, err)
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// savePrompt saves one in the workbench and returns its id.
func (b *browser) savePrompt(name, document string) string {
	b.t.Helper()
	got := b.script(http.MethodPost, "/console/api/prompts", fmt.Sprintf(`{"name":%q,"model":"llama-8b","document":%s}`, name, document))
	if got.status != http.StatusCreated {
		b.t.Fatalf("save: %d %s", got.status, got.body)
	}
	return gjson.Get(got.body, "id").Str
}

// refuser stands where no test asks for completions: it knows no key.
type refuser struct{}

func (refuser) ServeOnBehalfOf(_, _ string, w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusUnauthorized)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// has fails the test where a text lacks a part.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in:\n%s", p, text)
		}
	}
}

// lacks fails the test where a text has a part.
func lacks(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if strings.Contains(text, p) {
			t.Errorf("there is %q in:\n%s", p, text)
		}
	}
}

// use makes a request of a key that took so many tokens.
func (s *site) use(k identity.Key, q budget.Request, prompt, completion int64, code string) {
	s.t.Helper()
	if q.ID == "" {
		q.ID = "req_" + rand.Text()
	}
	if q.Model == "" {
		q.Model = "llama-8b"
	}
	r, err := s.ledger.Reserve(s.t.Context(), budget.Payer{Key: k.ID, Account: k.AccountID}, q,
		budget.Demand{PromptTokens: prompt, Exact: true, Candidates: 1, MaxTokens: max(completion, 1)}, nil)
	must(s.t, err)
	status := http.StatusOK
	if code != "" {
		status = http.StatusBadGateway
	}
	must(s.t, r.Settle(s.t.Context(), budget.Outcome{Prompt: prompt, Completion: completion, Status: status, Code: code, Backend: "gpu1"}))
}

// key makes a key of an account.
func (s *site) key(email, name string) (k identity.Key, secret string) {
	s.t.Helper()
	k, secret, err := s.keys.Create(s.t.Context(), identity.NewKey{Email: email, Name: name})
	must(s.t, err)
	return k, secret
}
