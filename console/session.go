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
		r.account, err = c.sessions.Account(r.ctx(), cookie.Value)
		if err != nil && !errors.Is(err, identity.ErrNoSession) {
			return err
		}
		if r.signedIn() {
			r.SetRequest(r.Request().WithContext(identity.WithActor(r.ctx(), r.account.Email)))
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

// usesHTTPS reports whether browsers reach the gateway by HTTPS.
func (c *Console) usesHTTPS() bool { return c.settings.Load().PublicURL.Scheme == "https" }

// setSessionCookie gives the browser a session. An empty token deletes the cookie.
func (c *Console) setSessionCookie(r *request, token string) {
	cookie := &http.Cookie{ //nolint:gosec // Secure is set if browsers reach the gateway by HTTPS
		Name: c.cookieName(), Value: token, Path: "/", MaxAge: int(identity.SessionLife / time.Second),
		HttpOnly: true, Secure: c.usesHTTPS(), SameSite: http.SameSiteLaxMode,
	}
	if token == "" {
		cookie.MaxAge = -1
	}
	r.SetCookie(cookie)
}
