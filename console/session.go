package console

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"basegate/identity"
)

// access is who may use a route.
type access int

const (
	anyone         access = iota
	signedIn              // anyone else is redirected to the sign-in page
	administrators        // any other user gets the page for unknown paths
)

// mayUse reports whether the user has this access.
func (r *request) mayUse(a access) bool {
	switch a {
	case signedIn:
		return r.signedIn()
	case administrators:
		return r.account.Admin
	case anyone:
	}
	return true
}

// identify is a step that reads the session cookie. It sets the session and the account of the request, and the actor of the
// changes that the request makes.
func (c *Console) identify(r *request) error {
	if cookie, err := r.Cookie(c.cookieName()); err == nil {
		r.session = cookie.Value
	}
	if r.session == "" {
		return nil
	}
	account, err := c.Sessions.Account(r.ctx(), r.session)
	if err != nil && !errors.Is(err, identity.ErrNoSession) {
		return err
	}
	if r.account = account; r.signedIn() {
		r.SetRequest(r.Request().WithContext(identity.WithActor(r.ctx(), r.account)))
	}
	return nil
}

// redirectError sends the browser to another page in place of the one that was requested.
type redirectError struct{ path string }

// Error implements error.
func (e *redirectError) Error() string { return "redirect to " + e.path }

// requireAccess returns a step that refuses users without this access. A user who is signed in but is no administrator
// cannot find out which administration pages exist.
func requireAccess(a access) handler {
	return func(_ *Console, r *request) error {
		method := r.Request().Method
		switch {
		case r.mayUse(a):
			return nil
		case r.signedIn():
			return errNotFound
		case r.isAPI():
			return errSignedOut
		case method != http.MethodGet && method != http.MethodHead:
			return &redirectError{"/sign-in"}
		}
		return &redirectError{"/sign-in?next=" + url.QueryEscape(r.Request().URL.RequestURI())}
	}
}

// cookieName returns the name of the session cookie. With HTTPS it begins with __Host-, so that no other host can set
// it.
func (c *Console) cookieName() string {
	if c.usesHTTPS() {
		return "__Host-basegate"
	}
	return "basegate"
}

// browserCookieName returns the name of the cookie by which accounts know a browser after its session has ended.
func (c *Console) browserCookieName() string { return c.cookieName() + "-browser" }

func (c *Console) usesHTTPS() bool { return c.settings.Load().PublicURL.Scheme == "https" }

// setSignInCookies gives the browser a session and the token by which the account knows it.
func (c *Console) setSignInCookies(r *request, tokens identity.SignedIn) {
	c.setCookie(r, c.cookieName(), tokens.Session, "/", identity.SessionLife)
	c.setCookie(r, c.browserCookieName(), tokens.Browser, "/", identity.KnownBrowserLife)
}

// deleteSessionCookie ends the session in the browser. The account still knows the browser.
func (c *Console) deleteSessionCookie(r *request) {
	c.setCookie(r, c.cookieName(), "", "/", -time.Second)
}

// setCookie sets a cookie of a path. Those of all paths are also sent when a page of another site links here.
func (c *Console) setCookie(r *request, name, value, path string, life time.Duration) {
	mode := http.SameSiteStrictMode
	if path == "/" {
		mode = http.SameSiteLaxMode
	}
	r.SetCookie(&http.Cookie{ //nolint:gosec // Secure is set if browsers reach the gateway by HTTPS
		Name: name, Value: value, Path: path, MaxAge: int(life / time.Second),
		HttpOnly: true, Secure: c.usesHTTPS(), SameSite: mode,
	})
}

// credentials returns what a user enters to prove who they are.
func (c *Console) credentials(r *request, email, password string) identity.Credentials {
	given := identity.Credentials{Email: email, Password: password, Address: c.clientAddress(r)}
	if cookie, err := r.Request().Cookie(c.browserCookieName()); err == nil {
		given.Browser = cookie.Value
	}
	return given
}
