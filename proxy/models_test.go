package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"basegate/identity"
)

// The id of a checkpoint has slashes, which some clients escape.
func TestModelWithSlashesIsFoundRawAndEscaped(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) {
		o.model.ID, o.model.Aliases = "org/sub/m", []string{"other/m"}
	}, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	for path, status := range map[string]int{
		"org/sub/m": 200, "org%2Fsub%2fm": 200, "org/sub%2Fm": 200, "other/m": 200, "other%2Fm": 200,
		"org/sub": 404, "org/sub/m/": 404, "/org/sub/m": 404, "org//sub/m": 404, "org/sub/m/x": 404, "org%252Fsub%252Fm": 404,
	} {
		got := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models/"+path, ""))
		if got.status != status || status == 200 && !strings.Contains(got.body, `"id":"org/sub/m"`) || status == 404 && !strings.Contains(got.body, "not_found") {
			t.Errorf("%s: got %d %s, want %d", path, got.status, got.body, status)
		}
	}
}

// What a model takes is not told to a key that may not use it.
func TestUnusableModelIsUnknownWhateverItTakes(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	refused := func(model, code string) {
		t.Helper()
		if got := h.complete(`{"model":"` + model + `","prompt":"x","vllm_xargs":{"alpha":1}}`); !strings.Contains(got.body, `"code":"`+code+`"`) {
			t.Errorf("%s: got %d %s, want %s", model, got.status, got.body, code)
		}
	}
	refused("m", "invalid_request")
	refused("nope", "model_not_found")
	h.updateKey(func(f *identity.Key) { f.Models = must(identity.NewModelList([]string{"other"}))(t) })
	refused("m", "model_not_found")
}

func TestModels(t *testing.T) {
	t.Parallel()
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
