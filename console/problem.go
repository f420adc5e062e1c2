package console

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	apierr "basegate/errors"
)

// problem is an error with words for whoever looks at the page.
type problem struct {
	status int
	title  string
	text   string
}

// Error implements error.
func (p *problem) Error() string { return p.text }

var (
	errNoPage = &problem{
		http.StatusNotFound, "There is no such page",
		"The address is wrong, or what was here is gone.",
	}
	errSignedOut = &problem{
		http.StatusUnauthorized, "Nobody is signed in",
		"The session has ended. Sign in again.",
	}
	errForeign = &problem{
		http.StatusForbidden, "This came from another site",
		"Another site has sent this form, so nothing was changed. Open the console itself and try there.",
	}
	errTooLong = &problem{
		http.StatusRequestEntityTooLarge, "This is too long",
		"The form holds more than is taken at once. Nothing was changed.",
	}
	errNoDatabase = &problem{
		http.StatusServiceUnavailable, "The database does not answer",
		"Nothing was changed. Try again in a moment.",
	}
	errOurs = &problem{
		http.StatusInternalServerError, "Something went wrong",
		"This is the gateway's fault and has been logged. Try again, and send feedback if it stays so.",
	}
)

func (*Console) notFound(*visit) error { return errNoPage }

// invalid is a problem with what a form holds.
func invalid(text string) *problem {
	return &problem{http.StatusUnprocessableEntity, "This cannot be taken over", text}
}

// asProblem tells whether an error has words of its own for a page.
func asProblem(err error) (*problem, bool) {
	return errors.AsType[*problem](err)
}

// explain finds the words for an error.
func (c *Console) explain(v *visit, err error) *problem {
	var known *problem
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &long):
		return errTooLong
	case errors.Is(err, database.ErrUnavailable):
		c.log.Warn("page failed", zap.String("path", v.r.URL.Path), zap.Error(err))
		return errNoDatabase
	case errors.Is(err, context.Canceled): // nobody is there to read it
		return errOurs
	}
	c.log.Error("page failed", zap.String("path", v.r.URL.Path), zap.Error(err))
	return errOurs
}

// fail answers with an error: a page, or JSON to a script.
func (c *Console) fail(v *visit, err error) {
	if v.isAPI() {
		c.failAPI(v, err)
		return
	}
	p := c.explain(v, err)
	data := map[string]string{"Title": p.title, "Text": p.text}
	if err := c.renderStatus(v, p.status, "problem", p.title, data); err != nil {
		c.log.Debug("send page", zap.Error(err))
	}
}

// isAPI tells whether a script asks.
func (v *visit) isAPI() bool { return strings.HasPrefix(v.r.URL.Path, "/console/api/") }

// failAPI answers a script with the error object of the public API, where the error is one of it, or the same shape
// with words alone.
func (c *Console) failAPI(v *visit, err error) {
	v.readOn()
	h := v.w.Header()
	h.Set("Content-Type", "application/json")
	if public, ok := errors.AsType[*apierr.Error](err); ok {
		public.SetHeaders(h)
		v.w.WriteHeader(public.Code.Status())
		_, err = v.w.Write(public.AppendJSON(nil, h.Get("X-Request-Id")))
	} else {
		p := c.explain(v, err)
		v.w.WriteHeader(p.status)
		code := strings.ReplaceAll(strings.ToLower(http.StatusText(p.status)), " ", "_")
		err = json.NewEncoder(v.w).Encode(map[string]any{"error": map[string]any{"code": code, "message": p.text, "type": "console_error", "param": nil}})
	}
	if err != nil {
		c.log.Debug("send error", zap.Error(err))
	}
}

// readOn reads what a script is still sending, up to a megabyte and for five seconds: it would see its connection reset
// in place of the answer. The deadline stays behind, since net/http too reads on before it sends an answer.
func (v *visit) readOn() {
	control := http.NewResponseController(v.w)
	if control.SetReadDeadline(time.Now().Add(5*time.Second)) != nil {
		return
	}
	io.CopyN(io.Discard, v.r.Body, 1<<20) //nolint:errcheck // best effort
}
