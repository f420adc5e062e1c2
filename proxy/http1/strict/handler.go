package strict

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

// NewHandler returns a handler that closes the connection after a request whose body length is ambiguous, so that no
// second request can hide in the body, and makes malformed bodies recognizable by ErrChunks and ErrLength. The server must have
// DisableGeneralOptionsHandler set, or the handler would not see OPTIONS *.
func NewHandler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0) {
			// net/http silently ignores a Content-Length beside chunked encoding, and chunked encoding in HTTP/1.0. A
			// proxy in front may have used the other length: RFC 9112 6.1 requires to close the connection.
			w.Header().Set("Connection", "close")
			own := *r // net/http expects to find its own body in its request
			own.Body = chunkedBody{r.Body}
			r = &own
		}
		if r.ProtoMajor == 2 && r.ContentLength > 0 {
			r.Body = http2Body{r.Body}
		}
		next.ServeHTTP(w, r)
	})
}

// Disconnected reports whether an error of reading a request's body says that the client has disconnected: the body came in
// time, and as far as it came it was well-formed.
func Disconnected(err error) bool {
	return err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ErrChunks) &&
		!errors.Is(err, ErrLength)
}

// ErrLength is returned by reads of an HTTP/2 request's body that ends before its Content-Length.
var ErrLength = errors.New("the request's body is shorter than its Content-Length")

// http2Body is the body of an HTTP/2 request.
type http2Body struct{ io.ReadCloser }

// Read implements io.Reader. The error of net/http for a wrong Content-Length has no type of its own.
func (b http2Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && strings.HasPrefix(err.Error(), "request declared a Content-Length") {
		err = fmt.Errorf("%w: %w", ErrLength, err)
	}
	return n, err
}

// ErrChunks is returned by reads of a request body whose chunked encoding is malformed.
var ErrChunks = errors.New("malformed chunked encoding in the request")

// chunkedBody is the body of a chunked request, or of one in HTTP/1.0.
type chunkedBody struct{ io.ReadCloser }

// Read implements io.Reader. The errors that net/http's decoder returns for malformed chunks have no type of their own:
// they are those that are not the connection's.
func (b chunkedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var netErr net.Error
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &netErr),
		errors.Is(err, net.ErrClosed), errors.Is(err, http.ErrBodyReadAfterClose):
		return n, err
	default:
		return n, fmt.Errorf("%w: %w", ErrChunks, err)
	}
}
