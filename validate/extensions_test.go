package validate_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierr "basegate/errors"
	"basegate/validate"
)

// arranged returns a body in which a field stands at a position among others.
func arranged(field, value string, position int) string {
	members := [][2]string{{"model", `"llama-8b"`}, {"prompt", `"a"`}, {"temperature", "0.70"}, {"stop", `["x"]`}}
	members = append(members, needed[field]...)
	members = slices.DeleteFunc(members, func(m [2]string) bool { return m[0] == field })
	members = slices.Insert(members, min(position, len(members)), [2]string{field, value})
	var all []string
	for _, m := range members {
		all = append(all, fmt.Sprintf("%q : %s", m[0], m[1]))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// Each row of the table, with each value, at each position: a valid value is passed on byte for byte, null is not passed
// on, and an invalid value is refused by name.
func TestEveryFieldIsJudgedAlikeAtEveryPosition(t *testing.T) {
	for _, row := range fieldTable {
		for position := range 6 {
			for _, value := range row.accepted {
				checkPassedOn(t, row.field, value, arranged(row.field, value, position))
			}
			for _, value := range row.refused {
				_, err := validate.Completion([]byte(arranged(row.field, value, position)), defaultLimits)
				if e := apierr.From(err); err == nil || e.Code != apierr.InvalidRequest || e.Param != row.field {
					t.Errorf("%s %.60s at %d: %s", row.field, value, position, result(err))
				}
			}
		}
	}
}

// checkPassedOn checks that a body reaches the backend with the field's value untouched, or without the field if the
// value is null.
func checkPassedOn(t *testing.T, field, value, body string) {
	t.Helper()
	r, err := validate.Completion([]byte(body), defaultLimits)
	if err != nil {
		t.Errorf("%.100s: %s", body, result(err))
		return
	}
	sent, err := parseMembers(r.Upstream(validate.Edits{Model: "llama-8b"}).Append(nil))
	if err != nil {
		t.Errorf("%.100s: %v", body, err)
		return
	}
	at := slices.IndexFunc(sent, func(m rawMember) bool { return m.decodedName() == field })
	switch {
	case value == "null":
		if at >= 0 && field != "stream_options" {
			t.Errorf("%.100s: null was passed on", body)
		}
		if r.Has(field) {
			t.Errorf("%.100s: Has(%q) is true for null", body, field)
		}
	case field == "prompt_cache_key":
		if at >= 0 {
			t.Errorf("%.100s: %s was passed on", body, field)
		}
	case at < 0:
		t.Errorf("%.100s: %s was not passed on", body, field)
	case sent[at].value != withoutNulls(rawMember{strconv.Quote(field), value}) && field != "model" && field != "stream_options":
		t.Errorf("%.100s: %s was passed on as %.60s", body, field, sent[at].value)
	}
}

func TestPairsThatExcludeEachOtherAreRefused(t *testing.T) {
	for members, want := range map[string]string{
		`"max_tokens": 4, "min_tokens": 5`:                                      "min_tokens",
		`"min_tokens": 5, "max_tokens": 4`:                                      "min_tokens",
		`"min_tokens": 17`:                                                      "min_tokens",
		`"max_tokens": 4, "min_tokens": 4`:                                      "",
		`"return_token_ids": true, "echo": true`:                                "return_token_ids",
		`"echo": true, "return_token_ids": true`:                                "return_token_ids",
		`"echo": true, "return_token_ids": false`:                               "",
		`"echo": false, "return_token_ids": true`:                               "",
		`"echo": true, "return_tokens_as_token_ids": true`:                      "",
		`"response_format": {"type":"text"}, "structured_outputs": {"json":{}}`: "structured_outputs",
		`"structured_outputs": {"json":{}}, "response_format": {"type":"text"}`: "structured_outputs",
		`"structured_outputs": {"json":{}}, "response_format": null`:            "",
		`"structured_outputs": null, "response_format": {"type":"text"}`:        "",
	} {
		_, err := validate.Completion([]byte(`{"model": "m", "prompt": "a", `+members+`}`), defaultLimits)
		if e := apierr.From(err); (err == nil) != (want == "") || (err != nil && e.Param != want) {
			t.Errorf("%s: got %s, want %q refused", members, result(err), want)
		}
	}
}

func TestSequencesOfARequestAreLimited(t *testing.T) {
	limits := validate.Limits{Model: defaultLimits.Model, MaxSequences: 32}
	for _, c := range []struct {
		prompts int
		members string
		want    string
	}{
		{32, ``, ""},
		{33, ``, "prompt"},
		{33, `, "n": 2`, "prompt"},
		{16, `, "n": 2`, ""},
		{17, `, "n": 2`, "n"},
		{17, `, "n": 2, "best_of": 3`, "n"},
		{17, `, "best_of": 2`, "prompt"},
		{2, `, "n": 16`, ""},
		{2, `, "n": 1, "best_of": 16`, ""},
		{3, `, "n": 1, "best_of": 16`, "prompt"},
	} {
		for _, prompt := range []string{arrayOf(`"a"`, c.prompts), arrayOf(`[1, 2]`, c.prompts)} {
			_, err := validate.Completion([]byte(`{"model": "m", "prompt": `+prompt+c.members+`}`), limits)
			e := apierr.From(err)
			if (err == nil) != (c.want == "") || (err != nil && (e.Param != c.want || !strings.Contains(e.Message, "at most 32 completions"))) {
				t.Errorf("%d prompts%s: got %s, want %q refused", c.prompts, c.members, result(err), c.want)
			}
		}
	}
}

func TestStructuredOutputIsRespelledForOldVersions(t *testing.T) {
	const schema = `{"type": "object", "p" :[1.0e0,"\u0041"]}`
	for _, c := range []struct{ sent, want string }{
		{`"structured_outputs": {"json": ` + schema + `}`, `"guided_json":` + schema},
		{`"structured\u005foutputs" : {"json": "{}"}`, `"guided_json":"{}"`},
		{`"structured_outputs": {"regex": null, "js\u006fn" :{} }`, `"guided_json":{}`},
		{`"structured_outputs": {"regex": "a\\d"}`, `"guided_regex":"a\\d"`},
		{`"structured_outputs": { "choice": ["a", "b"] }`, `"guided_choice":["a", "b"]`},
		{`"structured_outputs": {"grammar": "root ::= x"}`, `"guided_grammar":"root ::= x"`},
		{`"structured_outputs": {"json_object": true}`, `"response_format":{"type":"json_object"}`},
		{`"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ` + schema + `, "strict": true}}`, `"guided_json":` + schema},
		{`"response_format": {"json_schema": {"schema": {}, "name": "n"}, "type": "json_schema"}, "structured_outputs": null`, `"guided_json":{}`},
		{`"response_format": {"type": "json_object"}`, `"response_format": {"type": "json_object"}`},
		{`"response_format": {"type": "text"}`, `"response_format": {"type": "text"}`},
		{`"temperature": 1`, `"temperature": 1`},
	} {
		for _, frame := range [][2]string{{`{"model":"m","prompt":"a",`, `}`}, {`{`, `,"model":"m","prompt":"a"}`}, {`{"model":"m",`, `,"user":null,"prompt":"a"}`}} {
			body := frame[0] + c.sent + frame[1]
			want := strings.NewReplacer(`"m"`, `"org/C"`, `,"user":null`, ``).Replace(frame[0] + c.want + frame[1])
			r := mustParse(t, body)
			out := r.Upstream(validate.Edits{Model: checkpoint, Guided: true})
			if got := string(out.Append(nil)); got != want {
				t.Errorf("%s:\ngot  %s\nwant %s", body, got, want)
			}
			checkReads(t, out)
			asSent := strings.NewReplacer(`"m"`, `"org/C"`, `,"user":null`, ``, `"regex": null, `, ``, `, "structured_outputs": null`, ``).Replace(body)
			if got := string(r.Upstream(validate.Edits{Model: checkpoint}).Append(nil)); got != asSent {
				t.Errorf("%s for a later version:\ngot  %s\nwant %s", body, got, asSent)
			}
		}
	}
}

// A name that stands twice is refused at every depth of a schema, however long the schema is.
func TestDuplicateNamesInASchemaAreRefused(t *testing.T) {
	filler := numbered(`{`, `}`, 200<<10, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	for _, schema := range []string{`{"a": 1, "a": 2}`, `{"a": [{"b": {"c": 1, "\u0063": 2}}]}`, `{"filler": ` + string(filler) + `, "x": {"y": 1, "y": 1}}`} {
		for _, member := range []string{
			`"structured_outputs": {"json": ` + schema + `}`,
			`"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ` + schema + `}}`,
		} {
			_, err := validate.Completion([]byte(`{"model": "m", "prompt": "a", `+member+`}`), defaultLimits)
			if e := apierr.From(err); err == nil || !strings.Contains(e.Message, "stands twice") {
				t.Errorf("%.100s: %s", member, result(err))
			}
		}
	}
}

func TestLongSchemaIsRefusedByItsSize(t *testing.T) {
	schema := numbered(`{"json": {`, `}}`, 256<<10, func(i int) string { return fmt.Sprintf(`"n%d":0`, i) })
	_, err := validate.Completion([]byte(`{"model": "m", "prompt": "a", "structured_outputs": `+string(schema)+`}`), defaultLimits)
	if e := apierr.From(err); err == nil || e.Param != "structured_outputs" || !strings.Contains(e.Message, "over the limit of 262144") {
		t.Errorf("got %s", result(err))
	}
}

func TestTokenIDsOfTheClientAndOfTheGatewayAreRequestedOnce(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","prompt":"a"}`: `{"model":"org/C","prompt":"a","return_tokens_as_token_ids":true,"return_token_ids":true}`,
		`{"return_token_ids":false,"model":"m","return_tokens_as_token_ids":null,"prompt":"a"}`: `{"return_token_ids":true,"model":"org/C","return_tokens_as_token_ids":true,"prompt":"a"}`,
		`{"model":"m","prompt":"a","echo":true}`:                                                `{"model":"org/C","prompt":"a","echo":true,"return_tokens_as_token_ids":true}`,
	} {
		got := mustParse(t, body).Upstream(validate.Edits{Model: checkpoint, TokenIDs: true}).Append(nil)
		if string(got) != want {
			t.Errorf("%s:\ngot  %s\nwant %s", body, got, want)
		}
	}
}

func TestVersionsAreCompared(t *testing.T) {
	ordered := []string{"0.6.6.post1", "0.9", "0.10.0", "0.10.1rc1", "0.10.1.1", "0.11.0+cpu", "0.32.0", "1.0.0"}
	for i, older := range ordered {
		for j, newer := range ordered {
			a, b := validate.ParseVersion(older), validate.ParseVersion(newer)
			if want := i < j && a != b; a.Before(b) != want {
				t.Errorf("%s before %s: got %t, want %t", older, newer, !want, want)
			}
		}
	}
	for _, unknown := range []string{"", "dev", "0", "0.1.dev1+g1234567", "v0.9.0", "x.y"} {
		if v := validate.ParseVersion(unknown); v.Known() || v.Before(validate.Version{Minor: 6}) {
			t.Errorf("%q was parsed as %s", unknown, v)
		}
	}
}
