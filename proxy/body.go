package proxy

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	apierr "basegate/errors"
)

const (
	// bodyTimeout is how long a client may take to send its body.
	bodyTimeout = 2 * time.Minute
	// firstBuffer is the most that is reserved for a body before any of it has come, in bytes: a client's word on the
	// length alone must not cost much memory.
	firstBuffer = 1 << 20
	// unknownBuffer is reserved for a body whose length the client did not give.
	unknownBuffer = 16 << 10
)

// readBody takes the whole body into memory, decompressed, within the size limit.
func (x *exchange) readBody() ([]byte, error) {
	limit := x.settings.MaxBodyBytes
	if x.r.ContentLength > limit {
		return nil, apierr.BodyTooLarge(limit)
	}
	control := http.NewResponseController(x.w)
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err == nil {
		defer control.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	}
	arriving := &arrival{body: x.r.Body}
	var source io.Reader = arriving
	switch encoding := strings.ToLower(strings.TrimSpace(x.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		if n := x.r.ContentLength; n >= 0 && n <= min(limit, firstBuffer) {
			body := make([]byte, n) // not a byte more: many may wait for their turn
			if _, err := io.ReadFull(source, body); err != nil {
				return nil, arriving.unreadable()
			}
			x.bodyRead = true
			return body, nil
		}
	case "gzip", "x-gzip":
		unpacked, err := gzip.NewReader(source)
		if err != nil {
			return nil, arriving.unreadable()
		}
		source = unpacked
	default:
		return nil, apierr.UnknownEncoding(encoding)
	}
	size := min(x.r.ContentLength, firstBuffer)
	if size < 0 {
		size = unknownBuffer
	}
	buffer := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := buffer.ReadFrom(io.LimitReader(source, limit+1)); err != nil {
		return nil, arriving.unreadable()
	}
	if int64(buffer.Len()) > limit {
		return nil, apierr.BodyTooLarge(limit)
	}
	x.bodyRead = true
	return buffer.Bytes(), nil
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
// would see its connection reset in place of the answer.
func (x *exchange) discardBody() {
	if x.bodyRead || x.r.Body == http.NoBody || x.r.Header.Get("Expect") != "" {
		return // nothing is coming, or it waits for leave to come
	}
	most := x.settings.MaxBodyBytes
	if x.identity.KeyID != "" {
		most = max(most, discardMost)
	}
	control := http.NewResponseController(x.w)
	if control.SetReadDeadline(time.Now().Add(discardTimeout)) != nil {
		return
	}
	io.CopyN(io.Discard, x.r.Body, most) //nolint:errcheck // best effort
	control.SetReadDeadline(time.Time{}) //nolint:errcheck // it could be set before
}
