package proxy

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"basegate/admission"
	apierr "basegate/errors"
)

const (
	// bodyTimeout is how long a client may take to send its body.
	bodyTimeout = 2 * time.Minute
	// firstBuffer is what a body gets before any of it has come, in bytes: a client's word on the length alone must not
	// cost much memory. What goes beyond it counts with what waits.
	firstBuffer = 16 << 10
	// likelySize is up to where a client is believed the length of its body once firstBuffer of it has come, in bytes.
	likelySize = 1 << 20
	// unpackerSize is what it takes to unpack a body, in bytes.
	unpackerSize = 48 << 10
)

// readBody takes the whole body into memory, decompressed, within the size limit.
func (s *Server) readBody(x *exchange) ([]byte, error) {
	limit := x.settings.MaxBodyBytes
	if x.r.ContentLength > limit {
		return nil, apierr.BodyTooLarge(limit)
	}
	control := http.NewResponseController(x.w)
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err == nil {
		defer control.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	}
	arriving := &arrival{body: x.r.Body}
	in := intake{source: arriving, size: x.r.ContentLength, queue: s.queue}
	defer in.release()
	switch encoding := strings.ToLower(strings.TrimSpace(x.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		if err := in.take(unpackerSize); err != nil {
			return nil, tooMuchWaits(err)
		}
		unpacked, err := gzip.NewReader(arriving)
		if err != nil {
			return nil, arriving.unreadable()
		}
		in.source, in.size = unpacked, unknownSize
	default:
		return nil, apierr.UnknownEncoding(encoding)
	}
	body, err := in.all(limit)
	switch {
	case errors.Is(err, admission.ErrFull):
		return nil, tooMuchWaits(err)
	case err != nil:
		return nil, arriving.unreadable()
	case int64(len(body)) > limit:
		return nil, apierr.BodyTooLarge(limit)
	}
	x.bodyRead = true
	x.r.Body.Close() // nothing is left of it, but net/http would look for more before the answer, deep in its stack
	return body, nil
}

// unknownSize is that of a body whose length nobody has said.
const unknownSize = -1

// intake is the memory that a body takes while it comes.
type intake struct {
	source   io.Reader
	size     int64 // of the whole body; unknownSize where nobody has said
	queue    *admission.Queue
	releases []func()
}

// take counts bytes with what waits.
func (in *intake) take(bytes int64) error {
	release, err := in.queue.ReserveMemory(bytes)
	if err == nil {
		in.releases = append(in.releases, release)
	}
	return err
}

// release counts the body no more: the next that it waits for counts it by itself.
func (in *intake) release() {
	for _, release := range in.releases {
		release()
	}
}

// all reads to the end, or one byte over the limit. A body of known size takes not a byte more in the end: many may wait
// for their turn.
func (in *intake) all(limit int64) ([]byte, error) {
	most := limit + 1
	if in.size >= 0 {
		most = in.size
	}
	body := make([]byte, 0, min(most, firstBuffer))
	for int64(len(body)) < most {
		if len(body) == cap(body) {
			size := min(most, 2*int64(cap(body)))
			if most == in.size && most <= likelySize {
				size = most
			}
			if err := in.take(size - int64(cap(body))); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := in.source.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF) && (in.size < 0 || int64(len(body)) == in.size):
			return body, nil
		case err != nil && int64(len(body)) < most:
			return nil, err
		}
	}
	return body, nil
}

// arrival is a body on its way, and what broke it. That is not to be asked for afterwards: once it has broken off,
// net/http calls the rest of a body its regular end.
type arrival struct {
	body  io.Reader
	broke error // nil while nothing has
}

// Read implements io.Reader.
func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err != nil && err != io.EOF {
		a.broke = err
	}
	return n, err
}

// unreadable tells a body that came whole and cannot be unpacked from a client that left, or stalled, in the middle of
// sending.
func (a *arrival) unreadable() error {
	switch {
	case a.broke == nil:
		return apierr.MalformedJSON(0, "the body is not valid gzip, which its Content-Encoding says it is")
	case errors.Is(a.broke, os.ErrDeadlineExceeded):
		return apierr.MalformedJSON(0, "the body did not arrive within two minutes")
	default:
		return errClientGone
	}
}

const (
	// discardMost is how much of an unwanted body is read for a client with a key, in bytes; for others it is no more
	// than a body may have.
	discardMost    = 64 << 20
	discardTimeout = 5 * time.Second
)

// discardBody reads on in a body that nobody wants, before the answer that says so: a client that is still sending
// would see its connection reset in place of the answer. The deadline stays behind, since net/http too reads on in a body
// before it sends an answer, for as long as that takes.
func (x *exchange) discardBody() {
	if x.bodyRead || x.r.Body == http.NoBody || x.r.Header.Get("Expect") != "" {
		return // nothing is coming, or it waits for leave to come
	}
	most := x.settings.MaxBodyBytes
	if x.payer.Key != "" {
		most = max(most, discardMost)
	}
	control := http.NewResponseController(x.w)
	if control.SetReadDeadline(time.Now().Add(discardTimeout)) != nil {
		return
	}
	io.CopyN(io.Discard, x.r.Body, most) //nolint:errcheck // best effort
}
