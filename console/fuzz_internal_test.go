package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
)

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
