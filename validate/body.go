package validate

import "io"

// Body is a request body in pieces, some of them the client's own bytes.
type Body struct {
	segments [][]byte
	size     int64
}

// Size is the length in bytes.
func (b Body) Size() int64 { return b.size }

// Reader reads the body from its beginning; every call gives a fresh one, for the next attempt.
func (b Body) Reader() io.Reader { return &bodyReader{rest: b.segments} }

// Append appends the whole body to dst.
func (b Body) Append(dst []byte) []byte {
	for _, s := range b.segments {
		dst = append(dst, s...)
	}
	return dst
}

type bodyReader struct {
	rest [][]byte
	at   int // in the first segment
}

// Read fills p from as many segments as it takes, so that a small body is one read.
func (r *bodyReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && len(r.rest) > 0 {
		k := copy(p[n:], r.rest[0][r.at:])
		n, r.at = n+k, r.at+k
		if r.at == len(r.rest[0]) {
			r.rest, r.at = r.rest[1:], 0
		}
	}
	if n == 0 && len(r.rest) == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo writes the rest segment by segment, without a buffer between.
func (r *bodyReader) WriteTo(w io.Writer) (written int64, err error) {
	for len(r.rest) > 0 {
		n, err := w.Write(r.rest[0][r.at:])
		written += int64(n)
		if err != nil {
			r.at += n
			return written, err //nolint:wrapcheck // the writer's own
		}
		r.rest, r.at = r.rest[1:], 0
	}
	return written, nil
}
