package console

import (
	"errors"
	"net/http"
	"strings"

	"basegate/identity"
)

// signInForm is the data of the sign-in page.
type signInForm struct {
	Email          string
	Next           string // path of the page to open afterwards
	Problem        string // why signing in failed; empty if it was not tried
	AccessRequests bool   // users without an account can request one
	ProviderName   string // of the identity provider; empty if there is none
	ProviderPath   string // signs in there
}

func (*Console) home(r *request) error {
	if r.signedIn() {
		return r.redirect("/dashboard")
	}
	return r.redirect("/sign-in")
}

func (c *Console) signInPage(r *request) error {
	next := localPath(r.query("next"))
	if r.signedIn() {
		return r.redirect(next)
	}
	return c.render(r, "sign-in", "Sign in", c.signInForm(next))
}

func (c *Console) signIn(r *request) error {
	form := c.signInForm(localPath(r.field("next")))
	form.Email = r.field("email")
	tokens, err := c.sessions.SignIn(r.ctx(), c.credentials(r, form.Email, r.Request().PostFormValue("password")))
	var tooMany *identity.TooManyAttemptsError
	switch {
	case err == nil:
		c.setSignInCookies(r, tokens)
		return r.redirect(form.Next)
	case errors.As(err, &tooMany):
		form.Problem = tooManyAttempts(r, tooMany)
		return c.renderStatus(r, http.StatusTooManyRequests, "sign-in", "Sign in", form)
	case errors.Is(err, identity.ErrBadCredentials):
		form.Problem = "The e-mail address or the password is wrong."
	case errors.Is(err, identity.ErrAccountPending):
		form.Problem = "Your account awaits approval. You will hear from an administrator."
	case errors.Is(err, identity.ErrAccountDisabled):
		form.Problem = "Your account is disabled. Ask an administrator why."
	default:
		return err
	}
	return c.renderStatus(r, http.StatusUnprocessableEntity, "sign-in", "Sign in", form)
}

func (c *Console) signOut(r *request) error {
	if cookie, err := r.Request().Cookie(c.cookieName()); err == nil {
		if err := c.sessions.SignOut(r.ctx(), cookie.Value); err != nil {
			return err
		}
	}
	c.deleteSessionCookie(r)
	return r.redirect("/sign-in")
}

// tooManyAttempts says when the next attempt is allowed.
func tooManyAttempts(r *request, e *identity.TooManyAttemptsError) string {
	r.setRetryAfter(e.RetryIn)
	return "Too many attempts have failed. Try again in " + formatDuration(e.RetryIn) + "."
}

// localPath returns the path if it stays on this site, and the dashboard's otherwise.
func localPath(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/dashboard"
	}
	return next
}
