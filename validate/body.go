package validate

import "io"

// Body is a request body made of segments, some of which are the client's own bytes.
type Body struct {
	segments [][]byte
	size     int64
}

// Size returns the length in bytes.
func (b Body) Size() int64 { return b.size }

// Reader returns a new reader of the whole body, one for each attempt.
func (b Body) Reader() io.Reader { return &bodyReader{segments: b.segments} }

// Append appends the whole body to dst.
func (b Body) Append(dst []byte) []byte {
	for _, s := range b.segments {
		dst = append(dst, s...)
	}
	return dst
}

type bodyReader struct {
	segments [][]byte // not yet read to their end
	offset   int      // in the first segment
}

// Read fills p from as many segments as fit, so that a small body takes one read.
func (r *bodyReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && len(r.segments) > 0 {
		k := copy(p[n:], r.segments[0][r.offset:])
		n, r.offset = n+k, r.offset+k
		if r.offset == len(r.segments[0]) {
			r.segments, r.offset = r.segments[1:], 0
		}
	}
	if n == 0 && len(r.segments) == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo writes the segments without copying them to a buffer.
func (r *bodyReader) WriteTo(w io.Writer) (written int64, err error) {
	for len(r.segments) > 0 {
		n, err := w.Write(r.segments[0][r.offset:])
		written += int64(n)
		if err != nil {
			r.offset += n
			return written, err
		}
		r.segments, r.offset = r.segments[1:], 0
	}
	return written, nil
}
