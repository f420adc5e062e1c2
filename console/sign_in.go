package console

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"basegate/identity"
	"basegate/internal/ratelimit"
)

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
	tokens, err := c.Sessions.SignIn(r.ctx(), c.credentials(r, email, password))
	switch {
	case err == nil:
		c.setSignInCookies(r, tokens)
	case errors.Is(err, identity.ErrAccountPending):
		return invalid("Your account is waiting for approval. An administrator will contact you.")
	case errors.Is(err, identity.ErrAccountDisabled):
		return invalid("Your account is disabled. Contact an administrator.")
	}
	return r.signInProblem(err, invalid("Wrong e-mail address or password.").on("password"))
}

// signInProblem converts the errors of credentials to a problem, and returns any other error unchanged.
func (r *request) signInProblem(err error, wrong *problem) error {
	if tooMany, ok := errors.AsType[*identity.TooManyAttemptsError](err); ok {
		return r.tooOften(tooMany.RetryIn, "Too many attempts", "Too many attempts have failed.")
	}
	if errors.Is(err, identity.ErrBadCredentials) {
		return wrong
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
	if r.session != "" {
		if err := c.Sessions.SignOut(r.ctx(), r.session); err != nil {
			return err
		}
	}
	c.deleteSessionCookie(r)
	return r.redirect("/sign-in")
}

// localPath returns the path if it stays on this site, and the dashboard's otherwise.
func localPath(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/dashboard"
	}
	return next
}

// anonymousForms limits the forms that the clients of one network send without signing in.
var anonymousForms = ratelimit.Settings{Interval: 6 * time.Minute, Burst: 10, MaxKeys: 1 << 12}

// allowAnonymousForm returns a problem if the client's network has sent too many forms without signing in.
func (c *Console) allowAnonymousForm(r *request) error {
	retryIn := c.formLimiter.Take(ratelimit.Network(c.clientAddress(r)), 1)
	if retryIn == 0 {
		return nil
	}
	return r.tooOften(retryIn, "Too many requests", "Too many forms have been sent from your network.")
}

func (c *Console) clientAddress(r *request) string {
	return c.settings.Load().ClientAddress(r.Request())
}

// tooOften returns the problem of what may be done again after a while.
func (r *request) tooOften(retryIn time.Duration, title, text string) *problem {
	seconds := max(int64((retryIn+time.Second-1)/time.Second), 1)
	r.Response().Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	return newProblem(http.StatusTooManyRequests, title, text+" Try again in "+formatDuration(retryIn)+".")
}
