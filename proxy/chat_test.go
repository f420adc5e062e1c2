package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/budget/quota"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/mockvllm"
	"basegate/proxy"
)

// startChat starts a mock that chats, and a harness whose model m chats. change may be nil.
func startChat(t *testing.T, o mockvllm.Options, change func(*harnessOptions)) (*harness, *mockvllm.Process) {
	t.Helper()
	o.Models, o.APIKey = []string{"org/Model-8B"}, "backend-key"
	if o.ChatTemplate == "" {
		o.ChatTemplate = mockvllm.TemplateChatML
	}
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	return newHarness(t, func(h *harnessOptions) {
		h.model.Chat, h.model.Completions = true, true
		if change != nil {
			change(h)
		}
	}, mock.URL()), mock
}

func (h *harness) chat(body string) response {
	h.t.Helper()
	return h.post(proxy.ChatPath, body)
}

// requestsTo returns the bodies that a mock has received on a path.
func requestsTo(mock *mockvllm.Process, path string) (bodies []string) {
	for _, r := range mock.Requests() {
		if r.Path == path {
			bodies = append(bodies, string(r.Body))
		}
	}
	return bodies
}

// lastCompletion returns the body of the last completion request that a mock has received. A prompt whose request takes long
// is counted meanwhile.
func lastCompletion(mock *mockvllm.Process) string {
	bodies := requestsTo(mock, proxy.CompletionsPath)
	return bodies[len(bodies)-1]
}

const (
	userMessage = `[{"role":"user","content":"the sea"}]`
	weatherTool = `[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]`
)

func TestChatNamesTokensOnlyToMarkedBackends(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","messages":` + userMessage + `,"max_tokens":1,"logprobs":true,"top_logprobs":2,"logprob_token_ids":[5,6]}`
	h, mock := startChat(t, mockvllm.Options{SoundLogprobIDs: true}, nil)
	if got := h.chat(body); got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != "logprob_token_ids" || !strings.Contains(got.body, "spoil") {
		t.Errorf("without the mark: got %d %s", got.status, got.body)
	}
	marked := newHarness(t, func(o *harnessOptions) {
		o.model.Chat, o.model.Completions = true, true
		markBackends(mock.URL())(o)
	})
	if got := marked.chat(body); got.status != http.StatusOK || !strings.Contains(requestsTo(mock, proxy.ChatPath)[0], `"logprob_token_ids":[5,6]`) {
		t.Errorf("with it: got %d %s", got.status, got.body)
	}
}

func TestChatIsForwardedAndChargedByItsUsage(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{}, nil)
	got := h.chat(`{"model":"m", "messages": [{"role":"user","content":"the sea"},{"role":"assistant","content":"a","refusal":null,"annotations":[]},{"role":"user","content":"b"}],"max_completion_tokens":5,"seed":1,"user":null}`)
	if got.status != 200 || gjson.Get(got.body, "object").Str != "chat.completion" || gjson.Get(got.body, "choices.0.message.content").Str == "" {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	sent := requestsTo(mock, proxy.ChatPath)
	want := `{"model":"org/Model-8B", "messages": [{"role":"user","content":"the sea"},{"role":"assistant","content":"a"},{"role":"user","content":"b"}],"max_completion_tokens":5,"seed":1}`
	if len(sent) != 1 || sent[0] != want {
		t.Errorf("the backend got %q, want %s", sent, want)
	}
	row := h.awaitRows(1)[0]
	if row.PromptTokens != gjson.Get(got.body, "usage.prompt_tokens").Int() || row.CompletionTokens != gjson.Get(got.body, "usage.completion_tokens").Int() || row.Endpoint != proxy.ChatPath || row.CompletionTokens != 5 {
		t.Errorf("the ledger has %+v for %s", row, got.body)
	}
	if strings.Contains(h.log.String(), "the sea") {
		t.Error("the log has the messages")
	}
}

// Every event is passed on as it is, also those of reasoning and tool calls, but for the usage that was not asked for.
func TestChatStreamIsPassedOnAndCharged(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{Reasoning: true}, nil)
	for i, rest := range []string{``, `,"tools":` + weatherTool, `,"stream_options":{"include_usage":true},"n":2,"logprobs":true`} {
		got := h.chat(`{"model":"m","messages":` + userMessage + `,"max_tokens":40,"seed":1,"stream":true` + rest + `}`)
		if got.status != 200 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") || !strings.HasPrefix(got.body, `data: {"id":"chatcmpl-`) {
			t.Fatalf("%s: got %d %s", rest, got.status, got.body)
		}
		if asked := strings.Contains(rest, "include_usage"); strings.Contains(got.body, `"usage":{`) != asked {
			t.Errorf("%s: the stream has the usage: %v, want %v", rest, !asked, asked)
		}
		if wantCall := strings.Contains(rest, "tools"); strings.Contains(got.body, `"tool_calls":[{"id"`) != wantCall || strings.Contains(got.body, `"finish_reason":"tool_calls"`) != wantCall {
			t.Errorf("%s: got %s", rest, got.body)
		}
		rows := h.awaitRows(i + 1)
		if rows[i].CompletionTokens == 0 || rows[i].Code != "" {
			t.Errorf("%s: the ledger has %+v", rest, rows[i])
		}
	}
	if sent := requestsTo(mock, proxy.ChatPath); !strings.HasSuffix(sent[0], `,"stream":true,"stream_options":{"include_usage":true}}`) {
		t.Errorf("the backend got %s", sent[0])
	}
}

func TestChatStreamEndsWithOneErrorEvent(t *testing.T) {
	t.Parallel()
	for kind, code := range map[string]string{"engine_dead": "vllm_engine_dead", "cut": "upstream_server_error", "no_finish": "upstream_server_error", "abort": "upstream_server_error", "error_event": "upstream_server_error"} {
		t.Run(kind, func(t *testing.T) {
			h, mock := startChat(t, mockvllm.Options{}, nil)
			mock.InjectFault(mockvllm.Fault{Kind: kind, Path: proxy.ChatPath, AfterTokens: 3, InStream: true, Times: 3})
			got := h.chat(`{"model":"m","messages":` + userMessage + `,"max_tokens":30,"seed":1,"stream":true,"ignore_eos":true}`)
			if got.status != 200 || strings.Count(got.body, `"error"`) != 1 || !strings.Contains(got.body, `"code":"`+code+`"`) || strings.Contains(got.body, "[DONE]") {
				t.Errorf("got %d %s, want one event of %s", got.status, got.body, code)
			}
		})
	}
}

// A conversation is counted by the backend only if its bound does not fit; with tools it has no bound.
func TestConversationIsCountedIfItsBoundDoesNotFit(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{MaxModelLen: 400}, nil)
	message := func(content string) string { return `[{"role":"user","content":"` + content + `"}]` }
	measured := len(requestsTo(mock, "/tokenize")) // by the probe
	if measured != 6 {                             // special tokens, and four roles
		t.Fatalf("the probe made %d calls of the tokenizer, want 6", measured)
	}
	for _, c := range []struct {
		name, messages, rest string
		status, calls        int
	}{
		{"short", userMessage, `,"max_tokens":9`, 200, 0},
		{"parts", `[{"role":"user","content":[{"type":"text","text":"a"}]}]`, `,"max_tokens":9`, 200, 0},
		{"it fits, though its bound does not", message(strings.Repeat("the ", 90)), `,"max_tokens":9`, 200, 1},
		{"it does not fit", message(strings.Repeat("the sea ", 300)), `,"max_tokens":9`, 400, 1},
		{"the default takes what is left", userMessage, ``, 200, 1},
		{"nothing is left for the default", message(strings.Repeat("the sea ", 300)), ``, 400, 1},
		{"tools", userMessage, `,"max_tokens":9,"tools":` + weatherTool, 200, 1},
		{"max_tokens does not fit", userMessage, `,"max_tokens":400`, 400, 0},
	} {
		sent := len(mock.Requests())
		got := h.chat(`{"model":"m","messages":` + c.messages + c.rest + `,"seed":1,"stop":"e"}`)
		if got.status != c.status || (c.status == 400 && (!strings.Contains(got.body, "context_length_exceeded") || strings.Contains(got.body, `"param":"prompt"`))) {
			t.Errorf("%s: got %d %s, want %d", c.name, got.status, got.body, c.status)
		}
		if n := tokenizeCalls(mock, sent, proxy.ChatPath); n != c.calls {
			t.Errorf("%s: %d calls of the tokenizer, want %d", c.name, n, c.calls)
		}
	}
}

// The error of a length names the field that the client sent, and asks for nothing that a chat completion does not have.
func TestLengthOfAConversationIsRefusedByTheFieldsThatWereSent(t *testing.T) {
	t.Parallel()
	const asked = "the prompt has %d tokens and %s asks for %d more, but the model's context is 400 tokens; shorten the messages or lower %[2]s"
	long := `[{"role":"user","content":"` + strings.Repeat("the sea ", 300) + `"}]`
	h, _ := startChat(t, mockvllm.Options{MaxModelLen: 400}, nil)
	tokens := func(messages string) int64 {
		return gjson.Get(h.post("/v1/estimate", `{"model":"m","messages":`+messages+`,"max_tokens":1}`).body, "prompt_tokens").Int()
	}
	short, many := tokens(userMessage), gjson.Get(h.chat(`{"model":"m","messages":`+long+`,"max_tokens":1}`).body, "error.prompt_tokens").Int()
	for _, c := range []struct{ messages, rest, param, message string }{
		{userMessage, `"max_tokens":400`, "max_tokens", "max_tokens asks for 400 tokens"},
		{userMessage, `"max_completion_tokens":400`, "max_completion_tokens", "max_completion_tokens asks for 400 tokens"},
		{userMessage, `"min_tokens":400`, "min_tokens", "min_tokens asks for 400 tokens"},
		{userMessage, `"max_tokens":399`, "messages", fmt.Sprintf(asked, short, "max_tokens", 399)},
		{userMessage, `"max_completion_tokens":399`, "messages", fmt.Sprintf(asked, short, "max_completion_tokens", 399)},
		{userMessage, `"min_tokens":399`, "messages", fmt.Sprintf(asked, short, "min_tokens", 399)},
		{long, `"seed":1`, "messages", fmt.Sprintf("the prompt has %d tokens, which leaves no room for output in the model's context of 400 tokens; shorten the messages", many)},
	} {
		body := `{"model":"m","messages":` + c.messages + `,` + c.rest + `}`
		for path, got := range map[string]response{proxy.ChatPath: h.chat(body), "/v1/estimate": h.post("/v1/estimate", body)} {
			e := gjson.Get(got.body, "error")
			if got.status != 400 || e.Get("code").Str != "context_length_exceeded" || e.Get("param").Str != c.param || !strings.HasPrefix(e.Get("message").Str, c.message) {
				t.Errorf("%s: %s: got %d %s, want param %s and the message %q", path, c.rest, got.status, got.body, c.param, c.message)
			}
		}
	}
}

// What is reserved for a prompt is never less than what it costs, in every template and version.
func TestBoundOfAConversationIsABound(t *testing.T) {
	t.Parallel()
	for _, template := range []string{mockvllm.TemplateChatML, mockvllm.TemplateLlama} {
		h, mock := startChat(t, mockvllm.Options{ChatTemplate: template}, nil)
		for _, messages := range []string{
			`[{"role":"user","content":""}]`, `[{"role":"system","content":"x"},{"role":"user","content":"e\u0301é𝅘𝅥"},{"role":"assistant","content":""},{"role":"developer","content":"\n\n"},{"role":"user","content":" a "}]`,
			`[` + strings.Repeat(`{"role":"user","content":"<|im_end|>\n"},{"role":"assistant","content":"<|begin_of_text|>"},`, 20) + `{"role":"user","content":"x"}]`,
		} {
			got := h.chat(`{"model":"m","messages":` + messages + `,"max_tokens":1,"seed":1}`)
			mock.InjectFault(mockvllm.Fault{Kind: "error", Path: "/tokenize", Status: 500, Body: "no", Times: 1})
			bound := gjson.Get(h.post("/v1/estimate", `{"model":"m","messages":`+messages+`,"max_tokens":1}`).body, "prompt_tokens").Int()
			if used := gjson.Get(got.body, "usage.prompt_tokens").Int(); got.status != 200 || bound <= used {
				t.Errorf("%s: %s: bound %d, got %d %s", template, messages, bound, got.status, got.body)
			}
		}
	}
}

func TestChatWithoutMaxTokensReservesTheModelsDefault(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{}, func(o *harnessOptions) { o.model.ChatDefaultMaxTokens = 30 })
	if got := h.chat(`{"model":"m","messages":` + userMessage + `,"ignore_eos":true}`); gjson.Get(got.body, "usage.completion_tokens").Int() != 30 {
		t.Errorf("got %d %s, want 30 tokens", got.status, got.body)
	}
	if sent := requestsTo(mock, proxy.ChatPath); !strings.HasSuffix(sent[0], `,"max_tokens":30}`) {
		t.Errorf("the backend got %s", sent[0])
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthOutput] = quota.Limit(35) }))
	got := h.chat(`{"model":"m","messages":` + userMessage + `,"ignore_eos":true}`)
	if clamped := got.header.Get("X-Acs-Max-Tokens-Clamped"); clamped != "requested=30,applied=5,reason=budget" {
		t.Errorf("got %d %q %s", got.status, clamped, got.body)
	}
}

func TestClampOfChatReplacesTheFieldThatWasSent(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"max_tokens", "max_completion_tokens"} {
		h, mock := startChat(t, mockvllm.Options{}, nil)
		h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthOutput] = quota.Limit(5) }))
		got := h.chat(`{"model":"m","messages":` + userMessage + `,"` + field + `":9,"ignore_eos":true}`)
		if got.header.Get("X-Acs-Max-Tokens-Clamped") != "requested=9,applied=5,reason=budget" {
			t.Errorf("%s: got %d %s %v", field, got.status, got.body, got.header)
		}
		if sent := requestsTo(mock, proxy.ChatPath); len(sent) != 1 || !strings.Contains(sent[0], `"`+field+`":5`) {
			t.Errorf("%s: the backend got %s", field, sent)
		}
		if again := h.chat(`{"model":"m","messages":` + userMessage + `}`); again.status != 429 {
			t.Errorf("%s: got %d %s after the budget was spent, want 429", field, again.status, again.body)
		}
	}
}

func TestDisconnectFromAChatStreamIsChargedByWhatWasSent(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{}, nil)
	mock.InjectFault(mockvllm.Fault{Kind: "hang", Path: proxy.ChatPath, AfterTokens: 4})
	req := h.newRequest(t.Context(), http.MethodPost, proxy.ChatPath, `{"model":"m","messages":`+userMessage+`,"max_tokens":30,"stream":true,"ignore_eos":true,"seed":1}`)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 0, 4096)
	for strings.Count(string(text), "\n\n") < 5 { // the role and four tokens
		n, err := resp.Body.Read(text[len(text):cap(text)])
		if err != nil {
			t.Fatal(err)
		}
		text = text[:len(text)+n]
	}
	resp.Body.Close()
	// With this seed each token is a whole character or more.
	sent := int64(strings.Count(string(text), `"delta":{"content":"`) - strings.Count(string(text), `"delta":{"content":""`))
	if row := h.awaitRows(1)[0]; row.CompletionTokens != sent || sent != 4 || row.PromptTokens == 0 || row.Status != 499 {
		t.Errorf("the ledger has %+v, want %d tokens", row, sent)
	}
}

func TestModelsServeOnlyTheirEndpoints(t *testing.T) {
	t.Parallel()
	base := newHarness(t, nil, startBackend(t, respond(200, "application/json", plainResponse)))
	if got := base.chat(`{"model":"m"}`); got.status != 400 || gjson.Get(got.body, "error.code").Str != "chat_completions_unsupported" {
		t.Errorf("no model chats: got %d %s", got.status, got.body)
	}
	h, _ := startChat(t, mockvllm.Options{}, func(o *harnessOptions) {
		o.model.Completions = false
		o.models = []config.Model{{ID: "base", Checkpoint: "org/Base", Backends: []config.Backend{}}}
	})
	for _, c := range []struct{ path, body, code, text string }{
		{proxy.ChatPath, `{"model":"base","messages":[],"x":1}`, "chat_completions_unsupported", "these models chat: m;"},
		{proxy.ChatPath, `{"messages":[],"model":"base"}`, "chat_completions_unsupported", "these models chat: m;"},
		{proxy.ChatPath, `{"model":"nope","messages":` + userMessage + `}`, "model_not_found", ""},
		{proxy.ChatPath, `nonsense`, "bad_json", ""},
		{"/v1/estimate", `{"model":"m"}`, "invalid_request", "messages is missing"},
		{"/v1/estimate", `{"model":"m","messages":null,"max_tokens":5}`, "invalid_request", "messages: got null"},
		{"/v1/estimate", `{"model":"base"}`, "invalid_request", "prompt is missing"},
		{proxy.ChatPath, `{"model":"m","messages":[]}`, "invalid_request", "empty array"},
		{proxy.CompletionsPath, `{"model":"m","prompt":"x"}`, "invalid_request", "/v1/chat/completions"},
		{"/v1/estimate", `{"model":"m","prompt":"x"}`, "invalid_request", "/v1/chat/completions"},
	} {
		if got := h.post(c.path, c.body); got.status != 400 || gjson.Get(got.body, "error.code").Str != c.code || !strings.Contains(got.body, c.text) {
			t.Errorf("%s %s: got %d %s, want %s with %q", c.path, c.body, got.status, got.body, c.code, c.text)
		}
	}
	list := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models", "")).body
	for path, want := range map[string]string{`data.#(id=="m").endpoints`: `["/v1/chat/completions"]`, `data.#(id=="base").endpoints`: `["/v1/completions"]`} {
		if got := gjson.Get(list, path).Raw; got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	onlyBase, err := identity.NewModelList([]string{"base"})
	if err != nil {
		t.Fatal(err)
	}
	h.updateKey(func(k *identity.Key) { k.Models = onlyBase })
	if got := h.chat(`{"model":"base","messages":[]}`); strings.Contains(got.body, "these models chat") {
		t.Errorf("a key that may not use m is told of it: %s", got.body)
	}
}

// Old versions get the older spelling of structured output, and refuse nothing silently.
func TestChatOfOldVersions(t *testing.T) {
	t.Parallel()
	for version, spelling := range map[string]string{"0.6.6": `"guided_json"`, "0.10.0": `"guided_json"`, "0.11.0": `"response_format"`, "0.32.0": `"response_format"`} {
		h, mock := startChat(t, mockvllm.Options{Version: version}, nil)
		got := h.chat(`{"model":"m","messages":` + userMessage + `,"max_tokens":60,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}}`)
		content := gjson.Get(got.body, "choices.0.message.content").Str
		if got.status != 200 || !gjson.Valid(content) || gjson.Get(content, "a").Type != gjson.Number {
			t.Errorf("%s: got %d %s", version, got.status, got.body)
		}
		if sent := requestsTo(mock, proxy.ChatPath); len(sent) != 1 || !strings.Contains(sent[0], spelling) {
			t.Errorf("%s: the backend got %s, want %s", version, sent, spelling)
		}
	}
	h, _ := startChat(t, mockvllm.Options{Version: "0.6.3"}, nil)
	if got := h.chat(`{"model":"m","messages":` + userMessage + `,"max_completion_tokens":6}`); got.status != 400 || !strings.Contains(got.body, "0.6.4") {
		t.Errorf("max_completion_tokens on 0.6.3: got %d %s", got.status, got.body)
	}
}

// The /tokenize of vLLM before 0.9 ignores tools.
func TestToolsThatAreNotCountedAreBounded(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.8.4", "0.9.0"} {
		h, mock := startChat(t, mockvllm.Options{Version: version}, nil)
		body := `{"model":"m","messages":` + userMessage + `,"max_tokens":60,"tools":` + weatherTool + `,"tool_choice":"none"}`
		estimate := gjson.Get(h.post("/v1/estimate", body).body, "prompt_tokens").Int()
		got := h.chat(body)
		switch used := gjson.Get(got.body, "usage.prompt_tokens").Int(); {
		case got.status != 200 || estimate < used:
			t.Errorf("%s: the estimate is %d tokens, the response %d %s", version, estimate, got.status, got.body)
		case version == "0.9.0" && estimate != used:
			t.Errorf("%s: the estimate is %d tokens, want %d", version, estimate, used)
		}
		spent := gjson.Get(got.body, "usage.total_tokens").Int()
		h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(spent + 160) })) // enough for the conversation without its tools
		before := len(requestsTo(mock, proxy.ChatPath))
		if got := h.chat(body); version == "0.8.4" && (got.status != 429 || !strings.Contains(got.body, "judged by its bytes") || len(requestsTo(mock, proxy.ChatPath)) != before) {
			t.Errorf("%s: got %d %s under a cap, want 429 that names the bound", version, got.status, got.body)
		}
	}
}

// No conversation is refused for the context because of a bound: vLLM counts it.
func TestToolsThatAreNotCountedAreJudgedByVLLM(t *testing.T) {
	t.Parallel()
	h, _ := startChat(t, mockvllm.Options{Version: "0.8.4", MaxModelLen: 400}, nil)
	body := `{"model":"m","messages":` + userMessage + `,"max_tokens":60,"tool_choice":"none","tools":` + weatherTool + `}`
	if got := h.chat(body); got.status != 200 {
		t.Errorf("got %d %s, want 200", got.status, got.body)
	}
}

// A template that refuses messages is the client's mistake.
func TestChatThatTheTemplateRefuses(t *testing.T) {
	t.Parallel()
	h, _ := startChat(t, mockvllm.Options{ChatTemplate: mockvllm.TemplateLlama}, nil)
	got := h.chat(`{"model":"m","messages":[{"role":"system","content":"a"}],"max_tokens":9,"tools":` + weatherTool + `}`)
	if got.status != 400 || !strings.Contains(got.body, "no first user message") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// A cap that may refuse the request needs the length of the messages, which the template does not tell.
func TestChatThatTheTemplateRefusesUnderABudget(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{ChatTemplate: mockvllm.TemplateLlama}, nil)
	body := `{"model":"m","messages":[{"role":"system","content":"a"}],"max_tokens":30,"tools":` + weatherTool + `}`
	answers := map[string]response{"the estimate without a cap": h.post("/v1/estimate", body)}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(40) }))
	answers["the completion"], answers["the estimate"] = h.chat(body), h.post("/v1/estimate", body)
	for what, got := range answers {
		if got.status != 400 || gjson.Get(got.body, "error.code").Str != "invalid_request" || gjson.Get(got.body, "error.upstream_status").Int() != 400 || !strings.Contains(got.body, "no first user message") {
			t.Errorf("%s: got %d %s, want 400 invalid_request with the template's message", what, got.status, got.body)
		}
	}
	if sent := requestsTo(mock, proxy.ChatPath); len(sent) != 0 {
		t.Errorf("the backend got %q, want nothing", sent)
	}
	if strings.Contains(h.log.String(), "first user message") {
		t.Error("the log has the template's message")
	}
}

// The configuration says that the model chats, but its backend has no chat template.
func TestChatWithoutATemplateIsUnsupported(t *testing.T) {
	t.Parallel()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/Model-8B"}, APIKey: "backend-key"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	h := newHarness(t, func(h *harnessOptions) { h.model.Chat, h.model.Completions = true, true }, mock.URL())
	got := h.chat(`{"model":"m","messages":` + userMessage + `}`)
	if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.code").Str != "chat_completions_unsupported" {
		t.Errorf("got %d %s, want 400 chat_completions_unsupported", got.status, got.body)
	}
	if sent := requestsTo(mock, proxy.ChatPath); len(sent) != 0 {
		t.Errorf("the backend got %q, want nothing", sent)
	}
	if got := h.post(proxy.CompletionsPath, `{"model":"m","prompt":"a","max_tokens":2}`); got.status != http.StatusOK {
		t.Errorf("a completion: got %d %s, want 200", got.status, got.body)
	}
	list := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models/m", "")).body
	if endpoints := gjson.Get(list, "endpoints").Raw; endpoints != `["/v1/completions"]` {
		t.Errorf("the model has the endpoints %s", endpoints)
	}
}

// Client libraries send back what they got, and null for what they have not.
func TestTurnsThatClientLibrariesSendBackAreServed(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{}, nil)
	const ask = `{"role":"user","content":"hi"}`
	for name, c := range map[string]struct{ rest, want string }{
		"a turn that was cut in its reasoning": {
			`"messages":[` + ask + `,{"role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":"thinking"},` + ask + `]`,
			`"messages":[` + ask + `,{"role":"assistant","reasoning":"thinking"},` + ask + `]`,
		},
		"a tool loop": {
			`"messages":[` + ask + `,{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"now","arguments":"{}"}}],"function_call":null,` +
				`"provider_specific_fields":{"refusal":null}},{"role":"tool","tool_call_id":"c","content":"12"}],"tools":[{"type":"function","function":{"name":"now"}}]`,
			`"messages":[` + ask + `,{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"now","arguments":"{}"}}]},` +
				`{"role":"tool","tool_call_id":"c","content":"12"}],"tools":[{"type":"function","function":{"name":"now"}}]`,
		},
		"a null member": {
			`"messages":[` + ask + `,{"role":"assistant","content":"x","tool_call_id":null},` + ask + `],"tools":[]`,
			`"messages":[` + ask + `,{"role":"assistant","content":"x"},` + ask + `]`,
		},
		"what says what holds anyway": {
			`"messages":[` + ask + `],"store":false,"service_tier":"auto","modalities":["text"],"safety_identifier":"s","prompt_cache_key":"k","reasoning_effort":"low"`,
			`"messages":[` + ask + `],"reasoning_effort":"low"`,
		},
	} {
		got := h.chat(`{"model":"m","max_tokens":4,` + c.rest + `}`)
		if got.status != http.StatusOK {
			t.Errorf("%s: got %d %s", name, got.status, got.body)
			continue
		}
		sent := requestsTo(mock, proxy.ChatPath)
		if want := `{"model":"org/Model-8B","max_tokens":4,` + c.want + `}`; sent[len(sent)-1] != want {
			t.Errorf("%s: the backend got %s, want %s", name, sent[len(sent)-1], want)
		}
	}
}
