package console

import (
	"errors"
	"net/http"

	"basegate/identity"
	"basegate/internal/ratelimit"
)

// passwordForm is the data of the pages on which a user sets a password.
type passwordForm struct {
	Email     string
	MinLength int      // characters of a password
	Problem   *problem // why the password was not set; nil if it was not tried
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

var errPasswordsDiffer = invalid("The two passwords are different.").on("repeated")

var errNoInvitation = &problem{
	status: http.StatusNotFound, title: "This invitation is no longer valid",
	text: "An invitation works once, within seven days, and a newer one replaces it. Ask an administrator for another.",
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
		form.Problem = errPasswordsDiffer
		return c.renderStatus(r, http.StatusUnprocessableEntity, "invitation", "Choose a password", form)
	}
	_, tokens, err := c.sessions.AcceptInvitation(r.ctx(), token, password)
	switch {
	case err == nil:
		c.setSignInCookies(r, tokens)
		return r.redirect("/dashboard")
	case errors.Is(err, identity.ErrNoInvitation):
		return errNoInvitation
	case errors.Is(err, identity.ErrBadPassword):
		form.Problem = inputProblem(err)
		return c.renderStatus(r, http.StatusUnprocessableEntity, "invitation", "Choose a password", form)
	}
	return err
}

// accessForm is the form by which a user without an account requests one.
type accessForm struct {
	Email, Name, Purpose string
	Problem              *problem // why it was not sent; nil if it was not tried
}

var errAccessRequestsOff = &problem{
	status: http.StatusForbidden, title: "Requests for access are closed",
	text: "Ask an administrator for an invitation.",
}

func (c *Console) requestAccessPage(r *request) error {
	if !c.settings.Load().AccessRequests {
		return errAccessRequestsOff
	}
	return c.render(r, "request-access", "Request access", accessForm{})
}

// allowAccessRequest returns a problem if no requests for access are taken, or too many have been sent.
func (c *Console) allowAccessRequest(r *request) error {
	if !c.settings.Load().AccessRequests {
		return errAccessRequestsOff
	}
	return c.allowAnonymousForm(r)
}

func (c *Console) requestAccess(r *request) error {
	form := accessForm{Email: r.field("email"), Name: r.field("name"), Purpose: r.field("purpose")}
	err := c.accounts.RequestAccess(r.ctx(), identity.AccessRequest{
		Email: form.Email, Name: form.Name, Purpose: form.Purpose, Network: ratelimit.Network(c.clientAddress(r)),
	})
	switch {
	case err == nil:
		return r.redirect("/request-access/sent")
	case isInputError(err):
		form.Problem = inputProblem(err)
		return c.renderStatus(r, http.StatusUnprocessableEntity, "request-access", "Request access", form)
	}
	return err
}

// accessRequested confirms a request for access.
func (c *Console) accessRequested(r *request) error {
	return c.render(r, "requested", "Request access", nil)
}

func (c *Console) accountPage(r *request) error {
	return c.render(r, "account", "Account", passwordForm{Email: r.account.Email, MinLength: identity.MinPassword})
}

func (c *Console) changePassword(r *request) error {
	form := passwordForm{Email: r.account.Email, MinLength: identity.MinPassword}
	next := r.Request().PostFormValue("password")
	if next != r.Request().PostFormValue("repeated") {
		form.Problem = errPasswordsDiffer
		return c.renderStatus(r, http.StatusUnprocessableEntity, "account", "Account", form)
	}
	present := c.credentials(r, r.account.Email, r.Request().PostFormValue("present"))
	tokens, err := c.sessions.ChangePassword(r.ctx(), present, next)
	var tooMany *identity.TooManyAttemptsError
	switch {
	case err == nil:
		c.setSignInCookies(r, tokens)
		c.useSession(r, tokens.Session)
		return c.redirectDone(r, "/account", "Password changed. All other sessions are signed out.")
	case errors.As(err, &tooMany):
		form.Problem = tooManyAttempts(r, tooMany)
	case errors.Is(err, identity.ErrBadCredentials):
		form.Problem = invalid("The current password is wrong.").on("present")
	case errors.Is(err, identity.ErrBadPassword):
		form.Problem = inputProblem(err)
	default:
		return err
	}
	return c.renderStatus(r, form.Problem.status, "account", "Account", form)
}

func (c *Console) signOutEverywhere(r *request) error {
	if err := c.sessions.SignOutEverywhere(r.ctx(), r.account.Email); err != nil {
		return err
	}
	c.deleteSessionCookie(r)
	return r.redirect("/sign-in")
}
