package console

import (
	"errors"
	"net/http"

	"basegate/identity"
)

// passwordForm is the data of the pages on which a user sets a password.
type passwordForm struct {
	Email     string
	MinLength int    // characters of a password
	Problem   string // why the password was not set; empty if it was not tried
	Done      string // confirms that it was set
}

func (c *Console) invitationPage(r *request) error {
	a, err := c.sessions.InvitedAccount(r.ctx(), r.param("token"))
	if errors.Is(err, identity.ErrNoInvitation) {
		return errNoInvitation
	}
	if err != nil {
		return err
	}
	return c.render(r, "invitation", "Choose a password", passwordForm{Email: a.Email, MinLength: identity.MinPassword})
}

var errNoInvitation = &problem{
	http.StatusNotFound, "This invitation is over",
	"An invitation works once and for seven days, and a new one ends the one before. Ask an administrator for another.",
}

func (c *Console) acceptInvitation(r *request) error {
	token := r.param("token")
	a, err := c.sessions.InvitedAccount(r.ctx(), token)
	if errors.Is(err, identity.ErrNoInvitation) {
		return errNoInvitation
	}
	if err != nil {
		return err
	}
	password := r.Request().PostFormValue("password")
	form := passwordForm{Email: a.Email, MinLength: identity.MinPassword}
	if password != r.Request().PostFormValue("repeated") {
		form.Problem = "The two passwords differ."
		return c.renderStatus(r, http.StatusUnprocessableEntity, "invitation", "Choose a password", form)
	}
	_, session, err := c.sessions.AcceptInvitation(r.ctx(), token, password)
	switch {
	case err == nil:
		c.setSessionCookie(r, session)
		return r.redirect("/dashboard")
	case errors.Is(err, identity.ErrNoInvitation):
		return errNoInvitation
	case errors.Is(err, identity.ErrBadPassword):
		form.Problem = inputErrorText(err)
		return c.renderStatus(r, http.StatusUnprocessableEntity, "invitation", "Choose a password", form)
	}
	return err
}

// accessForm is the form by which a user without an account requests one.
type accessForm struct {
	Email, Name, Purpose string
	Problem              string
}

func (c *Console) requestAccessPage(r *request) error {
	return c.render(r, "request-access", "Request access", accessForm{})
}

func (c *Console) requestAccess(r *request) error {
	if retryIn := c.formLimiter.allow(c.settings.Load().ClientAddress(r.Request())); retryIn > 0 {
		return errTooOften(retryIn)
	}
	form := accessForm{Email: r.field("email"), Name: r.field("name"), Purpose: r.field("purpose")}
	err := c.accounts.RequestAccess(r.ctx(), form.Email, form.Name, form.Purpose)
	switch {
	case err == nil:
		return c.render(r, "requested", "Request access", nil)
	case isInputError(err):
		form.Problem = inputErrorText(err)
		return c.renderStatus(r, http.StatusUnprocessableEntity, "request-access", "Request access", form)
	}
	return err
}

func (c *Console) accountPage(r *request) error {
	return c.render(r, "account", "Account", passwordForm{Email: r.account.Email, MinLength: identity.MinPassword})
}

func (c *Console) changePassword(r *request) error {
	form := passwordForm{Email: r.account.Email, MinLength: identity.MinPassword}
	next := r.Request().PostFormValue("password")
	if next != r.Request().PostFormValue("repeated") {
		form.Problem = "The two passwords differ."
		return c.renderStatus(r, http.StatusUnprocessableEntity, "account", "Account", form)
	}
	address := c.settings.Load().ClientAddress(r.Request())
	token, err := c.sessions.ChangePassword(r.ctx(), r.account.Email, r.Request().PostFormValue("present"), next, address)
	var tooMany *identity.TooManyAttemptsError
	switch {
	case err == nil:
		c.setSessionCookie(r, token)
		form.Done = "The password is changed. All other sessions have ended."
		return c.render(r, "account", "Account", form)
	case errors.As(err, &tooMany):
		form.Problem = "Too many attempts have failed. Try again in " + formatDuration(tooMany.RetryIn) + "."
	case errors.Is(err, identity.ErrBadCredentials):
		form.Problem = "The present password is wrong."
	case errors.Is(err, identity.ErrBadPassword):
		form.Problem = inputErrorText(err)
	default:
		return err
	}
	return c.renderStatus(r, http.StatusUnprocessableEntity, "account", "Account", form)
}

func (c *Console) signOutEverywhere(r *request) error {
	if err := c.sessions.SignOutEverywhere(r.ctx(), r.account.Email); err != nil {
		return err
	}
	c.setSessionCookie(r, "")
	return r.redirect("/sign-in")
}
