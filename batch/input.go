package batch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	apierr "basegate/errors"
	"basegate/proxy"
)

// Codes of a validation, besides those of the API.
const (
	codeEmptyFile    = "empty_file"
	codeTooManyLines = "too_many_lines"
	codeInvalidLine  = "invalid_json_line"
	codeDuplicateID  = "duplicate_custom_id"
	codeMethod       = "invalid_method"
	codeURL          = "invalid_url"
	codeLineTooLong  = "line_too_long"
)

const (
	maxLines    = 50_000
	maxErrors   = 100
	maxCustomID = 512 // bytes
)

// errLineTooLong is returned by next for a line over the limit, which it has skipped.
var errLineTooLong = errors.New("the line is too long")

// lineScanner reads the lines of an input file.
type lineScanner struct {
	reader *bufio.Reader
	most   int64 // bytes of a line
	offset int64 // of the next line, in bytes
	number int64 // of the last line, from 1
	line   []byte
}

func newLineScanner(r io.Reader, most int64) *lineScanner {
	return &lineScanner{reader: bufio.NewReaderSize(r, 64<<10), most: most}
}

// next returns the next line that is not blank, without its end, and where it stands. The line is valid until the next
// call. The error is io.EOF behind the last line, or errLineTooLong.
func (s *lineScanner) next() (line []byte, offset int64, err error) {
	for {
		start := s.offset
		s.line = s.line[:0]
		tooLong := false
		for {
			piece, err := s.reader.ReadSlice('\n')
			s.offset += int64(len(piece))
			if tooLong = tooLong || int64(len(s.line)+len(piece)) > s.most+2; !tooLong {
				s.line = append(s.line, piece...)
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if err != nil && (!errors.Is(err, io.EOF) || s.offset == start) {
				return nil, 0, err
			}
			break
		}
		s.number++
		line := s.line
		if s.number == 1 && bytes.HasPrefix(line, []byte("\xef\xbb\xbf")) {
			line, start = line[3:], start+3
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		switch {
		case tooLong || int64(len(line)) > s.most:
			return nil, start, errLineTooLong
		case len(bytes.TrimSpace(line)) > 0:
			return line, start, nil
		}
	}
}

// line is a parsed line of an input file.
type line struct {
	customID string
	method   string
	url      string
	body     []byte // as it stands in the line
	bodyAt   int    // where it begins in the line
}

func problem(code, param, format string, args ...any) *LineError {
	return &LineError{Code: code, Message: fmt.Sprintf(format, args...), Param: proxy.OrNull(param)}
}

var errNotObject = problem(codeInvalidLine, "", "the line is not one JSON object")

// decoders read lines.
var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(new(bytes.Buffer)) }}

// parseLine parses a line. Its body is validated elsewhere, by the rules of the endpoint, so its bytes are only delimited
// here: the decoder checks its syntax.
func parseLine(text []byte) (l line, refused *LineError) {
	d := decoders.Get().(*jsontext.Decoder)
	defer func() {
		d.Reset(new(bytes.Buffer)) // which lets go of the line
		decoders.Put(d)
	}()
	d.Reset(bytes.NewBuffer(text), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)) // reads it without a copy
	if start, err := d.ReadToken(); err != nil || start.Kind() != '{' {
		return line{}, errNotObject
	}
	seen := map[string]bool{}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return line{}, errNotObject
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return line{}, errNotObject
		}
		if seen[name] {
			return line{}, problem(string(apierr.InvalidRequest), apierr.Clip(name), "the field %q stands twice in the line", apierr.Clip(name))
		}
		seen[name] = true
		if refused = l.set(name, value, text, d.InputOffset()); refused != nil {
			return line{}, refused
		}
	}
	if end, err := d.ReadToken(); err != nil || end.Kind() != '}' {
		return line{}, errNotObject
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return line{}, errNotObject
	}
	for _, name := range []string{"custom_id", "method", "url", "body"} {
		if !seen[name] {
			return line{}, problem(string(apierr.InvalidRequest), name, "%s is missing", name)
		}
	}
	return l, nil
}

// set stores the value of a member, which ends at end in the text.
func (l *line) set(name string, value jsontext.Value, text []byte, end int64) *LineError {
	invalid := string(apierr.InvalidRequest)
	switch name {
	case "custom_id":
		if value.Kind() != '"' || json.Unmarshal(value, &l.customID) != nil {
			return problem(invalid, name, "custom_id is no string")
		}
		if !value.IsValid() { // what is decoded would be another text, by which the client does not find its result
			return problem(string(apierr.BadJSON), "", "custom_id: invalid UTF-8, or half of a surrogate pair")
		}
		if len(l.customID) == 0 || len(l.customID) > maxCustomID {
			return problem(invalid, name, "custom_id has %d bytes; expected 1 to %d", len(l.customID), maxCustomID)
		}
	case "method":
		if json.Unmarshal(value, &l.method) != nil || l.method != "POST" {
			return problem(codeMethod, name, `method: expected "POST"`)
		}
	case "url":
		if value.Kind() != '"' || json.Unmarshal(value, &l.url) != nil {
			return problem(codeURL, name, "url is no string")
		}
	case "body":
		if value.Kind() != '{' {
			return problem(invalid, name, "body is no object")
		}
		l.bodyAt = int(end) - len(value)
		l.body = text[l.bodyAt:end]
	default:
		return problem(invalid, apierr.Clip(name), "unknown field %q: a line has custom_id, method, url and body", apierr.Clip(name))
	}
	return nil
}

// EndpointOf returns the endpoint that the first line of an input file names, or that of completions if it names none, and a
// reader of the whole file. A line may have up to maxLine bytes.
func EndpointOf(file io.Reader, maxLine int64) (endpoint string, whole io.Reader) {
	var head bytes.Buffer
	line, _, err := newLineScanner(io.TeeReader(file, &head), maxLine).next()
	whole = io.MultiReader(&head, file) // which returns an error of the file again
	if url := gjson.GetBytes(line, "url").Str; err == nil && slices.Contains(endpoints, url) {
		return url, whole
	}
	return endpoints[0], whole
}
