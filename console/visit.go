package console

import (
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/identity"
)

// maxForm is the longest form, in bytes, unless a route says otherwise.
const maxForm = 64 << 10

// visit is one request of a browser.
type visit struct {
	w       http.ResponseWriter
	r       *http.Request
	account identity.Account // empty where nobody is signed in
}

func (v *visit) signedIn() bool { return v.account.ID != "" }

// may tells whether the visitor may see what has this access.
func (v *visit) may(a access) bool {
	switch a {
	case signedIn:
		return v.signedIn()
	case admins:
		return v.account.Admin
	case anyone:
	}
	return true
}

// field is a form's field without the space around it.
func (v *visit) field(name string) string { return strings.TrimSpace(v.r.PostFormValue(name)) }

// query is a parameter of the page's address.
func (v *visit) query(name string) string { return strings.TrimSpace(v.r.URL.Query().Get(name)) }

// redirect sends the browser to another page, by GET.
func (v *visit) redirect(path string) error {
	http.Redirect(v.w, v.r, path, http.StatusSeeOther)
	return nil
}

// serve makes a handler of a route: it finds out who visits, turns away who may not, and renders what the route's
// handler returns as an error. What is changed is changed in the visitor's name.
func (c *Console) serve(r route) http.Handler {
	most := r.body
	if most == 0 {
		most = maxForm
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		v := &visit{w: w, r: req}
		req.Body = http.MaxBytesReader(w, req.Body, most)
		if err := c.guarded(r, v); err != nil {
			c.fail(v, err)
		}
	})
}

// guarded turns a panic of a handler into an error. What the panic said may be somebody's text, so only the frames are
// logged.
func (c *Console) guarded(r route, v *visit) (err error) {
	defer func() {
		thrown := recover()
		if e, ok := thrown.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			panic(thrown)
		}
		if thrown != nil {
			c.log.Error("panic", zap.String("path", r.pattern), zap.ByteString("stack", debug.Stack())) //nolint:forbidigo // frames, not a body
			err = errPanic
		}
	}()
	if err := c.identify(v); err != nil {
		return err
	}
	if !v.may(r.access) {
		return turnAway(r, v)
	}
	return r.handler(c, v)
}

var errPanic = errors.New("panic, see the log line of its own")

// identify finds out who is signed in.
func (c *Console) identify(v *visit) error {
	cookie, err := v.r.Cookie(c.cookieName())
	if err != nil {
		return nil //nolint:nilerr // nobody is signed in
	}
	v.account, err = c.sessions.Account(v.r.Context(), cookie.Value)
	if err != nil && !errors.Is(err, identity.ErrNoSession) {
		return err
	}
	if v.signedIn() {
		v.r = v.r.WithContext(identity.WithActor(v.r.Context(), v.account.Email))
	}
	return nil
}

// turnAway answers a visitor whom the route is not for. Whoever is signed in and no administrator does not learn what
// is there.
func turnAway(r route, v *visit) error {
	switch {
	case v.signedIn():
		return errNoPage
	case r.access == anyone || v.isAPI():
		return errSignedOut
	case v.r.Method != http.MethodGet && v.r.Method != http.MethodHead:
		return v.redirect("/sign-in")
	}
	return v.redirect("/sign-in?next=" + url.QueryEscape(v.r.URL.RequestURI()))
}

// The cookie of a session. Its name begins with __Host- where the gateway is reached by https, so that no other host
// can set it.
func (c *Console) cookieName() string {
	if c.secure() {
		return "__Host-basegate"
	}
	return "basegate"
}

func (c *Console) secure() bool { return c.settings.Load().PublicURL.Scheme == "https" }

// setCookie gives the browser a session; an empty token takes it away.
func (c *Console) setCookie(v *visit, token string) {
	cookie := &http.Cookie{ //nolint:gosec // Secure is set where the gateway is reached by https
		Name: c.cookieName(), Value: token, Path: "/", MaxAge: int(identity.SessionLife / time.Second),
		HttpOnly: true, Secure: c.secure(), SameSite: http.SameSiteLaxMode,
	}
	if token == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(v.w, cookie)
}
