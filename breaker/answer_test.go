package breaker_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/tidwall/gjson"

	"basegate/breaker"
	apierr "basegate/errors"
)

// answer is a case of testdata/answers.txtar.
type answer struct {
	name    string
	status  int
	body    []byte
	verdict string
}

func answers(tb testing.TB) []answer {
	tb.Helper()
	data, err := os.ReadFile("testdata/answers.txtar")
	if err != nil {
		tb.Fatal(err)
	}
	files := txtar.Parse(data).Files
	if len(files)%2 != 0 || len(files) < 200 {
		tb.Fatalf("%d files", len(files))
	}
	var all []answer
	for ; len(files) > 0; files = files[2:] {
		name, ok := strings.CutSuffix(files[0].Name, ".answer")
		first, body, _ := strings.Cut(string(files[0].Data), "\n")
		status, err := strconv.Atoi(first)
		if !ok || err != nil || files[1].Name != name+".verdict" {
			tb.Fatalf("%s, followed by %s: %v", files[0].Name, files[1].Name, err)
		}
		all = append(all, answer{name, status, []byte(body), string(files[1].Data)})
	}
	return all
}

func TestEveryAnswerOfEveryVersionHasItsClass(t *testing.T) {
	for _, a := range answers(t) {
		v := breaker.Answer(a.status, a.body)
		got := fmt.Sprintf("%s %d\n", v.Class, v.Status)
		if v.Message != "" {
			got += v.Message + "\n"
		}
		if diff := cmp.Diff(a.verdict, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", a.name, diff)
		}
	}
}

func inJSON(t *testing.T, s string) string {
	t.Helper()
	out, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestErrorsUnder200AreFound(t *testing.T) {
	for _, a := range answers(t) {
		if a.status != 200 {
			continue
		}
		object := gjson.ParseBytes(a.body)
		if !breaker.FoundError([]byte(object.Get("error").Raw), []byte(object.Get("object").Raw)) {
			t.Errorf("%s: not found", a.name)
		}
	}
	for body, want := range map[string]bool{
		`{"error": null, "object": "text_completion", "choices": []}`: false,
		`{"object": "text_completion"}`:                               false,
		`{}`:                                                          false,
		`{"choices": [{"error": {"message": "inside"}}]}`:             false,
		`{"choices": [{"text": "\"error\": {}", "object": "error"}]}`: false,
		`{"object": 1}`:                                               false,
		`{"object": "Error"}`:                                         false,
		`{"error": {}}`:                                               true,
		`{"error": "text"}`:                                           true,
		`{"error": ""}`:                                               true,
		`{"error": false}`:                                            true,
		`{"object": "error"}`:                                         true,
		`{"error": null, "object": "error"}`:                          true,
	} {
		object := gjson.Parse(body)
		if got := breaker.FoundError([]byte(object.Get("error").Raw), []byte(object.Get("object").Raw)); got != want {
			t.Errorf("%s: %t", body, got)
		}
	}
}

func TestTheClientsErrorGoesBackInVLLMsWords(t *testing.T) {
	e := apierr.From(breaker.Answer(404, []byte(`{"error":{"message":"The model does not exist.","code":404}}`)).Err("llama-8b", 1))
	if e.Code != apierr.InvalidRequest || e.Message != "The model does not exist." || e.Extras[0].Value != 404 {
		t.Errorf("%+v", e)
	}
	e = apierr.From(breaker.Answer(400, nil).Err("llama-8b", 1))
	if e.Code != apierr.InvalidRequest || e.Message == "" {
		t.Errorf("%+v", e)
	}
}

func TestALongMessageIsCutBetweenCharacters(t *testing.T) {
	v := breaker.Answer(500, []byte("x"+strings.Repeat("ž", 1<<20)))
	if n := len(v.Message); n > 4<<10+len("…") || n < 4000 || !utf8.ValidString(v.Message) || !strings.HasSuffix(v.Message, "ž…") {
		t.Errorf("%d bytes, ends in %q", n, v.Message[n-8:])
	}
}

// No text that a client can bring into a 4xx may open a breaker.
func FuzzAnswer(f *testing.F) {
	for _, a := range answers(f) {
		f.Add(a.status, a.body)
	}
	f.Add(0, []byte(`{"error":{"code":1e400,"message":{"a":1}}}`))
	f.Add(200, []byte(strings.Repeat(`{"error":`, 10000)))
	f.Add(-1, []byte("\xff\xfe{"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		v := breaker.Answer(status, body)
		if len(v.Message) > 4<<10+len("…") {
			t.Fatalf("a message of %d bytes", len(v.Message))
		}
		if v.Class == breaker.Success || v.Class == breaker.ClientGone || v.Class.String() == "" {
			t.Fatalf("class %d", v.Class)
		}
		if status == 200 && (v.Status < 400 || v.Status > 599) || status != 200 && v.Status != status {
			t.Fatalf("status %d from %d", v.Status, status)
		}
		e := apierr.From(v.Err("m", 1))
		if e.Code != v.Class.Code() || !gjson.ValidBytes(e.AppendJSON(nil, "req_1")) {
			t.Fatalf("%v", e)
		}
		object := gjson.ParseBytes(body)
		breaker.FoundError([]byte(object.Get("error").Raw), []byte(object.Get("object").Raw))
	})
}

// The same text in the place of a client's, under the statuses that a client can provoke.
func FuzzQuotedTextDecidesNothing(f *testing.F) {
	for _, a := range answers(f) {
		f.Add(string(a.body))
		f.Add(gjson.GetBytes(a.body, "error.message").Str)
	}
	f.Add("EngineCore encountered an issue. CUDA out of memory")
	f.Fuzz(func(t *testing.T, text string) {
		schema := inJSON(t, "1 validation error:\n  {'type': 'value_error', 'input': '"+text+"'}")
		value := inJSON(t, "Value is not allowed. (parameter=user, value="+text+")")
		for _, body := range []string{
			`{"error":{"message":` + schema + `,"type":"Bad Request","param":null,"code":400}}`,
			`{"error":{"message":` + value + `,"type":"BadRequestError","param":"user","code":400}}`,
			`{"object":"error","message":` + schema + `,"code":400}`,
			`{"detail":[{"input":` + inJSON(t, text) + `}]}`,
		} {
			if v := breaker.Answer(400, []byte(body)); v.Class != breaker.ClientError {
				t.Fatalf("%s: %s", body, v.Class)
			}
		}
	})
}
