package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/identity"
	"basegate/internal/poll"
	"basegate/mockvllm"
	"basegate/proxy"
)

// completeOnBehalfOf serves a completion request of the console in the name of an account's key.
func (h *harness) completeOnBehalfOf(account, key, body string) response {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/console/api/completions", strings.NewReader(body))
	h.server.ServeOnBehalfOf(account, key, proxy.CompletionsPath, w, r)
	return response{w.Code, w.Header(), w.Body.String()}
}

func TestRequestOnBehalfOfAnAccountIsServedAndChargedLikeTheKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, body, want string }{
		{
			"continuation", `{"model":"m","prompt":"once upon","max_tokens":3}`,
			`{"model":"org/Model-8B","prompt":"once upon","max_tokens":3,"return_tokens_as_token_ids":true,"return_token_ids":true}`,
		},
		{ // vLLM omits the text of an echo if it lists ids
			"score", `{"model":"m","prompt":"once upon","max_tokens":1,"echo":true,"logprobs":2}`,
			`{"model":"org/Model-8B","prompt":"once upon","max_tokens":1,"echo":true,"logprobs":2,"return_tokens_as_token_ids":true}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			received := make(chan string, 2)
			h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				received <- string(body)
				respond(http.StatusOK, "application/json", plainResponse)(w, r)
			}))
			principal, err := h.keys.Authenticate(t.Context(), h.secret)
			if err != nil {
				t.Fatal(err)
			}
			got := h.completeOnBehalfOf(principal.AccountID, principal.KeyID, c.body)
			if got.status != http.StatusOK {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if body := <-received; body != c.want {
				t.Errorf("the backend received %s, want %s", body, c.want)
			}
			if want := h.complete(c.body); got.body != want.body {
				t.Errorf("got %d %s, want the response to a request with the key: %s", got.status, got.body, want.body)
			}
			if got.header.Get("X-Acs-Upstream-Model") == "" || got.header.Get("X-Request-Id") == "" {
				t.Errorf("X-Acs-Upstream-Model or X-Request-Id is missing: %v", got.header)
			}
			if h.used(principal.KeyID) == 0 {
				t.Error("the key has not been charged")
			}
		})
	}
}

func TestRequestOnBehalfOfAnAccountIsRefusedLikeTheKeys(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, func(http.ResponseWriter, *http.Request) { t.Error("the backend received a request") }))
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"model":"m","prompt":"once upon","max_tokens":3}`
	other, err := h.accounts.Create(t.Context(), identity.Account{Email: "eve@example.org"})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.completeOnBehalfOf(other.ID, principal.KeyID, body); got.status != http.StatusUnauthorized || !strings.Contains(got.body, `"invalid_api_key"`) {
		t.Errorf("the key of another account: got %d %s, want 401", got.status, got.body)
	}
	if got := h.completeOnBehalfOf(principal.AccountID, principal.KeyID, `{"model":"m","prompt":"once upon","max_token":3}`); got.status != http.StatusBadRequest || !strings.Contains(got.body, `"max_token"`) {
		t.Errorf("an unknown field: got %d %s, want 400", got.status, got.body)
	}
	if _, err := h.keys.Pause(t.Context(), principal.KeyID); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the key is paused", func() bool { _, err := h.keys.Authenticate(t.Context(), h.secret); return err != nil })
	if got, want := h.completeOnBehalfOf(principal.AccountID, principal.KeyID, body), h.complete(body); got.status != want.status || withoutID(got) != withoutID(want) {
		t.Errorf("a paused key: got %d %s, want %d %s", got.status, got.body, want.status, want.body)
	}
}

// withoutID returns the body of an error without the request id.
func withoutID(got response) string {
	return strings.ReplaceAll(got.body, got.header.Get("X-Request-Id"), "")
}

func TestChatOnBehalfOfAnAccountNamesTokensByTheirIDs(t *testing.T) {
	t.Parallel()
	h, mock := startChat(t, mockvllm.Options{}, nil)
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/console/api/chat/completions",
		strings.NewReader(`{"model":"m","messages":`+userMessage+`,"max_completion_tokens":3,"seed":1,"logprobs":true,"top_logprobs":2}`))
	h.server.ServeOnBehalfOf(principal.AccountID, principal.KeyID, proxy.ChatPath, w, r)
	content := gjson.Get(w.Body.String(), "choices.0.logprobs.content")
	if w.Code != http.StatusOK || content.Get("#").Int() != 3 {
		t.Fatalf("got %d %s, want 200 and the log-probabilities of 3 tokens", w.Code, w.Body)
	}
	for _, token := range append(content.Get("#.token").Array(), content.Get("0.top_logprobs.#.token").Array()...) {
		if !strings.HasPrefix(token.Str, "token_id:") {
			t.Errorf("got the token %q, want its id", token.Str)
		}
	}
	if sent := requestsTo(mock, proxy.ChatPath); len(sent) != 1 || !strings.Contains(sent[0], `"return_tokens_as_token_ids":true`) {
		t.Errorf("the backend received %q, want one request for token ids", sent)
	}
	if h.used(principal.KeyID) == 0 {
		t.Error("the key has not been charged")
	}
}

func TestEstimateOnBehalfOfAnAccountIsTheKeysAndChargesNothing(t *testing.T) {
	t.Parallel()
	recorded := &recordedRefusals{}
	h := newHarness(t, func(o *harnessOptions) { o.refusals = recorded }, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	estimate := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/console/api/estimate", strings.NewReader(body))
		h.server.ServeOnBehalfOf(principal.AccountID, principal.KeyID, proxy.EstimatePath, w, r)
		return w
	}
	w := estimate(`{"model":"m","prompt":[1,2,3],"max_tokens":5,"n":2}`)
	for _, part := range []string{`"prompt_tokens":3`, `"max_completion_tokens":10`, `"fits":true`} {
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), part) {
			t.Errorf("got %d %s, want 200 and %s", w.Code, w.Body, part)
		}
	}
	if used := h.used(principal.KeyID); used != 0 {
		t.Errorf("the key was charged %d tokens", used)
	}
	estimate(`{"model":"m","prompt":[1],"temperature":9}`)
	h.complete(`{"model":"m","prompt":[1],"temperature":9}`)
	if all := recorded.await(t, 1); all[0].Endpoint != "/v1/completions" {
		t.Errorf("got %+v, want the refusal of the completion alone", all)
	}
}
