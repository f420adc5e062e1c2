package lamini_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	apierr "basegate/errors"
	"basegate/proxy"
	"basegate/proxy/dialect/lamini"
	"basegate/validate"
)

const (
	v1 = 0
	v2 = 1
)

func translate(t *testing.T, version int, request string) proxy.Translation {
	t.Helper()
	translation, err := lamini.Dialect.Endpoints[fmt.Sprintf("/lamini/v%d/completions", version+1)]([]byte(request), validate.Limits{})
	if err != nil {
		t.Fatal(apierr.From(err).Message)
	}
	return translation
}

// completion returns vLLM's response with a choice for each pair of a text and a finish reason.
func completion(pairs ...string) []byte {
	var choices []string
	for i := 0; i < len(pairs); i += 2 {
		text, _ := json.Marshal(pairs[i])
		choices = append(choices, fmt.Sprintf(`{"index":%d,"text":%s,"logprobs":null,"finish_reason":%q}`, i/2, text, pairs[i+1]))
	}
	return []byte(`{"id":"cmpl-1","object":"text_completion","choices":[` + strings.Join(choices, ",") + `],"usage":{"prompt_tokens":1}}`)
}

const (
	onePrompt  = `{"model_name": "m", "prompt": "a"}`
	twoPrompts = `{"model_name": "m", "prompt": ["a", "b"]}`
	oneOfList  = `{"model_name": "m", "prompt": ["a"]}`
	oneTyped   = `{"model_name": "m", "prompt": "a", "output_type": {"age": "int", "units": "str"}}`
	twoTyped   = `{"model_name": "m", "prompt": ["a", "b"], "output_type": {"age": "int", "units": "str"}}`
	allTypes   = `{"model_name": "m", "prompt": "a", "output_type": {"i": "int", "f": "float", "s": "str", "b": "bool"}}`
)

func TestResponses(t *testing.T) {
	years, cut := `{"age": 10, "units": "years"}`, `{"age": 10, "uni`
	for name, c := range map[string]struct {
		request string
		answer  []byte
		v1, v2  string
	}{
		"text":                 {onePrompt, completion("x\n\"", "stop"), `{"output":"x\n\""}`, `{"outputs":"x\n\"","finish_reason":"stop"}`},
		"invalid UTF-8":        {onePrompt, []byte("{\"choices\":[{\"index\":0,\"text\":\"<\xff\u2028\",\"finish_reason\":\"stop\"}]}"), "{\"output\":\"<\ufffd\u2028\"}", "{\"outputs\":\"<\ufffd\u2028\",\"finish_reason\":\"stop\"}"},
		"empty text":           {onePrompt, completion("", "stop"), `{"output":""}`, `{"outputs":"","finish_reason":"stop"}`},
		"list of one":          {oneOfList, completion("x", "length"), `[{"output":"x"}]`, `{"outputs":["x"],"finish_reason":["length"]}`},
		"list":                 {twoPrompts, completion("x", "stop", "y", "length"), `[{"output":"x"},{"output":"y"}]`, `{"outputs":["x","y"],"finish_reason":["stop","length"]}`},
		"another finish":       {onePrompt, completion("x", "repetition"), `{"output":"x"}`, `{"outputs":"x","finish_reason":"stop"}`},
		"object":               {oneTyped, completion(" "+years+"\n", "stop"), `{"age":10,"units":"years"}`, `{"outputs":{"age":10,"units":"years"},"finish_reason":"stop"}`},
		"objects":              {twoTyped, completion(years, "stop", years, "stop"), `[{"age":10,"units":"years"},{"age":10,"units":"years"}]`, `{"outputs":[{"age":10,"units":"years"},{"age":10,"units":"years"}],"finish_reason":["stop","stop"]}`},
		"order of output_type": {oneTyped, completion(`{"units": "years", "age": 10}`, "stop"), `{"age":10,"units":"years"}`, `{"outputs":{"age":10,"units":"years"},"finish_reason":"stop"}`},
		"truncated":            {oneTyped, completion(cut, "length"), `"{\"age\": 10, \"uni"`, `{"outputs":"{\"age\": 10, \"uni","finish_reason":"length"}`},
		"one truncated":        {twoTyped, completion(years, "stop", cut, "length"), `[{"age":10,"units":"years"},"{\"age\": 10, \"uni"]`, `{"outputs":[{"age":10,"units":"years"},"{\"age\": 10, \"uni"],"finish_reason":["stop","length"]}`},
		"whole at the limit":   {oneTyped, completion(years, "length"), `{"age":10,"units":"years"}`, `{"outputs":{"age":10,"units":"years"},"finish_reason":"length"}`},
		"types":                {allTypes, completion(`{"i": -3, "f": 2, "s": "é\u0000", "b": true}`, "stop"), `{"i":-3,"f":2.0,"s":"é\u0000","b":true}`, `{"outputs":{"i":-3,"f":2.0,"s":"é\u0000","b":true},"finish_reason":"stop"}`},
		"float with exponent":  {allTypes, completion(`{"i": 0, "f": 2e5, "s": "", "b": false}`, "stop"), `{"i":0,"f":2e5,"s":"","b":false}`, `{"outputs":{"i":0,"f":2e5,"s":"","b":false},"finish_reason":"stop"}`},
		"choices out of order": {
			twoPrompts, []byte(`{"choices":[{"index":1,"text":"y","finish_reason":"stop"},{"index":0,"text":"x","finish_reason":"length"}]}`),
			`[{"output":"x"},{"output":"y"}]`, `{"outputs":["x","y"],"finish_reason":["length","stop"]}`,
		},
	} {
		for version, want := range []string{c.v1, c.v2} {
			got, err := translate(t, version, c.request).Respond(c.answer)
			if err != nil {
				t.Errorf("%s: %s", name, apierr.From(err).Message)
			} else if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestOutputsThatAreNoObjectOfTheTypesAreErrors(t *testing.T) {
	for _, text := range []string{
		"", "ten", "{", `{"age": 10, "uni`, `{"age": 10}`, `{"age": 10, "units": "years", "x": 1}`, `{"age": "10", "units": "years"}`, `{"age": 10.0, "units": "years"}`,
		`{"age": 1e1, "units": "years"}`, `{"age": null, "units": "years"}`, `{"age": 10, "units": 3}`, `{"age": 10, "age": 10, "units": "years"}`,
		`{"age": 10, "units": "years"} and`, `[{"age": 10, "units": "years"}]`, `{"age": true, "units": "years"}`, `{"age": 10, "Units": "years"}`, `{"age": 010, "units": "years"}`,
		`{"age": 10, "units": "\ud800"}`, strings.Repeat("[", 20000),
	} {
		_, err := translate(t, v2, twoTyped).Respond(completion(`{"age": 10, "units": "years"}`, "stop", text, "stop"))
		if err == nil {
			t.Errorf("%q became an output", text)
			continue
		}
		e := apierr.From(err)
		if e.Code != apierr.UpstreamServerError || !strings.Contains(e.Message, "prompt 1 is not a JSON object of output_type") {
			t.Errorf("%q: %s, %s", text, e.Code, e.Message)
		}
		if strings.Contains(err.Error(), "years") {
			t.Errorf("the error for the log quotes the output: %v", err)
		}
	}
	for _, answer := range []string{`{"choices":[]}`, `{"choices":[{"index":0,"finish_reason":"stop"}]}`, `{"choices":[{"index":-1,"text":"a"}]}`, `{}`} {
		if _, err := translate(t, v1, onePrompt).Respond([]byte(answer)); err == nil || apierr.From(err).Code != apierr.UpstreamServerError {
			t.Errorf("%s: %v, want upstream_server_error", answer, err)
		}
	}
}

func TestTimeoutIsAFinishReasonOfVersion2(t *testing.T) {
	if translate(t, v1, onePrompt).TimedOut != nil {
		t.Error("version 1 has a response to a request that timed out, want an error")
	}
	for request, want := range map[string]string{
		onePrompt:  `{"outputs":"","finish_reason":"timeout"}`,
		twoPrompts: `{"outputs":["",""],"finish_reason":["timeout","timeout"]}`,
		twoTyped:   `{"outputs":["",""],"finish_reason":["timeout","timeout"]}`,
	} {
		if got := string(translate(t, v2, request).TimedOut()); got != want {
			t.Errorf("%s: got %s, want %s", request, got, want)
		}
	}
}

func TestErrorsCarryTheirMessageAsDetail(t *testing.T) {
	e := apierr.From(apierr.InvalidField("prompt", "a \"quoted\"\n\u2028message \xff"))
	got := lamini.Dialect.AppendError([]byte("before"), e, "req_1")
	body := gjson.Parse(strings.TrimPrefix(string(got), "before"))
	if !gjson.Valid(body.Raw) || body.Get("detail").Str != body.Get("error.message").Str || body.Get("error.request_id").Str != "req_1" {
		t.Errorf("%s", got)
	}
}

// The limits of tokens: max_new_tokens, or else a total of prompt and output, or else what the context leaves.
func TestTokenLimits(t *testing.T) {
	for request, want := range map[string]struct {
		maxTokens, total int64
		hasTotal         bool
	}{
		`{"model_name": "m", "prompt": "a", "max_new_tokens": 7}`:                      {7, 0, false},
		`{"model_name": "m", "prompt": "a", "max_tokens": 3, "max_new_tokens": 7}`:     {7, 0, false},
		`{"model_name": "m", "prompt": "a", "max_tokens": null, "max_new_tokens": 7}`:  {7, 0, false},
		`{"model_name": "m", "prompt": "a", "max_tokens": 30}`:                         {1, 30, true},
		`{"model_name": "m", "prompt": "a", "max_tokens": 30, "max_new_tokens": null}`: {1, 30, true},
		`{"model_name": "m", "prompt": "a", "max_tokens": null}`:                       {1, 0, true},
		`{"model_name": "m", "prompt": "a"}`:                                           {1, 0, true},
	} {
		r := translate(t, v1, request).Request
		total, hasTotal := r.Total()
		if r.MaxTokens != want.maxTokens || total != want.total || hasTotal != want.hasTotal {
			t.Errorf("%s: max_tokens %d, total %d (%v)", request, r.MaxTokens, total, hasTotal)
		}
	}
}

func FuzzRespond(f *testing.F) {
	for _, text := range []string{`{"i": 1, "f": 2, "s": "x", "b": true}`, `{"i":1}`, "", `{"i": 1, "f": 2, "s": "x", "b": true, "b": true}`, `{"b":false,"s":"\ud83d\ude00","f":-0.5e-3,"i":0}`} {
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text string, cut bool) {
		if !utf8.ValidString(text) {
			return // no text of a JSON response
		}
		finish := "stop"
		if cut {
			finish = "length"
		}
		body, err := translate(t, v2, allTypes).Respond(completion(text, finish))
		if err != nil {
			if cut {
				t.Fatalf("a truncated text is an error: %v", err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q became %s", text, body)
		}
		outputs := gjson.GetBytes(body, "outputs")
		if outputs.Type == gjson.String {
			if !cut || outputs.Str != text {
				t.Fatalf("%q became %s", text, body)
			}
			return
		}
		var values struct {
			I *json.Number
			F *float64
			S *string
			B *bool
		}
		decoder := json.NewDecoder(strings.NewReader(outputs.Raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&values); err != nil && !strings.Contains(err.Error(), "into Go struct field .F of type float64") {
			t.Fatalf("%q became %s: %v", text, body, err)
		}
		if values.I == nil || strings.ContainsAny(values.I.String(), ".eE") || values.S == nil || values.B == nil || values.F != nil && math.IsNaN(*values.F) {
			t.Fatalf("%q became %s", text, body)
		}
	})
}
