package console

import (
	"errors"
	"net/http"
	"strings"

	"basegate/identity"
)

// signInForm is the page of signing in, with what was wrong.
type signInForm struct {
	Email   string
	Next    string // where to go from there
	Problem string
}

func (*Console) home(v *visit) error {
	if v.signedIn() {
		return v.redirect("/dashboard")
	}
	return v.redirect("/sign-in")
}

func (c *Console) signInPage(v *visit) error {
	next := local(v.query("next"))
	if v.signedIn() {
		return v.redirect(next)
	}
	return c.render(v, "sign-in", "Sign in", signInForm{Next: next})
}

func (c *Console) signIn(v *visit) error {
	form := signInForm{Email: v.field("email"), Next: local(v.field("next"))}
	address := c.settings.Load().ClientAddress(v.r)
	token, err := c.sessions.SignIn(v.r.Context(), form.Email, v.r.PostFormValue("password"), address)
	var tooMany *identity.TooManyAttemptsError
	switch {
	case err == nil:
		c.setCookie(v, token)
		return v.redirect(form.Next)
	case errors.As(err, &tooMany):
		form.Problem = "Too many attempts have failed. Try again in " + span(tooMany.RetryIn) + "."
		return c.renderStatus(v, http.StatusTooManyRequests, "sign-in", "Sign in", form)
	case errors.Is(err, identity.ErrBadCredentials):
		form.Problem = "The e-mail address or the password is wrong."
	case errors.Is(err, identity.ErrAccountPending):
		form.Problem = "Your account awaits approval. You will hear from an administrator."
	case errors.Is(err, identity.ErrAccountDisabled):
		form.Problem = "Your account is disabled. Ask an administrator why."
	default:
		return err
	}
	return c.renderStatus(v, http.StatusUnprocessableEntity, "sign-in", "Sign in", form)
}

func (c *Console) signOut(v *visit) error {
	if cookie, err := v.r.Cookie(c.cookieName()); err == nil {
		if err := c.sessions.SignOut(v.r.Context(), cookie.Value); err != nil {
			return err
		}
	}
	c.setCookie(v, "")
	return v.redirect("/sign-in")
}

// local is a path of the console to go to; what would lead elsewhere is the dashboard's.
func local(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/dashboard"
	}
	return next
}
