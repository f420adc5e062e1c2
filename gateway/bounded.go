package gateway

import (
	"net/http"
	"time"

	"basegate/proxy"
)

// Outside the API, which has limits of its own: how long a client may take to send a form, and to read a page.
const (
	formTimeout = 2 * time.Minute
	pageTimeout = 10 * time.Minute
)

// bounded keeps a client from holding a connection for ever by sending or reading slowly, and from hiding a second
// request in the first one's body.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0) {
			// net/http takes a length beside the chunks away without a word, and the chunks where HTTP/1.0 knows none.
			// A proxy in front may have counted by the other: whoever accepts such a request must close (RFC 9112 6.1).
			w.Header().Set("Connection", "close")
		}
		if !proxy.IsAPI(r.URL.Path) {
			control := http.NewResponseController(w)
			control.SetWriteDeadline(time.Now().Add(pageTimeout)) //nolint:errcheck // a connection of net/http has deadlines
			if r.Body != http.NoBody {
				control.SetReadDeadline(time.Now().Add(formTimeout)) //nolint:errcheck // as above
			}
		}
		next.ServeHTTP(w, r)
	})
}
