package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"basegate/database"
	apierr "basegate/errors"
)

// problem is an error with the texts that a user sees. Its Error method returns the text without the title.
type problem struct {
	status int
	title  string
	text   string
}

// Error implements error.
func (p *problem) Error() string { return p.text }

var (
	errNotFound = &problem{
		http.StatusNotFound, "There is no such page",
		"The address is wrong, or what was here is gone.",
	}
	errSignedOut = &problem{
		http.StatusUnauthorized, "Nobody is signed in",
		"The session has ended. Sign in again.",
	}
	errCrossOrigin = &problem{
		http.StatusForbidden, "This came from another site",
		"Another site has sent this form, so nothing was changed. Open the console itself and try there.",
	}
	errTooLarge = &problem{
		http.StatusRequestEntityTooLarge, "This is too long",
		"The form holds more than is taken at once. Nothing was changed.",
	}
	errNoDatabase = &problem{
		http.StatusServiceUnavailable, "The database does not answer",
		"Nothing was changed. Try again in a moment.",
	}
	errInternal = &problem{
		http.StatusInternalServerError, "Something went wrong",
		"This is the gateway's fault and has been logged. Try again, and send feedback if it stays so.",
	}
)

func (*Console) notFound(*request) error { return errNotFound }

// invalid returns the problem of a form field or a value that is not accepted.
func invalid(text string) *problem {
	return &problem{http.StatusUnprocessableEntity, "This cannot be taken over", text}
}

// renderError is middleware that makes the console's request from echo's context, and responds with the error that the
// handlers below it return: with a page, or with JSON to a script.
func (c *Console) renderError(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		r := &request{Context: ec}
		err := next(r)
		switch {
		case err == nil:
		case r.isAPI():
			c.sendAPIError(r, err)
		default:
			c.sendErrorPage(r, err)
		}
		return nil
	}
}

var errPanic = errors.New("handler panicked, see the log entry with its stack")

// recoverPanic is middleware that returns a panic as an error. It logs the stack but not the panic's value, which may
// hold a user's text.
func (c *Console) recoverPanic(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) (err error) {
		defer func() {
			value := recover()
			if e, ok := value.(error); ok && errors.Is(e, http.ErrAbortHandler) {
				panic(value)
			}
			if value != nil {
				stack := zap.ByteString("stack", debug.Stack()) //nolint:forbidigo // frames, not a body
				c.log.Error("panic", zap.String("path", ec.Path()), stack)
				err = errPanic
			}
		}()
		return next(ec)
	}
}

// problemOf returns the problem that a user sees for an error, and logs the error if the user did not cause it.
func (c *Console) problemOf(r *request, err error) *problem {
	var tooLarge *http.MaxBytesError
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	switch {
	case errors.As(err, &tooLarge):
		return errTooLarge
	case errors.Is(err, database.ErrUnavailable):
		c.log.Warn("page failed", zap.String("path", r.Request().URL.Path), zap.Error(err))
		return errNoDatabase
	case errors.Is(err, context.Canceled): // the client has disconnected
		return errInternal
	}
	c.log.Error("page failed", zap.String("path", r.Request().URL.Path), zap.Error(err))
	return errInternal
}

// sendErrorPage responds to a browser with an error.
func (c *Console) sendErrorPage(r *request, err error) {
	p := c.problemOf(r, err)
	data := map[string]string{"Title": p.title, "Text": p.text}
	if err := c.renderStatus(r, p.status, "problem", p.title, data); err != nil {
		c.log.Debug("send page", zap.Error(err))
	}
}

// sendAPIError responds to a script with an error: an error of the public API in its own form, any other one with an
// object of the same shape.
func (c *Console) sendAPIError(r *request, err error) {
	r.discardBody()
	header := r.Response().Header()
	if public, ok := errors.AsType[*apierr.Error](err); ok {
		public.SetHeaders(header)
		_ = r.send(public.Code.Status(), echo.MIMEApplicationJSON, public.AppendJSON(nil, header.Get("X-Request-Id")))
		return
	}
	p := c.problemOf(r, err)
	code := strings.ReplaceAll(strings.ToLower(http.StatusText(p.status)), " ", "_")
	object := map[string]any{"code": code, "message": p.text, "type": "console_error", "param": nil}
	err = r.sendJSON(p.status, map[string]any{"error": object})
	if err != nil {
		c.log.Debug("send error", zap.Error(err))
	}
}

// discardBody reads the rest of a script's body, up to a megabyte and for up to five seconds. Otherwise a script that
// is still sending would find its connection reset before it reads the response. The deadline is not cleared, since
// net/http also reads the rest of the body before it sends the response.
func (r *request) discardBody() {
	if http.NewResponseController(r.Response()).SetReadDeadline(time.Now().Add(5*time.Second)) != nil {
		return
	}
	io.CopyN(io.Discard, r.Request().Body, 1<<20) //nolint:errcheck // best effort
}
