//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// openAPIDocument returns the document that the gateway serves.
func openAPIDocument(t *testing.T, g *gateway) *openapi3.T {
	t.Helper()
	got := g.get(g.url, "/openapi.json")
	if got.status != http.StatusOK || got.header.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Fatalf("got %d %s", got.status, got.header.Get("Content-Type"))
	}
	doc, err := openapi3.NewLoader().LoadFromData([]byte(got.body))
	must(t, err)
	must(t, doc.Validate(t.Context()))
	return doc
}

// validateSchema returns an error if a JSON value does not conform to the schema.
func validateSchema(t *testing.T, schema *openapi3.SchemaRef, text string) error {
	t.Helper()
	var value any
	must(t, json.Unmarshal([]byte(text), &value))
	return schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020())
}

// fieldSamples are valid and invalid values of each field. The gateway decides which are valid, and the document must
// agree.
var fieldSamples = map[string][]string{
	"model":              {`""`, `1`, `null`, `["m"]`},
	"prompt":             {`"a"`, `["a","b"]`, `["a",""]`, `[1,2]`, `[[1],[2,3]]`, `[]`, `[[]]`, `[1,"a"]`, `[-1]`, `[1.5]`, `null`, `7`, `{}`},
	"max_tokens":         {`1`, `0`, `-1`, `1.5`, `"1"`, `true`, `null`, `[1]`},
	"temperature":        {`0`, `2`, `0.7`, `2.01`, `-0.1`, `"1"`, `true`, `null`},
	"top_p":              {`1`, `0.01`, `0`, `1.1`, `-1`, `"1"`, `null`},
	"top_k":              {`-1`, `1`, `50`, `0`, `-2`, `1.5`, `null`, `"1"`},
	"min_p":              {`0`, `1`, `0.5`, `1.5`, `-0.5`, `null`, `false`},
	"presence_penalty":   {`-2`, `2`, `2.5`, `-3`, `null`, `"0"`},
	"frequency_penalty":  {`-2`, `2`, `2.5`, `-3`, `null`, `"0"`},
	"repetition_penalty": {`1`, `2`, `0.1`, `0`, `2.1`, `null`, `"1"`},
	"seed":               {`0`, `-5`, `4294967296`, `1.5`, `"1"`, `null`},
	"n":                  {`1`, `16`, `0`, `17`, `1.5`, `null`, `"2"`},
	"best_of":            {`1`, `16`, `0`, `17`, `null`, `"2"`},
	"stop":               {`"x"`, `""`, `["x"]`, `["a","b","c","d"]`, `["a","b","c","d","e"]`, `[]`, `[""]`, `[1]`, `1`, `null`},
	"logprobs":           {`0`, `20`, `21`, `-1`, `true`, `null`, `"1"`},
	"prompt_logprobs":    {`0`, `20`, `21`, `-1`, `true`, `null`, `"1"`},
	"echo":               {`true`, `false`, `0`, `"true"`, `null`},
	"stream":             {`true`, `false`, `0`, `"true"`, `null`},
	"stream_options":     {`null`, `{"x":1}`, `[]`, `true`, `"x"`},
	"logit_bias":         {`{}`, `{"1":100}`, `{"1":-100.5}`, `{"a":1}`, `{"-1":1}`, `{"1":"1"}`, `[]`, `null`},
	"user":               {`"x"`, `""`, `1`, `null`, `"` + strings.Repeat("x", 512) + `"`, `"` + strings.Repeat("x", 513) + `"`},
	"no_such_field":      {`1`, `null`},

	"min_tokens":                    {`0`, `1`, `-1`, `1.5`, `"1"`, `null`},
	"ignore_eos":                    {`true`, `false`, `0`, `"true"`, `null`},
	"include_stop_str_in_output":    {`true`, `false`, `0`, `"true"`, `null`},
	"skip_special_tokens":           {`true`, `false`, `0`, `"true"`, `null`},
	"spaces_between_special_tokens": {`true`, `false`, `0`, `"true"`, `null`},
	"add_special_tokens":            {`true`, `false`, `0`, `"true"`, `null`},
	"stop_token_ids":                {`[1]`, `[]`, `[-1]`, `[2147483648]`, `["1"]`, `1`, `null`, `[` + strings.Repeat("1,", 128) + `1]`},
	"allowed_token_ids":             {`[1]`, `[]`, `[-1]`, `[2147483648]`, `["1"]`, `1`, `null`},
	"bad_words":                     {`["x"]`, `[]`, `[""]`, `"x"`, `[1]`, `null`, `[` + strings.Repeat(`"x",`, 128) + `"x"]`},
	"truncate_prompt_tokens":        {`-1`, `1`, `0`, `-2`, `1.5`, `"1"`, `null`},
	"return_tokens_as_token_ids":    {`true`, `false`, `0`, `"true"`, `null`},
	"return_token_ids":              {`true`, `false`, `0`, `"true"`, `null`},
	"cache_salt":                    {`"x"`, `""`, `1`, `null`, `"` + strings.Repeat("x", 128) + `"`, `"` + strings.Repeat("ž", 129) + `"`, `"a/b"`, `"@"`, `"\\"`, `"\u0000"`, `"aZ0-_"`},
	"prompt_cache_key":              {`"x"`, `""`, `1`, `null`, `"` + strings.Repeat("x", 512) + `"`, `"` + strings.Repeat("x", 513) + `"`},
	"stream_interval":               {`0`, `1025`, `"2"`, `1.5`, `null`},
	"repetition_detection":          {`{"min_count":2}`, `{"min_count":1}`, `{"min_count":2,"max_pattern_size":1025}`, `{"min_count":2,"x":1}`, `{"min_count":2,"x":null}`, `{}`, `1`, `null`},
	"logprob_token_ids":             {`[]`, `[1,1]`, `["1"]`, `[-1]`, `1`, `null`},
	"truncation_side":               {`"middle"`, `1`, `null`},
	"return_weight_versions":        {`0`, `"true"`, `null`},
	"vllm_xargs":                    {`{}`, `{"x":null}`, `{"x":{}}`, `{"x":[[1]]}`, `[]`, `1`, `null`},
	"response_format": {
		`{"type":"text"}`, `{"type":"json_object"}`, `{"type":"json_schema","json_schema":{"name":"n","schema":{}}}`, `{}`, `{"type":"xml"}`, `"text"`,
		`{"type":"json_schema","json_schema":{"name":"n"}}`, `{"type":"json_schema","json_schema":{"name":"","schema":{}}}`, `{"type":"text","x":1}`, `{"type":"text","x":null}`, `null`,
	},
	"structured_outputs": {
		`{"json":{}}`, `{"json":"{}"}`, `{"regex":"a"}`, `{"choice":["a"]}`, `{"grammar":"root ::= \"a\""}`, `{"json_object":true}`, `{"regex":"a","disable_any_whitespace":true}`,
		`{}`, `{"json":1}`, `{"regex":""}`, `{"choice":[]}`, `{"choice":[""]}`, `{"grammar":1}`, `{"json_object":false}`, `{"x":1}`, `"json"`, `null`,
	},
}

// chatSamples are those of the fields that a chat completion has in a form of its own.
var chatSamples = map[string][]string{
	"messages": {
		`[]`, `[{"role":"user","content":"a","x":null}]`, `[{"role":"user","content":[{"type":"text","text":"a","x":null}]}]`,
		`[{"role":"user","content":[{"type":"text","text":"a","x":1}]}]`, `[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[]},{"role":"user","content":"a"}]`,
		`[{"role":"user","content":"a"},{"role":"assistant","tool_call_id":null,"provider_specific_fields":{"a":1}},{"role":"user","content":"a"}]`,
	},
	"tools":                {`[]`, `[{"type":"function","function":{"name":"f","x":null},"y":null}]`, `[{"type":"function","function":{"name":"f","x":1}}]`, `[1]`, `null`},
	"chat_template_kwargs": {`{"a":{"b":[1]}}`, `{}`, `[]`, `1`, `null`},
	"reasoning_effort":     {`"none"`, `"minimal"`, `"low"`, `"medium"`, `"high"`, `"max"`, `1`, `null`},
	"include_reasoning":    {`true`, `false`, `0`, `null`},
	"safety_identifier":    {`""`, `"x"`, `1`, `null`},
	"prompt_cache_key":     {`""`, `"x"`, `1`, `null`},
	"store":                {`false`, `true`, `0`, `null`},
	"service_tier":         {`"auto"`, `"default"`, `"flex"`, `1`, `null`},
	"modalities":           {`["text"]`, `["audio"]`, `["text","audio"]`, `[]`, `"text"`, `null`},
	"return_prompt_text":   {`true`},
	"metadata":             {`{}`},
}

func TestOpenAPIDocumentAgreesWithValidationOfChat(t *testing.T) {
	g, _ := startChatGateway(t, mockvllm.Options{})
	schema := openAPIDocument(t, g).Components.Schemas["ChatCompletionRequest"]
	id := g.firstModel()
	for name, values := range chatSamples {
		for _, value := range values {
			body := jsonObject(map[string]string{"model": fmt.Sprintf("%q", id), "messages": `[{"role":"user","content":"a"}]`, "max_tokens": "1", name: value})
			got := g.do(g.request(t.Context(), http.MethodPost, g.url+"/v1/chat/completions", body))
			if invalid := validateSchema(t, schema, body); (got.status == http.StatusOK) != (invalid == nil) {
				t.Errorf("%s: %s: the gateway responds %d %.300s, the document says %v", name, value, got.status, got.body, invalid)
			}
		}
	}
}

// pairSamples are those of the fields of a log-likelihood.
var pairSamples = map[string][]string{
	"context":            {`"a"`, `""`, `[1,2]`, `[]`, `[-1]`, `["a"]`, `7`, `null`},
	"continuations":      {`["a","b"]`, `[[1],[2,3]]`, `[]`, `[""]`, `[[]]`, `["a",[1]]`, `[1]`, `"a"`, `null`, `[` + strings.Repeat(`"a",`, 256) + `"a"]`},
	"boundary":           {`"joint"`, `"separate"`, `"x"`, `1`, `null`},
	"add_special_tokens": {`true`, `0`, `null`},
	"tokens":             {`true`, `0`, `null`},
	"top":                {`0`, `21`, `-1`, `1.5`, `"1"`, `null`},
	"user":               {`"x"`, `1`, `null`},
	"cache_salt":         {`"x"`, `"a/b"`, `1`, `null`},
	"prompt_cache_key":   {`"x"`, `1`, `null`},
	"temperature":        {`1`},
}

func TestOpenAPIDocumentAgreesWithValidationOfLoglikelihoods(t *testing.T) {
	g := newEnvironment(t, settings{}, startMock(t, mockvllm.Options{}).URL()).serve()
	schemas := openAPIDocument(t, g).Components.Schemas
	id := g.firstModel()
	for name := range schemas["LoglikelihoodRequest"].Value.Properties {
		if name != "model" && pairSamples[name] == nil {
			t.Errorf("the field %s of the document has no samples", name)
		}
	}
	for name, values := range pairSamples {
		for _, value := range values {
			body := jsonObject(map[string]string{"model": fmt.Sprintf("%q", id), "continuations": `["a"]`, name: value})
			got := g.do(g.request(t.Context(), http.MethodPost, g.url+"/v1/loglikelihood", body))
			if invalid := validateSchema(t, schemas["LoglikelihoodRequest"], body); (got.status == http.StatusOK) != (invalid == nil) {
				t.Errorf("%s: %s: the gateway responds %d %.300s, the document says %v", name, value, got.status, got.body, invalid)
			}
		}
	}
}

func TestOpenAPIDocumentAgreesWithValidation(t *testing.T) {
	g, _ := startChatGateway(t, mockvllm.Options{Reasoning: true})
	doc := openAPIDocument(t, g)
	schemas := doc.Components.Schemas
	id := g.firstModel()
	for name := range schemas["CompletionRequest"].Value.Properties {
		if fieldSamples[name] == nil {
			t.Errorf("the field %s of the document has no samples", name)
		}
	}
	for name, values := range fieldSamples {
		for _, value := range values {
			members := map[string]string{"model": fmt.Sprintf("%q", id), "prompt": `"a"`, "max_tokens": "1", name: value}
			body := jsonObject(members)
			got := g.complete(body)
			invalid := validateSchema(t, schemas["CompletionRequest"], body)
			if (got.status == http.StatusOK) != (invalid == nil) {
				t.Errorf("%s: %s: the gateway responds %d %.300s, the document says %v", name, value, got.status, got.body, invalid)
			}
			schema := schemas["Completion"]
			if got.status != http.StatusOK {
				schema = schemas["Error"]
			} else if strings.HasPrefix(got.header.Get("Content-Type"), "text/event-stream") {
				continue
			}
			if err := validateSchema(t, schema, got.body); err != nil {
				t.Errorf("%s: %s: the response does not conform to its schema: %v", name, value, err)
			}
		}
	}
}

func TestOpenAPIDocumentDescribesFilesAndBatches(t *testing.T) {
	g := newEnvironment(t, settings{}, startMock(t, mockvllm.Options{}).URL()).serve()
	schemas := openAPIDocument(t, g).Components.Schemas
	conforms := func(name, text string) {
		t.Helper()
		if err := validateSchema(t, schemas[name], text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	call := func(method, path, body string) string {
		t.Helper()
		got := g.call(method, path, g.secret, body)
		if got.status != http.StatusOK {
			t.Fatalf("%s %s: %d %s", method, path, got.status, got.body)
		}
		return got.body
	}
	text, _ := batchLines(3)
	for _, file := range []string{text, text + "{}\n"} {
		uploaded := g.upload(g.secret, file, "purpose", "batch").body
		conforms("File", uploaded)
		request := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"1h","metadata":{"a":"b"},"output_expires_after":{"seconds":3600}}`,
			gjson.Get(uploaded, "id").Str)
		conforms("BatchRequest", request)
		created := call(http.MethodPost, "/v1/batches", request)
		conforms("Batch", created)
		id := gjson.Get(created, "id").Str
		var shown string
		poll.Until(t, "the batch has ended", func() bool {
			shown = call(http.MethodGet, "/v1/batches/"+id, "")
			conforms("Batch", shown)
			status := gjson.Get(shown, "status").Str
			return status == "completed" || status == "failed"
		})
	}
	for path, schema := range map[string]string{"/v1/files": "File", "/v1/batches": "Batch"} {
		all := gjson.Get(call(http.MethodGet, path, ""), "data").Array()
		if len(all) < 2 {
			t.Errorf("%s: %d objects", path, len(all))
		}
		for _, o := range all {
			conforms(schema, o.Raw)
		}
	}
	for request, valid := range map[string]bool{
		`{"completion_window":"2h"}`: false, `{"endpoint":"/v1/embeddings"}`: false, `{"metadata":{"a":1}}`: false, `{"metadata":null}`: true,
		`{"output_expires_after":{"seconds":1}}`: false, `{"output_expires_after":{"anchor":"created_at","seconds":3600}}`: true, `{"priority":1}`: false,
		`{"input_file_id":""}`: false, `{"input_file_id":null}`: false,
	} {
		body := map[string]any{"input_file_id": gjson.Get(call(http.MethodGet, "/v1/files?purpose=batch&limit=1", ""), "data.0.id").Str, "endpoint": "/v1/completions", "completion_window": "24h"}
		must(t, json.Unmarshal([]byte(request), &body))
		whole, err := json.Marshal(body)
		must(t, err)
		got := g.call(http.MethodPost, "/v1/batches", g.secret, string(whole))
		documented := validateSchema(t, schemas["BatchRequest"], string(whole))
		if (got.status == http.StatusOK) != valid || (documented == nil) != valid {
			t.Errorf("%s: the gateway responds %d %s, the document says %v", whole, got.status, got.body, documented)
		}
	}
}

// jsonObject returns a JSON object with the members in a fixed order.
func jsonObject(members map[string]string) string {
	var all []string
	for name, value := range members {
		all = append(all, fmt.Sprintf("%q:%s", name, value))
	}
	slices.Sort(all)
	return "{" + strings.Join(all, ",") + "}"
}

// firstModel lists the models and returns the ID of the first.
func (g *gateway) firstModel() string {
	g.t.Helper()
	return gjson.Get(g.do(g.request(g.t.Context(), http.MethodGet, g.url+"/v1/models", "")).body, "data.0.id").Str
}

func TestOpenAPIDocumentDescribesEveryResponse(t *testing.T) {
	g, _ := startChatGateway(t, mockvllm.Options{})
	doc := openAPIDocument(t, g)
	schemas, id := doc.Components.Schemas, g.firstModel()
	for _, c := range []struct{ method, path, body, schema string }{
		{http.MethodPost, "/v1/completions", `{"model":"` + id + `","prompt":["a b","c"],"n":2,"max_tokens":3,"logprobs":2,"prompt_logprobs":1,"user":"u"}`, "Completion"},
		{http.MethodPost, "/v1/completions", `{"model":"` + id + `","prompt":"a b","max_tokens":3,"echo":true,"logprobs":0}`, "Completion"},
		{http.MethodPost, "/v1/completions", `{"model":"other","prompt":"a"}`, "Error"},
		{http.MethodPost, "/v1/completions", `{"model":"` + id + `","prompt":"a","max_tokens":100000000}`, "Error"},
		{http.MethodPost, "/v1/completions", `{"model":`, "Error"},
		{http.MethodPost, "/v1/tokenize", `{"model":"` + id + `","prompt":"a b","return_token_strs":true}`, "Tokens"},
		{http.MethodPost, "/v1/tokenize", `{"model":"` + id + `","prompt":["a"]}`, "Error"},
		{http.MethodPost, "/v1/detokenize", `{"model":"` + id + `","tokens":[1,2]}`, "DetokenizedText"},
		{http.MethodPost, "/v1/loglikelihood", `{"model":"` + id + `","context":"a b","continuations":[" c"," d e"],"tokens":true,"top":2,"user":"u"}`, "Loglikelihood"},
		{http.MethodPost, "/v1/loglikelihood", `{"model":"` + id + `","context":"a b","continuations":[" c"]}`, "Loglikelihood"},
		{http.MethodPost, "/v1/loglikelihood", `{"model":"` + id + `"}`, "Error"},
		{http.MethodPost, "/v1/estimate", `{"model":"` + id + `","endpoint":"/v1/loglikelihood","continuations":[" c"]}`, "Estimate"},
		{http.MethodPost, "/tokenize?model=" + id, `{"prompt":"a b"}`, "Tokens"},
		{http.MethodPost, "/detokenize", `{"tokens":[1]}`, "Error"},
		{http.MethodGet, "/tokenizer_info?model=" + id, "", "Error"},
		{http.MethodPost, "/v1/estimate", `{"model":"` + id + `","prompt":"a b","max_tokens":3}`, "Estimate"},
		{http.MethodPost, "/v1/estimate", `{"model":"` + id + `","prompt":"a","max_tokens":0}`, "Error"},
		{http.MethodPost, "/v1/chat/completions", `{}`, "Error"},
		{http.MethodPost, "/v1/chat/completions", `{"model":"` + id + `","messages":[{"role":"user","content":"a"}],"max_tokens":9,"logprobs":true,"user":"u"}`, "ChatCompletion"},
		{http.MethodPost, "/v1/chat/completions", `{"model":"` + id + `","messages":[{"role":"user","content":"a"}],"max_tokens":60,"tools":[{"type":"function","function":{"name":"f"}}]}`, "ChatCompletion"},
		{http.MethodPost, "/v1/chat/completions", `{"model":"base","messages":[]}`, "Error"},
		{http.MethodPost, "/v1/estimate", `{"model":"` + id + `","messages":[{"role":"user","content":"a"}]}`, "Estimate"},
		{http.MethodGet, "/v1/models/" + id, "", "Model"},
		{http.MethodGet, "/v1/models/other", "", "Error"},
		{http.MethodGet, "/v1/key", "", "Key"},
		{http.MethodGet, "/v1/usage?by=week", "", "Error"},
		{http.MethodPost, "/v1/keys", `{"name":"x"}`, "Error"},
		{http.MethodGet, "/v1/keys/none", "", "Error"},
		{http.MethodPatch, "/v1/keys/none", `{}`, "Error"},
		{http.MethodDelete, "/v1/keys/none", "", "Error"},
		{http.MethodDelete, "/v1/completions", "", "Error"},
		{http.MethodPost, "/v1/files", "", "Error"},
		{http.MethodGet, "/v1/files?limit=0", "", "Error"},
		{http.MethodGet, "/v1/files/none", "", "Error"},
		{http.MethodPost, "/v1/batches", `{"input_file_id":"none","endpoint":"/v1/completions","completion_window":"24h"}`, "Error"},
		{http.MethodPost, "/v1/batches/none/cancel", "", "Error"},
		{http.MethodGet, "/v1/nothing", "", "Error"},
	} {
		got := g.do(g.request(t.Context(), c.method, g.url+c.path, c.body))
		if err := validateSchema(t, schemas[c.schema], got.body); err != nil {
			t.Errorf("%s %s: %d %s: %v", c.method, c.path, got.status, got.body, err)
		}
		if item := doc.Paths.Find(c.path); item != nil && item.GetOperation(c.method) != nil {
			if item.GetOperation(c.method).Responses.Status(got.status) == nil {
				t.Errorf("%s %s: the document lacks the status %d", c.method, c.path, got.status)
			}
		}
	}
	for _, m := range gjson.Get(g.do(g.request(t.Context(), http.MethodGet, g.url+"/v1/models", "")).body, "data").Array() {
		if err := validateSchema(t, schemas["Model"], m.Raw); err != nil {
			t.Errorf("%s: %v", m.Raw, err)
		}
	}
	for _, by := range []string{"day", "model", "user", "workload", "run"} {
		got := g.do(g.request(t.Context(), http.MethodGet, g.url+"/v1/usage?by="+by, ""))
		sums := gjson.Get(got.body, "data").Array()
		if len(sums) == 0 {
			t.Errorf("usage by %s: got %d %s", by, got.status, got.body)
		}
		for _, sum := range sums {
			if err := validateSchema(t, schemas["UsageSum"], sum.Raw); err != nil {
				t.Errorf("%s: %v", sum.Raw, err)
			}
		}
	}
	for _, path := range []string{"/healthz", "/health", "/readyz"} {
		if got := g.get(g.url, path); doc.Paths.Find(path).Get.Responses.Status(got.status) == nil {
			t.Errorf("%s: the document lacks the status %d", path, got.status)
		}
	}
	for line := range strings.SplitSeq(g.complete(`{"model":"`+id+`","prompt":"a","max_tokens":3,"stream":true,"logprobs":1,"stream_options":{"include_usage":true}}`).body, "\n\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		if err := validateSchema(t, schemas["Completion"], data); err != nil {
			t.Errorf("the event %s does not conform to its schema: %v", data, err)
		}
	}
}

// A client that generates code from the document would otherwise call another address, and trust another limit.
func TestOpenAPIDocumentAndTutorialAreOfThisGateway(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	model := func(id string, limit int) string {
		return fmt.Sprintf(`{id: %s, checkpoint: %s, max_logprobs: %d, backends: [{name: b, url: %q}]}`, id, checkpoint, limit, mock.URL())
	}
	const public = "https://gate.example.org"
	g := newEnvironment(t, settings{server: ", public_url: " + public, models: model("a", 3) + ", " + model("m", 7)}).serve()
	doc := openAPIDocument(t, g)
	if got := doc.Servers[0].URL; got != public {
		t.Errorf("the document's server is %s, want %s", got, public)
	}
	for _, field := range []string{"logprobs", "prompt_logprobs"} {
		if got := doc.Components.Schemas["CompletionRequest"].Value.Properties[field].Value.Max; got == nil || *got != 7 {
			t.Errorf("%s: got the maximum %v, want 7", field, got)
		}
	}
	for path, want := range map[string]string{
		"/tutorial/logprobs.md": "(here: 3 to 7, depending on the model)", "/tutorial/api.md": public + "/v1",
		"/tutorial/overview.md": "X-Acs-Max-Tokens-Clamped", "/openapi.json": "a budget can lower max_tokens",
	} {
		if got := g.get(g.url, path).body; !strings.Contains(got, want) || strings.Contains(got, "{{") {
			t.Errorf("%s does not contain %q, or has a placeholder", path, want)
		}
	}
}
