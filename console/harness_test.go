package console_test

import (
	"context"
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

	"basegate/batch"
	"basegate/batch/storage"
	"basegate/breaker"
	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/usage"
	"basegate/console"
	"basegate/console/history"
	"basegate/console/prompts"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/gateway/mail"
	"basegate/gateway/notify"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

const password = "correct horse battery"

// site is a console that listens on a socket and has a database of its own.
type site struct {
	*console.Console
	t        *testing.T
	url      string
	restart  func() // serves the same database with a new console, at a new address
	path     string // of the database file
	db       *database.DB
	keys     *identity.Keys
	accounts *identity.Accounts
	sessions *identity.Sessions
	auditLog *identity.AuditLog
	prompts  *prompts.Store
	ledger   testLedger
	fleet    *fleet.Fleet
	history  *history.History
}

// testLedger is the ledger of the engine that the tests run on.
type testLedger interface {
	console.Ledger
	Reserve(context.Context, budget.Payer, budget.Request, budget.Demand, budget.Requester) (budget.Reservation, error)
	Start(context.Context) error
	Close()
}

func newLedger(db *database.DB) testLedger {
	if server := db.Postgres(); server != nil {
		return cluster.New(server, zap.NewNop(), cluster.Settings{Name: "test"})
	}
	return budget.New(db, zap.NewNop(), budget.Settings{})
}

// newSite starts a console whose only model has no backend that answers. The functions may change its settings and
// dependencies first.
func newSite(t *testing.T, change ...func(*console.Settings, *console.Deps)) *site {
	t.Helper()
	path := filepath.Join(t.TempDir(), "console.db")
	db, err := database.Open(t.Context(), databasetest.Settings(t, path), zap.NewNop())
	must(t, err)
	t.Cleanup(func() { db.Close() })
	store := identity.New(db, zap.NewNop(), identity.Settings{PasswordCost: identity.PasswordCost{Memory: 8, Passes: 1, Threads: 1}})
	s := &site{
		t: t, path: path, db: db,
		keys: store.Keys, accounts: store.Accounts, sessions: store.Sessions, auditLog: store.AuditLog,
		ledger: newLedger(db),
	}
	files, err := storage.OpenDisk(s.path + ".files")
	must(t, err)
	t.Cleanup(func() { must(t, files.Close()) })
	objects := batch.New(db, files, nil, batch.Settings{}, zap.NewNop()) // not started, so deleted objects stay
	s.prompts = prompts.New(db, objects, 100<<20)
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
	sums := usage.New(db, zap.NewNop())
	s.history = history.New(db, sums, func() history.Gauges { return history.Gauges{} })
	settings := console.Settings{
		PublicURL:     &url.URL{Scheme: "http", Host: "basegate.example.org"},
		ClientAddress: func(*http.Request) string { return "192.0.2.1" }, AccessRequests: true,
	}
	deps := console.Deps{
		Keys: s.keys, Accounts: s.accounts, Sessions: s.sessions, AuditLog: s.auditLog,
		Ledger: s.ledger, Usage: sums, Fleet: s.fleet, History: s.history, DB: db, Prompts: s.prompts,
		Feedback: func(notify.Feedback) {}, TestWebhook: func(context.Context, string, string) error { return nil }, Mail: mail.New(mail.Settings{}), Notices: func() []string { return nil }, Log: zap.NewNop(),
		Completer: unauthorizedCompleter{}, Batches: batch.New(db, storage.None{}, noLines{}, batch.Settings{MaxFileBytes: 1 << 20, MaxBodyBytes: 1 << 20}, zap.NewNop()),
	}
	for _, c := range change {
		c(&settings, &deps)
	}
	s.restart = func() {
		s.Console = console.New(settings, deps)
		e := echo.New()
		s.Mount(e)
		server := httptest.NewServer(e)
		t.Cleanup(server.Close)
		s.url = server.URL
	}
	s.restart()
	return s
}

var fleetSettings = fleet.Settings{
	Breaker: breaker.Settings{ConsecutiveFailures: 5, OpenFor: time.Minute, HalfOpenRequests: 1},
}

// reload replaces the models of the fleet.
func (s *site) reload(models ...config.Model) { s.fleet.Reload(models, fleetSettings) }

// account creates an account with the password.
func (s *site) account(email string, admin bool) identity.Account {
	s.t.Helper()
	a, err := s.accounts.Create(s.t.Context(), identity.Account{Email: email, Admin: admin})
	must(s.t, err)
	must(s.t, s.sessions.SetPassword(s.t.Context(), email, password))
	return a
}

// browser is an HTTP client that stores cookies and sends Sec-Fetch-Site.
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

// signIn returns a browser in which the account is signed in.
func (s *site) signIn(email string) *browser {
	s.t.Helper()
	b := s.browser()
	if got := b.post("/sign-in", "email", email, "password", password); got.status != http.StatusSeeOther {
		s.t.Fatalf("sign in as %s: got %d %s, want 303", email, got.status, got.body)
	}
	return b
}

// response is an HTTP response with its whole body.
type response struct {
	status int
	header http.Header
	body   string
}

func (r response) location() string { return r.header.Get("Location") }

func (b *browser) get(path string) response { return b.send(http.MethodGet, path, nil) }

// post sends a form. The fields are names and values in turn.
func (b *browser) post(path string, fields ...string) response {
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	return b.send(http.MethodPost, path, form)
}

// follow gets the page that a response redirects to.
func (b *browser) follow(from response) response {
	b.t.Helper()
	if from.status != http.StatusSeeOther {
		b.t.Fatalf("got %d %s, want a redirect", from.status, from.body)
	}
	return b.get(from.location())
}

func (b *browser) send(method, path string, form url.Values, header ...string) response {
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
	return response{resp.StatusCode, resp.Header, string(body)}
}

// addressFromHeader lets tests choose the client's address.
func addressFromHeader(s *console.Settings, _ *console.Deps) {
	s.ClientAddress = func(r *http.Request) string { return r.Header.Get("Client-Address") }
}

// postFrom is post from an address. See addressFromHeader.
func (b *browser) postFrom(address, path string, fields ...string) response {
	b.t.Helper()
	form := map[string][]string{}
	for i := 0; i < len(fields); i += 2 {
		form[fields[i]] = []string{fields[i+1]}
	}
	return b.send(http.MethodPost, path, form, "Client-Address", address)
}

// sendJSON sends a JSON body, as the workbench's scripts do.
func (b *browser) sendJSON(method, path, body string) response {
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
	return response{resp.StatusCode, resp.Header, string(text)}
}

// savePrompt saves a prompt and returns its id.
func (b *browser) savePrompt(name, document string) string {
	b.t.Helper()
	body := fmt.Sprintf(`{"name":%q,"model":"llama-8b","document":%s}`, name, document)
	got := b.sendJSON(http.MethodPost, "/console/api/prompts", body)
	if got.status != http.StatusCreated {
		b.t.Fatalf("save prompt: got %d %s, want 201", got.status, got.body)
	}
	return gjson.Get(got.body, "id").Str
}

// saveAgain saves a prompt that was opened at a version, and returns the new version.
func (b *browser) saveAgain(id string, version int64, name, document string) int64 {
	b.t.Helper()
	body := fmt.Sprintf(`{"name":%q,"model":"llama-8b","version":%d,"document":%s}`, name, version, document)
	got := b.sendJSON(http.MethodPut, "/console/api/prompts/"+id, body)
	wantStatus(b.t, "save again", got, http.StatusOK)
	return gjson.Get(got.body, "version").Int()
}

// unauthorizedCompleter refuses every completion.
type unauthorizedCompleter struct{}

func (unauthorizedCompleter) AllowFreeText(budget.Payer, int64) error { return nil }

func (unauthorizedCompleter) ServeOnBehalfOf(_, _, _ string, w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusUnauthorized)
}

// noLines accepts every key for the lines of a batch, and no line.
type noLines struct{ batch.Completer }

func (noLines) Checker(context.Context, string, string, bool) (proxy.LineCheck, error) {
	return func(string, []byte) (proxy.CheckedLine, error) {
		return proxy.CheckedLine{}, apierr.UnknownField("any", "")
	}, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantStatus fails the test if the response has another status. what names the request.
func wantStatus(t *testing.T, what string, got response, want int) {
	t.Helper()
	if got.status != want {
		t.Errorf("%s: got %d %s, want %d", what, got.status, got.body, want)
	}
}

// wantRedirect fails the test if the response is no redirect to the path.
func wantRedirect(t *testing.T, what string, got response, path string) {
	t.Helper()
	if got.status != http.StatusSeeOther || got.location() != path {
		t.Errorf("%s: got %d to %q %s, want a redirect to %q", what, got.status, got.location(), got.body, path)
	}
}

// has fails the test if a text does not contain one of the parts.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in:\n%s", p, text)
		}
	}
}

// lacks fails the test if a text contains one of the parts.
func lacks(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if strings.Contains(text, p) {
			t.Errorf("unexpected %q in:\n%s", p, text)
		}
	}
}

// addRequest records a request of a key with so many tokens on the ledger.
func (s *site) addRequest(k identity.Key, q budget.Request, prompt, completion int64, code string) {
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
	must(s.t, r.Settle(s.t.Context(), budget.Outcome{
		Prompt: prompt, Completion: completion, Status: status, Code: code, Backend: "gpu1",
	}))
}

// key creates a key of an account.
func (s *site) key(email, name string) (k identity.Key, secret string) {
	s.t.Helper()
	k, secret, err := s.keys.Create(s.t.Context(), identity.Key{Email: email, Name: name})
	must(s.t, err)
	return k, secret
}
