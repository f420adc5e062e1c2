package proxy

import (
	"net/http"
	"time"
)

// principal is an account with one of its keys, on behalf of which the console sends requests.
type principal struct {
	account, key string
	preview      bool // an estimate of what the user is typing: neither the overview nor the refusals count it
}

// ServeOnBehalfOf serves a completion request of the console in the name of one of an account's keys. It does all that
// POST /v1/completions does (queue, budgets, ledger, errors, log), but needs no secret, and makes vLLM name tokens by
// their ids. The caller must have authenticated the account.
func (s *Server) ServeOnBehalfOf(account, key string, w http.ResponseWriter, r *http.Request) {
	http.NewResponseController(w).SetWriteDeadline(time.Time{})
	s.serveOnBehalfOf(principal{account: account, key: key}, w, r, (*Server).completion)
}

// ChatOnBehalfOf is ServeOnBehalfOf for a chat completion, which it serves as POST /v1/chat/completions does.
func (s *Server) ChatOnBehalfOf(account, key string, w http.ResponseWriter, r *http.Request) {
	http.NewResponseController(w).SetWriteDeadline(time.Time{})
	s.serveOnBehalfOf(principal{account: account, key: key}, w, r, (*Server).chat)
}

// EstimateOnBehalfOf responds to the body of a completion or chat completion of the console as POST /v1/estimate does.
// The caller must have authenticated the account.
func (s *Server) EstimateOnBehalfOf(account, key string, w http.ResponseWriter, r *http.Request) {
	s.serveOnBehalfOf(principal{account: account, key: key, preview: true}, w, r, (*Server).estimate)
}

func (s *Server) serveOnBehalfOf(p principal, w http.ResponseWriter, r *http.Request, serve func(*Server, *exchange) error) {
	x := s.newExchange(w, r)
	x.caller.onBehalfOf = &p
	_ = s.run(x, func() error { return serve(s, x) }) // the error has been sent
}
