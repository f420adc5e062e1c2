package console

import (
	"errors"
	"net/http"

	"basegate/identity"
)

// credentials is a page on which a password is set, with what was wrong.
type credentials struct {
	Email   string
	Least   int // characters of a password
	Problem string
	Done    string
}

func (c *Console) invitationPage(v *visit) error {
	a, err := c.sessions.InvitedAccount(v.r.Context(), v.r.PathValue("token"))
	if errors.Is(err, identity.ErrNoInvitation) {
		return errNoInvitation
	}
	if err != nil {
		return err
	}
	return c.render(v, "invitation", "Choose a password", credentials{Email: a.Email, Least: identity.MinPassword})
}

var errNoInvitation = &problem{
	http.StatusNotFound, "This invitation is over",
	"An invitation works once and for seven days, and a new one ends the one before. Ask an administrator for another.",
}

func (c *Console) acceptInvitation(v *visit) error {
	token := v.r.PathValue("token")
	a, err := c.sessions.InvitedAccount(v.r.Context(), token)
	if errors.Is(err, identity.ErrNoInvitation) {
		return errNoInvitation
	}
	if err != nil {
		return err
	}
	password := v.r.PostFormValue("password")
	form := credentials{Email: a.Email, Least: identity.MinPassword}
	if password != v.r.PostFormValue("repeated") {
		form.Problem = "The two passwords differ."
		return c.renderStatus(v, http.StatusUnprocessableEntity, "invitation", "Choose a password", form)
	}
	_, session, err := c.sessions.AcceptInvitation(v.r.Context(), token, password)
	switch {
	case err == nil:
		c.setCookie(v, session)
		return v.redirect("/dashboard")
	case errors.Is(err, identity.ErrNoInvitation):
		return errNoInvitation
	case errors.Is(err, identity.ErrBadPassword):
		form.Problem = sentence(err)
		return c.renderStatus(v, http.StatusUnprocessableEntity, "invitation", "Choose a password", form)
	}
	return err
}

// accessForm is a request for access.
type accessForm struct {
	Email, Name, Purpose string
	Problem              string
}

func (c *Console) requestAccessPage(v *visit) error {
	return c.render(v, "request-access", "Request access", accessForm{})
}

func (c *Console) requestAccess(v *visit) error {
	if retryIn := c.forms.allow(c.settings.Load().ClientAddress(v.r)); retryIn > 0 {
		return errTooOften(retryIn)
	}
	form := accessForm{Email: v.field("email"), Name: v.field("name"), Purpose: v.field("purpose")}
	err := c.accounts.RequestAccess(v.r.Context(), form.Email, form.Name, form.Purpose)
	switch {
	case err == nil:
		return c.render(v, "requested", "Request access", nil)
	case isRefusal(err):
		form.Problem = sentence(err)
		return c.renderStatus(v, http.StatusUnprocessableEntity, "request-access", "Request access", form)
	}
	return err
}

func (c *Console) accountPage(v *visit) error {
	return c.render(v, "account", "Account", credentials{Email: v.account.Email, Least: identity.MinPassword})
}

func (c *Console) changePassword(v *visit) error {
	form := credentials{Email: v.account.Email, Least: identity.MinPassword}
	next := v.r.PostFormValue("password")
	if next != v.r.PostFormValue("repeated") {
		form.Problem = "The two passwords differ."
		return c.renderStatus(v, http.StatusUnprocessableEntity, "account", "Account", form)
	}
	address := c.settings.Load().ClientAddress(v.r)
	token, err := c.sessions.ChangePassword(v.r.Context(), v.account.Email, v.r.PostFormValue("present"), next, address)
	var tooMany *identity.TooManyAttemptsError
	switch {
	case err == nil:
		c.setCookie(v, token)
		form.Done = "The password is changed. All other sessions have ended."
		return c.render(v, "account", "Account", form)
	case errors.As(err, &tooMany):
		form.Problem = "Too many attempts have failed. Try again in " + span(tooMany.RetryIn) + "."
	case errors.Is(err, identity.ErrBadCredentials):
		form.Problem = "The present password is wrong."
	case errors.Is(err, identity.ErrBadPassword):
		form.Problem = sentence(err)
	default:
		return err
	}
	return c.renderStatus(v, http.StatusUnprocessableEntity, "account", "Account", form)
}

func (c *Console) signOutEverywhere(v *visit) error {
	if err := c.sessions.SignOutEverywhere(v.r.Context(), v.account.Email); err != nil {
		return err
	}
	c.setCookie(v, "")
	return v.redirect("/sign-in")
}
