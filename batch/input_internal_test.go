package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"basegate/proxy"
)

// scanned is what a lineScanner returns of one line.
type scanned struct {
	Line    string
	Offset  int64
	Number  int64
	TooLong bool
}

func scan(t *testing.T, r io.Reader, most int64) (all []scanned) {
	t.Helper()
	s := newLineScanner(r, most)
	for {
		line, offset, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return all
		case errors.Is(err, errLineTooLong):
			all = append(all, scanned{Offset: offset, Number: s.number, TooLong: true})
		case err != nil:
			t.Fatal(err)
		default:
			all = append(all, scanned{string(line), offset, s.number, false})
		}
	}
}

func TestLineScannerFindsLinesAndTheirOffsets(t *testing.T) {
	long := strings.Repeat("x", 200<<10) // longer than the scanner's buffer
	for name, c := range map[string]struct {
		text string
		most int64
		want []scanned
	}{
		"empty":                   {"", 10, nil},
		"only blank lines":        {"\n \r\n\t\n  ", 10, nil},
		"no last newline":         {"a\nb", 10, []scanned{{"a", 0, 1, false}, {"b", 2, 2, false}}},
		"CRLF":                    {"a\r\nb\r\n", 10, []scanned{{"a", 0, 1, false}, {"b", 3, 2, false}}},
		"byte-order mark":         {"\xef\xbb\xbfa\nb", 10, []scanned{{"a", 3, 1, false}, {"b", 5, 2, false}}},
		"a later byte-order mark": {"a\n\xef\xbb\xbfb", 10, []scanned{{"a", 0, 1, false}, {"\xef\xbb\xbfb", 2, 2, false}}},
		"blank lines are counted": {"\n\na\n\nb\n", 10, []scanned{{"a", 2, 3, false}, {"b", 5, 5, false}}},
		"as long as allowed":      {"0123456789\r\na", 10, []scanned{{"0123456789", 0, 1, false}, {"a", 12, 2, false}}},
		"one byte too long":       {"01234567890\na", 10, []scanned{{"", 0, 1, true}, {"a", 12, 2, false}}},
		"much too long":           {long + "\na\n", 10, []scanned{{"", 0, 1, true}, {"a", int64(len(long)) + 1, 2, false}}},
		"longer than the buffer":  {long + "\na", 1 << 20, []scanned{{long, 0, 1, false}, {"a", int64(len(long)) + 1, 2, false}}},
		"too long, no newline":    {"a\n" + long, 10, []scanned{{"a", 0, 1, false}, {"", 2, 2, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(c.text), iotest.HalfReader(strings.NewReader(c.text)), iotest.DataErrReader(strings.NewReader(c.text))} {
				got := scan(t, r, c.most)
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Fatalf("(-want +got)\n%.1000s", diff)
				}
				for _, l := range got {
					if text := c.text[l.Offset:]; !strings.HasPrefix(text, l.Line) {
						t.Errorf("line %d is not at its offset %d", l.Number, l.Offset)
					}
				}
			}
		})
	}
}

func TestLineScannerReturnsTheReadersError(t *testing.T) {
	broken := errors.New("broken")
	s := newLineScanner(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(broken)), 10)
	if _, _, err := s.next(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.next(); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the reader: the line is not whole", err)
	}
}

func TestLineIsParsed(t *testing.T) {
	text := ` { "body" : { "model":"m", "x":[1, 2] } , "url":"/v1/completions","method":"POST","custom_id":"a\u0062" } `
	got, refused := parseLine([]byte(text))
	if refused != nil {
		t.Fatal(refused)
	}
	if got.customID != "ab" || got.method != "POST" || got.url != "/v1/completions" || string(got.body) != `{ "model":"m", "x":[1, 2] }` {
		t.Errorf("got %+v with the body %s", got, got.body)
	}
}

func TestWrongLineIsRefused(t *testing.T) {
	good := `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}`
	for _, c := range []struct{ text, code, param string }{
		{``, codeInvalidLine, ""},
		{`null`, codeInvalidLine, ""},
		{`[]`, codeInvalidLine, ""},
		{good + `{}`, codeInvalidLine, ""},
		{good + ` x`, codeInvalidLine, ""},
		{good[:len(good)-1], codeInvalidLine, ""},
		{`{"custom_id":"a",}`, codeInvalidLine, ""},
		{strings.Replace(good, `{}`, `{"a":}`, 1), codeInvalidLine, ""},
		{strings.Replace(good, `{}`, `[]`, 1), "invalid_request", "body"},
		{strings.Replace(good, `{}`, `null`, 1), "invalid_request", "body"},
		{strings.Replace(good, `,"body":{}`, ``, 1), "invalid_request", "body"},
		{strings.Replace(good, `"a"`, `""`, 1), "invalid_request", "custom_id"},
		{strings.Replace(good, `"a"`, `1`, 1), "invalid_request", "custom_id"},
		{strings.Replace(good, `"a"`, `null`, 1), "invalid_request", "custom_id"},
		{strings.Replace(good, `"a"`, `"\ud800"`, 1), "bad_json", ""},
		{strings.Replace(good, `"a"`, "\"\xff\"", 1), "bad_json", ""},
		{strings.Replace(good, `"a"`, `"`+strings.Repeat("ü", 257)+`"`, 1), "invalid_request", "custom_id"},
		{strings.Replace(good, `"POST"`, `"post"`, 1), codeMethod, "method"},
		{strings.Replace(good, `"POST"`, `null`, 1), codeMethod, "method"},
		{strings.Replace(good, `"/v1/completions"`, `null`, 1), codeURL, "url"},
		{strings.Replace(good, `{"`, `{"url":"x","`, 1), "invalid_request", "url"},
		{strings.Replace(good, `{"`, `{"priority":1,"`, 1), "invalid_request", "priority"},
		{strings.Replace(good, `custom_id`, `Custom_ID`, 1), "invalid_request", "Custom_ID"},
	} {
		l, refused := parseLine([]byte(c.text))
		if refused == nil {
			t.Errorf("%s is accepted: %+v", c.text, l)
		} else if want := proxy.OrNull(c.param); refused.Code != c.code || !cmp.Equal(refused.Param, want) {
			t.Errorf("%.100s: got %+v, want %s of %q", c.text, refused, c.code, c.param)
		}
	}
	if l, refused := parseLine([]byte(strings.Replace(good, `"a"`, `"`+strings.Repeat("ü", 256)+`"`, 1))); refused != nil || len(l.customID) != 512 {
		t.Errorf("a custom_id of 512 bytes: %v", refused)
	}
}

// FuzzLine compares the parser with encoding/json: what it accepts, encoding/json reads alike, and what encoding/json
// finds to be a line with its four members, no others and none twice, is accepted.
func FuzzLine(f *testing.F) {
	f.Add([]byte(`{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}`))
	f.Add([]byte(` {"custom_id":"\ud800","method":"POST","url":"u","body":{"a":{"a":1},"a":2}} `))
	f.Add([]byte(`{"custom_id":"a","custom_id":"b","method":"POST","url":"u","body":{}}`))
	f.Add([]byte("{\"custom_id\":\"\xff\",\"method\":\"POST\",\"url\":\"u\",\"body\":{\"p\":\"\xff\"}}"))
	f.Add([]byte(`{"body":{},"custom_id":"a","method":"POST","url":"u"}{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, refused := parseLine(text)
		var members map[string]json.RawMessage
		err := json.Unmarshal(text, &members)
		if refused == nil {
			var id, method, url string
			if err != nil || len(members) != 4 || json.Unmarshal(members["custom_id"], &id) != nil || json.Unmarshal(members["method"], &method) != nil ||
				json.Unmarshal(members["url"], &url) != nil {
				t.Fatalf("%q is accepted; encoding/json says %v, %d members", text, err, len(members))
			}
			if got.customID != id || got.method != method || got.url != url || !bytes.Equal(got.body, members["body"]) {
				t.Fatalf("%q: got %+v, want %q %q %q %s", text, got, id, method, url, members["body"])
			}
			return
		}
		if err == nil && refused.Code == codeInvalidLine && members != nil && !deep(text) {
			t.Fatalf("%q is an object, and refused as none", text)
		}
	})
}

// deep reports whether a text may be nested too deeply for one of the parsers.
func deep(text []byte) bool {
	return bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("[")) > 1000
}
