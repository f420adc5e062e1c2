package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"runtime/debug"
	"strings"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"basegate/console/history"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/identity"
	"basegate/internal/bodyrate"
)

// problem is an error with the texts that a user sees. Its Error method returns the text without the title.
type problem struct {
	status int
	title  string
	text   string
	field  string // of the form that caused it; empty if it is about the whole form
	code   apierr.Code
}

func newProblem(status int, title, text string) *problem {
	return &problem{status: status, title: title, text: text}
}

// knownProblem returns a problem with the words of its code.
func knownProblem(status int, title string, code apierr.Code) *problem {
	return &problem{status: status, title: title, text: errorTable[code].String(), code: code}
}

// on returns the problem as that of a field of the form.
func (p *problem) on(field string) *problem {
	marked := *p
	marked.field = field
	return &marked
}

// Error implements error.
func (p *problem) Error() string { return p.text }

var (
	errNotFound    = knownProblem(http.StatusNotFound, "Page not found", codePageNotFound)
	errSignedOut   = knownProblem(http.StatusUnauthorized, "You are signed out", codeSignedOut)
	errCrossOrigin = knownProblem(http.StatusForbidden, "Request from another site", codeCrossOrigin)
	errTooLarge    = knownProblem(http.StatusRequestEntityTooLarge, "Too long", codeFormTooLarge)
	errUnreadable  = knownProblem(http.StatusBadRequest, "Unreadable request", codeUnreadable)
	errSlow        = knownProblem(http.StatusBadRequest, "Slow request", codeSlowRequest)
	errNoDatabase  = knownProblem(http.StatusServiceUnavailable, "The database is not responding", codeNoDatabase)
	errBusy        = knownProblem(http.StatusServiceUnavailable, "Busy", codeReportsBusy)
	errTooSlow     = knownProblem(http.StatusServiceUnavailable, "The report took too long", codeReportTooSlow)
	errInternal    = knownProblem(http.StatusInternalServerError, "Something went wrong", apierr.Internal)
)

func (*Console) notFound(*request) error { return errNotFound }

// ServeError responds with a page to an error outside the console's paths. It returns false, without a response, if there is
// no page for the status.
func (c *Console) ServeError(ec echo.Context, status int) bool {
	failure := errInternal
	switch status {
	case http.StatusNotFound:
		failure = errNotFound
	case http.StatusInternalServerError:
	default:
		return false
	}
	return c.handle(route{access: anyone, maxBody: maxForm, handler: func(*Console, *request) error { return failure }})(ec) == nil
}

// invalid returns the problem of a form field or a value that is not accepted.
func invalid(text string) *problem {
	return newProblem(http.StatusUnprocessableEntity, "This was not accepted", text)
}

// unreadable returns the error for a body that cannot be read. An error of the body's limit stays as it is.
func unreadable(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSlow
	}
	return errUnreadable
}

// renderError is middleware that makes the console's request from echo's context, and responds with the error that the
// handlers below it return: with a page, or with JSON to a script.
func (c *Console) renderError(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		own := *ec.Request() // net/http expects to find its own body in its request
		r := &request{Context: ec, body: &requestBody{Reader: bodyrate.New(ec.Response(), own.Body), arriving: own.Body}}
		own.Body = r.body
		ec.SetRequest(&own)
		err := next(r)
		r.outliveBody()
		redirected, isRedirect := errors.AsType[*redirectError](err)
		switch {
		case err == nil:
		case isRedirect:
			return r.redirect(redirected.path)
		case r.disconnected():
			endpoint := zap.String("endpoint", r.Request().Method+" "+r.Path())
			c.Log.Info("request", endpoint, zap.Int("status", 499), zap.String("code", history.ClientGone)) // as the API has them
			panic(http.ErrAbortHandler)                                                                     // nobody receives a response
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
				c.Log.Error("panic", zap.String("path", ec.Path()), stack)
				err = errPanic
			}
		}()
		return next(ec)
	}
}

// problemOf returns the problem that a user sees for an error, and logs the error if the user did not cause it.
func (c *Console) problemOf(r *request, err error) *problem {
	if p, ok := formProblem(err); ok {
		return p
	}
	if p := promptProblem(err); p != nil {
		return p
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return errTooLarge
	case errors.Is(err, identity.ErrNoInvitation):
		return errNoInvitation
	case errors.Is(err, database.ErrUnavailable):
		c.Log.Warn("page failed", zap.String("path", r.Request().URL.Path), zap.Error(err))
		return errNoDatabase
	case errors.Is(err, database.ErrReportsBusy):
		return errBusy
	case errors.Is(err, database.ErrReportTooLong):
		c.Log.Warn("page failed", zap.String("path", r.Request().URL.Path), zap.Error(err))
		return errTooSlow
	case errors.Is(err, context.Canceled): // the gateway is stopping
		return errInternal
	}
	c.Log.Error("page failed", zap.String("path", r.Request().URL.Path), zap.Error(err))
	return errInternal
}

// retryAfter is when to try again what is not available, in seconds.
const retryAfter = "5"

func (p *problem) setHeaders(header http.Header) {
	if p.status == http.StatusServiceUnavailable {
		header.Set("Retry-After", retryAfter)
	}
}

// sendErrorPage responds to a browser with an error.
func (c *Console) sendErrorPage(r *request, err error) {
	r.discardBody(maxDiscard)
	p := c.problemOf(r, err)
	p.setHeaders(r.Response().Header())
	data := map[string]string{"Title": p.title, "Text": p.text}
	if err := c.renderStatus(r, p.status, "problem", p.title, data); err != nil {
		c.Log.Debug("send page", zap.Error(err))
	}
}

// sendAPIError responds to a script with an error: an error of the public API in its own form, any other one with an
// object of the same shape.
func (c *Console) sendAPIError(r *request, err error) {
	r.discardBody(maxDiscard)
	header := r.Response().Header()
	if public, ok := errors.AsType[*apierr.Error](err); ok {
		if public.Code == apierr.StorageUnavailable {
			c.Log.Warn("page failed", zap.String("path", r.Path()), zap.Error(err))
		}
		public.SetHeaders(header)
		_ = r.send(public.Status(), echo.MIMEApplicationJSON, public.AppendJSON(nil, header.Get("X-Request-Id")))
		return
	}
	p := c.problemOf(r, err)
	p.setHeaders(header)
	code := cmp.Or(string(p.code), strings.ReplaceAll(strings.ToLower(http.StatusText(p.status)), " ", "_"))
	object := map[string]any{"code": code, "message": p.text, "type": "console_error", "param": nil}
	err = r.sendJSON(p.status, map[string]any{"error": object})
	if err != nil {
		c.Log.Debug("send error", zap.Error(err))
	}
}

// maxDiscard limits how much of a refused body is read, in bytes.
const maxDiscard = maxPrompt

// discardBody reads the rest of a body before the response that refuses it. A body that has failed has its deadline, and nothing more
// to read.
func (r *request) discardBody(most int64) {
	if r.body.discarded || r.body.Failed != nil {
		return
	}
	r.body.discarded = true
	if r.Request().Header.Get("Expect") != "" && !r.body.awaited { // then nothing comes unless it is asked for, as a read does
		most = 0
	}
	bodyrate.Discard(r.Response(), r.body.arriving, most)
}
