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
)

// What a script sends is taken only where it is one whole JSON value that can be kept, and is otherwise a problem that
// says so.
func FuzzSentPrompt(f *testing.F) {
	for _, body := range []string{
		`{"name":"n","model":"m","version":0,"document":{"a":[1,2]}}`, `{"name":"","document":{}}`, `{"name":"n","document":[]}`, `{"name":"n"}`, `{"name":1}`,
		`{"name":"n","document":{},"more":1}`, `{"name":"n","document":{}}{}`, `{"name":"n","version":1e300,"document":{}}`, `{"name":"\ud800","document":{}}`,
		"{\"name\":\"\xff\",\"document\":{}}", `{"NAME":"n","Document":{}}`, `{"name":"n","document":{`, ``, `null`, strings.Repeat(`{"document":`, 200),
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v := &visit{w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodPost, "/console/api/prompts", bytes.NewReader(body))}
		var p sentPrompt
		err := v.read(&p)
		if err == nil {
			err = p.problem()
		}
		if err != nil {
			if _, ok := errors.AsType[*problem](err); !ok {
				t.Errorf("%q: not a problem but %v", body, err)
			}
			return
		}
		if !json.Valid(body) {
			t.Errorf("%q is taken", body)
		}
		if p.Name == "" || utf8.RuneCountInString(p.Name) > maxPromptName || !utf8.ValidString(p.Name) || !json.Valid(p.Document) || p.Document[0] != '{' {
			t.Errorf("%q is kept as %+v", body, p)
		}
	})
}
