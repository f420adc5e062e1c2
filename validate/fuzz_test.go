package validate_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	apierr "basegate/errors"
	"basegate/validate"
)

// seedBodies returns the bodies of the tables, and some with many escapes, nulls and edits.
func seedBodies(f *testing.F) []string {
	f.Helper()
	all := []string{
		allKinds, minimal, string(bodyOfSize(1 << 10)), string(bodyOfSize(4 << 10)),
		`{"mod\u0065l":"m","prompt":["a","\ud83d\ude00\\\""],"us\u0065r":"x","stream":true,"stream_options":{ "include\u005fusage" : null } }`,
		` { "n" : null , "best_of":4, "prompt":[[1,2],[3]] ,"model":"m" , "logprobs":null,"user": null } `,
		`{"user":null,"n":null,"model":"m","max_tokens":null,"prompt":[0,1],"stop":["a","b"],"logit_bias":{"1":1e2,"2":-0.0},"seed":-9223372036854775808}`,
		`{"model":"m","prompt":"{\"model\":null,","stream":true,"stream_options":null,"echo":true,"logprobs":20,"user":"\"user\":null"}`,
		`{"model":"m","prompt":"a","model":"n"}`, `{"x":{"a":1,"\u0061":2}}`, "\xef\xbb\xbf{}", "{\"model\":\"\xff\"}", `{"model":"\ud800"}`, `{"n":1e0}`,
	}
	for _, row := range fieldTable {
		for _, value := range slices.Concat(row.accepted, row.refused) {
			all = append(all, bodyWith(row.field, value))
		}
	}
	data, err := os.ReadFile("testdata/precedence.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range txtar.Parse(data).Files {
		if strings.HasSuffix(file.Name, ".json") {
			all = append(all, string(file.Data))
		}
	}
	return all
}

func FuzzCompletion(f *testing.F) {
	for _, body := range seedBodies(f) {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		original := bytes.Clone(body)
		r, err := validate.Completion(body, defaultLimits)
		if !bytes.Equal(original, body) {
			t.Fatal("Completion modified the body")
		}
		want, violation := oracle(body)
		if err != nil {
			e := apierr.From(err)
			if e.Code != apierr.InvalidRequest && e.Code != apierr.BadJSON {
				t.Fatalf("%v: %v", e.Code, err)
			}
			if e.Message == "" || (e.Code == apierr.BadJSON && (e.Extras[0].Value.(int64) < 0 || e.Extras[0].Value.(int64) > int64(len(body)))) {
				t.Fatalf("%s", result(err))
			}
			if violation == nil && !outsideOracle(e, want) {
				t.Fatalf("refused, but the oracle accepts it: %s", result(err))
			}
			return
		}
		if violation != nil {
			t.Fatalf("accepted, but the oracle says: %v", violation)
		}
		if diff := cmp.Diff(want, valuesOf(r), ofRequest); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		if total := int64(len(strings.Join(want.Texts, ""))); total > int64(len(r.PromptJSON())) {
			t.Fatalf("the prompts have %d bytes of text, but PromptJSON has %d", total, len(r.PromptJSON()))
		}
	})
}

func FuzzUpstream(f *testing.F) {
	for i, body := range seedBodies(f) {
		f.Add([]byte(body), "meta-llama/Llama-3.1-8B", int64(i%3*100), uint8(i))
	}
	f.Fuzz(func(t *testing.T, body []byte, model string, maxTokens int64, bestOf uint8) {
		r, err := validate.Completion(body, defaultLimits)
		if err != nil || !utf8.ValidString(model) {
			return
		}
		e := validate.Edits{Model: model, MaxTokens: max(0, maxTokens), BestOf: validate.BestOf(bestOf % 3), TokenIDs: bestOf > 127}
		e.Guided = bestOf%2 == 1
		if r.BestOf == 0 && e.BestOf == validate.EmulateBestOf {
			e.BestOf = validate.KeepBestOf // nothing to emulate
		}
		checkReads(t, r.Upstream(e))
		checkSent(t, string(body), r, e)
	})
}
