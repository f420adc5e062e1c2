// Package dialect_test tests what all dialects have: strict field tables, whose requests become valid completions.
package dialect_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	apierr "basegate/errors"
	"basegate/proxy"
	"basegate/proxy/dialect/eternalai"
	"basegate/proxy/dialect/lamini"
	"basegate/validate"
)

// row is a field of a form with values as JSON.
type row struct {
	field    string
	accepted []string
	refused  []string
}

// form is a form with its table.
type form struct {
	parse    func([]byte, validate.Limits) (proxy.Translation, error)
	required []string
	own      []string // fields that no backend receives
	renamed  map[string]string
	table    []row
}

var limits = validate.Limits{MaxSequences: 64}

const hugeObject = 300 << 10

var forms = map[string]form{
	"lamini": {
		parse: lamini.Dialect.Endpoints["/lamini/v2/completions"], required: []string{"model_name", "prompt"}, own: []string{"output_type", "max_tokens"},
		renamed: map[string]string{"model_name": "model", "max_new_tokens": "max_tokens"},
		table: []row{
			{"model_name", []string{`"m"`, `"org/Model-8B"`, `""`}, []string{`null`, `1`, `true`, `["m"]`, `{}`}},
			{
				"prompt",
				[]string{`""`, `"a"`, `["a"]`, `["a", "b\u0000\ud83d\ude00"]`, `[""]`},
				[]string{`null`, `1`, `true`, `{}`, `[]`, `[null]`, `[1]`, `[1, 2]`, `[[1]]`, `["a", 1]`, `["a", ["b"]]`, `[{}]`, `{"a": 1, "a": 2}`, `[{"a": 1, "a": 2}]`},
			},
			{
				"output_type",
				[]string{
					`null`, `{"a": "str"}`, `{"a": "int", "b": "float", "c": "bool", "": "str"}`, `{"\u0061": "\u0073tr"}`, `{"\"\\\n": "int"}`,
				},
				[]string{
					`{}`, `[]`, `"str"`, `1`, `true`, `{"a": "string"}`, `{"a": "Str"}`, `{"a": null}`, `{"a": 1}`, `{"a": ["str"]}`, `{"a": {"b": "str"}}`,
					`{"a": "str", "b": "list"}`, `{"a": "str", "a": "int"}`, `{"a": "str", "\u0061": "int"}`, `{"a": ""}`, `["str"]`,
					`{"a": "` + strings.Repeat("x", hugeObject) + `"}`,
				},
			},
			{
				"max_new_tokens",
				[]string{`null`, `1`, `500`, `9223372036854775807`},
				[]string{`0`, `-1`, `1.0`, `1e2`, `"1"`, `true`, `[]`, `{}`, `9223372036854775808`},
			},
			{
				"max_tokens",
				[]string{`null`, `1`, `500`, `9223372036854775807`},
				[]string{`0`, `-1`, `1.0`, `1e2`, `"1"`, `true`, `[]`, `{}`, `9223372036854775808`},
			},
		},
	},
	"eternalai": {
		parse: eternalai.Dialect.Endpoints["/eternalai/v1/completions"], required: []string{"model", "prompt"}, own: []string{"chain_id", "suffix"},
		table: []row{
			{"model", []string{`"m"`, `"unsloth/Llama-3.3-70B-Instruct-bnb-4bit"`}, []string{`null`, `1`, `true`, `["m"]`, `{}`}},
			{"prompt", []string{`""`, `"a"`, `["a", "b"]`, `[1, 2]`, `[[1], [2, 3]]`}, []string{`null`, `1`, `true`, `{}`, `[]`, `[[]]`, `[null]`, `["a", 1]`}},
			{"suffix", []string{`null`}, []string{`"b"`, `""`, `1`}},
			{
				"chain_id",
				[]string{`null`, `"45762"`, `45762`, `0`, `"0"`, `"007"`, `"\u0031"`, `"` + strings.Repeat("9", 78) + `"`, strings.Repeat("9", 78)},
				[]string{`""`, `"a"`, `"0x1"`, `"-1"`, `-1`, `1.0`, `1e2`, `true`, `[]`, `["1"]`, `{}`, `" 1"`, `"1\n"`, `"` + strings.Repeat("9", 79) + `"`, strings.Repeat("9", 79)},
			},
			{"best_of", []string{`null`, `1`, `16`}, []string{`0`, `17`, `-1`, `1.0`, `"1"`, `true`, `[]`, `{}`}},
			{"echo", []string{`null`, `true`, `false`}, []string{`0`, `"true"`, `[]`, `{}`}},
			{"frequency_penalty", []string{`null`, `-2`, `2`, `0.5`}, []string{`-2.1`, `2.1`, `"1"`, `true`, `[]`, `{}`}},
			{"logit_bias", []string{`null`, `{}`, `{"50256": -100}`}, []string{`[]`, `1`, `{"a": 1}`, `{"1": 101}`, `{"1": "1"}`, `{"1": 1, "1": 2}`}},
			{"logprobs", []string{`null`, `0`, `5`}, []string{`6`, `20`, `-1`, `5.0`, `"5"`, `true`, `[]`, `{}`}},
			{"max_tokens", []string{`null`, `1`, `7`}, []string{`0`, `-1`, `1.0`, `"7"`, `true`, `[]`, `{}`}},
			{"n", []string{`null`, `1`, `16`}, []string{`0`, `17`, `1.0`, `"1"`, `true`, `[]`, `{}`}},
			{"presence_penalty", []string{`null`, `-2`, `2`}, []string{`-2.1`, `2.1`, `"1"`, `true`, `[]`, `{}`}},
			{"seed", []string{`null`, `0`, `-5`, `42`}, []string{`1.5`, `"1"`, `true`, `[]`, `{}`}},
			{"stop", []string{`null`, `"a"`, `["a", "b", "c", "d"]`}, []string{`""`, `[]`, `["a", "b", "c", "d", "e"]`, `1`, `true`, `{}`}},
			{"stream", []string{`null`, `true`, `false`}, []string{`0`, `"true"`, `[]`, `{}`}},
			{"stream_options", []string{`null`, `{}`, `{"include_usage": true}`}, []string{`1`, `true`, `[]`, `{"include_usage": 1}`, `{"x": true}`}},
			{"temperature", []string{`null`, `0`, `2`, `0.7`}, []string{`-0.1`, `2.1`, `"1"`, `true`, `[]`, `{}`}},
			{"top_p", []string{`null`, `0.1`, `1`}, []string{`0`, `1.1`, `"1"`, `true`, `[]`, `{}`}},
			{"user", []string{`null`, `""`, `"ada"`}, []string{`1`, `true`, `[]`, `{}`, `"` + strings.Repeat("u", 513) + `"`}},
		},
	},
}

// bodyWith returns a body of the form with one field, and with the required ones beside it.
func (f *form) bodyWith(field, value string) string {
	members := []string{fmt.Sprintf("%q: %s", field, value)}
	for _, name := range f.required {
		if name != field {
			members = append(members, fmt.Sprintf(`%q: "m"`, name))
		}
	}
	return "{" + strings.Join(members, ", ") + "}"
}

func TestFieldsAcceptAndRefuseTheValuesOfTheTable(t *testing.T) {
	for name, f := range forms {
		for _, row := range f.table {
			for _, value := range row.accepted {
				body := f.bodyWith(row.field, value)
				if row.field == "stream_options" && value != "null" {
					body = strings.Replace(body, "{", `{"stream": true, `, 1)
				}
				translation, err := f.parse([]byte(body), limits)
				if err != nil {
					t.Errorf("%s: %s was refused: %s", name, body, apierr.From(err).Message)
					continue
				}
				f.checkUpstream(t, body, translation.Request)
			}
			for _, value := range row.refused {
				if err := f.refusal(t, f.bodyWith(row.field, value)); err.Param != row.field && !strings.Contains(err.Message, "stands twice") {
					t.Errorf("%s: %s %s: the error names %q: %s", name, row.field, value, err.Param, err.Message)
				} else if !strings.Contains(err.Message, row.field) && !strings.Contains(err.Message, "twice") {
					t.Errorf("%s: the message about %s %s does not name it: %s", name, row.field, value, err.Message)
				}
			}
		}
	}
}

func (f *form) refusal(t *testing.T, body string) *apierr.Error {
	t.Helper()
	_, err := f.parse([]byte(body), limits)
	if err == nil {
		t.Fatalf("%s was accepted", body[:min(len(body), 300)])
	}
	e := apierr.From(err)
	if e.Code != apierr.InvalidRequest {
		t.Fatalf("%s: got %s (%s), want invalid_request", body, e.Code, e.Message)
	}
	return e
}

// checkUpstream checks that the body for every version of vLLM is a completion with the request's values.
func (f *form) checkUpstream(t *testing.T, body string, r *validate.Request) {
	t.Helper()
	for _, guided := range []bool{false, true} {
		sent := r.Upstream(validate.Edits{Model: "org/Checkpoint", Guided: guided}).Append(nil)
		if !json.Valid(sent) {
			t.Fatalf("%s became %s", body, sent)
		}
		schema := gjson.GetBytes(sent, "structured_outputs.json")
		if guided {
			schema = gjson.GetBytes(sent, "guided_json")
			sent = []byte(strings.Replace(string(sent), `,"guided_json":`+schema.Raw, "", 1)) // as only old versions have it
		}
		if outputType := gjson.Get(body, "output_type"); outputType.IsObject() != schema.IsObject() {
			t.Fatalf("output_type %s became the schema %q", outputType.Raw, schema.Raw)
		}
		completion, err := validate.Completion(sent, limits)
		if err != nil {
			t.Fatalf("%s became %s, which is no completion: %s", body, sent, apierr.From(err).Message)
		}
		if completion.Model != "org/Checkpoint" || completion.Prompts != r.Prompts || completion.Has("x") {
			t.Fatalf("%s became %s", body, sent)
		}
		gjson.Parse(body).ForEach(func(name, value gjson.Result) bool {
			upstream := cmp.Or(f.renamed[name.Str], name.Str)
			got := gjson.GetBytes(sent, upstream)
			switch {
			case slices.Contains(f.own, name.Str) || upstream == "model" || upstream == "stream_options": // replaced or removed
			case value.Type == gjson.Null && got.Exists(), value.Type != gjson.Null && got.Raw != value.Raw:
				t.Errorf("%s %s was sent as %s: %s", name.Str, value.Raw, got.Raw, sent)
			}
			return true
		})
	}
}

func TestUnknownDoubledAndMissingFieldsAreNamed(t *testing.T) {
	for name, f := range forms {
		for _, row := range f.table {
			body := f.bodyWith(row.field, row.accepted[0])
			doubled := strings.TrimSuffix(f.bodyWith(row.field, row.accepted[len(row.accepted)-1]), "}") + ", " + body[1:]
			if e := f.refusal(t, doubled); e.Param != row.field || !strings.Contains(e.Message, "twice") {
				t.Errorf("%s: %s twice: %q, %s", name, row.field, e.Param, e.Message)
			}
		}
		for _, field := range f.required {
			body := `{"user": null}`
			for _, other := range f.required {
				if other != field {
					body = fmt.Sprintf(`{%q: "m"}`, other)
				}
			}
			if e := f.refusal(t, body); e.Param != field || !strings.Contains(e.Message, "missing") {
				t.Errorf("%s: without %s: %q, %s", name, field, e.Param, e.Message)
			}
		}
		for _, unknown := range []string{"x", "suffix", "top_k", "min_tokens", "guided_json", "structured_outputs", "response_format", "cache_salt", "messages"} {
			if e := f.refusal(t, f.bodyWith(unknown, `"x"`)); e.Param != unknown {
				t.Errorf("%s: %s: the error names %q: %s", name, unknown, e.Param, e.Message)
			}
		}
	}
	lamini := forms["lamini"]
	for field, advice := range map[string]string{
		"model": "model_name", "prompts": "prompt", "stream": "not streamed", "temperature": "POST /v1/completions", "max_new_token": "did you mean",
		"n": "several times", "cache_id": "remove it",
	} {
		if e := lamini.refusal(t, lamini.bodyWith(field, `1`)); !strings.Contains(e.Message, advice) {
			t.Errorf("%s: %s", field, e.Message)
		}
	}
}

func TestBodiesThatAreNoObjectAreMalformed(t *testing.T) {
	for name, f := range forms {
		for _, body := range []string{"", " ", "[]", "{", `{"prompt": "a"`, "\xef\xbb\xbf{}", "{\"prompt\": \"\xff\"}", `{"prompt": "\ud800"}`, `{} {}`, strings.Repeat("[", 100)} {
			if _, err := f.parse([]byte(body), limits); err == nil || apierr.From(err).Code != apierr.BadJSON {
				t.Errorf("%s: %q: %v, want bad_json", name, body, err)
			}
		}
	}
}

// Every body of random fields of the table in random order is refused for its first invalid field, or else, as contradictions
// of valid fields are reported last, accepted or refused for one of those.
func TestRandomBodiesAreJudgedByTheTable(t *testing.T) {
	for name, f := range forms {
		random := rand.New(rand.NewPCG(1, 2))
		accepted, refused := 0, 0
		for range 5000 {
			body, invalid := f.randomBody(random)
			translation, err := f.parse([]byte(body), limits)
			switch {
			case err == nil && invalid == "":
				accepted++
				f.checkUpstream(t, body, translation.Request)
			case err == nil:
				t.Fatalf("%s: %s was accepted, but %s is invalid", name, body, invalid)
			case invalid == "" && slices.Contains([]string{"best_of", "stream_options", "n", "prompt"}, apierr.From(err).Param):
			case apierr.From(err).Param != invalid && !strings.Contains(apierr.From(err).Message, "twice"):
				t.Fatalf("%s: %s: the error names %q, want %q: %v", name, body, apierr.From(err).Param, invalid, apierr.From(err).Message)
			default:
				refused++
			}
		}
		if accepted < 1000 || refused < 1000 {
			t.Errorf("%s: %d bodies were accepted and %d refused; the test has lost its sense", name, accepted, refused)
		}
	}
}

// randomBody returns a body of random fields and the first of them that is invalid, or "".
func (f *form) randomBody(random *rand.Rand) (body, invalid string) {
	var members []string
	for _, i := range random.Perm(len(f.table)) {
		row := f.table[i]
		if !slices.Contains(f.required, row.field) && random.IntN(3) == 0 {
			continue
		}
		values := row.accepted
		if random.IntN(2*len(f.table)) == 0 {
			values = row.refused
			if invalid == "" {
				invalid = row.field
			}
		}
		value := values[random.IntN(len(values))]
		if len(value) > 1000 {
			value = values[0]
		}
		members = append(members, fmt.Sprintf("%s%q :%s%s", strings.Repeat(" ", random.IntN(2)), row.field, strings.Repeat("\n", random.IntN(2)), value))
	}
	return "{" + strings.Join(members, ",") + " }", invalid
}

func fuzz(f *testing.F, form form) {
	f.Helper()
	for _, row := range form.table {
		for _, value := range slices.Concat(row.accepted, row.refused) {
			if len(value) < 1000 {
				f.Add([]byte(form.bodyWith(row.field, value)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		translation, err := form.parse(body, limits)
		if err == nil {
			form.checkUpstream(t, string(body), translation.Request)
			return
		}
		if e := apierr.From(err); e.Code != apierr.InvalidRequest && e.Code != apierr.BadJSON || e.Message == "" {
			t.Fatalf("%s: %s", e.Code, e.Message)
		}
	})
}

func FuzzLamini(f *testing.F) { fuzz(f, forms["lamini"]) }

func FuzzEternalAI(f *testing.F) { fuzz(f, forms["eternalai"]) }

func TestEternalAIBounds(t *testing.T) {
	f := forms["eternalai"]
	for _, body := range []string{
		`{"model": "m", "prompt": "a", "best_of": 2, "n": 2}`, `{"model": "m", "prompt": "a", "best_of": 1, "n": 1}`, `{"model": "m", "prompt": "a", "n": 3, "best_of": 2}`,
	} {
		if e := f.refusal(t, body); e.Param != "best_of" || !strings.Contains(e.Message, "greater than n") {
			t.Errorf("%s: %q, %s", body, e.Param, e.Message)
		}
	}
	for body, chainID := range map[string]string{
		`{"model": "m", "prompt": "a", "best_of": 1}`:                    "",
		`{"model": "m", "prompt": "a", "best_of": 3, "n": 2}`:            "",
		`{"model": "m", "prompt": "a", "best_of": null, "n": 2}`:         "",
		`{"chain_id": "45762", "model": "m", "prompt": "a"}`:             "45762",
		`{"chain_id": 45762, "model": "m", "prompt": "a"}`:               "45762",
		`{"model": "m", "prompt": "a", "chain_id":"\u0034\u0035"}`:       "45",
		`{"model": "m", "chain_id":null, "prompt": "a", "logprobs": 5 }`: "",
	} {
		translation, err := f.parse([]byte(body), limits)
		if err != nil || translation.ChainID != chainID || !translation.Receipt {
			t.Errorf("%s: chain id %q, receipt %v, want %q and a receipt; %v", body, translation.ChainID, translation.Receipt, chainID, err)
		}
	}
}

// A long string that ends near the end of the body is not read by the JSON decoder, whose offsets then begin anew.
func TestFieldsOfADialectFollowALongPrompt(t *testing.T) {
	prompt := strings.Repeat("a", 2000)
	eternal, err := forms["eternalai"].parse([]byte(`{"model": "m", "prompt": "`+prompt+`", "suffix": null, "chain_id": "45762"}`), limits)
	if err != nil || eternal.ChainID != "45762" {
		t.Errorf("chain id %q, want 45762; %v", eternal.ChainID, err)
	}
	lamini, err := forms["lamini"].parse([]byte(`{"model_name": "m", "prompt": "`+prompt+`", "output_type": {"a": "int"}}`), limits)
	if err != nil {
		t.Fatal(err)
	}
	got := string(lamini.Request.Upstream(validate.Edits{Model: "c"}).Append(nil))
	if want := `"structured_outputs":{"json":{"type":"object","properties":{"a":{"type":"integer"}}`; !strings.Contains(got, want) {
		t.Errorf("got %s, want it to contain %s", got, want)
	}
}

// The fields of Lamini's form become those of a completion, in their order, with the schema of output_type at the end.
func TestLaminiBodiesForABackend(t *testing.T) {
	const schema = `{"type":"object","properties":{"z":{"type":"integer"},"a \"b\"":{"type":"string"},"f":{"type":"number"},"b":{"type":"boolean"}},` +
		`"required":["z","a \"b\"","f","b"],"additionalProperties":false}`
	parse := forms["lamini"].parse
	body := `{"max_tokens": null, "output_type":{"z":"int","a \"b\"":"str","f":"float","b":"bool"} , "prompt" : ["x", "y"], "max_new_tokens":5,"model_name": "m"}`
	translation, err := parse([]byte(body), limits)
	if err != nil {
		t.Fatal(err)
	}
	for guided, want := range map[bool]string{
		false: `{  "prompt" : ["x", "y"], "max_tokens":5,"model":"c","structured_outputs":{"json":` + schema + `}}`,
		true:  `{  "prompt" : ["x", "y"], "max_tokens":5,"model":"c","guided_json":` + schema + `}`,
	} {
		got := string(translation.Request.Upstream(validate.Edits{Model: "c", Guided: guided}).Append(nil))
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("guided %v (-want +got):\n%s", guided, diff)
		}
	}
}
