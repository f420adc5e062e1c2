package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"basegate/internal/poll"
	"basegate/keys"
)

// ask is a request from within for the account's key.
func (h *harness) completeOnBehalfOf(account, key, body string) response {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/console/api/completions", strings.NewReader(body))
	h.server.ServeOnBehalfOf(account, key, w, r)
	return response{w.Code, w.Header(), w.Body.String()}
}

func TestRequestOnBehalfOfAnAccountIsServedAndChargedLikeTheKeys(t *testing.T) {
	for _, c := range []struct{ name, body, upstream string }{
		{
			"continuation", `{"model":"m","prompt":"once upon","max_tokens":3}`,
			`{"model":"org/Model-8B","prompt":"once upon","max_tokens":3,"return_tokens_as_token_ids":true,"return_token_ids":true}`,
		},
		{ // where ids are listed vLLM leaves the echo's text out
			"score", `{"model":"m","prompt":"once upon","max_tokens":1,"echo":true,"logprobs":2}`,
			`{"model":"org/Model-8B","prompt":"once upon","max_tokens":1,"echo":true,"logprobs":2,"return_tokens_as_token_ids":true}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := make(chan string, 2)
			h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked <- string(body)
				respond(http.StatusOK, "application/json", plainResponse)(w, r)
			}))
			who, err := h.keys.Authenticate(h.secret)
			if err != nil {
				t.Fatal(err)
			}
			got := h.completeOnBehalfOf(who.AccountID, who.KeyID, c.body)
			if got.status != http.StatusOK {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if upstream := <-asked; upstream != c.upstream {
				t.Errorf("vLLM was asked %s, want %s", upstream, c.upstream)
			}
			if want := h.complete(c.body); got.body != want.body {
				t.Errorf("got %d %s, want %s", got.status, got.body, want.body)
			}
			if got.header.Get("X-Acs-Upstream-Model") == "" || got.header.Get("X-Request-Id") == "" {
				t.Errorf("headers: %v", got.header)
			}
			if h.ledger.KeyTotals(who.KeyID).Month() == 0 {
				t.Error("the key was charged nothing")
			}
		})
	}
}

func TestRequestOnBehalfOfAnAccountIsRefusedLikeTheKeys(t *testing.T) {
	h := newHarness(t, nil, startBackend(t, func(http.ResponseWriter, *http.Request) { t.Error("vLLM was asked") }))
	who, err := h.keys.Authenticate(h.secret)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"model":"m","prompt":"once upon","max_tokens":3}`
	stranger, err := h.keys.CreateAccount(t.Context(), keys.NewAccount{Email: "eve@example.org"})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.completeOnBehalfOf(stranger.ID, who.KeyID, body); got.status != http.StatusUnauthorized || !strings.Contains(got.body, `"invalid_api_key"`) {
		t.Errorf("another's key: %d %s", got.status, got.body)
	}
	if got := h.completeOnBehalfOf(who.AccountID, who.KeyID, `{"model":"m","prompt":"once upon","max_token":3}`); got.status != http.StatusBadRequest || !strings.Contains(got.body, `"max_token"`) {
		t.Errorf("an unknown field: %d %s", got.status, got.body)
	}
	if _, err := h.keys.PauseKey(t.Context(), who.KeyID); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the key is paused", func() bool { _, err := h.keys.Authenticate(h.secret); return err != nil })
	if got, want := h.completeOnBehalfOf(who.AccountID, who.KeyID, body), h.complete(body); got.status != want.status || withoutID(got) != withoutID(want) {
		t.Errorf("a paused key: %d %s, want %d %s", got.status, got.body, want.status, want.body)
	}
}

// withoutID is an error's body without the id of its request.
func withoutID(got response) string {
	return strings.ReplaceAll(got.body, got.header.Get("X-Request-Id"), "")
}
