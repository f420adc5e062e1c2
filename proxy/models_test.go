package proxy_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestModels(t *testing.T) {
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	object := `"id":"m","object":"model"`
	list := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models", ""))
	if !strings.Contains(list.body, object) || !strings.Contains(list.body, `"max_model_len":4096`) || !strings.Contains(list.body, `"status":"warm"`) {
		t.Errorf("list: got %s", list.body)
	}
	if one := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models/%6d", "")); !strings.Contains(one.body, object) {
		t.Errorf("a model by its escaped id: got %s", one.body)
	}
	if none := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models/a%2Fb", "")); none.status != http.StatusNotFound {
		t.Errorf("an unknown model: got %d, want 404", none.status)
	}
	down := newHarness(t, nil, refusingBackend(t))
	if got := down.do(down.newRequest(t.Context(), http.MethodGet, "/v1/models", "")); !strings.Contains(got.body, `"status":"unavailable","boot_estimate_seconds":0`) {
		t.Errorf("a model that is not warm: got %s", got.body)
	}
	req := h.newRequest(t.Context(), http.MethodGet, "/v1/models", "")
	req.Header.Del("Authorization")
	if got := h.do(req); got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("without a key: got %d, WWW-Authenticate %q", got.status, got.header.Get("WWW-Authenticate"))
	}
}
