// Package bodyrate ends the bodies of requests that arrive too slowly: while one arrives, its request holds a connection,
// memory, or a place that others wait for.
package bodyrate

import (
	"errors"
	"io"
	"net/http"
	"time"
)

const (
	// Timeout is how long a client may take to send a body.
	Timeout = 2 * time.Minute
	// Window is the time in which MinBytes must arrive, after the first two.
	Window = 10 * time.Second
	// MinBytes must arrive in every Window.
	MinBytes = 64 << 10

	discardTimeout = 5 * time.Second
)

// Reader is the body of a request that arrives. It limits how slowly it may come by the connection's read deadline. Only time
// that is spent in Read counts.
type Reader struct {
	Unlimited bool  // it may take longer than Timeout
	Failed    error // of the first failed read, as net/http may report a regular end for further ones; nil while reads succeed

	body     io.Reader
	control  *http.ResponseController
	spent    time.Duration // in Read
	limit    time.Duration // of spent, until MinBytes have arrived
	received int           // bytes since the limit was last extended
}

// New returns the body of a request with the response w. Its time begins with the first Read.
func New(w http.ResponseWriter, body io.Reader) *Reader {
	return &Reader{body: body, control: http.NewResponseController(w), limit: 2 * Window}
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	began := time.Now()
	r.setDeadline(began.Add(r.limit - r.spent))
	n, err := r.body.Read(p)
	r.spent += time.Since(began)
	if err != nil && !errors.Is(err, io.EOF) {
		r.Failed = err
		return n, err
	}
	r.End() // over HTTP/2, a deadline that passes between two reads ends the body
	if r.received += n; r.received >= MinBytes {
		r.received = 0
		r.limit = r.spent + Window
		if !r.Unlimited {
			r.limit = min(r.limit, Timeout)
		}
	}
	return n, err
}

// End removes the read deadline.
func (r *Reader) End() { r.setDeadline(time.Time{}) }

// Discard reads the rest of a body, at most so many bytes and for five seconds, before the response that refuses it: a client that is
// still sending would see a connection reset otherwise. With 0 it reads nothing, for a client that waits for "100 Continue", which a
// read asks for. The read deadline stays set, since net/http reads on too.
func Discard(w http.ResponseWriter, body io.Reader, most int64) {
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(discardTimeout)) == nil {
		io.CopyN(io.Discard, body, most) //nolint:errcheck // best effort
	}
}

func (r *Reader) setDeadline(deadline time.Time) {
	r.control.SetReadDeadline(deadline)
}
