package console

import (
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

func newPasswordForm(email string) passwordForm {
	return passwordForm{Email: email, MinLength: identity.MinPassword}
}

func (c *Console) invitationPage(r *request) error { return c.showInvitation(r, http.StatusOK, nil) }

// showInvitation shows the form of the invitation in the path, with what was wrong with the password.
func (c *Console) showInvitation(r *request, status int, p *problem) error {
	a, err := c.Sessions.InvitedAccount(r.ctx(), r.param("token"))
	if err != nil {
		return err
	}
	form := newPasswordForm(a.Email)
	form.Problem = p
	return c.renderStatus(r, status, "invitation", "Choose a password", form)
}

var errNoInvitation = newProblem(http.StatusNotFound, "This invitation is no longer valid",
	"An invitation works once, within seven days, and a newer one replaces it. Ask an administrator for another.")

func (c *Console) acceptInvitation(r *request) error {
	password, err := r.newPassword()
	var tokens identity.SignedIn
	if err == nil {
		tokens, err = c.Sessions.AcceptInvitation(r.ctx(), r.param("token"), password)
	}
	if p, ok := formProblem(err); ok {
		return c.showInvitation(r, p.status, p)
	}
	if err != nil {
		return err
	}
	c.setSignInCookies(r, tokens)
	return r.redirect("/dashboard")
}

// newPassword returns the new password of a form, which has it twice.
func (r *request) newPassword() (string, error) {
	password := r.Request().PostFormValue("password")
	if password != r.Request().PostFormValue("repeated") {
		return "", invalid("The two passwords are different.").on("repeated")
	}
	return password, nil
}

// accessForm is the form by which a user without an account requests one.
type accessForm struct {
	Email, Name, Purpose string
	Problem              *problem // why it was not sent; nil if it was not tried
}

var errAccessRequestsOff = newProblem(http.StatusForbidden, "Requests for access are closed",
	"Ask an administrator for an invitation.")

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
	err := c.Accounts.RequestAccess(r.ctx(), identity.AccessRequest{
		Email: form.Email, Name: form.Name, Purpose: form.Purpose, Network: ratelimit.Network(c.clientAddress(r)),
	})
	if p, ok := formProblem(err); ok {
		form.Problem = p
		return c.renderStatus(r, p.status, "request-access", "Request access", form)
	}
	if err != nil {
		return err
	}
	return r.redirect("/request-access/sent")
}

func (c *Console) accessRequested(r *request) error {
	return c.render(r, "requested", "Request access", nil)
}

func (c *Console) accountPage(r *request) error {
	return c.render(r, "account", "Account", newPasswordForm(r.account.Email))
}

func (c *Console) changePassword(r *request) error {
	form := newPasswordForm(r.account.Email)
	next, err := r.newPassword()
	var tokens identity.SignedIn
	if err == nil {
		present := c.credentials(r, r.account.Email, r.Request().PostFormValue("present"))
		tokens, err = c.Sessions.ChangePassword(r.ctx(), present, next)
		err = r.signInProblem(err, invalid("The current password is wrong.").on("present"))
	}
	if p, ok := formProblem(err); ok {
		form.Problem = p
		return c.renderStatus(r, p.status, "account", "Account", form)
	}
	if err != nil {
		return err
	}
	c.setSignInCookies(r, tokens)
	r.session = tokens.Session // which seals the message
	return c.redirectDone(r, nil, "/account", "Password changed. All other sessions are signed out.")
}

func (c *Console) signOutEverywhere(r *request) error {
	if err := c.Sessions.SignOutEverywhere(r.ctx(), r.account.Email); err != nil {
		return err
	}
	c.deleteSessionCookie(r)
	return r.redirect("/sign-in")
}
