package console

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/console/sso"
	"basegate/identity"
)

// flowLife is how long a user may take to sign in at the identity provider.
const flowLife = 10 * time.Minute

// maxFlows limits the sign-ins that a browser has begun at the identity provider: pages of others can begin some, and
// their cookies must not outgrow the head of a request.
const maxFlows = 8

// storedFlow is what the browser keeps while the user is at the identity provider, in a cookie for each sign-in: tabs do
// not overwrite each other's.
type storedFlow struct {
	sso.Flow
	Next  string // path of the page to open afterwards
	Begun int64  // Unix milliseconds
}

func (c *Console) flowCookieName(state string) string { return c.cookieName() + "-provider-" + state }

func (c *Console) signInAtProvider(r *request) error {
	provider := c.settings.Load().Provider
	if provider == nil {
		return errNotFound
	}
	address, flow, err := provider.Begin(r.ctx())
	if err != nil {
		return c.failedAtProvider(r, err)
	}
	cookie, err := json.Marshal(storedFlow{flow, localPath(r.query("next")), c.clock().UnixMilli()})
	if err != nil {
		return err
	}
	c.forgetOldFlows(r)
	c.setCookie(r, c.flowCookieName(flow.State), base64.RawURLEncoding.EncodeToString(cookie), "/", flowLife)
	return r.redirect(address)
}

// forgetOldFlows makes the browser forget all but the newest sign-ins, so that one more is within maxFlows.
func (c *Console) forgetOldFlows(r *request) {
	begun := map[string]int64{} // by the name of the cookie
	for _, cookie := range r.Cookies() {
		if strings.HasPrefix(cookie.Name, c.flowCookieName("")) {
			begun[cookie.Name] = decodeFlow(cookie).Begun
		}
	}
	names := slices.SortedFunc(maps.Keys(begun), func(a, b string) int { return cmp.Compare(begun[b], begun[a]) })
	for _, name := range names[min(len(names), maxFlows-1):] {
		c.setCookie(r, name, "", "/", -time.Second)
	}
}

// flowOf returns what the browser has kept, and makes it forget that: a flow is good for one attempt.
func (c *Console) flowOf(r *request) storedFlow {
	cookie, err := r.Cookie(c.flowCookieName(r.query("state")))
	if err != nil {
		return storedFlow{}
	}
	c.setCookie(r, cookie.Name, "", "/", -time.Second)
	return decodeFlow(cookie)
}

// decodeFlow returns an empty flow for a cookie that is none.
func decodeFlow(cookie *http.Cookie) storedFlow {
	var flow storedFlow
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || json.Unmarshal(text, &flow) != nil {
		return storedFlow{}
	}
	return flow
}

// returnFromProvider signs the user in whom the identity provider has sent back.
func (c *Console) returnFromProvider(r *request) error {
	provider := c.settings.Load().Provider
	if provider == nil {
		return errNotFound
	}
	flow := c.flowOf(r)
	if code := r.query("error"); code != "" {
		return c.failedAtProvider(r, fmt.Errorf("the identity provider refuses: %s", code))
	}
	user, err := provider.Finish(r.ctx(), flow.Flow, r.query("state"), r.query("code"))
	if err != nil {
		return c.failedAtProvider(r, err)
	}
	signingIn := identity.ProviderUser{
		Email: user.Email, Name: user.Name, Create: user.Allowed, Caps: c.settings.Load().NewAccount, Address: c.clientAddress(r),
	}
	switch {
	case user.NoGroups != nil:
		c.Log.Warn("a user signs in whose groups are not known; the rights of the account stay as they are",
			zap.String("email", user.Email), zap.Error(user.NoGroups))
	case provider.Settings().AdminGroup != "":
		signingIn.Admin = &user.Admin
	}
	if cookie, err := r.Request().Cookie(c.browserCookieName()); err == nil {
		signingIn.Browser = cookie.Value
	}
	tokens, err := c.Sessions.SignInFromProvider(r.ctx(), signingIn)
	if err != nil {
		return c.failedAtProvider(r, err)
	}
	c.setSignInCookies(r, tokens)
	return r.redirect(localPath(flow.Next))
}

// providerProblems are the failures of a sign-in that a user can understand.
var providerProblems = []struct {
	err    error
	status int
	text   string
	logged bool // an administrator can correct it
}{
	{sso.ErrState, http.StatusBadRequest, "This sign-in has expired, or was begun in another browser. Try again.", false},
	{sso.ErrNoEmail, http.StatusForbidden, "The identity provider does not tell your e-mail address. Ask an administrator.", true},
	{sso.ErrUnknown, http.StatusForbidden, "The identity provider does not say whether your e-mail address is verified. Ask an administrator.", true},
	{sso.ErrNotVerified, http.StatusForbidden, "The identity provider has not verified your e-mail address. Verify it there, and try again.", false},
	{identity.ErrNoAccount, http.StatusForbidden, "There is no account for your e-mail address. Ask an administrator for an invitation.", false},
	{identity.ErrBadEmail, http.StatusForbidden, "There can be no account for your e-mail address. Ask an administrator.", false},
	{identity.ErrAccountPending, http.StatusForbidden, "Your account awaits approval. You will hear from an administrator.", false},
	{identity.ErrAccountDisabled, http.StatusForbidden, "Your account is disabled. Ask an administrator why.", false},
}

// failedAtProvider shows the sign-in page with what went wrong. Failures that an administrator must correct are logged.
func (c *Console) failedAtProvider(r *request, err error) error {
	status, text := http.StatusBadGateway, "The identity provider could not sign you in. Try again, or tell an administrator."
	known := false
	for _, p := range providerProblems {
		if errors.Is(err, p.err) {
			status, text, known = p.status, p.text, !p.logged
			break
		}
	}
	if !known && !errors.Is(err, context.Canceled) {
		c.Log.Warn("sign-in at the identity provider failed", zap.Error(err))
	}
	form := c.signInForm("/dashboard")
	form.Problem = newProblem(status, "", text)
	return c.renderStatus(r, status, "sign-in", "Sign in", form)
}

func (c *Console) signInForm(next string) signInForm {
	s := c.settings.Load()
	form := signInForm{Next: next, AccessRequests: s.AccessRequests}
	if s.Provider != nil {
		form.ProviderName, form.ProviderPath = s.Provider.Settings().Name, "/sign-in/oidc?next="+url.QueryEscape(next)
	}
	return form
}
