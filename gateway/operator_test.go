package gateway_test

import (
	"context"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/emersion/go-smtp"
	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/mockvllm"
)

// newAdministrator creates an administrator with a password.
func newAdministrator(t *testing.T, c *config.Config, email, password string) {
	t.Helper()
	withIdentity(t, c, func(ctx context.Context, store *identity.Store) error {
		if _, err := store.Accounts.Create(ctx, identity.Account{Email: email, Admin: true}); err != nil {
			return err
		}
		return store.Sessions.SetPassword(ctx, email, password)
	})
}

// withIdentity calls change with the accounts of the configured database.
func withIdentity(t *testing.T, c *config.Config, change func(context.Context, *identity.Store) error) {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: c.Database.Path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := change(t.Context(), identity.New(db, zap.NewNop(), identity.Settings{PasswordCost: identity.PasswordCost{Memory: 8, Passes: 1, Threads: 1}})); err != nil {
		t.Fatal(err)
	}
}

// console is a browser in which an administrator is signed in.
type console struct {
	*http.Client
	url string
}

// signInAt returns a browser in which the account is signed in at the gateway.
func signInAt(t *testing.T, g *gateway.Gateway, email, password string) console {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := console{&http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}, "http://" + g.Addr().String()}
	resp, err := c.PostForm(c.url+"/sign-in", url.Values{"email": {email}, "password": {password}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return c
}

func (c console) page(t *testing.T, path string) string {
	t.Helper()
	resp, err := c.Get(c.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: got %d, error %v", path, resp.StatusCode, err)
	}
	return string(text)
}

func TestSettingsPageShowsTheConfigurationInForce(t *testing.T) {
	finish := make(chan struct{})
	close(finish)
	c := newConfig(t, model("m", startBackend(t, finish)))
	c.Limits.ConcurrencyPerKey = 3
	c.Models[0].Backends[0].APIKey = config.NewSecret("letmein")
	const email, password = "root@example.org", "correct horse battery"
	newAdministrator(t, c, email, password)
	g := start(t, c)
	browser := signInAt(t, g, email, password)
	want := func(when, page string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			if !strings.Contains(page, p) {
				t.Errorf("%s: %q is missing in:\n%s", when, p, page)
			}
		}
	}
	page := browser.page(t, "/admin/settings")
	want("at first", page, "limits.concurrency_per_key", `<code class="id">3</code></td><td data-name="Default"><code class="id">8</code>`, "<h2>Model m</h2>", "models[0].backends[0].api_key")
	if strings.Contains(page, "letmein") || strings.Contains(page, "needs a restart") {
		t.Errorf("the page has a secret, or something that needs a restart:\n%s", page)
	}
	for range 2 { // the second reload changes nothing, and the restart is needed still
		next := *c
		next.Limits.ConcurrencyPerKey = 4
		next.Upstream.ConnectTimeout++
		g.Reload(&next)
		want("after a reload", browser.page(t, "/admin/settings"), `<code class="id">4</code>`, "upstream.connect_timeout</code> <span class=\"tag warn\">needs a restart")
	}
}

// The overview needs no Prometheus, and a restart keeps the last day.
func TestOverviewShowsRequestsAndAlarmsAlsoAfterARestart(t *testing.T) {
	finish := make(chan struct{})
	close(finish)
	c := newConfig(t, model("m", startBackend(t, finish)))
	secret := newKey(t, c)
	const email, password = "root@example.org", "correct horse battery"
	newAdministrator(t, c, email, password)
	withIdentity(t, c, func(ctx context.Context, store *identity.Store) error {
		_, err := store.Accounts.Set(ctx, "ada@example.org", func(f *identity.Account) { f.Caps[quota.MonthTotal] = quota.Limit(43) })
		return err
	})
	g := start(t, c)
	const requests = 5
	for range requests {
		body := `{"model":"m","prompt":"x","stream":true,"max_tokens":4}`
		readBody(t, send(t, g.Addr(), secret, "/v1/completions", body))
	}
	wants := func(when, page string, parts ...string) {
		t.Helper()
		for _, want := range append(parts, `<th scope="row">m</th>`, "Budget", "ada@example.org", fmt.Sprintf(`All requests</th><td class="n">%d</td>`, requests)) {
			if !strings.Contains(page, want) {
				t.Errorf("%s: %q is missing in the overview:\n%s", when, want, page)
			}
		}
	}
	browser := signInAt(t, g, email, password)
	wants("the last hour", browser.page(t, "/admin/overview"), `<th scope="row" class="backend">b0</th>`)
	wants("the last day", browser.page(t, "/admin/overview?period=day"), `<th scope="row" class="backend">b0</th>`)
	if err := g.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	g = start(t, c)
	wants("the last day after a restart", signInAt(t, g, email, password).page(t, "/admin/overview?period=day"))
}

// mailbox is a mail server that keeps what it receives.
type mailbox struct {
	received chan string // recipient and text
	to       string
}

func (m *mailbox) NewSession(*smtp.Conn) (smtp.Session, error) {
	return &mailbox{received: m.received}, nil
}
func (*mailbox) Mail(string, *smtp.MailOptions) error        { return nil }
func (m *mailbox) Rcpt(to string, _ *smtp.RcptOptions) error { m.to = to; return nil }
func (*mailbox) Reset()                                      {}
func (*mailbox) Logout() error                               { return nil }

func (m *mailbox) Data(r io.Reader) error {
	text, err := io.ReadAll(quotedprintable.NewReader(r))
	m.received <- m.to + "\n" + string(text)
	return err
}

// startMailbox starts a mail server on this machine.
func startMailbox(t *testing.T) (server *url.URL, received chan string) {
	t.Helper()
	m := &mailbox{received: make(chan string, 10)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := smtp.NewServer(m)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(listener)
	}()
	t.Cleanup(func() { s.Close(); <-done })
	return &url.URL{Scheme: "smtp", Host: listener.Addr().String()}, m.received
}

// startWebhook starts a webhook on this machine.
func startWebhook(t *testing.T) (address *url.URL, received chan string) {
	t.Helper()
	received = make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received <- string(body)
	}))
	t.Cleanup(s.Close)
	return must1(url.Parse(s.URL + "/hook")), received
}

func TestOperatorsAreNotifiedAndInvitationsAreMailed(t *testing.T) {
	finish := make(chan struct{})
	close(finish)
	c := newConfig(t, model("m", startBackend(t, finish)))
	var mails, calls chan string
	c.Mail.SMTP, mails = startMailbox(t)
	c.Mail.From = "basegate@example.org"
	c.Notifications.Webhook, calls = startWebhook(t)
	secret := newKey(t, c)
	const email, password = "root@example.org", "correct horse battery"
	newAdministrator(t, c, email, password)
	withIdentity(t, c, func(ctx context.Context, store *identity.Store) error {
		_, err := store.Accounts.Set(ctx, "ada@example.org", func(f *identity.Account) { f.Caps[quota.MonthTotal] = quota.Limit(43) })
		return err
	})
	g := start(t, c)
	for range 5 {
		readBody(t, send(t, g.Addr(), secret, "/v1/completions", `{"model":"m","prompt":"x","stream":true,"max_tokens":4}`))
	}
	// The disk of the machine that runs the test may be nearly full, of which operators are notified too.
	call, mailed := nextWithout(calls, `"event":"disk_low"`), nextWithout(mails, "the disk is nearly full")
	for _, part := range []string{`"event":"budget_80"`, `"account":"ada@example.org"`, `"percent":80`, "of 43 tokens of the month"} {
		if !strings.Contains(call, part) {
			t.Errorf("%q is missing in the webhook's %s", part, call)
		}
	}
	if !strings.HasPrefix(mailed, email+"\n") || !strings.Contains(mailed, "ada@example.org") {
		t.Errorf("got mail %s, want one to %s about ada@example.org", mailed, email)
	}

	browser := signInAt(t, g, email, password)
	resp, err := browser.PostForm(browser.url+"/admin/invite", url.Values{"email": {"grace@example.org"}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if page := readBody(t, resp); !strings.Contains(page, "was mailed to grace@example.org") {
		t.Errorf("the page does not say that the invitation was mailed:\n%s", page)
	}
	if invitation := nextWithout(mails, "the disk is nearly full"); !strings.HasPrefix(invitation, "grace@example.org\n") || !strings.Contains(invitation, "/invitation/") {
		t.Errorf("got mail %s, want an invitation to grace@example.org", invitation)
	}
}

func TestOperatorsAreNotifiedOfTheEndOfABatch(t *testing.T) {
	var calls chan string
	s := newBatchSite(t, mockvllm.Options{}, func(c *config.Config) { c.Notifications.Webhook, calls = startWebhook(t) })
	id := s.create(3)
	call := nextWithout(calls, `"event":"disk_low"`)
	for _, part := range []string{`"event":"batch_ended"`, id + " is completed", `"account":"ada@example.org"`, "3 of 3 lines completed, 0 failed"} {
		if !strings.Contains(call, part) {
			t.Errorf("%q is missing in the webhook's %s", part, call)
		}
	}
}

// nextWithout receives the next text that does not contain a part.
func nextWithout(texts <-chan string, part string) string {
	for text := range texts {
		if !strings.Contains(text, part) {
			return text
		}
	}
	return ""
}

func must1[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
