// Package sso signs users in with an identity provider by OpenID Connect: the authorization code flow with PKCE, state
// and nonce, by go-oidc. It returns the user as the provider identifies them; the accounts that this user may open are
// left to package identity and the console.
package sso

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"basegate/gateway/config"
)

// Errors of Finish.
var (
	ErrState       = errors.New("the response belongs to no sign-in of this browser")
	ErrNoEmail     = errors.New("the provider gives no e-mail address")
	ErrNotVerified = errors.New("the provider has not verified the e-mail address")
	ErrUnknown     = errors.New("the provider does not say whether the e-mail address is verified; console.oidc.trust_email accepts such addresses")
)

// Settings name the provider and what it says about users, and the console's address to which it sends them back.
type Settings struct {
	config.OIDC

	RedirectURL string
}

// User is a user who has signed in at the provider.
type User struct {
	Email   string // verified, or trusted
	Name    string // may be empty
	Allowed bool   // the user may have an account that does not exist yet
	Admin   bool   // the user is in the group of administrators

	// NoGroups says why the user's groups are needed and not known; nil if they are. Then Admin says nothing.
	NoGroups error
}

// Flow is what a browser keeps between the begin and the end of a sign-in. Its fields are secrets of the browser.
type Flow struct {
	State    string
	Nonce    string
	Verifier string // of PKCE
}

// timeout limits each request to the provider.
const timeout = 10 * time.Second

// Provider signs users in. It is safe for concurrent use.
type Provider struct {
	settings Settings
	client   *http.Client

	mu         sync.Mutex
	discovered *oidc.Provider // nil before the first sign-in
}

// New returns a Provider. It contacts the provider at the first sign-in, so that the gateway starts without it.
func New(s Settings, transport http.RoundTripper) *Provider {
	return &Provider{settings: s, client: &http.Client{Transport: transport, Timeout: timeout}}
}

// Settings returns the settings.
func (p *Provider) Settings() Settings { return p.settings }

// discover reads the provider's metadata, once it succeeds.
func (p *Provider) discover(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.discovered != nil {
		return p.discovered, nil
	}
	// The provider keeps the context's client for later reads of its keys, so the context must not end.
	found, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), p.client), p.settings.Issuer.String())
	if err != nil {
		return nil, fmt.Errorf("discover identity provider: %w", err)
	}
	p.discovered = found
	return found, nil
}

func (p *Provider) oauth(provider *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.settings.ClientID, ClientSecret: p.settings.ClientSecret.Reveal(), RedirectURL: p.settings.RedirectURL,
		Endpoint: provider.Endpoint(), Scopes: p.scopes(provider),
	}
}

// scopes returns the scopes to ask for. Some providers have one for groups, and others refuse scopes that they do not
// know.
func (p *Provider) scopes(provider *oidc.Provider) []string {
	scopes := []string{oidc.ScopeOpenID, "email", "profile"}
	var metadata struct {
		Scopes []string `json:"scopes_supported"`
	}
	if err := provider.Claims(&metadata); err == nil && slices.Contains(metadata.Scopes, p.settings.GroupsClaim) {
		scopes = append(scopes, p.settings.GroupsClaim)
	}
	return scopes
}

// Begin returns the address of the provider to which the browser is sent, and what the browser keeps.
func (p *Provider) Begin(ctx context.Context) (address string, flow Flow, err error) {
	provider, err := p.discover(ctx)
	if err != nil {
		return "", Flow{}, err
	}
	flow = Flow{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier()}
	address = p.oauth(provider).AuthCodeURL(flow.State, oidc.Nonce(flow.Nonce), oauth2.S256ChallengeOption(flow.Verifier))
	return address, flow, nil
}

// Finish exchanges the code with which the provider has sent the browser back. The error may be ErrState, ErrNoEmail,
// ErrNotVerified or ErrUnknown.
func (p *Provider) Finish(ctx context.Context, flow Flow, state, code string) (User, error) {
	if flow.State == "" || subtle.ConstantTimeCompare([]byte(flow.State), []byte(state)) == 0 {
		return User{}, ErrState
	}
	provider, err := p.discover(ctx)
	if err != nil {
		return User{}, err
	}
	ctx = oidc.ClientContext(ctx, p.client)
	token, err := p.oauth(provider).Exchange(ctx, code, oauth2.VerifierOption(flow.Verifier))
	if err != nil {
		return User{}, fmt.Errorf("exchange code: %w", withoutBody(err))
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return User{}, errors.New("exchange code: the provider gives no ID token")
	}
	verified, err := provider.Verifier(&oidc.Config{ClientID: p.settings.ClientID}).Verify(ctx, raw)
	if err != nil {
		return User{}, fmt.Errorf("verify ID token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(flow.Nonce)) == 0 {
		return User{}, ErrState
	}
	id := claims{}
	if err := verified.Claims(&id); err != nil {
		return User{}, fmt.Errorf("read ID token: %w", err)
	}
	if !p.needsMore(id) {
		return p.user(id, nil, nil)
	}
	info, err := p.userInfo(ctx, provider, token, verified.Subject)
	return p.user(id, info, err)
}

// needsMore reports whether the ID token lacks a claim that decides about the user, and does not refuse the user either. An address
// that is trusted without email_verified is looked up too: userinfo may have a false one.
func (p *Provider) needsMore(id claims) bool {
	address, verified := id.text("email"), id.verified()
	if address == "" || verified == nil {
		return true
	}
	_, grouped := id.list(p.settings.GroupsClaim)
	return *verified && !grouped && p.needsGroups(address)
}

// needsGroups reports whether groups decide about the user of the address.
func (p *Provider) needsGroups(address string) bool {
	return p.settings.AdminGroup != "" || len(p.settings.AllowedGroups) > 0 && !p.domainAllowed(address)
}

func (p *Provider) domainAllowed(address string) bool {
	_, domain, _ := strings.Cut(address, "@")
	return slices.ContainsFunc(p.settings.AllowedDomains, func(d string) bool { return strings.EqualFold(d, domain) })
}

// userInfo returns the claims of the provider's userinfo endpoint; none if it has no such endpoint.
func (*Provider) userInfo(ctx context.Context, provider *oidc.Provider, token *oauth2.Token, subject string) (claims, error) {
	if provider.UserInfoEndpoint() == "" {
		return nil, nil
	}
	info, err := provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return nil, fmt.Errorf("read user info: %w", err)
	}
	if info.Subject != subject {
		return nil, errors.New("read user info: it is another user's")
	}
	var c claims
	if err := info.Claims(&c); err != nil {
		return nil, fmt.Errorf("read user info: %w", err)
	}
	return c, nil
}

// user converts the claims of the ID token and of userinfo, whose error matters only if the ID token does not suffice.
func (p *Provider) user(id, info claims, infoErr error) (User, error) {
	u := User{Email: cmp.Or(id.text("email"), info.text("email")), Name: cmp.Or(id.text("name"), info.text("name"))}
	if u.Email == "" {
		return User{}, cmp.Or(infoErr, ErrNoEmail)
	}
	switch said := verified(u.Email, id, info); {
	case said == nil && !p.settings.TrustEmail:
		return User{}, cmp.Or(infoErr, ErrUnknown)
	case said != nil && !*said:
		return User{}, ErrNotVerified
	}
	groups, known := id.list(p.settings.GroupsClaim)
	if !known {
		groups, known = info.list(p.settings.GroupsClaim)
	}
	if !known && p.needsGroups(u.Email) {
		u.NoGroups = cmp.Or(infoErr, missingGroups(p.settings.GroupsClaim, id))
	}
	u.Admin = p.settings.AdminGroup != "" && slices.Contains(groups, p.settings.AdminGroup)
	u.Allowed = u.Admin || p.domainAllowed(u.Email) ||
		slices.ContainsFunc(p.settings.AllowedGroups, func(g string) bool { return slices.Contains(groups, g) })
	return u, nil
}

// verified returns whether the provider has verified the address; nil if it does not say. A set of claims that verifies another
// address says nothing about this one.
func verified(address string, sets ...claims) (said *bool) {
	for _, c := range sets {
		switch v := c.verified(); {
		case v == nil:
		case !*v:
			return v
		case strings.EqualFold(c.text("email"), address):
			said = v
		}
	}
	return said
}

// missingGroups says why the claim is missing. Entra replaces the groups of a user who has too many by a reference.
func missingGroups(claim string, id claims) error {
	if references, _ := id["_claim_names"].(map[string]any); references[claim] != nil {
		return fmt.Errorf("the user has more groups than the provider puts into claim %q: let it send only the groups assigned to the application", claim)
	}
	return fmt.Errorf("the provider sends no claim %q", claim)
}

// withoutBody returns an error without the body of the provider's response, which goes to the log.
func withoutBody(err error) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return fmt.Errorf("the provider answers %s %s", e.Response.Status, e.ErrorCode)
	}
	return err
}

// claims are what a provider says about a user.
type claims map[string]any

func (c claims) text(name string) string {
	text, _ := c[name].(string)
	return text
}

// verified returns whether the address is verified; nil if the claims do not say. Some providers send the word as text.
func (c claims) verified() *bool {
	switch value := c["email_verified"].(type) {
	case nil:
		return nil
	case bool:
		return &value
	case string:
		return new(strings.EqualFold(value, "true"))
	}
	return new(false)
}

// list returns a claim that is a list of texts, or one text; false if there is none.
func (c claims) list(path string) ([]string, bool) {
	switch value := lookUp(c, path).(type) {
	case string:
		return []string{value}, true
	case []any:
		var all []string
		for _, v := range value {
			if text, ok := v.(string); ok {
				all = append(all, text)
			}
		}
		return all, true
	}
	return nil, false
}

// lookUp returns the member that has the path as its name, or else the one at the path: names may have dots, as URLs and
// the ids of clients do.
func lookUp(object map[string]any, path string) any {
	if value := object[path]; value != nil {
		return value
	}
	for i := range path {
		if path[i] != '.' {
			continue
		}
		if inner, ok := object[path[:i]].(map[string]any); ok {
			if value := lookUp(inner, path[i+1:]); value != nil {
				return value
			}
		}
	}
	return nil
}
