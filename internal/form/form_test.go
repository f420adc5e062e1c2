package form_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"basegate/internal/form"
)

const contentType = "multipart/form-data; boundary=XX"

// twoFields is a form whose second field holds what looks like its delimiters.
const twoFields = "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" +
	"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n--XXX\n--XX--\nline\r\n\r\n--XX--"

// read reads a form, and returns the fields that it has read to their ends.
func read(r io.Reader) (fields []string, err error) {
	f, err := form.NewReader(contentType, r)
	if err != nil {
		return nil, err
	}
	for {
		part, err := f.Next()
		if err != nil {
			return fields, err
		}
		text, err := io.ReadAll(part)
		if err != nil {
			return fields, err
		}
		fields = append(fields, part.FormName()+"="+string(text))
	}
}

// readers deliver a text in the ways of connections: the end with the last bytes or behind them.
var readers = map[string]func(io.Reader) io.Reader{
	"at once": func(r io.Reader) io.Reader { return r }, "by single bytes": iotest.OneByteReader, "its end with its bytes": iotest.DataErrReader,
}

func TestFormIsWholeOnlyWithItsClosingDelimiter(t *testing.T) {
	for how, reader := range readers {
		for breaks, text := range map[string]string{"CRLF": twoFields, "LF": strings.ReplaceAll(twoFields, "\r\n", "\n")} {
			if breaks == "LF" {
				text = strings.Replace(text, "\n--XX--\nline", "line", 1) // it is a delimiter here
			}
			for n := range len(text) {
				if fields, err := read(reader(strings.NewReader(text[:n]))); err == nil || errors.Is(err, io.EOF) {
					t.Errorf("%s, %s, cut after %d bytes: got the fields %q and %v, want an error", how, breaks, n, fields, err)
				}
			}
			for _, end := range []string{"", "\r\n", "\r\nepilogue", "\r\n\r\n--XX\r\n"} {
				if breaks == "LF" {
					end = strings.ReplaceAll(end, "\r\n", "\n")
				}
				if fields, err := read(reader(strings.NewReader(text + end))); !errors.Is(err, io.EOF) || len(fields) != 2 {
					t.Errorf("%s, %s, with %q at its end: got the fields %q and %v, want both and the end", how, breaks, end, fields, err)
				}
			}
		}
	}
}

// A body that fails is not whole, even if the form in it is.
func TestFailureOfTheBodyIsReturned(t *testing.T) {
	failure := errors.New("reset")
	for how, reader := range readers {
		for _, n := range []int{0, 10, 60, 100, len(twoFields) - 1, len(twoFields)} {
			body := io.MultiReader(strings.NewReader(twoFields[:n]), iotest.ErrReader(failure))
			if _, err := read(reader(body)); !errors.Is(err, failure) {
				t.Errorf("%s, failing after %d bytes: got %v, want the failure", how, n, err)
			}
		}
	}
}

func TestCutAndMalformedFormsDiffer(t *testing.T) {
	for how, reader := range readers {
		for text, want := range map[string]error{
			strings.Replace(twoFields, `"a"`, "\"a\x01b\"", 1) + "\r\n": form.ErrMalformed,
			strings.Replace(twoFields, "; filename", "\r\nfilename", 1): form.ErrMalformed,
			twoFields + strings.Repeat("\r\nepilogue", 64<<10):          form.ErrMalformed,
			twoFields[:len(twoFields)-2]:                                form.ErrCut,
			twoFields[:100]:                                             form.ErrCut,
			"":                                                          form.ErrCut,
		} {
			if _, err := read(reader(strings.NewReader(text))); !errors.Is(err, want) {
				t.Errorf("%s, %.300q: got %v, want %v", how, text, err, want)
			}
		}
	}
	for _, other := range []string{"", "text/plain", "multipart/form-data", "multipart/mixed; boundary=XX", "multipart/form-data; boundary"} {
		if _, err := form.NewReader(other, strings.NewReader(twoFields)); !errors.Is(err, form.ErrNotForm) {
			t.Errorf("Content-Type %q: got %v, want %v", other, err, form.ErrNotForm)
		}
	}
}

func TestLastFieldEndsWithItsForm(t *testing.T) {
	for text, want := range map[string]error{
		twoFields:                    nil,
		twoFields[:len(twoFields)-2]: form.ErrCut,
		strings.TrimSuffix(twoFields, "--") + "\r\n\r\nthird\r\n--XX--": form.ErrMalformed,
	} {
		f, err := form.NewReader(contentType, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		f.Next()
		part, err := f.Next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f.Last(part))
		if !errors.Is(err, want) || !strings.Contains(string(got), "line") {
			t.Errorf("%q: got %q and %v, want %v", text, got, err, want)
		}
	}
}
