package proxy

import (
	"net/http"
	"time"
)

// guest asks from within the gateway, where it has been found out already whose key it asks with.
type guest struct{ account, key string }

// ServeOnBehalfOf answers a completion request that comes from within, in the name of one of an account's keys: like POST
// /v1/completions in everything, so that queue, budgets, ledger, errors and the log are the same, but that it asks for no
// secret, and that tokens are named by their ids in the answer. The caller has made sure that the account asks.
func (s *Server) ServeOnBehalfOf(account, key string, w http.ResponseWriter, r *http.Request) {
	http.NewResponseController(w).SetWriteDeadline(time.Time{}) //nolint:errcheck // what waits for its turn waits without limit; boundWrites sets another
	x := s.begin(w, r)
	x.guest = &guest{account, key}
	_ = s.run(x, func() error { return s.completion(x) }) // it has been rendered
}
