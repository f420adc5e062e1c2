package console

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

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

// identify is middleware that reads the session cookie. It sets the account of the request, and the actor of the
// changes that the request makes.
func (c *Console) identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		r := requestOf(ec)
		cookie, err := r.Cookie(c.cookieName())
		if err != nil {
			return next(r) // there is no cookie
		}
		r.account, err = c.Sessions.Account(r.ctx(), cookie.Value)
		if err != nil && !errors.Is(err, identity.ErrNoSession) {
			return err
		}
		if r.signedIn() {
			r.SetRequest(r.Request().WithContext(identity.WithActor(r.ctx(), r.account)))
		}
		return next(r)
	}
}

// requireAccess returns middleware that refuses users without this access. A user who is signed in but is no
// administrator cannot find out which administration pages exist.
func requireAccess(a access) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(ec echo.Context) error {
			r := requestOf(ec)
			method := r.Request().Method
			switch {
			case r.mayUse(a):
				return next(r)
			case r.signedIn():
				return errNotFound
			case r.isAPI():
				return errSignedOut
			case method != http.MethodGet && method != http.MethodHead:
				return r.redirect("/sign-in")
			}
			return r.redirect("/sign-in?next=" + url.QueryEscape(r.Request().URL.RequestURI()))
		}
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

// usesHTTPS reports whether browsers reach the gateway by HTTPS.
func (c *Console) usesHTTPS() bool { return c.settings.Load().PublicURL.Scheme == "https" }

// setSignInCookies gives the browser a session and the token by which the account knows it.
func (c *Console) setSignInCookies(r *request, tokens identity.SignedIn) {
	c.setCookie(r, c.cookieName(), tokens.Session, "/", identity.SessionLife)
	c.setCookie(r, c.browserCookieName(), tokens.Browser, "/", identity.KnownBrowserLife)
}

// useSession makes a new session that of the request, so that what the response seals can be read with it.
func (c *Console) useSession(r *request, token string) {
	req := r.Request()
	others := req.Cookies()
	req.Header.Del("Cookie")
	for _, cookie := range others {
		if cookie.Name != c.cookieName() {
			req.AddCookie(cookie)
		}
	}
	req.AddCookie(&http.Cookie{Name: c.cookieName(), Value: token}) //nolint:gosec // of the request, not of a response
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
