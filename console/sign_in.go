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
	Next           string   // path of the page to open afterwards
	Problem        *problem // why signing in failed; nil if it was not tried
	AccessRequests bool     // users without an account can request one
	ProviderName   string   // of the identity provider; empty if there is none
	ProviderPath   string   // signs in there
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
	err := c.startSession(r, form.Email, r.Request().PostFormValue("password"))
	if p, ok := errors.AsType[*problem](err); ok {
		form.Problem = p
		return c.renderStatus(r, p.status, "sign-in", "Sign in", form)
	}
	if err != nil {
		return err
	}
	return r.redirect(form.Next)
}

// startSession signs an account in. It returns a problem if the account cannot sign in with this password.
func (c *Console) startSession(r *request, email, password string) error {
	tokens, err := c.sessions.SignIn(r.ctx(), c.credentials(r, email, password))
	var tooMany *identity.TooManyAttemptsError
	switch {
	case err == nil:
		c.setSignInCookies(r, tokens)
		return nil
	case errors.As(err, &tooMany):
		return tooManyAttempts(r, tooMany)
	case errors.Is(err, identity.ErrBadCredentials):
		return invalid("Wrong e-mail address or password.").on("password")
	case errors.Is(err, identity.ErrAccountPending):
		return invalid("Your account is waiting for approval. An administrator will contact you.")
	case errors.Is(err, identity.ErrAccountDisabled):
		return invalid("Your account is disabled. Contact an administrator.")
	}
	return err
}

// sessionState tells a script who is signed in.
func (*Console) sessionState(r *request) error {
	return r.sendJSON(http.StatusOK, map[string]string{"email": r.account.Email})
}

// renewSession signs in for a script, so that a page whose session has ended keeps what was typed.
func (c *Console) renewSession(r *request) error {
	var input struct {
		Email    string `json:"email"`
		Password string `json:"password"`
	}
	if err := r.readJSON(&input); err != nil {
		return err
	}
	if err := c.startSession(r, input.Email, input.Password); err != nil {
		return err
	}
	return r.sendJSON(http.StatusOK, map[string]string{"email": input.Email})
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
func tooManyAttempts(r *request, e *identity.TooManyAttemptsError) *problem {
	r.setRetryAfter(e.RetryIn)
	return &problem{
		status: http.StatusTooManyRequests, title: "Too many attempts",
		text: "Too many attempts have failed. Try again in " + formatDuration(e.RetryIn) + ".",
	}
}

// localPath returns the path if it stays on this site, and the dashboard's otherwise.
func localPath(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/dashboard"
	}
	return next
}
