package mockvllm_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/internal/loratest"
	"basegate/mockvllm"
)

func load(t *testing.T, p *mockvllm.Process, name, path string) result {
	t.Helper()
	return send(t, p, http.MethodPost, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, path))
}

func TestAdaptersAreLoadedAndUnloadedInTheWordsOfVLLM(t *testing.T) {
	p := start(t, mockvllm.Options{EnableLoRA: true})
	good := loratest.Write(t, filepath.Join(t.TempDir(), "a"), 8, 1)
	large := loratest.Write(t, filepath.Join(t.TempDir(), "b"), 64, 1)
	if got := load(t, p, "x@1", good); got.status != http.StatusOK || got.body != "Success: LoRA adapter 'x@1' added successfully." {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	for _, row := range []struct {
		name, path, text string
		status           int
	}{
		{"x@1", good, "The lora adapter 'x@1' has already been loaded. If you want", http.StatusBadRequest},
		{"y", "/none", "Loading lora y failed: No adapter found for /none", http.StatusNotFound},
		{"y", large, "Call to add_lora method failed: LoRA rank 64 is greater than max_lora_rank 16.", http.StatusInternalServerError},
		{"", good, "Both 'lora_name' and 'lora_path' must be provided.", http.StatusBadRequest},
	} {
		got := load(t, p, row.name, row.path)
		if got.status != row.status || !strings.HasPrefix(gjson.Get(got.body, "error.message").Str, row.text) {
			t.Errorf("%s from %s: got %d %s", row.name, row.path, got.status, got.body)
		}
	}
	listed := gjson.Get(send(t, p, http.MethodGet, "/v1/models", "").body, "data.1")
	if listed.Get("id").Str != "x@1" || listed.Get("parent").Str != "mock-model" || listed.Get("root").Str != good || listed.Get("max_model_len").Type != gjson.Null {
		t.Errorf("got %s", listed)
	}
	for _, want := range []int{http.StatusOK, http.StatusNotFound} {
		if got := send(t, p, http.MethodPost, "/v1/unload_lora_adapter", `{"lora_name":"x@1"}`); got.status != want {
			t.Errorf("unload: got %d %s, want %d", got.status, got.body, want)
		}
	}
	if got := load(t, start(t, mockvllm.Options{}), "x", good); got.status != http.StatusNotFound || got.body != `{"detail":"Not Found"}` {
		t.Errorf("without --enable-lora: got %d %s", got.status, got.body)
	}
}

func TestAnAdapterChangesWhatIsSampled(t *testing.T) {
	p := start(t, mockvllm.Options{EnableLoRA: true})
	texts := map[string]bool{}
	for seed := range uint64(3) {
		load(t, p, fmt.Sprint("a", seed), loratest.Write(t, filepath.Join(t.TempDir(), "a"), 8, seed))
	}
	for _, model := range []string{"mock-model", "a0", "a1", "a2"} {
		got := send(t, p, http.MethodPost, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"The capital","max_tokens":5,"temperature":0}`, model))
		if gjson.Get(got.body, "model").Str != model {
			t.Errorf("got %s, want model %s", got.body, model)
		}
		texts[gjson.Get(got.body, "choices.0.text").Str] = true
	}
	if len(texts) != 4 {
		t.Errorf("got the texts %v, want four", texts)
	}
}

// As in vLLM, a request whose adapter is unloaded meanwhile is answered by the adapter or refused, and never by the base model.
func TestTheBaseModelNeverAnswersForAnAdapterThatIsUnloaded(t *testing.T) {
	p := start(t, mockvllm.Options{EnableLoRA: true})
	path := loratest.Write(t, filepath.Join(t.TempDir(), "a"), 8, 1)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				got := trySend(t, p, http.MethodPost, "/v1/completions", `{"model":"a","prompt":"x","max_tokens":1}`)
				if got.status != http.StatusNotFound && gjson.Get(got.body, "model").Str != "a" {
					t.Errorf("got %d %s", got.status, got.body)
					return
				}
			}
		})
	}
	for range 300 {
		load(t, p, "a", path)
		send(t, p, http.MethodPost, "/v1/unload_lora_adapter", `{"lora_name":"a"}`)
	}
	stop()
	clients.Wait()
}
