package mockvllm_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

func TestOpenAPINamesTheFieldsOfTheVersion(t *testing.T) {
	for _, tt := range []struct {
		version          string
		completion, chat int // names in the schemas of real servers; 0 where none was seen
		has, lacks       string
	}{
		{"0.20.2", 43, 0, "repetition_detection", "truncation_side"},
		{"0.25.0", 0, 0, "truncation_side", "bad_words"},
		{"0.26.0", 0, 0, "bad_words", "stream_interval"},
		{"0.32.0", 55, 68, "stream_interval", "return_weight_versions"},
		{"0.33.0", 56, 69, "return_weight_versions", "best_of"},
	} {
		p := start(t, mockvllm.Options{Version: tt.version})
		var api struct {
			Components struct {
				Schemas map[string]struct{ Properties map[string]any }
			}
		}
		a := send(t, p, http.MethodGet, "/openapi.json", "")
		if err := json.Unmarshal([]byte(a.body), &api); err != nil {
			t.Fatalf("%s: %v: %s", tt.version, err, a.body)
		}
		schemas := api.Components.Schemas
		fields, chat := schemas["CompletionRequest"].Properties, schemas["ChatCompletionRequest"].Properties
		if tt.completion > 0 && len(fields) != tt.completion || tt.chat > 0 && len(chat) != tt.chat {
			t.Errorf("%s: got %d and %d fields, want %d and %d", tt.version, len(fields), len(chat), tt.completion, tt.chat)
		}
		if fields[tt.has] == nil || fields[tt.lacks] != nil || chat[tt.has] == nil {
			t.Errorf("%s: got %v, want %s and not %s", tt.version, fields, tt.has, tt.lacks)
		}
	}
}

func TestRustFrontendHasNoDocs(t *testing.T) {
	if a := send(t, start(t, mockvllm.Options{RustFrontend: true}), http.MethodGet, "/openapi.json", ""); a.status != http.StatusNotFound {
		t.Errorf("got %d, want 404", a.status)
	}
}

func TestRustFrontendTellsItsVersionAndRefusesSeveralOutputs(t *testing.T) {
	p := start(t, mockvllm.Options{RustFrontend: true})
	if a := send(t, p, http.MethodGet, "/version", ""); a.body != `{"version":"0.33.0","rust_frontend_version":"0.33.0"}` {
		t.Errorf("/version: got %s", a.body)
	}
	for fields, want := range map[string]string{
		`"prompt":"x","n":2`:         `{"error":{"message":"Only n=1 is supported.","type":"BadRequestError","param":"n","code":400}}`,
		`"prompt":["x","y"]`:         "prompt: data did not match any variant of untagged enum Prompt",
		`"prompt":[[1],[2]]`:         "prompt: data did not match any variant of untagged enum Prompt",
		`"prompt":"x","top_p":0`:     `"message":"top_p must be in (0, 1], got 0","type":"BadRequestError","param":null,"code":400`,
		`"prompt":[1],"logprobs":21`: `"message":"requested logprobs of 21, which is greater than max allowed: 20"`,
	} {
		for _, streamed := range []string{"", `,"stream":true`} {
			a := send(t, p, http.MethodPost, completions, `{"model":"mock-model",`+fields+streamed+`}`)
			if a.status != 400 || !strings.Contains(a.body, want) {
				t.Errorf("%s: got %d %s, want 400 with %s", fields+streamed, a.status, a.body, want)
			}
		}
	}
	const noTemplate = `{"error":{"message":"failed to submit chat request: chat template is required but none was configured",` +
		`"type":"InternalServerError","param":null,"code":500}}`
	if a := send(t, p, http.MethodPost, "/v1/chat/completions", `{"model":"mock-model","messages":[{"role":"user","content":"a"}]}`); a.status != 500 || a.body != noTemplate {
		t.Errorf("messages without a template: got %d %s, want 500 %s", a.status, a.body, noTemplate)
	}
	for _, path := range []string{"/v1/responses", "/v1/completions/"} {
		if a := send(t, p, http.MethodGet, path, ""); a.status != 404 || a.body != "" {
			t.Errorf("%s: got %d %q, want 404 without a body", path, a.status, a.body)
		}
	}
}

func TestFieldsOfOtherVersionsAreIgnored(t *testing.T) {
	for version, fields := range map[string][]string{
		"0.23.0": {"bad_words", "return_weight_versions", "stream_interval", "truncation_side"},
		"0.32.0": {"return_weight_versions", "guided_regex", "best_of"},
	} {
		p := start(t, mockvllm.Options{Version: version})
		for _, field := range slices.Sorted(slices.Values(fields)) {
			a := send(t, p, http.MethodPost, completions, `{"model":"mock-model","prompt":"x","`+field+`":{"wrong":1}}`)
			if a.status != 200 {
				t.Errorf("%s: %s: got %d %s, want 200", version, field, a.status, a.body)
			}
		}
	}
}

// TestRustFrontendEndsWithItsEngine covers a stream, a plain request and what follows.
func TestRustFrontendEndsWithItsEngine(t *testing.T) {
	for _, fields := range []map[string]any{{"stream": true, "ignore_eos": true}, {"ignore_eos": true}} {
		p := start(t, mockvllm.Options{RustFrontend: true})
		p.InjectFault(mockvllm.Fault{Kind: "engine_dead", AfterTokens: 2})
		if a := trySend(t, p, http.MethodPost, completions, body(t, fields)); a.err == nil {
			t.Errorf("%v: got %d %s, want a broken connection", fields, a.status, a.body)
		}
		poll.Until(t, "connections to be refused", func() bool {
			return errors.Is(trySend(t, p, http.MethodGet, "/health", "").err, syscall.ECONNREFUSED)
		})
	}
}

func TestRustFrontendSendsTheFinishInAnEventOfItsOwn(t *testing.T) {
	p := start(t, mockvllm.Options{RustFrontend: true, ChatTemplate: mockvllm.TemplateChatML})
	for path, want := range map[string]struct{ prompt, first, last string }{
		completions: {`"prompt":"x"`, `"choices":[{"index":0,"text":"`, `"choices":[{"index":0,"text":"","finish_reason":"length"}]}`},
		"/v1/chat/completions": {
			`"messages":[{"role":"user","content":"x"}]`, `"choices":[{"index":0,"delta":{"role":"assistant"}}]}`,
			`"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`,
		},
	} {
		a := send(t, p, http.MethodPost, path, `{"model":"mock-model","max_tokens":2,"seed":1,"stream":true,`+want.prompt+`}`)
		got := events(a.body)
		if len(got) < 4 || !strings.Contains(got[0], want.first) || !strings.Contains(got[len(got)-2], want.last) {
			t.Errorf("%s: got %s", path, a.body)
		}
		if a.header.Get("Server") != "" || a.header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: got the header %v", path, a.header)
		}
	}
}

func TestFaultsOfTheRustFrontendAreVerbatim(t *testing.T) {
	p := start(t, mockvllm.Options{RustFrontend: true})
	p.InjectFault(mockvllm.Fault{Kind: "error", Status: 400, Body: "as it is"})
	if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != 400 || a.body != "as it is" {
		t.Errorf("got %d %s, want the fault's body", a.status, a.body)
	}
}
