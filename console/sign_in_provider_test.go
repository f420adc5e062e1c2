package console_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/budget/quota"
	"basegate/console"
	"basegate/console/sso"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/providertest"
)

// providerUsers are the users of the identity provider. Their ID tokens have no groups, which only userinfo gives.
func providerUsers() map[string]providertest.User {
	users := map[string]providertest.User{}
	for name, claims := range map[string]map[string]any{
		"ada":  {"name": "Ada L", "email": "Ada@lab.example.org", "email_verified": true, "groups": []string{"research"}},
		"bob":  {"email": "bob@elsewhere.example.com", "email_verified": true},
		"cleo": {"email": "cleo@elsewhere.example.com", "email_verified": true, "groups": []string{"research", "ops"}},
		"nell": {"email": "nell@lab.example.org"},
		"mal":  {"email": "root@lab.example.org", "email_verified": false, "groups": []string{"ops"}},
	} {
		token := maps.Clone(claims)
		delete(token, "groups")
		users[name] = providertest.User{IDToken: token, UserInfo: claims}
	}
	return users
}

// providerSite is a console with an identity provider.
type providerSite struct {
	*site
	provider sso.Settings
	server   *providertest.Provider
	reloaded func(sso.Settings) // makes the console use other settings
}

// newProviderSite starts a console and a provider that know each other.
func newProviderSite(t *testing.T, deps ...func(*console.Settings, *console.Deps)) *providerSite {
	t.Helper()
	var settings console.Settings
	s := newSite(t, append(deps, func(s *console.Settings, _ *console.Deps) { settings = *s })...)
	callback := s.url + "/sign-in/oidc/callback"
	server := providertest.Start(t, callback, providerUsers())
	p := &providerSite{site: s, server: server, provider: sso.Settings{RedirectURL: callback, OIDC: config.OIDC{
		Issuer: must1(url.Parse(server.URL)), Name: "the lab", ClientID: providertest.ClientID,
		ClientSecret: config.NewSecret(providertest.ClientSecret), GroupsClaim: "groups",
	}}}
	settings.NewAccount[quota.DayTotal] = quota.Limit(5000)
	p.reloaded = func(provider sso.Settings) {
		settings.Provider = sso.New(provider, &http.Transport{DisableKeepAlives: true})
		s.Reload(settings)
	}
	p.reloaded(p.provider)
	return p
}

// atProvider signs in at the provider as a browser does, and returns the address to which that sends the browser.
func (s *providerSite) atProvider(t *testing.T, address, user string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Get(address + "&user=" + user)
	must(t, err)
	defer answer.Body.Close()
	back, err := answer.Location()
	must(t, err)
	if !strings.HasPrefix(back.String(), s.url) {
		t.Fatalf("the provider sends %s to %s", user, back)
	}
	return back.RequestURI()
}

// signInWithProvider takes a browser through the whole sign-in, and returns the console's last response.
func (s *providerSite) signInWithProvider(t *testing.T, b *browser, user string) response {
	t.Helper()
	begin := b.get("/sign-in/oidc?next=/usage")
	wantStatus(t, "begin", begin, http.StatusSeeOther)
	return b.get(s.atProvider(t, begin.location(), user))
}

func TestSignInWithAnIdentityProvider(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	s := newProviderSite(t, func(_ *console.Settings, d *console.Deps) { d.Log = zap.New(core) })
	find := func(email string) identity.Account {
		t.Helper()
		a, err := s.accounts.Find(t.Context(), email)
		must(t, err)
		return a
	}
	has(t, s.browser().get("/sign-in?next=/usage").body, `href="/sign-in/oidc?next=%2Fusage"`, "Sign in with the lab")

	t.Run("unknown users are refused", func(t *testing.T) {
		got := s.signInWithProvider(t, s.browser(), "ada")
		wantStatus(t, "ada", got, http.StatusForbidden)
		has(t, got.body, "There is no account for your e-mail address")
	})
	t.Run("an account is found by its address, without case", func(t *testing.T) {
		s.account("bob@Elsewhere.example.com", false)
		b := s.browser()
		wantRedirect(t, "bob", s.signInWithProvider(t, b, "bob"), "/usage")
		has(t, b.get("/dashboard").body, "bob@Elsewhere.example.com")
	})
	t.Run("the session is as that of a password", func(t *testing.T) {
		b := s.browser()
		s.signInWithProvider(t, b, "bob")
		_, err := s.accounts.Disable(t.Context(), "bob@elsewhere.example.com")
		must(t, err)
		wantStatus(t, "the session of a disabled account", b.get("/dashboard"), http.StatusSeeOther)
		got := s.signInWithProvider(t, b, "bob")
		wantStatus(t, "a disabled account", got, http.StatusForbidden)
		has(t, got.body, "Your account is disabled")
	})
	t.Run("users of an allowed domain get an account", func(t *testing.T) {
		allowed := s.provider
		allowed.AllowedDomains = []string{"LAB.example.org"}
		s.reloaded(allowed)
		wantRedirect(t, "ada", s.signInWithProvider(t, s.browser(), "ada"), "/usage")
		if a := find("ada@lab.example.org"); a.State != identity.AccountActive || a.Admin || a.Name != "Ada L" || a.Caps[quota.DayTotal] != quota.Limit(5000) {
			t.Errorf("got account %+v, want an active one of Ada L with the budget of new accounts", a)
		}
		if got := s.browser().post("/sign-in", "email", "ada@lab.example.org", "password", ""); got.status != http.StatusUnprocessableEntity {
			t.Errorf("a password for an account without one: got %d, want 422", got.status)
		}
	})
	t.Run("addresses that are not verified are refused", func(t *testing.T) {
		s.account("root@lab.example.org", true)
		got := s.signInWithProvider(t, s.browser(), "mal")
		wantStatus(t, "mal", got, http.StatusForbidden)
		has(t, got.body, "has not verified your e-mail address")
	})
	t.Run("addresses about which the provider says nothing are refused, and the log says what helps", func(t *testing.T) {
		logs.TakeAll()
		got := s.signInWithProvider(t, s.browser(), "nell")
		wantStatus(t, "nell", got, http.StatusForbidden)
		has(t, got.body, "does not say whether your e-mail address is verified")
		has(t, fmt.Sprint(logs.TakeAll()), "console.oidc.trust_email")
	})
	t.Run("groups allow users and make administrators", func(t *testing.T) {
		grouped := s.provider
		grouped.AllowedGroups, grouped.AdminGroup = []string{"research"}, "ops"
		s.reloaded(grouped)
		b := s.browser()
		wantRedirect(t, "cleo", s.signInWithProvider(t, b, "cleo"), "/usage")
		wantStatus(t, "administration", b.get("/admin/accounts"), http.StatusOK)
		has(t, b.get("/admin/audit").body, "identity provider", "cleo@elsewhere.example.com")
		grouped.AdminGroup = "nobody"
		s.reloaded(grouped)
		s.signInWithProvider(t, s.browser(), "cleo")
		if find("cleo@elsewhere.example.com").Admin {
			t.Error("a user who has left the group of administrators is one still")
		}
	})
	t.Run("a code works only in the browser that asked for it", func(t *testing.T) {
		own, other := s.browser(), s.browser()
		callback := s.atProvider(t, own.get("/sign-in/oidc").location(), "ada")
		wantStatus(t, "without a flow", other.get(callback), http.StatusBadRequest)
		other.get("/sign-in/oidc")
		wantStatus(t, "with another flow", other.get(callback), http.StatusBadRequest)
		wantRedirect(t, "in the own browser", own.get(callback), "/dashboard")
		wantStatus(t, "a second time", own.get(callback), http.StatusBadRequest)
	})
	t.Run("the request has PKCE, state and nonce", func(t *testing.T) {
		begin := s.browser().get("/sign-in/oidc")
		query := must1(url.Parse(begin.location())).Query()
		for _, name := range []string{"state", "nonce", "code_challenge"} {
			if len(query.Get(name)) < 20 {
				t.Errorf("%s: got %q, want a random value", name, query.Get(name))
			}
		}
		if query.Get("code_challenge_method") != "S256" {
			t.Errorf("code_challenge_method: got %q, want S256", query.Get("code_challenge_method"))
		}
		if cookie := begin.header.Get("Set-Cookie"); !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Lax") {
			t.Errorf("got cookie %q, want HttpOnly and SameSite=Lax", cookie)
		}
	})
	t.Run("a wrong nonce or verifier is refused", func(t *testing.T) {
		p := sso.New(s.provider, &http.Transport{DisableKeepAlives: true})
		for _, change := range []func(*sso.Flow){
			func(f *sso.Flow) { f.Nonce += "x" }, func(f *sso.Flow) { f.Verifier += "x" }, func(f *sso.Flow) { f.State += "x" },
		} {
			address, flow, err := p.Begin(t.Context())
			must(t, err)
			query := must1(url.Parse(s.atProvider(t, address, "ada"))).Query()
			change(&flow)
			if u, err := p.Finish(t.Context(), flow, query.Get("state"), query.Get("code")); err == nil {
				t.Errorf("got user %+v, want an error", u)
			}
		}
	})
	t.Run("refusals of the provider are explained", func(t *testing.T) {
		got := s.browser().get("/sign-in/oidc/callback?error=access_denied")
		wantStatus(t, "access_denied", got, http.StatusBadGateway)
		has(t, got.body, "could not sign you in")
	})
	for _, e := range logs.All() {
		lacks(t, fmt.Sprint(e.Message, e.ContextMap()), "code=", "secret")
	}
}

func TestTabsSignInBesideEachOther(t *testing.T) {
	s := newProviderSite(t)
	s.account("bob@elsewhere.example.com", false)
	b := s.browser()
	first := s.atProvider(t, b.get("/sign-in/oidc?next=/usage").location(), "bob")
	second := s.atProvider(t, b.get("/sign-in/oidc?next=/keys").location(), "bob")
	wantRedirect(t, "the first tab", b.get(first), "/usage")
	wantRedirect(t, "the second tab", b.get(second), "/keys")
	wantStatus(t, "the first tab again", b.get(first), http.StatusBadRequest)
}

// Pages of others can make a browser begin sign-ins.
func TestBrowserKeepsFewSignIns(t *testing.T) {
	s := newProviderSite(t)
	s.account("bob@elsewhere.example.com", false)
	b := s.browser()
	oldest := s.atProvider(t, b.get("/sign-in/oidc").location(), "bob")
	newest := ""
	for range 20 {
		newest = s.atProvider(t, b.get("/sign-in/oidc").location(), "bob")
	}
	if kept := len(b.client.Jar.Cookies(must1(url.Parse(s.url)))); kept > 8 {
		t.Errorf("the browser keeps %d cookies, want at most 8", kept)
	}
	wantStatus(t, "the oldest", b.get(oldest), http.StatusBadRequest)
	wantRedirect(t, "the newest", b.get(newest), "/dashboard")
}

func TestMissingGroupsChangeNoRight(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	s := newProviderSite(t, func(_ *console.Settings, d *console.Deps) { d.Log = zap.New(core) })
	grouped := s.provider
	grouped.AdminGroup = "ops"
	s.reloaded(grouped)
	admin := func() bool {
		a, err := s.accounts.Find(t.Context(), "bob@elsewhere.example.com")
		must(t, err)
		return a.Admin
	}
	s.account("bob@elsewhere.example.com", true)
	user := s.server.Users["bob"]
	for _, c := range []struct {
		name   string
		groups any
		status int
		logged string // "": nothing
		admin  bool
	}{
		{"absent", nil, 0, "sends no claim", true},
		{"userinfo is down", nil, http.StatusInternalServerError, "500", true},
		{"another group", []string{"research"}, 0, "", false},
		{"absent, without the right", nil, 0, "sends no claim", false},
		{"the group", []string{"ops"}, 0, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			user.UserInfo["groups"], user.UserInfoStatus = c.groups, c.status
			s.server.Users["bob"] = user
			wantRedirect(t, "bob", s.signInWithProvider(t, s.browser(), "bob"), "/usage")
			if admin() != c.admin {
				t.Errorf("administrator: got %t, want %t", !c.admin, c.admin)
			}
			entries := logs.TakeAll()
			if (len(entries) > 0) != (c.logged != "") {
				t.Errorf("got the log %v, want %q", entries, c.logged)
			}
			for _, e := range entries {
				has(t, fmt.Sprint(e.ContextMap()), c.logged, "bob@elsewhere.example.com")
			}
		})
	}
}

func must1[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestSignInWithoutAnIdentityProviderHasNoSuchPages(t *testing.T) {
	b := newSite(t).browser()
	for _, path := range []string{"/sign-in/oidc", "/sign-in/oidc/callback?code=x"} {
		wantStatus(t, path, b.get(path), http.StatusNotFound)
	}
	lacks(t, b.get("/sign-in").body, "Sign in with")
}

// The gateway starts without its provider, and users can sign in by password meanwhile.
func TestProviderThatIsDownIsReported(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) {
		s.Provider = sso.New(sso.Settings{OIDC: config.OIDC{Issuer: must1(url.Parse("http://127.0.0.1:9")), ClientID: "x"}}, &http.Transport{DisableKeepAlives: true})
	})
	got := s.browser().get("/sign-in/oidc")
	wantStatus(t, "begin", got, http.StatusBadGateway)
	has(t, got.body, "could not sign you in", `name="password"`)
	s.account("ada@example.org", false)
	s.signIn("ada@example.org")
}
