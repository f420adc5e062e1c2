// Package sso signs users in with an identity provider by OpenID Connect: the authorization code flow with PKCE, state
// and nonce, by go-oidc. It returns the user as the provider identifies them; the accounts that this user may open are
// left to package identity and the console.
package sso

import (
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
)

// Errors of Finish.
var (
	ErrState       = errors.New("the answer belongs to no sign-in of this browser")
	ErrNoEmail     = errors.New("the provider gives no e-mail address")
	ErrNotVerified = errors.New("the provider has not verified the e-mail address")
)

// Settings name the provider and what it says about users.
type Settings struct {
	Issuer         string // empty: there is no provider
	Name           string // for users
	ClientID       string
	ClientSecret   string
	RedirectURL    string
	AllowedDomains []string
	AllowedGroups  []string
	GroupsClaim    string
	AdminGroup     string // empty: the provider does not decide who is an administrator
}

// User is a user who has signed in at the provider.
type User struct {
	Email   string // verified
	Name    string // may be empty
	Allowed bool   // the user may have an account that does not exist yet
	Admin   bool   // the user is in the group of administrators
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
	found, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), p.client), p.settings.Issuer)
	if err != nil {
		return nil, fmt.Errorf("discover identity provider: %w", err)
	}
	p.discovered = found
	return found, nil
}

func (p *Provider) oauth(provider *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.settings.ClientID, ClientSecret: p.settings.ClientSecret, RedirectURL: p.settings.RedirectURL,
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

// Finish exchanges the code with which the provider has sent the browser back. The error may be ErrState, ErrNoEmail or
// ErrNotVerified.
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
	var claims claims
	if err := verified.Claims(&claims); err != nil {
		return User{}, fmt.Errorf("read ID token: %w", err)
	}
	if claims.text("email") == "" || claims[p.settings.GroupsClaim] == nil {
		if err := p.addUserInfo(ctx, provider, token, verified.Subject, claims); err != nil {
			return User{}, err
		}
	}
	return p.user(claims)
}

// addUserInfo adds the claims that only the provider's userinfo endpoint has, if it has one.
func (*Provider) addUserInfo(ctx context.Context, provider *oidc.Provider, token *oauth2.Token, subject string, c claims) error {
	if provider.UserInfoEndpoint() == "" {
		return nil
	}
	info, err := provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return fmt.Errorf("read user info: %w", err)
	}
	if info.Subject != subject { // another user's
		return fmt.Errorf("read user info: %w", ErrState)
	}
	var more claims
	if err := info.Claims(&more); err != nil {
		return fmt.Errorf("read user info: %w", err)
	}
	if c.text("email") != "" {
		delete(more, "email_verified") // it belongs to the address that comes with it
	}
	for name, value := range more {
		if _, known := c[name]; !known {
			c[name] = value
		}
	}
	return nil
}

// user converts the claims.
func (p *Provider) user(c claims) (User, error) {
	u := User{Email: c.text("email"), Name: c.text("name")}
	switch {
	case u.Email == "":
		return User{}, ErrNoEmail
	case !c.verified():
		return User{}, ErrNotVerified
	}
	groups := c.list(p.settings.GroupsClaim)
	_, domain, _ := strings.Cut(u.Email, "@")
	u.Allowed = slices.ContainsFunc(p.settings.AllowedDomains, func(d string) bool { return strings.EqualFold(d, domain) }) ||
		slices.ContainsFunc(p.settings.AllowedGroups, func(g string) bool { return slices.Contains(groups, g) })
	u.Admin = p.settings.AdminGroup != "" && slices.Contains(groups, p.settings.AdminGroup)
	u.Allowed = u.Allowed || u.Admin
	return u, nil
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

// verified reports whether the address is verified. Some providers send the word as text.
func (c claims) verified() bool { return c["email_verified"] == true || c["email_verified"] == "true" }

// list returns a claim that is a list of texts, or one text.
func (c claims) list(name string) []string {
	switch value := c[name].(type) {
	case string:
		return []string{value}
	case []any:
		var all []string
		for _, v := range value {
			if text, ok := v.(string); ok {
				all = append(all, text)
			}
		}
		return all
	}
	return nil
}
