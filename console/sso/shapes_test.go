package sso_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"basegate/console/sso"
	"basegate/gateway/config"
	"basegate/internal/providertest"
)

// shape is what a provider of others sends: its metadata, token response, ID token and userinfo.
type shape struct {
	Scopes        []string       `json:"scopes_supported"`
	TokenResponse map[string]any `json:"token_response"`
	IDToken       map[string]any `json:"id_token"`
	UserInfo      map[string]any `json:"userinfo"`
}

// readShape returns testdata/providers/NAME.json, changed.
func readShape(t *testing.T, name string, changes ...func(*shape)) shape {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "providers", name+".json"))
	must(t, err)
	var s shape
	must(t, json.Unmarshal(text, &s))
	for _, change := range changes {
		change(&s)
	}
	return s
}

// finish signs a user of the shape in, and returns how often userinfo was asked.
func finish(t *testing.T, s shape, userInfoStatus int, settings sso.Settings) (user sso.User, asked int64, err error) {
	t.Helper()
	p := providertest.Start(t, redirectURL, map[string]providertest.User{"ada": {
		IDToken: s.IDToken, TokenResponse: s.TokenResponse, UserInfo: s.UserInfo, UserInfoStatus: userInfoStatus,
	}})
	p.Scopes = s.Scopes
	settings.Issuer, settings.RedirectURL = must1(url.Parse(p.URL)), redirectURL
	settings.ClientID, settings.ClientSecret = providertest.ClientID, config.NewSecret(providertest.ClientSecret)
	provider := sso.New(settings, &http.Transport{DisableKeepAlives: true})
	address, flow, err := provider.Begin(t.Context())
	must(t, err)
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Get(address + "&user=ada")
	must(t, err)
	must(t, response.Body.Close())
	back, err := response.Location()
	must(t, err)
	for scope := range strings.FieldsSeq(must1(url.Parse(address)).Query().Get("scope")) {
		if !strings.Contains(strings.Join(s.Scopes, " "), scope) {
			t.Errorf("the scope %q is asked for, which the provider does not know", scope)
		}
	}
	user, err = provider.Finish(t.Context(), flow, back.Query().Get("state"), back.Query().Get("code"))
	return user, p.UserInfoRequests.Load(), err
}

func must1[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func setClaim(name string, value any) func(*shape) {
	return func(s *shape) { s.IDToken[name] = value }
}

func setInfo(name string, value any) func(*shape) {
	return func(s *shape) { s.UserInfo[name] = value }
}

func without(name string) func(*shape) {
	return func(s *shape) {
		delete(s.IDToken, name)
		delete(s.UserInfo, name)
	}
}

func TestUsersSignInFromTheProvidersThatLabsHave(t *testing.T) {
	const admins = "basegate-admins"
	byDomain := sso.Settings{OIDC: config.OIDC{GroupsClaim: "groups", AllowedDomains: []string{"lab.example.org"}}}
	byGroup := func(claim, group string) sso.Settings {
		return sso.Settings{OIDC: config.OIDC{GroupsClaim: claim, AllowedGroups: []string{"research"}, AdminGroup: group}}
	}
	trusting := func(s sso.Settings) sso.Settings {
		s.TrustEmail = true
		return s
	}
	entraAdmins := byGroup("groups", "0e1d2c3b-4a59-4687-9786-a5b4c3d2e1f0")
	member := sso.User{Email: "ada@lab.example.org", Name: "Ada Lovelace", Allowed: true}
	admin := member
	admin.Admin = true
	stranger := member
	stranger.Allowed = false
	const down = http.StatusServiceUnavailable
	for _, c := range []struct {
		name     string
		provider string
		change   func(*shape)
		settings sso.Settings
		userInfo int // its status; 0: 200
		want     sso.User
		noGroups string // part of the reason
		err      error  // nil with a zero want: any
		asked    int64
	}{
		{name: "Google has all in its ID token", provider: "google", settings: byDomain, want: member},
		{name: "Google with userinfo down", provider: "google", settings: byDomain, userInfo: down, want: member},
		{name: "Google has no groups", provider: "google", settings: byGroup("groups", admins), want: stranger, noGroups: `no claim "groups"`, asked: 1},
		{name: "Google has no groups and userinfo is down", provider: "google", settings: byGroup("groups", admins), userInfo: down, want: stranger, noGroups: "503", asked: 1},
		{name: "Entra says nothing about the address", provider: "entra", settings: byDomain, err: sso.ErrUnknown, asked: 1},
		{name: "Entra is trusted", provider: "entra", settings: trusting(byDomain), want: member, asked: 1},
		{name: "Entra is trusted with userinfo down", provider: "entra", settings: trusting(byDomain), userInfo: down, want: member, asked: 1},
		{name: "Entra sends groups by id", provider: "entra", settings: trusting(entraAdmins), want: admin, asked: 1},
		{name: "Entra with a null", provider: "entra", change: setClaim("email_verified", nil), settings: trusting(byDomain), want: member, asked: 1},
		{name: "Entra says false", provider: "entra", change: setClaim("email_verified", false), settings: trusting(byDomain), err: sso.ErrNotVerified},
		{name: "Entra says false as text", provider: "entra", change: setClaim("email_verified", "false"), settings: trusting(byDomain), err: sso.ErrNotVerified},
		{name: "Entra says true as text", provider: "entra", change: setClaim("email_verified", "true"), settings: byDomain, want: member},
		{name: "Entra says false at userinfo", provider: "entra", change: func(s *shape) {
			delete(s.IDToken, "email")
			s.UserInfo["email_verified"] = "false"
		}, settings: trusting(byDomain), err: sso.ErrNotVerified, asked: 1},
		{name: "Entra without the optional claim email", provider: "entra", change: func(s *shape) { delete(s.IDToken, "email") }, settings: trusting(byDomain), want: member, asked: 1},
		{name: "Entra without an address", provider: "entra", change: without("email"), settings: trusting(byDomain), err: sso.ErrNoEmail, asked: 1},
		{name: "Entra with too many groups", provider: "entra-overage", settings: trusting(entraAdmins), want: stranger, noGroups: "more groups than the provider puts into", asked: 1},
		{name: "Entra with too many groups that decide nothing", provider: "entra-overage", settings: trusting(byDomain), want: member, asked: 1},
		{name: "Okta verifies at userinfo", provider: "okta", settings: byDomain, want: member, asked: 1},
		{name: "Okta says false at userinfo only", provider: "okta", change: setInfo("email_verified", false), settings: trusting(byDomain), err: sso.ErrNotVerified, asked: 1},
		{name: "Okta has groups at userinfo", provider: "okta", settings: byGroup("groups", admins), want: admin, asked: 1},
		{name: "Okta with userinfo down", provider: "okta", settings: byDomain, userInfo: down, asked: 1},
		{name: "Okta verifies another address", provider: "okta", change: setInfo("email", "eve@lab.example.org"), settings: byDomain, err: sso.ErrUnknown, asked: 1},
		{name: "Okta writes the address in another case", provider: "okta", change: setInfo("email", "Ada@LAB.example.org"), settings: byDomain, want: member, asked: 1},
		{name: "Okta sends another user's userinfo", provider: "okta", change: setInfo("sub", "00u0"), settings: byDomain, asked: 1},
		{name: "Keycloak's roles of the realm", provider: "keycloak", settings: byGroup("realm_access.roles", admins), want: admin},
		{name: "Keycloak's roles of a client with a dot", provider: "keycloak", settings: byGroup("resource_access.gate.lab.roles", "operator"), want: admin},
		{name: "Keycloak's roles at userinfo", provider: "keycloak", change: func(s *shape) {
			s.UserInfo["realm_access"] = s.IDToken["realm_access"]
			s.IDToken["realm_access"] = map[string]any{}
		}, settings: byGroup("realm_access.roles", admins), want: admin, asked: 1},
		{name: "Keycloak's empty list", provider: "keycloak", change: setClaim("groups", []string{}), settings: byGroup("groups", admins), want: stranger},
		{name: "a claim whose name is a path", provider: "keycloak", change: setClaim("realm_access.roles", []string{"other"}), settings: byGroup("realm_access.roles", admins), want: stranger},
		{name: "a claim whose name is a URL", provider: "google", change: setClaim("https://example.org/roles", []string{admins}), settings: byGroup("https://example.org/roles", admins), want: admin},
		{name: "groups that are one text", provider: "google", change: setClaim("groups", admins), settings: byGroup("groups", admins), want: admin},
		{name: "groups that are neither text nor list", provider: "google", change: setClaim("groups", map[string]any{admins: true}), settings: byGroup("groups", admins), want: stranger, noGroups: `no claim "groups"`, asked: 1},
		{name: "Authelia has all at userinfo", provider: "authelia", settings: byGroup("groups", admins), want: admin, asked: 1},
		{name: "Authelia with userinfo down", provider: "authelia", settings: byGroup("groups", admins), userInfo: down, asked: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var changes []func(*shape)
			if c.change != nil {
				changes = append(changes, c.change)
			}
			got, asked, err := finish(t, readShape(t, c.provider, changes...), c.userInfo, c.settings)
			if asked != c.asked {
				t.Errorf("userinfo was asked %d times, want %d", asked, c.asked)
			}
			if c.want == (sso.User{}) {
				if err == nil || c.err != nil && !errors.Is(err, c.err) {
					t.Errorf("got %+v and error %v, want error %v", got, err, c.err)
				}
				return
			}
			if reason := got.NoGroups; (reason != nil) != (c.noGroups != "") || reason != nil && !strings.Contains(reason.Error(), c.noGroups) {
				t.Errorf("groups are missing because of %v, want %q", reason, c.noGroups)
			}
			got.NoGroups = nil
			if err != nil || got != c.want {
				t.Errorf("got %+v and error %v, want %+v", got, err, c.want)
			}
		})
	}
}
