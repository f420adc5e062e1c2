package mockvllm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"basegate/mockvllm"
)

// numericField is a field of a completion whose values are numbers, as docs/openapi.json describes it.
type numericField struct {
	name      string
	bounds    []string // the least and the greatest value
	isInteger bool
	isArray   bool // its items are the numbers
	isMap     bool // its members are the numbers
}

// numberSchema is a part of an OpenAPI schema. Numbers stay literals: the bounds of seed have no exact float.
type numberSchema struct {
	Type                               any
	Minimum, Maximum, ExclusiveMinimum json.Number
	AnyOf                              []struct{ Const, Minimum json.Number }
	Items                              *numberSchema
	AdditionalProperties               json.RawMessage
}

func (s *numberSchema) kind() string {
	if types, ok := s.Type.([]any); ok {
		return fmt.Sprint(types[0])
	}
	return fmt.Sprint(s.Type)
}

// numericFields returns the fields of a completion that hold numbers. The e2e tests keep the document equal to what the
// gateway accepts, so these are all the numbers that can reach a backend.
func numericFields(tb testing.TB) []numericField {
	tb.Helper()
	text, err := os.ReadFile("../docs/openapi.json")
	if err != nil {
		tb.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte(`"{{max_logprobs}}"`), []byte("20")) // the gateway puts its own there
	var doc struct {
		Components struct {
			Schemas struct {
				CompletionRequest struct{ Properties map[string]*numberSchema }
			}
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		tb.Fatal(err)
	}
	var fields []numericField
	for name, schema := range doc.Components.Schemas.CompletionRequest.Properties {
		f, numbers := numericField{name: name}, schema
		switch schema.kind() {
		case "array":
			f.isArray, numbers = true, schema.Items
		case "object":
			f.isMap, numbers = true, new(numberSchema)
			if json.Unmarshal(schema.AdditionalProperties, numbers) != nil {
				continue // false: the object has fixed members
			}
		}
		if kind := numbers.kind(); kind != "integer" && kind != "number" {
			continue
		}
		f.isInteger = numbers.kind() == "integer"
		f.bounds = numbers.bounds()
		fields = append(fields, f)
	}
	slices.SortFunc(fields, func(a, b numericField) int { return strings.Compare(a.name, b.name) })
	if len(fields) < 16 {
		tb.Fatalf("found only %d numeric fields in docs/openapi.json, want at least 16", len(fields))
	}
	return fields
}

func (s *numberSchema) bounds() []string {
	var bounds []string
	for _, bound := range []json.Number{s.Minimum, s.ExclusiveMinimum, s.Maximum} {
		if bound != "" {
			bounds = append(bounds, bound.String())
		}
	}
	for _, branch := range s.AnyOf {
		if bound := max(branch.Const, branch.Minimum); bound != "" {
			bounds = append(bounds, bound.String())
		}
	}
	return bounds
}

// literals returns the extreme values of the field: its bounds, their neighbours, and the extremes of the number types.
func (f *numericField) literals() []string {
	all := []string{"0", "-1", "1", "2", "-9223372036854775808", "9223372036854775807", "2147483647", "4294967296", "1" + strings.Repeat("0", 22)}
	if !f.isInteger {
		all = append(all, "-0.0", "5e-324", "-5e-324", "2.2250738585072014e-308", "1.1754943508222875e-38", "1e-45", "0.00001",
			"0.009999999999999998", "0.9999999999999999", "1.9999999999999998", "3.5e38", "1.7976931348623157e308", "1e400")
	}
	for _, bound := range f.bounds {
		all = append(all, bound)
		if n, err := strconv.ParseInt(bound, 10, 64); err == nil {
			all = append(all, strconv.FormatInt(n-1, 10), strconv.FormatInt(n+1, 10))
		}
	}
	return all
}

// isTooMany reports whether the literal asks for more completions than the gateway lets through: vLLM would try to serve
// them all.
func (f *numericField) isTooMany(literal string) bool {
	value, err := strconv.ParseFloat(literal, 64)
	return (f.name == "n" || f.name == "best_of") && (err != nil || value > 17)
}

// member returns the field as a member of a JSON object.
func (f *numericField) member(literal string) string {
	switch {
	case f.isArray:
		return fmt.Sprintf(`%q:[%s,7]`, f.name, literal)
	case f.isMap:
		return fmt.Sprintf(`%q:{"7":%s,"%s":1}`, f.name, literal, strings.TrimLeft(strings.ReplaceAll(literal, ".", ""), "-"))
	}
	return fmt.Sprintf(`%q:%s`, f.name, literal)
}

// checkExtreme sends a completion with the members to the mock in-process, so that a panic fails the test.
func checkExtreme(t *testing.T, s *mockvllm.Server, members string) {
	t.Helper()
	for _, mode := range []string{`"stream":false`, `"stream":true,"stream_options":{"include_usage":true}`} {
		body := `{"model":"mock-model","prompt":"The cat sat on the mat. The cat",` + mode
		if !strings.Contains(members, `"max_tokens"`) {
			body += `,"max_tokens":3`
		}
		r := httptest.NewRequest(http.MethodPost, completions, strings.NewReader(body+","+members+"}"))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		streamed := strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream")
		switch {
		case w.Code != http.StatusOK && w.Code != http.StatusBadRequest:
			t.Errorf("%s: %s: got %d %.300s, want 200 or 400", mode, members, w.Code, w.Body)
		case streamed && !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n"):
			t.Errorf("%s: %s: got a stream that ends with %.100q", mode, members, w.Body.String()[max(0, w.Body.Len()-100):])
		case !streamed && !json.Valid(w.Body.Bytes()):
			t.Errorf("%s: %s: got %.300q, which is not JSON", mode, members, w.Body)
		}
	}
}

// A repetition_penalty of 5e-324 made every logit infinite, and the mock panicked.
func TestExtremeNumbersAreServedOrRejected(t *testing.T) {
	for _, version := range []string{"0.6.0", "0.10.1", "0.32.0"} {
		s := mockvllm.New(mockvllm.Options{Version: version, MaxModelLen: 64})
		for _, f := range numericFields(t) {
			for _, literal := range f.literals() {
				if f.isTooMany(literal) {
					continue
				}
				for _, more := range []string{"", `,"temperature":0`, `,"repetition_penalty":5e-324,"frequency_penalty":-2,"top_p":5e-324`} {
					if !strings.Contains(more, `"`+f.name+`"`) {
						checkExtreme(t, s, f.member(literal)+more)
					}
				}
			}
		}
	}
}

// All tokens can be excluded at once, which leaves no logit that is finite.
func TestAnOutputWithoutPermittedTokensIsServed(t *testing.T) {
	s := mockvllm.New(mockvllm.Options{})
	for _, members := range []string{
		`"allowed_token_ids":[7],"stop_token_ids":[7],"min_tokens":2`,
		`"allowed_token_ids":[7],"stop_token_ids":[7],"min_tokens":2,"temperature":0`,
		`"allowed_token_ids":[7],"stop_token_ids":[7],"min_tokens":2,"top_k":1,"top_p":0.5,"min_p":1,"repetition_penalty":2`,
	} {
		checkExtreme(t, s, members)
	}
}

// FuzzNumericFields combines two numeric fields of any value.
func FuzzNumericFields(f *testing.F) {
	fields := numericFields(f)
	for i := range fields {
		f.Add(uint8(i), "5e-324", uint8(i+1), "-1")
	}
	s := mockvllm.New(mockvllm.Options{MaxModelLen: 32})
	f.Fuzz(func(t *testing.T, first uint8, a string, second uint8, b string) {
		one, other := fields[int(first)%len(fields)], fields[int(second)%len(fields)]
		for _, literal := range []string{a, b} {
			if _, err := strconv.ParseFloat(literal, 64); err != nil || len(literal) > 40 || !json.Valid([]byte(literal)) {
				t.Skip("not a JSON number")
			}
		}
		if one.name != other.name && !one.isTooMany(a) && !other.isTooMany(b) {
			checkExtreme(t, s, one.member(a)+","+other.member(b))
		}
	})
}
