package proxy

import (
	"bytes"
	"compress/flate"
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
	var source io.Reader = x.r.Body
	switch encoding := strings.ToLower(strings.TrimSpace(x.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		unpacked, err := gzip.NewReader(source)
		if err != nil {
			return nil, x.unreadable(err)
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
		return nil, x.unreadable(err)
	}
	if int64(buffer.Len()) > limit {
		return nil, apierr.BodyTooLarge(limit)
	}
	x.bodyRead = true
	return buffer.Bytes(), nil
}

// unreadable tells a body that cannot be unpacked from a client that left in the middle of sending.
func (x *exchange) unreadable(err error) error {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	if corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || x.arrivedWhole() {
		return apierr.MalformedJSON(0, "the body is not valid gzip, which its Content-Encoding says it is")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return apierr.MalformedJSON(0, "the body did not arrive within two minutes")
	}
	return errClientGone
}

// arrivedWhole tells, of a body that could not be unpacked to its end, whether all of it had come.
func (x *exchange) arrivedWhole() bool {
	_, err := x.r.Body.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
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
