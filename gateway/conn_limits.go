package gateway

import (
	"net/http"
	"time"
)

// The deadlines of requests outside the API, which has its own.
const (
	formTimeout = 2 * time.Minute  // to send a form
	pageTimeout = 10 * time.Minute // to read a page
)

// limitConnections is middleware that limits how long a client can hold a connection by sending or reading slowly, but for
// paths of the API.
func limitConnections(isAPI func(path string) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isAPI(r.URL.Path) {
			control := http.NewResponseController(w)
			control.SetWriteDeadline(time.Now().Add(pageTimeout))
			if r.Body != http.NoBody {
				control.SetReadDeadline(time.Now().Add(formTimeout))
			}
		}
		next.ServeHTTP(w, r)
	})
}
