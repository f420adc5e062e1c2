package gateway

import (
	"net/http"
	"time"

	"basegate/proxy"
)

// The deadlines of requests outside the API, which has its own.
const (
	formTimeout = 2 * time.Minute  // to send a form
	pageTimeout = 10 * time.Minute // to read a page
)

// limitConnections is middleware that limits how long a client can hold a connection by sending or reading slowly, and
// closes the connection after a request whose body length is ambiguous, so that no second request can hide in the body.
func limitConnections(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0) {
			// net/http silently ignores a Content-Length beside chunked encoding, and chunked encoding in HTTP/1.0. A
			// proxy in front may have used the other length: RFC 9112 6.1 requires to close the connection.
			w.Header().Set("Connection", "close")
		}
		if !proxy.IsAPI(r.URL.Path) {
			control := http.NewResponseController(w)
			control.SetWriteDeadline(time.Now().Add(pageTimeout)) //nolint:errcheck // net/http's connections support deadlines
			if r.Body != http.NoBody {
				control.SetReadDeadline(time.Now().Add(formTimeout)) //nolint:errcheck // as above
			}
		}
		next.ServeHTTP(w, r)
	})
}
