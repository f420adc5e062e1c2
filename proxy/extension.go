package proxy

import (
	"errors"
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/internal/bodyrate"
	"basegate/proxy/http1/strict"
)

// Extension is a route of the API that another package serves, within the frame of every request: authentication, headers,
// errors and the log line. Its path may have parameters, as echo has them.
type Extension struct {
	Method, Path string
	ReadsBody    bool                       // Serve reads the body; that of another route is discarded before
	Serve        func(*ExtensionCall) error // its errors are rendered as those of the API
}

// ExtensionCall is one authenticated request of an Extension.
type ExtensionCall struct {
	Response     http.ResponseWriter
	Request      *http.Request
	Account, Key string
	Run          string                   // that the request is part of; empty if there is none
	Param        func(name string) string // the value of a parameter of the path
}

func (s *Server) extended(x *exchange, c echo.Context, extension Extension) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	if err := x.checkRun(); err != nil {
		return err
	}
	x.memory = s.deps.Memory.Allocate(x.caller.identity.KeyID)
	if x.r.Body != http.NoBody { // it may wait for its turn
		if err := x.memory.Grow(admission.WaitingCost); err != nil {
			return bufferFull(err)
		}
	}
	upload := bodyrate.New(x.w, x.r.Body)
	upload.Unlimited = extension.ReadsBody
	body, err := x.decompressed(upload)
	if err != nil {
		return err
	}
	if !extension.ReadsBody {
		if err := x.skipBody(upload); err != nil {
			return err
		}
	}
	arriving := x.r.Body
	x.r.Body = extensionBody{arriving, body, upload}
	err = extension.Serve(&ExtensionCall{
		Response: &extensionResponse{x.w, s, x}, Request: x.r,
		Account: x.caller.identity.AccountID, Key: x.caller.identity.KeyID, Run: x.run(), Param: c.Param,
	})
	x.r.Body = arriving // so that the rest is discarded by its own deadline
	badBody := upload.Failed != nil && !strict.Disconnected(upload.Failed)
	switch {
	case err == nil:
		upload.End()
	case !badBody && x.cancelled(): // which is why it failed, whatever it failed at; net/http cancels requests with bad bodies too
		return x.cancelErr()
	}
	return err
}

// skipBody reads a body that has no meaning. net/http would read it without a deadline, and a deadline that stayed set would
// cancel a long download.
func (x *exchange) skipBody(u *bodyrate.Reader) error {
	defer u.End()
	limit := x.settings.MaxBodyBytes
	switch n, err := io.CopyN(io.Discard, u, limit+1); {
	case n > limit:
		return apierr.BodyTooLarge(limit)
	case !errors.Is(err, io.EOF):
		return uploadErr(u)
	}
	return nil
}

// extensionBody is the body of a request, decompressed. The errors of its reads are those of the API.
type extensionBody struct {
	io.Closer

	decompressed io.Reader
	upload       *bodyrate.Reader
}

func (b extensionBody) Read(p []byte) (int, error) {
	n, err := b.decompressed.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = uploadErr(b.upload)
	}
	return n, err
}

// extensionResponse records the status that an extension sends, and limits how slowly a client may read.
type extensionResponse struct {
	http.ResponseWriter
	server   *Server
	exchange *exchange
}

func (w *extensionResponse) WriteHeader(status int) {
	w.server.setHeaders(w.exchange, "")
	w.exchange.delivery.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *extensionResponse) Write(p []byte) (int, error) {
	if w.exchange.delivery.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.exchange.extendWriteDeadline()
	n, err := w.ResponseWriter.Write(p)
	if err != nil {
		w.exchange.delivery.clientGone()
	}
	return n, err
}

func (w *extensionResponse) Unwrap() http.ResponseWriter { return w.ResponseWriter }
