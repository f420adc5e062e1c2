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
	"basegate/proxy/stream"
)

// responseCase is a case of testdata/responses.txtar.
type responseCase struct {
	name    string
	status  int
	body    []byte
	outcome string
}

func responseCases(tb testing.TB) []responseCase {
	tb.Helper()
	data, err := os.ReadFile("testdata/responses.txtar")
	if err != nil {
		tb.Fatal(err)
	}
	files := txtar.Parse(data).Files
	if len(files)%2 != 0 || len(files) < 200 {
		tb.Fatalf("got %d files, want an even number of at least 200", len(files))
	}
	var all []responseCase
	for ; len(files) > 0; files = files[2:] {
		name, ok := strings.CutSuffix(files[0].Name, ".response")
		first, body, _ := strings.Cut(string(files[0].Data), "\n")
		status, err := strconv.Atoi(first)
		if !ok || err != nil || files[1].Name != name+".outcome" {
			tb.Fatalf("want a .response file with a status followed by its .outcome file, got %s and %s: %v", files[0].Name, files[1].Name, err)
		}
		all = append(all, responseCase{name, status, []byte(body), string(files[1].Data)})
	}
	return all
}

func TestClassifyMapsEveryKnownResponseToItsClass(t *testing.T) {
	for _, c := range responseCases(t) {
		o := breaker.Classify(c.status, c.body)
		got := fmt.Sprintf("%s %d\n", o.Class, o.Status)
		if o.Message != "" {
			got += o.Message + "\n"
		}
		if diff := cmp.Diff(c.outcome, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func jsonString(t *testing.T, s string) string {
	t.Helper()
	out, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Several versions of vLLM send errors with status 200; package stream must detect each of them, or it would be served.
func TestEveryErrorWithStatus200IsDetected(t *testing.T) {
	for _, c := range responseCases(t) {
		if c.status != 200 {
			continue
		}
		var object stream.Object
		if err := object.Parse(c.body); err != nil || !object.IsError() {
			t.Errorf("%s: not detected as an error (%v)", c.name, err)
		}
	}
}

func TestClientErrorKeepsVLLMsMessageAndStatus(t *testing.T) {
	e := apierr.From(breaker.Classify(422, []byte(`{"error":{"message":"No.","param":"body.prompt","code":422}}`)).Err("llama-8b", 1))
	if e.Code != apierr.InvalidRequest || e.Message != "No." || e.Param != "prompt" || e.Extras[0].Value != 422 {
		t.Errorf("with a message: got %+v", e)
	}
	e = apierr.From(breaker.Classify(400, nil).Err("llama-8b", 1))
	if e.Code != apierr.InvalidRequest || e.Message == "" {
		t.Errorf("with an empty body: got %+v", e)
	}
}

func TestParamIsTheTopLevelField(t *testing.T) {
	for param, want := range map[string]string{
		`"prompt"`: "prompt", `"body.prompt"`: "prompt", `"body.stream_options.include_usage"`: "stream_options", `null`: "", `1`: "", `""`: "", `"body"`: "body",
	} {
		for _, body := range []string{`{"error":{"message":"no","param":` + param + `,"code":400}}`, `{"object":"error","message":"no","param":` + param + `,"code":400}`} {
			if got := breaker.Classify(400, []byte(body)).Param; got != want {
				t.Errorf("%s: got %q, want %q", body, got, want)
			}
		}
	}
}

// vLLM's text about a failure of its own can name addresses, paths and hardware.
func TestOnlyTextAboutTheRequestReachesTheClient(t *testing.T) {
	const secret = "rank 3 at http://10.0.0.5:8000 /opt/vllm/run.sh"
	for status, passed := range map[int]bool{400: true, 413: true, 422: true, 401: false, 403: false, 404: false, 405: false, 429: false, 500: false, 502: false, 503: false} {
		for _, text := range []string{secret, "CUDA out of memory: " + secret, "engine is currently busy " + secret, "EngineCore encountered an issue. " + secret} {
			o := breaker.Classify(status, []byte(`{"error":{"message":`+jsonString(t, text)+`,"code":`+strconv.Itoa(status)+`}}`))
			e := apierr.From(o.Err("m", 1))
			want := passed && o.Class == breaker.ClientError
			if strings.Contains(e.Message, "rank 3") != want || strings.Contains(e.Message, "10.0.0.5") || strings.Contains(e.Message, "/opt") {
				t.Errorf("%d %s: the client receives %q", status, o.Class, e.Message)
			}
		}
	}
}

// The forms of a request have other names for max_tokens, and one has a field of that name with another meaning.
func TestAdviceNamesNoFieldForTheLimitOfTokens(t *testing.T) {
	for _, class := range breaker.Classes() {
		if err := (breaker.Outcome{Class: class, Status: 500}).Err("m", 1); err != nil && strings.Contains(apierr.From(err).Message, "max_tokens") {
			t.Errorf("%s: %s", class, apierr.From(err).Message)
		}
	}
}

func TestLongMessageIsCutBetweenCharacters(t *testing.T) {
	o := breaker.Classify(500, []byte("x"+strings.Repeat("ž", 1<<20)))
	if n := len(o.Message); n > 4<<10+len("…") || n < 4000 || !utf8.ValidString(o.Message) || !strings.HasSuffix(o.Message, "ž…") {
		t.Errorf("got %d bytes that end in %q", n, o.Message[n-8:])
	}
}

// FuzzClassify checks that no response makes Classify panic or return an outcome without a valid class, status and
// message.
func FuzzClassify(f *testing.F) {
	for _, c := range responseCases(f) {
		f.Add(c.status, c.body)
	}
	f.Add(0, []byte(`{"error":{"code":1e400,"message":{"a":1}}}`))
	f.Add(200, []byte(strings.Repeat(`{"error":`, 10000)))
	f.Add(-1, []byte("\xff\xfe{"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		o := breaker.Classify(status, body)
		if len(o.Message) > 4<<10+len("…") {
			t.Fatalf("message has %d bytes", len(o.Message))
		}
		if o.Class == breaker.Success || o.Class == breaker.ClientGone || o.Class.String() == "" {
			t.Fatalf("got class %d", o.Class)
		}
		if status == 200 && (o.Status < 400 || o.Status > 599) || status != 200 && o.Status != status {
			t.Fatalf("got status %d for a response with status %d", o.Status, status)
		}
		e := apierr.From(o.Err("m", 1))
		if e.Code != o.Class.Code() || !gjson.ValidBytes(e.AppendJSON(nil, "req_1")) {
			t.Fatalf("got error %v", e)
		}
	})
}

// FuzzQuotedClientTextDoesNotChangeTheClass places client text where vLLM quotes it, with the statuses that a client
// can provoke. Such text must never open a breaker.
func FuzzQuotedClientTextDoesNotChangeTheClass(f *testing.F) {
	for _, c := range responseCases(f) {
		f.Add(string(c.body))
		f.Add(gjson.GetBytes(c.body, "error.message").Str)
	}
	f.Add("EngineCore encountered an issue. CUDA out of memory")
	f.Fuzz(func(t *testing.T, text string) {
		schema := jsonString(t, "1 validation error:\n  {'type': 'value_error', 'input': '"+text+"'}")
		value := jsonString(t, "Value is not allowed. (parameter=user, value="+text+")")
		for _, body := range []string{
			`{"error":{"message":` + schema + `,"type":"Bad Request","param":null,"code":400}}`,
			`{"error":{"message":` + value + `,"type":"BadRequestError","param":"user","code":400}}`,
			`{"object":"error","message":` + schema + `,"code":400}`,
			`{"detail":[{"input":` + jsonString(t, text) + `}]}`,
		} {
			if o := breaker.Classify(400, []byte(body)); o.Class != breaker.ClientError {
				t.Fatalf("%s: got class %s, want %s", body, o.Class, breaker.ClientError)
			}
		}
	})
}
