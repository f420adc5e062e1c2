package console

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/labstack/echo/v4"

	"basegate/identity"
	"basegate/internal/bodyrate"
	"basegate/proxy/http1/strict"
)

// request is a request to the console and its response: echo's context, which the middleware passes on, with the
// account that is signed in. Echo reuses its context after the handler has returned, so a function that may run later
// must not use the request.
type request struct {
	echo.Context
	body    *requestBody
	session string           // of the cookie; empty if there is none
	account identity.Account // zero if nobody is signed in
}

// requestBody is the body of a request, which may not arrive too slowly.
type requestBody struct {
	*bodyrate.Reader

	arriving  io.ReadCloser // without the limit
	awaited   bool          // it has been read from
	discarded bool          // the rest has been
}

// Close implements io.Closer.
func (b *requestBody) Close() error { return b.arriving.Close() }

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.awaited = true
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		b.End()
	}
	return n, err
}

// disconnected reports whether the client has disconnected, while it was sending or since.
func (r *request) disconnected() bool {
	if r.body.Failed != nil {
		return strict.Disconnected(r.body.Failed)
	}
	return errors.Is(context.Cause(r.ctx()), context.Canceled)
}

// outliveBody makes the request continue although its body was too slow: net/http has cancelled it then, but the client still
// awaits a response.
func (r *request) outliveBody() {
	if r.body.Failed != nil && !r.disconnected() {
		r.SetRequest(r.Request().WithContext(context.WithoutCancel(r.ctx())))
	}
}

// handler is the handler of a route, or a step before it. Middleware renders the error that it returns.
type handler func(*Console, *request) error

// of returns the handler of what find finds by the path, such as a model.
func of[T any](find func(*Console, *request) (T, error), handle func(*Console, *request, T) error) handler {
	return func(c *Console, r *request) error {
		found, err := find(c, r)
		if err != nil {
			return err
		}
		return handle(c, r, found)
	}
}

// requestOf returns the request that renderError has made, the outermost middleware that uses one.
func requestOf(ec echo.Context) *request {
	return ec.(*request)
}

// ctx returns the context of the request. It carries the user's e-mail address as the actor of the audit log.
func (r *request) ctx() context.Context { return r.Request().Context() }

// signedIn reports whether a user is signed in.
func (r *request) signedIn() bool { return r.account.ID != "" }

// isAPI reports whether the request is a script's, which gets JSON instead of pages.
func (r *request) isAPI() bool { return strings.HasPrefix(r.Request().URL.Path, "/console/api/") }

// isAdministration reports whether the request is for a page of the administration, which requireAccess lets only
// administrators open.
func (r *request) isAdministration() bool { return strings.HasPrefix(r.Path(), "/admin/") }

// param returns the decoded value of a parameter of the path. Echo matches the path undecoded if its encoding is not
// the usual one, and then does not decode the parameters either.
func (r *request) param(name string) string {
	value := r.Param(name)
	if r.Request().URL.RawPath == "" {
		return value
	}
	decoded, err := url.PathUnescape(value)
	if err != nil {
		return value
	}
	return decoded
}

// query returns a parameter of the query without surrounding space.
func (r *request) query(name string) string { return strings.TrimSpace(r.QueryParam(name)) }

// field returns a form field without surrounding space.
func (r *request) field(name string) string {
	return strings.TrimSpace(r.Request().PostFormValue(name))
}

// readJSON decodes a body that must be one JSON value without unknown fields.
func (r *request) readJSON(into any) error {
	decoder := json.NewDecoder(r.Request().Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return invalidJSON(err)
	}
	switch _, err := decoder.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return invalidJSON(err)
	}
	return invalid("The body has data after the JSON value.")
}

// invalidJSON converts an error of the decoder to a problem. An error of the body stays as unreadable returns it.
func invalidJSON(err error) error {
	if errors.Is(err, strict.ErrChunks) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, new(*http.MaxBytesError)) {
		return unreadable(err)
	}
	_, syntax := errors.AsType[*json.SyntaxError](err)
	if syntax || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("What was sent is not JSON.")
	}
	return invalid("What was sent is not understood: " + err.Error())
}

// redirect sends the browser to another page with GET.
func (r *request) redirect(path string) error {
	http.Redirect(r.Response(), r.Request(), path, http.StatusSeeOther)
	return nil
}

// send writes a whole response.
func (r *request) send(status int, contentType string, body []byte) error {
	_ = r.Blob(status, contentType, body) // fails only if the client has disconnected
	return nil
}

// sendJSON responds to a script.
func (r *request) sendJSON(status int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return r.send(status, echo.MIMEApplicationJSON, append(body, '\n'))
}

// sendResult is sendJSON, unless err is an error, which it returns.
func (r *request) sendResult(status int, value any, err error) error {
	if err != nil {
		return err
	}
	return r.sendJSON(status, value)
}

// noContent tells a script that a request has succeeded, unless err is an error, which it returns.
func (r *request) noContent(err error) error {
	if err != nil {
		return err
	}
	return r.NoContent(http.StatusNoContent)
}

// sendText responds with a text that is no page. The media type is one of text/* or application/json.
func (r *request) sendText(mediaType, text string) error {
	return r.send(http.StatusOK, mediaType+"; charset=utf-8", []byte(text))
}
