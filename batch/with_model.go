package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/tidwall/gjson"
)

// WithModel returns the lines of a file, with a model in those whose body names none. A line that is malformed or longer
// than maxLine is left as it is, for the validation to refuse. The caller must close the reader.
func WithModel(file io.Reader, model string, maxLine int64) io.ReadCloser {
	name, _ := json.Marshal(model) //nolint:errchkjson // a string
	r, w := io.Pipe()
	c := &modelReader{PipeReader: r}
	c.copying.Go(func() { w.CloseWithError(copyWithModel(w, file, name, maxLine)) })
	return c
}

// modelReader reads what a goroutine writes.
type modelReader struct {
	*io.PipeReader
	copying sync.WaitGroup
}

// Close ends the goroutine and waits for it.
func (r *modelReader) Close() error {
	err := r.PipeReader.Close()
	r.copying.Wait()
	return err
}

func copyWithModel(to io.Writer, file io.Reader, model []byte, maxLine int64) error {
	scanner, parser := newLineScanner(file, maxLine), newLineParser()
	for {
		text, _, err := scanner.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLineTooLong):
			text = bytes.Repeat([]byte("x"), int(maxLine)+1)
		case err != nil:
			return err
		}
		if l, refused := parser.parse(text); refused == nil && !gjson.GetBytes(l.body, "model").Exists() {
			at := l.bodyAt
			members := append([]byte(`"model":`), model...)
			if len(bytes.TrimSpace(l.body[1:len(l.body)-1])) > 0 {
				members = append(members, ',')
			}
			text = bytes.Join([][]byte{text[:at+1], members, text[at+1:]}, nil)
		}
		if _, err := to.Write(append(text, '\n')); err != nil {
			return err
		}
	}
}
