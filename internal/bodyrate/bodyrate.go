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
	// deadlineStep is how far the read deadline must move to be set again.
	deadlineStep = time.Second
)

// Reader is the body of a request that arrives. It limits how slowly it may come by the connection's read deadline. Only time
// that is spent in Read counts.
type Reader struct {
	Unlimited bool  // it may take longer than Timeout
	Failed    error // of the first failed read, as net/http may report a regular end for further ones; nil while reads succeed

	body     io.Reader
	control  *http.ResponseController
	began    time.Time // of the first Read, later by the time that the caller has taken between reads
	returned time.Time // of the last Read
	deadline time.Time
	received int // bytes since the deadline was last extended
}

// New returns the body of a request with the response w. Its time begins with the first Read.
func New(w http.ResponseWriter, body io.Reader) *Reader {
	return &Reader{body: body, control: http.NewResponseController(w)}
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	now := time.Now()
	if r.began.IsZero() {
		r.began = now
		r.setDeadline(now.Add(2 * Window))
	} else if pause := now.Sub(r.returned); pause >= deadlineStep {
		r.began = r.began.Add(pause)
		r.setDeadline(r.deadline.Add(pause))
	}
	n, err := r.body.Read(p)
	r.returned = time.Now()
	if err != nil && !errors.Is(err, io.EOF) {
		r.Failed = err
	}
	if r.received += n; r.received >= MinBytes {
		r.received = 0
		r.extend()
	}
	return n, err //nolint:wrapcheck // the body's own
}

// extend moves the read deadline after MinBytes have arrived.
func (r *Reader) extend() {
	next := r.returned.Add(Window)
	if last := r.began.Add(Timeout); next.After(last) && !r.Unlimited {
		next = last
	}
	if next.Sub(r.deadline) >= deadlineStep {
		r.setDeadline(next)
	}
}

// End removes the read deadline.
func (r *Reader) End() { r.control.SetReadDeadline(time.Time{}) } //nolint:errcheck // a connection without deadlines has none to remove

func (r *Reader) setDeadline(deadline time.Time) {
	r.deadline = deadline
	r.control.SetReadDeadline(deadline) //nolint:errcheck // a connection without deadlines has no slow bodies
}
