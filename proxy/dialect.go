package proxy

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	apierr "basegate/errors"
	"basegate/validate"
)

// Dialect is another API's form of completions, served below a prefix of its own. Its requests go the way of a completion:
// the same key, queue, reservation, attempts, settlement and log line.
type Dialect struct {
	Prefix string // of its paths, such as /lamini
	Served string // what is served below the prefix, for the error of an unknown path

	// Endpoints parse and validate the bodies of POST, by path. Their errors are those of validate.Completion.
	Endpoints map[string]func(body []byte, limits validate.Limits) (Translation, error)

	// AppendError appends the body of an error; nil: as the API's own.
	AppendError func(dst []byte, e *apierr.Error, requestID string) []byte
}

// Translation is a request of a dialect in the terms of a completion.
type Translation struct {
	Request *validate.Request // with an error as far as it has been parsed; may be nil then
	ChainID string            // is recorded in the ledger; may be empty
	Receipt bool              // the response carries its receipt; receipts must be enabled
	// Respond translates the body of a whole plain response; nil: it is sent as it is.
	Respond func(body []byte) ([]byte, error)
	// TimedOut returns the body of the response to a request that the first byte timeout ended; nil: it is an error.
	TimedOut func() []byte
}

// dialectCall is the state of an exchange that serves a request of a dialect.
type dialectCall struct {
	*Dialect
	parse func(body []byte, limits validate.Limits) (Translation, error) // nil before the endpoint is known
	Translation
}

// dialectOf returns the dialect that serves a path, or nil.
func (s *Settings) dialectOf(path string) *Dialect {
	i := slices.IndexFunc(s.Dialects, func(d *Dialect) bool {
		rest, below := strings.CutPrefix(path, d.Prefix)
		return below && (rest == "" || rest[0] == '/')
	})
	if i < 0 {
		return nil
	}
	return s.Dialects[i]
}

func (s *Server) dialect(x *exchange) error {
	d, path := x.caller.dialect, x.r.URL.Path
	parse, served := d.Endpoints[path]
	switch {
	case !served:
		return apierr.NoSuchPath(x.r.Method, path, d.Served)
	case x.r.Method != http.MethodPost:
		return apierr.WrongMethod(x.r.Method, path, http.MethodPost)
	}
	d.parse, x.r.Pattern = parse, path
	return s.generate(x)
}

// translate returns the translation of a plain response, or nil if the response is sent as it is.
func (d *dialectCall) translate(x *exchange, body []byte) ([]byte, error) {
	if d == nil || d.Respond == nil {
		return nil, nil
	}
	if err := x.memory.Grow(int64(len(body))); err != nil {
		return nil, bufferFull(err)
	}
	return d.Respond(body)
}

// timedOut returns the body of the response to a request that failed with err, or nil if that is an error.
func (x *exchange) timedOut(err error) []byte {
	d := x.caller.dialect
	if d == nil || d.TimedOut == nil || x.delivery.status != 0 || !errors.Is(err, errTimeout) {
		return nil
	}
	return d.TimedOut()
}

// appendError appends the body of an error in the form that the client expects.
func (x *exchange) appendError(dst []byte, e *apierr.Error) []byte {
	if d := x.caller.dialect; d != nil && d.AppendError != nil {
		return d.AppendError(dst, e, x.id)
	}
	return e.AppendJSON(dst, x.id)
}
