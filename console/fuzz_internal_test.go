package console

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
)

// Whatever a tag or a name holds, a CSV file reads back as the cells that were written, and no cell is a formula to a
// spreadsheet.
func FuzzCSV(f *testing.F) {
	for _, cell := range []string{"", "a", "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", `"=1"`, "a,b", "a\"b", "a\r\nb", " =1", "\xff", "\\.", "é", "\x00=1", ";=1"} {
		f.Add(cell, "b")
		f.Add("a", cell)
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		want := []string{harmless(one), harmless(other)}
		var file bytes.Buffer
		w := csv.NewWriter(&file)
		if err := w.WriteAll([][]string{want, want}); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&file).ReadAll()
		if err != nil || len(rows) != 2 {
			t.Fatalf("%q, %q: %d rows, %v", one, other, len(rows), err)
		}
		for _, row := range rows {
			for i, cell := range row {
				if cell != strings.ReplaceAll(want[i], "\r\n", "\n") { // which is what the reader makes of it
					t.Errorf("%q reads back as %q", want[i], cell)
				}
				if strings.IndexAny(cell, "=+-@\t\r") == 0 {
					t.Errorf("%q is a formula", cell)
				}
			}
		}
	})
}

// A body is accepted only if it is one whole JSON value that can be stored. Any other body is refused with a problem.
func FuzzPromptInput(f *testing.F) {
	for _, body := range []string{
		`{"name":"n","model":"m","version":0,"document":{"a":[1,2]}}`, `{"name":"","document":{}}`, `{"name":"n","document":[]}`, `{"name":"n"}`, `{"name":1}`,
		`{"name":"n","document":{},"more":1}`, `{"name":"n","document":{}}{}`, `{"name":"n","version":1e300,"document":{}}`, `{"name":"\ud800","document":{}}`,
		"{\"name\":\"\xff\",\"document\":{}}", `{"NAME":"n","Document":{}}`, `{"name":"n","document":{`, ``, `null`, strings.Repeat(`{"document":`, 200),
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := httptest.NewRequest(http.MethodPost, "/console/api/prompts", bytes.NewReader(body))
		r := &request{Context: echo.New().NewContext(sent, httptest.NewRecorder())}
		var p promptInput
		err := r.readJSON(&p)
		if err == nil {
			err = p.validate()
		}
		if err != nil {
			if _, ok := errors.AsType[*problem](err); !ok {
				t.Errorf("%q: got error %v, want a problem", body, err)
			}
			return
		}
		if !json.Valid(body) {
			t.Errorf("%q: got no error, want one, because it is not JSON", body)
		}
		if p.Name == "" || utf8.RuneCountInString(p.Name) > maxPromptName || !utf8.ValidString(p.Name) || !json.Valid(p.Document) || p.Document[0] != '{' {
			t.Errorf("%q: got %+v, which cannot be stored", body, p)
		}
	})
}
