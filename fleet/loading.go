package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"basegate/breaker"
)

// AdapterError says why a backend has not loaded an adapter.
type AdapterError struct {
	Adapter string // its id
	Said    string // for clients: without paths of the operator
	Detail  string // for the operator

	Unreachable bool // the backend has not answered

	lasts bool // the backend is not asked again for failureCooldown
}

// Error implements error.
func (e *AdapterError) Error() string { return fmt.Sprintf("adapter %s: %s", e.Adapter, e.Detail) }

// runtimeLoRAOff says what is wrong with a server that has no endpoint to load adapters, and runtimeLoRAAdvice what to do.
const (
	runtimeLoRAOff    = "it loads no adapters at run time"
	runtimeLoRAAdvice = ": start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
)

// loadResults are the responses of /v1/load_lora_adapter; the first that matches counts. None of them counts for the breaker.
var loadResults = []struct {
	from, to int            // status
	said     *regexp.Regexp // nil: anything
	foreign  bool           // the response has not the form of vLLM's errors
	loaded   bool
	lasts    bool
	meaning  string // before what vLLM said; alone if it is foreign
}{
	{from: 200, to: 200, loaded: true},
	{from: 400, to: 400, said: regexp.MustCompile(`has already been loaded`), loaded: true}, // by another gateway: the name has the version
	{from: 404, to: 405, foreign: true, lasts: true, meaning: runtimeLoRAOff},
	{from: 404, to: 404, lasts: true, meaning: "it does not find the files"},
	{from: 429, to: 429, meaning: "it is busy"},
	{from: 400, to: 499, lasts: true, meaning: "it refuses the adapter"},
	{from: 500, to: 500, lasts: true, meaning: "it cannot load the adapter"}, // a wrong rank or a broken file, unless the engine is dead
	{from: 0, to: 999, meaning: "it fails"},
}

func (b *Backend) postLoad(ctx context.Context, a *Adapter, name string, inPlace bool) *AdapterError {
	request := map[string]any{"lora_name": name, "lora_path": a.Path}
	if inPlace {
		request["load_inplace"] = true
	}
	body, _ := json.Marshal(request) // cannot fail
	response, err := b.Post(ctx, "/v1/load_lora_adapter", body)
	if err != nil {
		return &AdapterError{Adapter: a.ID, Said: "it cannot be reached", Detail: err.Error(), Unreachable: true}
	}
	status, o := response.Status, breaker.Classify(response.Status, response.Body)
	foreign := isForeign(response.Body)
	for _, row := range loadResults {
		if status < row.from || status > row.to || row.foreign && !foreign || row.said != nil && !row.said.MatchString(o.Message) {
			continue
		}
		if row.loaded {
			return nil
		}
		failed := &AdapterError{Adapter: a.ID, Said: row.meaning, Detail: row.meaning, lasts: row.lasts}
		if row.foreign {
			failed.Detail += runtimeLoRAAdvice
		} else if o.Message != "" {
			failed.Said += ": " + withoutPaths(o.Message, a)
			failed.Detail += ": " + o.Message
		}
		if status >= http.StatusInternalServerError {
			if judged := o.Judge(b.Health(ctx)); judged.Class.Gone() {
				b.markUnreachable(judged.Class.String())
				failed.lasts = false
			}
		}
		return failed
	}
	return nil // the last row matches everything
}

// isForeign reports whether a response has not the form of vLLM's errors, as FastAPI's about a path that it does not have.
func isForeign(body []byte) bool {
	return !gjson.GetBytes(body, "error.message").Exists() && !gjson.GetBytes(body, "message").Exists()
}

// withoutPaths returns what vLLM says of an adapter for a client: also without the version.
func withoutPaths(said string, a *Adapter) string {
	return breaker.Redact(strings.NewReplacer(a.Name(), a.ID, a.Path, "its path").Replace(said))
}

func (b *Backend) postUnload(ctx context.Context, name string) (Response, error) {
	body, _ := json.Marshal(map[string]string{"lora_name": name}) // cannot fail
	return b.Post(ctx, "/v1/unload_lora_adapter", body)
}

// checkName is the name under which AdapterFindings loads adapters. No gateway takes it for one of its own.
const checkName = "basegate-check"

// AdapterFindings returns why a ready backend cannot load adapters, or which ones of its model. While it has a place that no adapter
// takes, it loads each and unloads it again.
func (b *Backend) AdapterFindings(ctx context.Context, adapters []Adapter) (found []Finding) {
	response, err := b.postUnload(ctx, checkName) // there is none
	if err != nil || response.Status != http.StatusNotFound || isForeign(response.Body) {
		return []Finding{{true, runtimeLoRAOff + runtimeLoRAAdvice + ", or remove the adapters of its model"}}
	}
	for i := range adapters {
		a := &adapters[i]
		listed, err := b.listAdapters(ctx)
		switch {
		case err != nil || len(listed) >= b.adapterPlaces():
			return found
		case slices.Contains(listed, a.Name()):
			continue
		}
		if failed := b.postLoad(ctx, a, checkName, false); failed != nil {
			found = append(found, Finding{a.Configured, failed.Error()})
			continue
		}
		if response, err := b.postUnload(ctx, checkName); err != nil || response.Status != http.StatusOK {
			return append(found, Finding{true, "it has loaded the adapter " + a.ID + " and does not unload it: restart it"})
		}
	}
	return found
}
