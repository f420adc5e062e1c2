//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// laminiCheckpoint is the model of the examples in Lamini's documentation.
const laminiCheckpoint = "meta-llama/Meta-Llama-3.1-8B-Instruct"

// startLaminiGateway starts a gateway that serves Lamini's form of a model with a short id, an alias and a checkpoint.
func startLaminiGateway(t *testing.T, options mockvllm.Options, extra ...string) (*gateway, *mockvllm.Process) {
	t.Helper()
	options.Models = []string{laminiCheckpoint}
	mock := startMock(t, options)
	return newEnvironment(t, settings{
		probeTimeout: loadedProbe,
		extra:        "dialects: {lamini: true}\n" + strings.Join(extra, "\n"),
		models: fmt.Sprintf(`{id: m, aliases: [labs/m], checkpoint: %s, backends: [{name: b0, url: %q}]}, {id: chats, checkpoint: other, chat: true, completions: false, backends: [{url: %q}]}`,
			laminiCheckpoint, mock.URL(), mock.URL()),
	}).serve(), mock
}

// lamini sends a body to a version of Lamini's completions.
func (g *gateway) lamini(version, body string) response {
	g.t.Helper()
	return g.do(g.request(g.t.Context(), http.MethodPost, g.url+"/lamini/"+version+"/completions", body))
}

// lastCompletion returns the body of the last completion that a mock has received.
func lastCompletion(t *testing.T, mock *mockvllm.Process) []byte {
	t.Helper()
	for _, r := range slices.Backward(mock.Requests()) {
		if r.Path == "/v1/completions" {
			return r.Body
		}
	}
	t.Fatal("the mock has received no completion")
	return nil
}

// laminiDetail checks the form of an error, and returns its code, parameter and message.
func laminiDetail(t *testing.T, r response) (code, param, message string) {
	t.Helper()
	body := gjson.Parse(r.body)
	message = body.Get("error.message").Str
	if !gjson.Valid(r.body) || message == "" || body.Get("detail").Str != message || body.Get("error.request_id").Str != r.header.Get("X-Request-Id") {
		t.Fatalf("not an error in Lamini's form: %d %s", r.status, r.body)
	}
	return body.Get("error.code").Str, body.Get("error.param").Str, message
}

// A request of the form has its key, queue, row on the ledger, headers and log line as a completion has.
func TestLaminiRequestsGoTheWayOfACompletion(t *testing.T) {
	g, mock := startLaminiGateway(t, mockvllm.Options{})
	for i, name := range []string{"m", "labs/m", laminiCheckpoint} {
		got := g.lamini("v1", fmt.Sprintf(`{"model_name": %q, "prompt": "Once upon a time", "max_new_tokens": %d}`, name, i+1))
		if got.status != http.StatusOK || gjson.Get(got.body, "output").Type != gjson.String || got.header.Get("X-Acs-Upstream-Model") != laminiCheckpoint {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
		row := g.usageRows()[0]
		id := got.header.Get("X-Request-Id")
		if row.ID != id || row.Status != 200 || row.Completion != int64(i+1) || row.State != "settled" {
			t.Errorf("%s: the ledger has %+v", name, row)
		}
		if line := g.logLineOf(id); line["endpoint"] != "POST /lamini/v1/completions" || line["model"] != "m" || line["completion_tokens"] != float64(i+1) {
			t.Errorf("%s: the log has %v", name, line)
		}
	}
	if sent := string(lastCompletion(t, mock)); sent != `{"model":"`+laminiCheckpoint+`", "prompt": "Once upon a time", "max_tokens":3}` {
		t.Errorf("the backend received %s", sent)
	}
	if got := g.complete(`{"model": "` + laminiCheckpoint + `", "prompt": "a", "max_tokens": 1}`); got.status != http.StatusBadRequest {
		t.Errorf("/v1/completions with the name of a checkpoint: %d, want the error that names the short id", got.status)
	}
}

// max_new_tokens counts the output, max_tokens prompt and output together; without either, the output has what the
// context leaves.
func TestLaminiTokenLimits(t *testing.T) {
	g, mock := startLaminiGateway(t, mockvllm.Options{MaxModelLen: 40})
	prompt := "Once upon a time there was a llama"
	counted := gjson.Get(g.do(g.request(t.Context(), http.MethodPost, g.url+"/v1/tokenize", fmt.Sprintf(`{"model": "m", "prompt": %q}`, prompt))).body, "count").Int()
	if counted == 0 {
		t.Fatal("the prompt was not counted")
	}
	for limits, want := range map[string]int64{
		`, "max_new_tokens": 5`:                     5,
		`, "max_new_tokens": 5, "max_tokens": 30`:   5,
		`, "max_tokens": 30`:                        30 - counted,
		`, "max_tokens": 40, "max_new_tokens":null`: 40 - counted,
		`, "max_tokens": null`:                      40 - counted,
		``:                                          40 - counted,
	} {
		for _, body := range []string{
			fmt.Sprintf(`{"model_name": "m", "prompt": %q%s}`, prompt, limits), fmt.Sprintf(`{"model_name": "m", "prompt": ["a", %q]%s}`, prompt, limits),
		} {
			if got := g.lamini("v2", body); got.status != http.StatusOK {
				t.Fatalf("%s: %d %s", body, got.status, got.body)
			}
			if sent := gjson.GetBytes(lastCompletion(t, mock), "max_tokens").Int(); sent != want {
				t.Errorf("%s: max_tokens %d was sent, want %d", body, sent, want)
			}
		}
	}
	for limits, want := range map[string]string{
		`"max_new_tokens": 40`:                          "context_length_exceeded max_new_tokens",
		fmt.Sprintf(`"max_new_tokens": %d`, 41-counted): "context_length_exceeded prompt",
		`"max_tokens": 41`:                              "context_length_exceeded max_tokens",
		fmt.Sprintf(`"max_tokens": %d`, counted):        "invalid_request max_tokens",
	} {
		code, param, message := laminiDetail(t, g.lamini("v1", fmt.Sprintf(`{"model_name": "m", "prompt": %q, %s}`, prompt, limits)))
		if code+" "+param != want {
			t.Errorf("%s: %s %s (%s), want %s", limits, code, param, message, want)
		}
		if strings.Contains(limits, "new") && strings.Contains(strings.ReplaceAll(message, "max_new_tokens", ""), "max_tokens") {
			t.Errorf("%s: the message names max_tokens: %s", limits, message)
		}
	}
	long := strings.Repeat("Once upon a time. ", 20)
	if code, param, message := laminiDetail(t, g.lamini("v1", fmt.Sprintf(`{"model_name": "m", "prompt": %q}`, long))); code != "context_length_exceeded" || param != "prompt" || strings.Contains(message, "max_tokens") {
		t.Errorf("a prompt over the context: %s %s: %s", code, param, message)
	}
}

// The older spelling of the constraint gives objects of the types too, and a truncated one stands as text.
func TestLaminiOutputTypes(t *testing.T) {
	g, _ := startLaminiGateway(t, mockvllm.Options{Version: "0.10.0"})
	const types = `"output_type": {"name": "str", "age": "int", "height": "float", "tall": "bool"}`
	for range 5 {
		got := g.lamini("v2", `{"model_name": "m", "prompt": "Carl", `+types+`}`)
		kinds := map[string]string{}
		gjson.Get(got.body, "outputs").ForEach(func(name, value gjson.Result) bool {
			kind := value.Type.String()
			if value.Type == gjson.Number && strings.ContainsAny(value.Raw, ".e") {
				kind = "Float"
			}
			kinds[name.Str] = kind
			return true
		})
		delete(kinds, "tall")
		if want := map[string]string{"name": "String", "age": "Number", "height": "Float"}; !reflect.DeepEqual(kinds, want) || !gjson.Get(got.body, "outputs.tall").IsBool() {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	got := g.lamini("v1", `{"model_name": "m", "prompt": ["Carl", "Paul"], "max_new_tokens": 3, `+types+`}`)
	for _, o := range gjson.Parse(got.body).Array() {
		if o.Type != gjson.String || !strings.HasPrefix(o.Str, "{") {
			t.Errorf("a truncated output is %s", got.body)
		}
	}
}

// startTextServer starts a server that sends the same text whatever constrains it, with the finish reason stop.
func startTextServer(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	respond := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, body)
		}
	}
	mux.HandleFunc("GET /health", respond(`{}`))
	mux.HandleFunc("GET /v1/models", respond(`{"object":"list","data":[{"id":"`+checkpoint+`","object":"model"}]}`))
	mux.HandleFunc("POST /v1/completions", respond(
		`{"choices":[{"index":0,"text":"ten","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// A server that ignores the constraint sends no object. The client gets an error, and pays nothing.
func TestLaminiOutputThatDoesNotParse(t *testing.T) {
	g := newEnvironment(t, settings{extra: "dialects: {lamini: true}"}, startTextServer(t)).serve()
	got := g.lamini("v2", `{"model_name": "m", "prompt": "a", "output_type": {"a": "str"}, "max_new_tokens": 5}`)
	code, _, message := laminiDetail(t, got)
	if got.status != http.StatusBadGateway || code != "upstream_server_error" || !strings.Contains(message, "output_type") {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if row := g.usageRows()[0]; row.Prompt+row.Completion != 0 || row.Code != code || row.Status != http.StatusBadGateway {
		t.Errorf("the ledger has %+v", row)
	}
}

// A total is checked by the bytes of the prompt if the server has no tokenizer.
func TestLaminiLimitsWithoutATokenizer(t *testing.T) {
	g := newEnvironment(t, settings{extra: "dialects: {lamini: true}"}, startTextServer(t)).serve()
	for limits, status := range map[string]int{``: http.StatusOK, `, "max_tokens": 40`: http.StatusOK, `, "max_tokens": 3`: http.StatusBadRequest} {
		got := g.lamini("v1", `{"model_name": "m", "prompt": "Once upon a time"`+limits+`}`)
		if status == http.StatusOK && got.body == `{"output":"ten"}` {
			continue
		}
		code, param, message := laminiDetail(t, got)
		if got.status != status || code != "invalid_request" || param != "max_tokens" || !strings.Contains(message, "may have") {
			t.Errorf("%s: %d %s", limits, got.status, got.body)
		}
	}
}

// first_byte_timeout is a finish reason in version 2 and an error in version 1.
func TestLaminiTimeout(t *testing.T) {
	t.Parallel() // it waits for timeouts
	g, mock := startLaminiGateway(t, mockvllm.Options{}, "upstream: {first_byte_timeout: 2s, attempts: 1}")
	mock.InjectFault(mockvllm.Fault{Kind: "hang", Times: 3})
	for body, want := range map[string]string{
		`{"model_name": "m", "prompt": "a", "max_new_tokens": 5}`:                                     `{"outputs":"","finish_reason":"timeout"}`,
		`{"model_name": "m", "prompt": ["a", "b"], "output_type": {"x": "int"}, "max_new_tokens": 5}`: `{"outputs":["",""],"finish_reason":["timeout","timeout"]}`,
	} {
		got := g.lamini("v2", body)
		if got.status != http.StatusOK || got.body != want || got.header.Get("X-Acs-Upstream-Error-Kind") != "upstream_unreachable" {
			t.Errorf("%s: %d %s, want %s", body, got.status, got.body, want)
		}
		row := g.usageRows()[0]
		if line := g.logLineOf(row.ID); row.Code != "upstream_unreachable" || row.Status != 200 || row.Prompt+row.Completion != 0 || line["status"] != 200.0 || line["code"] != row.Code {
			t.Errorf("the ledger has %+v, the log %v", row, line)
		}
	}
	got := g.lamini("v1", `{"model_name": "m", "prompt": "a", "max_new_tokens": 5}`)
	if code, _, _ := laminiDetail(t, got); got.status != http.StatusBadGateway || code != "upstream_unreachable" {
		t.Errorf("version 1: %d %s", got.status, got.body)
	}
}

func TestLaminiErrors(t *testing.T) {
	g, _ := startLaminiGateway(t, mockvllm.Options{})
	for body, want := range map[string]string{
		`{"model_name": "x", "prompt": "a"}`:                                      "400 model_not_found model_name",
		`{"model_name": "chats", "prompt": "a"}`:                                  "400 invalid_request model_name",
		`{"model_name": "m", "prompt": "a"`:                                       "400 bad_json ",
		`{"model_name": "m", "prompt": ["` + strings.Repeat(`a","`, 1024) + `"]}`: "400 invalid_request prompt",
	} {
		got := g.lamini("v2", body)
		code, param, _ := laminiDetail(t, got)
		if found := fmt.Sprintf("%d %s %s", got.status, code, param); found != want {
			t.Errorf("%.100s: %s, want %s: %s", body, found, want, got.body)
		}
	}
	for _, path := range []string{"/lamini", "/lamini/", "/lamini/v1/version", "/lamini/v1alpha/downloaded_models/", "/lamini/v1/streaming_completions", "/lamini/v2/completions/", "/lamini/v1/models"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodOptions} {
			r := g.request(t.Context(), method, g.url+path, "")
			r.Header.Set("Accept", "text/html")
			got := g.do(r)
			if code, _, message := laminiDetail(t, got); got.status != http.StatusNotFound || code != "not_found" || !strings.Contains(message, "/lamini/v1/completions and POST /lamini/v2/completions") {
				t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
			}
		}
	}
	got := g.get(g.url, "/lamini/v1/completions")
	if code, _, _ := laminiDetail(t, got); got.status != http.StatusMethodNotAllowed || code != "method_not_allowed" || got.header.Get("Allow") != http.MethodPost {
		t.Errorf("GET: %d %s", got.status, got.body)
	}
	g.secret = "acs-bm-wrong"
	got = g.lamini("v1", `{"model_name": "m", "prompt": "a"}`)
	if code, _, _ := laminiDetail(t, got); got.status != http.StatusUnauthorized || code != "invalid_api_key" {
		t.Errorf("a wrong key: %d %s", got.status, got.body)
	}
	if got := g.do(g.request(t.Context(), http.MethodGet, g.url+"/laminis", "")); got.status != http.StatusNotFound || strings.Contains(got.body, "detail") {
		t.Errorf("a path beside the prefix: %d %s", got.status, got.body)
	}
}

// Without the configuration the form is not served, and a reload turns it on and off.
func TestLaminiIsOffUnlessConfigured(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{}, mock.URL())
	g := env.serve()
	const body = `{"model_name": "m", "prompt": "a", "max_new_tokens": 1}`
	if got := g.lamini("v1", body); got.status != http.StatusNotFound || strings.Contains(got.body, "detail") {
		t.Errorf("off: %d %s", got.status, got.body)
	}
	for i, on := range []bool{true, false} {
		env.writeConfig(settings{extra: fmt.Sprintf("dialects: {lamini: %v}", on)}, mock.URL())
		g.signal(syscall.SIGHUP)
		g.waitForOutput(g.stderr, fmt.Sprintf(`(?s)(configuration reloaded.*){%d}`, i+1))
		if got := g.lamini("v1", body); (got.status == http.StatusOK) != on {
			t.Errorf("lamini: %v after a reload: %d %s", on, got.status, got.body)
		}
	}
}

// The OpenAPI document accepts the bodies that the gateway accepts, and describes its responses.
func TestOpenAPIDocumentDescribesDialects(t *testing.T) {
	mock := startMock(t, mockvllm.Options{Models: []string{eternalCheckpoint}})
	g := newEnvironment(t, settings{
		extra:  "receipts: {enabled: true}\ndialects: {lamini: true, eternalai: true}",
		models: fmt.Sprintf(`{id: m, checkpoint: %s, backends: [{url: %q}]}`, eternalCheckpoint, mock.URL()),
	}).serve()
	doc := openAPIDocument(t, g)
	schemas := doc.Components.Schemas
	for _, c := range []struct {
		path, request, response, failure string
		samples                          map[string][]string
	}{
		{"/lamini/v1/completions", "LaminiRequest", "LaminiV1Outputs", "LaminiError", laminiSamples},
		{"/lamini/v2/completions", "LaminiRequest", "LaminiV2Outputs", "LaminiError", laminiSamples},
		{"/eternalai/v1/completions", "EternalAIRequest", "EternalAICompletion", "Error", eternalSamples},
	} {
		for name := range schemas[c.request].Value.Properties {
			if c.samples[name] == nil {
				t.Errorf("%s: the field %s of the document has no samples", c.request, name)
			}
		}
		operation := doc.Paths.Find(c.path).Post
		for name, values := range c.samples {
			for _, value := range values {
				members := map[string]string{"model": `"m"`, "prompt": `"a"`, "max_tokens": "9"}
				if c.request == "LaminiRequest" {
					members = map[string]string{"model_name": `"m"`, "prompt": `"a"`, "max_new_tokens": "9"}
				}
				members[name] = value
				body := jsonObject(members)
				got := g.do(g.request(t.Context(), http.MethodPost, g.url+c.path, body))
				invalid := validateSchema(t, schemas[c.request], body)
				if (got.status == http.StatusOK) != (invalid == nil) {
					t.Errorf("%s: %s: the gateway responds %d %.300s, the document says %v", c.path, body, got.status, got.body, invalid)
				}
				schema := schemas[c.response]
				if got.status != http.StatusOK {
					schema = schemas[c.failure]
				} else if strings.HasPrefix(got.header.Get("Content-Type"), "text/event-stream") {
					continue
				}
				if err := validateSchema(t, schema, got.body); err != nil || operation.Responses.Status(got.status) == nil {
					t.Errorf("%s: %s: %d %s does not conform to the document: %v", c.path, body, got.status, got.body, err)
				}
			}
		}
	}
}

var laminiSamples = map[string][]string{
	"model_name":     {`"m"`, `1`, `null`, `["m"]`},
	"prompt":         {`"a"`, `["a","b"]`, `[]`, `[1]`, `null`, `{}`},
	"output_type":    {`{"a":"str","b":"int"}`, `{}`, `{"a":"x"}`, `{"a":1}`, `[]`, `"str"`, `null`},
	"max_new_tokens": {`1`, `0`, `1.5`, `"1"`, `null`},
	"max_tokens":     {`100`, `0`, `1.5`, `"1"`, `null`},
	"no_such_field":  {`1`, `null`},
}

var eternalSamples = func() map[string][]string {
	all := map[string][]string{
		"chain_id": {`"45762"`, `45762`, `""`, `"a"`, `-1`, `1.5`, `null`, `[]`},
		"logprobs": {`0`, `5`, `6`, `-1`, `null`},
		"suffix":   {`"a"`},
	}
	for _, name := range []string{
		"model", "prompt", "echo", "frequency_penalty", "logit_bias", "max_tokens", "n", "best_of", "presence_penalty", "seed", "stop", "stream",
		"stream_options", "temperature", "top_p", "user", "no_such_field", "top_k", "min_tokens", "response_format",
	} {
		all[name] = fieldSamples[name]
	}
	return all
}()
