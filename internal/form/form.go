// Package form reads multipart/form-data as it arrives. Package mime/multipart takes some forms that were cut off for whole
// ones; here a form is whole only with its closing delimiter, and if the body can be read to its end behind that.
package form

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
)

// The errors of forms. Those of reading the body are returned as they are.
var (
	ErrNotForm   = errors.New("the body is not multipart/form-data")
	ErrMalformed = errors.New("the form is malformed")
	ErrCut       = errors.New("the form ends without its closing delimiter")
)

// maxEpilogue limits what may follow the closing delimiter, in bytes.
const maxEpilogue = 64 << 10

// Reader reads the fields of a form in their order.
type Reader struct {
	parts *multipart.Reader
	body  *body
}

// NewReader returns a Reader of a body with that Content-Type, or ErrNotForm.
func NewReader(contentType string, r io.Reader) (*Reader, error) {
	kind, parameters, err := mime.ParseMediaType(contentType)
	boundary := parameters["boundary"]
	if err != nil || kind != "multipart/form-data" || boundary == "" {
		return nil, ErrNotForm
	}
	b := &body{Reader: r, closing: []byte("\n--" + boundary + "--")}
	return &Reader{multipart.NewReader(b, boundary), b}, nil
}

// Next returns the next field, or io.EOF if the form has ended and is whole.
func (r *Reader) Next() (*multipart.Part, error) {
	part, err := r.parts.NextRawPart()
	switch {
	case err == nil:
		return part, nil
	case err == io.EOF: // at the closing delimiter; a wrapped one is that of a form that was cut off
		return nil, r.end()
	case r.body.failed != nil:
		return nil, r.body.failed
	}
	return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
}

// end reads what follows the closing delimiter, which has no meaning.
func (r *Reader) end() error {
	if err := r.body.failed; err != nil && !errors.Is(err, ErrCut) {
		return err
	}
	_, err := io.CopyN(io.Discard, r.body.Reader, maxEpilogue)
	if err == nil {
		return fmt.Errorf("%w: too much follows its closing delimiter", ErrMalformed)
	}
	return err
}

// Last returns a reader of a field that ends only if the form ends with it; another field is ErrMalformed.
func (r *Reader) Last(field io.Reader) io.Reader { return &last{field, r} }

type last struct {
	io.Reader

	form *Reader
}

// Read implements io.Reader.
func (l *last) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		if _, err = l.form.Next(); err == nil {
			err = fmt.Errorf("%w: another field follows the last one", ErrMalformed)
		}
	}
	return n, err
}

// body is the body of a form. Without the closing delimiter its end is ErrCut.
type body struct {
	io.Reader

	closing []byte
	tail    []byte // the last bytes, as many as closing and a line break have
	failed  error
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	keep := len(b.closing) + len("\r\n")
	b.tail = append(b.tail, p[max(0, n-keep):n]...)
	b.tail = append(b.tail[:0], b.tail[max(0, len(b.tail)-keep):]...)
	if errors.Is(err, io.EOF) && !bytes.HasSuffix(bytes.TrimRight(b.tail, "\r\n"), b.closing) {
		err = ErrCut
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.failed = err
	}
	return n, err
}
