package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/tidwall/gjson"
)

// WithModel returns the lines of a file, with a model in those whose body names none. A line that is malformed or longer
// than maxLine is left as it is, for the validation to refuse.
func WithModel(file io.Reader, model string, maxLine int64) io.Reader {
	name, _ := json.Marshal(model)
	return &modelReader{scanner: newLineScanner(file, maxLine), model: name}
}

// modelReader reads lines with a model.
type modelReader struct {
	scanner *lineScanner
	model   []byte
	rest    []byte // of a line
}

// Read implements io.Reader.
func (r *modelReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *modelReader) next() error {
	text, _, err := r.scanner.next()
	switch {
	case errors.Is(err, errLineTooLong):
		text = bytes.Repeat([]byte("x"), int(r.scanner.most)+1)
	case err != nil:
		return err
	}
	if l, refused := parseLine(text); refused == nil && !gjson.GetBytes(l.body, "model").Exists() {
		members := append([]byte(`"model":`), r.model...)
		if len(bytes.TrimSpace(l.body[1:len(l.body)-1])) > 0 {
			members = append(members, ',')
		}
		text = bytes.Join([][]byte{text[:l.bodyAt+1], members, text[l.bodyAt+1:]}, nil)
	}
	r.rest = append(text, '\n')
	return nil
}
