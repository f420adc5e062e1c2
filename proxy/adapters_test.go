package proxy_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/loratest"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// startLoRA starts a mock that loads adapters.
func startLoRA(t *testing.T) *mockvllm.Process {
	t.Helper()
	return startMockOf(t, mockvllm.Options{EnableLoRA: true})
}

func startMockOf(t *testing.T, o mockvllm.Options) *mockvllm.Process {
	t.Helper()
	o.Models, o.APIKey = []string{"org/Model-8B"}, "backend-key"
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	return mock
}

// withAdapters configures adapters of the model by their ids and folders.
func withAdapters(adapters map[string]string) func(*harnessOptions) {
	return func(o *harnessOptions) {
		o.adapters = true
		o.model.MaxAdapters = 32
		for id, path := range adapters {
			o.model.Adapters = append(o.model.Adapters, config.Adapter{ID: id, Path: path})
		}
	}
}

// count returns how many requests for a path the mock has received.
func count(mock *mockvllm.Process, path string) (n int) {
	for _, r := range mock.Requests() {
		if r.Path == path {
			n++
		}
	}
	return n
}

const (
	loadPath   = "/v1/load_lora_adapter"
	unloadPath = "/v1/unload_lora_adapter"
)

// ask sends a completion to a model and returns its text.
func (h *harness) ask(model string) string {
	h.t.Helper()
	got := h.complete(fmt.Sprintf(`{"model":%q,"prompt":"The capital of France is","max_tokens":6,"temperature":0}`, model))
	if got.status != http.StatusOK {
		h.t.Fatalf("%s: got %d %s", model, got.status, got.body)
	}
	return gjson.Get(got.body, "choices.0.text").Str
}

func TestAdapterIsLoadedOnceForAllThatNeedItAndAgainAfterARestart(t *testing.T) {
	t.Parallel()
	mock := startLoRA(t)
	h := newHarness(t, withAdapters(map[string]string{"sql-v3": loratest.Write(t, t.TempDir(), 8, 1)}), mock.URL())
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			got := h.complete(`{"model":"sql-v3","prompt":"x","max_tokens":2}`)
			if got.status != http.StatusOK || !strings.HasPrefix(gjson.Get(got.body, "model").Str, "sql-v3@") {
				t.Errorf("got %d %v %s", got.status, got.header, got.body)
			}
		})
	}
	all.Wait()
	if n := count(mock, loadPath); n != 1 {
		t.Errorf("20 requests loaded the adapter %d times", n)
	}
	if h.ask("sql-v3") == h.ask("m") {
		t.Error("the adapter changes nothing")
	}
	name := h.fleet.Models()[1].Served()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mock.URL()+unloadPath, strings.NewReader(fmt.Sprintf(`{"lora_name":%q}`, name)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer backend-key")
	req.Header.Set("Content-Type", "application/json")
	h.do(req) // as a restart does
	h.ask("sql-v3")
	if n := count(mock, loadPath); n != 2 {
		t.Errorf("the adapter was loaded %d times, want twice", n)
	}
	if b := h.fleet.Models()[0].Backends()[0]; b.Breaker() != breaker.Closed || strings.Contains(fmt.Sprint(b.RecentAttempts()), "misconfigured") {
		t.Errorf("the breaker has seen %v", b.RecentAttempts())
	}
	listed := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models/sql-v3", "")).body
	if gjson.Get(listed, "parent").Str != "m" || gjson.Get(listed, "checkpoint").Str != "org/Model-8B" || gjson.Get(listed, "max_model_len").Int() != 8192 {
		t.Errorf("got %s", listed)
	}
}

// Adapters that are used at once take turns for the places of a backend.
func TestNoMoreAdaptersAreLoadedThanABackendHasPlaces(t *testing.T) {
	t.Parallel()
	mock := startLoRA(t)
	adapters := map[string]string{}
	for i := range 4 {
		adapters[fmt.Sprint("a", i)] = loratest.Write(t, filepath.Join(t.TempDir(), "x"), 8, uint64(i))
	}
	h := newHarness(t, withAdapters(adapters), mock.URL())
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() { h.ask(fmt.Sprint("a", i%4)) })
	}
	all.Wait()
	loaded, most := map[string]bool{}, 0
	for _, r := range mock.Requests() {
		name := gjson.GetBytes(r.Body, "lora_name").Str
		switch r.Path {
		case loadPath:
			loaded[name] = true
		case unloadPath:
			delete(loaded, name)
		case "/v1/completions":
			if model := gjson.GetBytes(r.Body, "model").Str; !loaded[model] {
				t.Errorf("a request came for %s when %v was loaded", model, loaded)
			}
		}
		most = max(most, len(loaded))
	}
	if most != 1 {
		t.Errorf("%d adapters were loaded at a time, want 1", most)
	}
}

func TestBackendsThatCannotLoadAnAdapterArePassedOver(t *testing.T) {
	t.Parallel()
	good, large := loratest.Write(t, t.TempDir(), 8, 1), loratest.Write(t, t.TempDir(), 64, 1)
	able, unable := startLoRA(t), startMockOf(t, mockvllm.Options{})
	h := newHarness(t, withAdapters(map[string]string{"good": good, "large": large, "gone": "/srv/secret/place"}), unable.URL(), able.URL())
	for range 8 {
		h.ask("good")
	}
	if n := count(unable, "/v1/completions"); n != 0 {
		t.Errorf("the backend without LoRA received %d requests", n)
	}
	for id, said := range map[string]string{"large": "LoRA rank 64 is greater than max_lora_rank 16.", "gone": "No adapter found for its path"} {
		for range 10 {
			got := h.complete(fmt.Sprintf(`{"model":%q,"prompt":"x"}`, id))
			e := gjson.Get(got.body, "error")
			if got.status != http.StatusBadGateway || e.Get("code").Str != "adapter_unavailable" || e.Get("type").Str != "upstream_error" ||
				got.header.Get("X-Should-Retry") != "false" || got.header.Get("X-Acs-Upstream-Model") == "" || strings.Contains(got.body, "/srv") || strings.Contains(got.body, "@") {
				t.Fatalf("%s: got %d %v %s", id, got.status, got.header, got.body)
			}
			if message := e.Get("message").Str; !strings.Contains(message, said) && !strings.Contains(message, "loads no adapters at run time") {
				t.Errorf("%s: got %q", id, message)
			}
		}
		if n := count(able, loadPath); n > 3 {
			t.Errorf("the backend was asked %d times", n)
		}
	}
	for _, b := range h.fleet.BaseModels()[0].Backends() {
		if b.Breaker() != breaker.Closed || strings.Contains(fmt.Sprint(b.RecentAttempts()), "adapter") {
			t.Errorf("%s: %s, %v", b.Name, b.Breaker(), b.RecentAttempts())
		}
	}
}

func TestLoadErrorOfAnAdapterNamesNoPath(t *testing.T) {
	t.Parallel()
	mock := startLoRA(t)
	mock.InjectFault(mockvllm.Fault{Kind: "nested", Path: loadPath, Times: -1, Status: 400, Message: `No file "/srv/my files/x" on http://gpu9:8000/x, see /srv/a.log`})
	h := newHarness(t, withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)}), mock.URL())
	if got := h.complete(`{"model":"a","prompt":"x"}`); !strings.Contains(gjson.Get(got.body, "error.message").Str, `No file "[path]" on [address], see [path]`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestNoAnswerMixesVersionsOfAnAdapter(t *testing.T) {
	t.Parallel()
	mock := startMockOf(t, mockvllm.Options{EnableLoRA: true, TokenDelay: 1e6})
	one, two := loratest.Write(t, t.TempDir(), 8, 1), loratest.Write(t, t.TempDir(), 8, 2)
	h := newHarness(t, withAdapters(nil), mock.URL())
	add := func(path string) {
		if _, err := h.fleet.AddAdapter(t.Context(), fleet.Adapter{ID: "a", Model: "m", Path: path}); err != nil {
			t.Error(err)
		}
	}
	add(one)
	first := h.ask("a")
	texts := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			text := h.ask("a")
			mu.Lock()
			texts[text]++
			mu.Unlock()
		})
		if i == 25 {
			all.Go(func() { add(two) })
		}
	}
	all.Wait()
	second := h.ask("a")
	if first == second {
		t.Fatal("the versions are alike")
	}
	for text := range texts {
		if text != first && text != second {
			t.Errorf("got the text %q, want %q or %q", text, first, second)
		}
	}
	poll.Until(t, "only the new version to be loaded", func() bool {
		all := h.fleet.BaseModels()[0].Backends()[0].Adapters()
		return len(all) == 1 && all[0].Name == h.fleet.Models()[1].Served()
	})
}

// addWith sends POST /v1/load_lora_adapter.
func (h *harness) addWith(body string) response {
	h.t.Helper()
	return h.do(h.newRequest(h.t.Context(), http.MethodPost, loadPath, body))
}

// allowAdapters gives the harness's key the right to add adapters.
func (h *harness) allowAdapters() {
	h.t.Helper()
	if _, err := h.keys.Set(h.t.Context(), "test", func(k *identity.Key) { k.Adapters = true }); err != nil {
		h.t.Fatal(err)
	}
}

func TestKeysAddAndRemoveAdapters(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	dir := filepath.Join(root, "adapters")
	loratest.Write(t, filepath.Join(dir, "sql"), 8, 1)
	loratest.Write(t, filepath.Join(outside, "x"), 8, 1)
	for link, target := range map[string]string{"out": outside, "in": filepath.Join(dir, "sql"), "dangling": "/nowhere/at/all"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(map[string]string{"configured": filepath.Join(dir, "sql")})(o)
		o.model.AdaptersDir = dir
	}, startLoRA(t).URL())
	body := func(id, path string) string { return fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, id, path) }
	want := func(got response, status int, code string) {
		t.Helper()
		if got.status != status || gjson.Get(got.body, "error.code").Str != code {
			t.Errorf("got %d %s, want %d %s", got.status, got.body, status, code)
		}
	}
	want(h.addWith(body("a", dir+"/sql")), http.StatusForbidden, "permission_denied")
	h.allowAdapters()
	for _, path := range []string{
		"/etc", "/etc/passwd", "/", dir, dir + "/", dir + "/.", dir + "/../outside", dir + "/sql/../../outside", dir + "/sql/../..", "../etc",
		dir + "/out", dir + "/out/x", dir + "/in/../out/x", dir + "/dangling", dir + "/dangling/x", "org/repository", "file://" + dir + "/sql",
		"~/sql", dir[1:] + "/sql", dir + "x/a", strings.ToUpper(dir) + "/sql", dir + "/sql/adapter_config.json/x",
	} {
		want(h.addWith(body("a", path)), http.StatusForbidden, "permission_denied")
	}
	for _, wrong := range []string{
		`{"lora_name":"a"}`, `{"lora_name":"a b","lora_path":"/x"}`, `{"lora_name":1,"lora_path":"/x"}`, `{"lora_name":"a,b","lora_path":"/x"}`,
		`{"lora_name":"a","lora_path":"/x","load_inplace":null}`, `{"lora_name":"a","lora_path":"/x\u0000"}`, `{"lora_name":"a","lora_path":"/x","load_inplace":true}`,
	} {
		want(h.addWith(wrong), http.StatusBadRequest, "invalid_request")
	}
	if got := h.addWith(`{"lora_path":1,"color":1,"lora_name":1}`); gjson.Get(got.body, "error.param").Str != "lora_path" {
		t.Errorf("got %d %s, want the first wrong field of the body", got.status, got.body)
	}
	for _, taken := range []string{"m", "org/Model-8B"} {
		if got := h.addWith(body(taken, dir+"/sql")); got.status != http.StatusConflict && got.status != http.StatusBadRequest {
			t.Errorf("%s: got %d %s", taken, got.status, got.body)
		}
	}
	want(h.addWith(body("m", dir+"/sql")), http.StatusConflict, "adapter_exists")
	want(h.addWith(body("configured", dir+"/in")), http.StatusConflict, "adapter_exists")
	added := h.addWith(body("a", dir+"/other/../sql"))
	if added.status != http.StatusOK || gjson.Get(added.body, "object").Str != "adapter" || gjson.Get(added.body, "parent").Str != "m" || gjson.Get(added.body, "path").Str != dir+"/sql" {
		t.Fatalf("got %d %s", added.status, added.body)
	}
	h.ask("a")
	again := h.addWith(body("a", dir+"/sql"))
	if again.status != http.StatusOK || gjson.Get(again.body, "version").Int() <= gjson.Get(added.body, "version").Int() || gjson.Get(again.body, "created").Int() != gjson.Get(added.body, "created").Int() {
		t.Errorf("got %d %s, want a new version", again.status, again.body)
	}
	h.ask("a")
	for i := range 38 {
		status, code := http.StatusOK, ""
		if i >= 30 {
			status, code = http.StatusBadRequest, "invalid_request"
		}
		want(h.addWith(body(fmt.Sprint("b", i), dir+"/in")), status, code)
	}
	remove := func(id string) response {
		return h.do(h.newRequest(t.Context(), http.MethodPost, unloadPath, fmt.Sprintf(`{"lora_name":%q}`, id)))
	}
	want(remove("none"), http.StatusNotFound, "not_found")
	want(remove("configured"), http.StatusForbidden, "permission_denied")
	want(remove("a"), http.StatusOK, "")
	want(h.complete(`{"model":"a","prompt":"x"}`), http.StatusBadRequest, "model_not_found")
}

// What an adapter is used for stands on the ledger by its id, and the lists of keys name it by that.
func TestAdaptersAreModelsOfKeysAndOfTheLedger(t *testing.T) {
	t.Parallel()
	h := newHarness(t, withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)}), startLoRA(t).URL())
	estimate := h.do(h.newRequest(t.Context(), http.MethodPost, "/v1/estimate", `{"model":"a","prompt":"x y z"}`))
	if gjson.Get(estimate.body, "model").Str != "a" || gjson.Get(estimate.body, "prompt_tokens").Int() == 0 {
		t.Errorf("estimate: got %s", estimate.body)
	}
	if got := h.do(h.newRequest(t.Context(), http.MethodPost, "/v1/tokenize", `{"model":"a","prompt":"x"}`)); got.status != http.StatusOK {
		t.Errorf("tokenize: got %d %s", got.status, got.body)
	}
	h.ask("a")
	var model string
	if err := h.db.Read().QueryRowContext(t.Context(), `SELECT model FROM requests`).Scan(&model); err != nil || model != "a" {
		t.Errorf("the ledger has the model %q, %v", model, err)
	}
	for list, status := range map[string]int{"a": http.StatusOK, "m": http.StatusBadRequest} {
		models, err := identity.NewModelList([]string{list})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.keys.Set(t.Context(), "test", func(k *identity.Key) { k.Models = models }); err != nil {
			t.Fatal(err)
		}
		if got := h.complete(`{"model":"a","prompt":"x","max_tokens":1}`); got.status != status {
			t.Errorf("a key for %s: got %d %s", list, got.status, got.body)
		}
	}
}

// The list of a key's models holds for changes of adapters too.
func TestAKeyChangesNoAdapterOfAModelThatItMayNotUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(nil)(o)
		o.model.AdaptersDir = dir
	}, startLoRA(t).URL())
	h.allowAdapters()
	body := fmt.Sprintf(`{"lora_name":"a","lora_path":%q}`, loratest.Write(t, filepath.Join(dir, "sql"), 8, 1))
	if got := h.addWith(body); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	for _, c := range []struct {
		models, code string
		add, remove  int
	}{
		{"other", "adapter_exists", http.StatusConflict, http.StatusNotFound},
		{"a", "", http.StatusOK, http.StatusOK},
	} {
		models, err := identity.NewModelList([]string{c.models})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.keys.Set(t.Context(), "test", func(k *identity.Key) { k.Models = models }); err != nil {
			t.Fatal(err)
		}
		if got := h.addWith(body); got.status != c.add || gjson.Get(got.body, "error.code").Str != c.code {
			t.Errorf("a key for %s adds: got %d %s", c.models, got.status, got.body)
		}
		if got := h.post(unloadPath, `{"lora_name":"a"}`); got.status != c.remove {
			t.Errorf("a key for %s removes: got %d %s", c.models, got.status, got.body)
		}
	}
}

// A child has no right to change adapters, and may be limited to one.
func TestAdaptersOfKeysThatKeysMake(t *testing.T) {
	t.Parallel()
	h := newHarness(t, withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)}), startLoRA(t).URL())
	h.allowAdapters()
	if _, err := h.keys.Set(t.Context(), "test", func(k *identity.Key) { k.Children = sql.NullBool{Bool: true, Valid: true} }); err != nil {
		t.Fatal(err)
	}
	made := h.post("/v1/keys", `{"name":"sweep","run":"sweep","models":["a"]}`)
	if made.status != http.StatusCreated || gjson.Get(made.body, "models").Raw != `["a"]` {
		t.Fatalf("got %d %s", made.status, made.body)
	}
	h.secret = gjson.Get(made.body, "secret").Str
	h.ask("a")
	if got := h.complete(`{"model":"m","prompt":"x"}`); gjson.Get(got.body, "error.code").Str != "model_not_found" {
		t.Errorf("another model: got %d %s", got.status, got.body)
	}
	if got := h.addWith(`{"lora_name":"b","lora_path":"/x"}`); got.status != http.StatusForbidden {
		t.Errorf("a child adds an adapter: got %d %s", got.status, got.body)
	}
}

func TestLoglikelihoodsOfAdapters(t *testing.T) {
	t.Parallel()
	mock := startLoRA(t)
	h := newHarness(t, withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)}), mock.URL())
	const pairs = `"context":"The capital of France is","continuations":[" Paris"," a long answer"]}`
	score := func(model string) gjson.Result {
		got := h.post("/v1/loglikelihood", `{"model":"`+model+`",`+pairs)
		if got.status != http.StatusOK {
			t.Fatalf("%s: got %d %s", model, got.status, got.body)
		}
		return gjson.Parse(got.body)
	}
	of, base := score("a"), score("m")
	if name := h.fleet.Models()[1].Served(); of.Get("model").Str != name || completions(mock)[0].Get("model").Str != name {
		t.Errorf("got the models %s and %s, want %s", of.Get("model"), completions(mock)[0].Get("model"), name)
	}
	if of.Get("data.0.logprob").Num == base.Get("data.0.logprob").Num {
		t.Errorf("the adapter changes nothing: got %s", of)
	}
}

// A response of an adapter is replayed for the same version only.
func TestResponsesOfAdaptersAreReplayed(t *testing.T) {
	t.Parallel()
	paths := []string{loratest.Write(t, t.TempDir(), 8, 1), loratest.Write(t, t.TempDir(), 8, 2)}
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(nil)(o)
		o.replays = true
	}, startLoRA(t).URL())
	add := func(path string) {
		if _, err := h.fleet.AddAdapter(t.Context(), fleet.Adapter{ID: "a", Model: "m", Path: path}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(model, result string) response {
		t.Helper()
		req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":4,"temperature":0}`)
		req.Header.Set("X-Acs-Replay", "true")
		got := h.do(req)
		if got.status != http.StatusOK || got.header.Get("X-Acs-Replay") != result {
			t.Errorf("%s: got %d %q %s, want %q", model, got.status, got.header.Get("X-Acs-Replay"), got.body, result)
		}
		return got
	}
	add(paths[0])
	want("m", "stored")
	first := want("a", "stored")
	if again := want("a", "hit"); again.body != first.body {
		t.Errorf("got %s, want %s", again.body, first.body)
	}
	add(paths[1])
	if next := want("a", "stored"); gjson.Get(next.body, "model").Str == gjson.Get(first.body, "model").Str {
		t.Errorf("got %s of the old version", next.body)
	}
	want("a", "hit")
	want("m", "hit")
}

func TestAdaptersSurviveARestart(t *testing.T) {
	t.Parallel()
	mock := startLoRA(t)
	path := loratest.Write(t, t.TempDir(), 8, 1)
	h := newHarness(t, withAdapters(map[string]string{"configured": path}), mock.URL())
	added, err := h.fleet.AddAdapter(t.Context(), fleet.Adapter{ID: "added", Model: "m", Path: path})
	if err != nil {
		t.Fatal(err)
	}
	h.ask("added")
	before := h.fleet.Models()
	h.fleet.Close()
	restarted := h.restartFleet()
	after := restarted.Models()
	if len(after) != 3 || after[1].Served() != before[1].Served() || after[1].Served() != added.Name() || after[2].Served() != before[2].Served() {
		t.Errorf("got other models after a restart")
	}
	lease, err := after[1].Acquire(nil, fleet.Caller{}, fleet.Prefix{})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := lease.LoadAdapter(t.Context(), after[1], func() func() { return func() {} }); err != nil || count(mock, loadPath) != 1 {
		t.Errorf("got %v; it was loaded %d times, want once", err, count(mock, loadPath))
	}
}

func TestRequestsPreferTheBackendThatHasTheirAdapter(t *testing.T) {
	t.Parallel()
	one, two := startLoRA(t), startLoRA(t)
	h := newHarness(t, withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)}), one.URL(), two.URL())
	for range 12 {
		h.ask("a")
	}
	if n := count(one, loadPath) + count(two, loadPath); n != 1 {
		t.Errorf("twelve requests, one after another, loaded the adapter %d times", n)
	}
	lost := two
	if count(one, loadPath) == 1 {
		lost = one
	}
	lost.Close()
	h.ask("a")
	if n := count(one, loadPath) + count(two, loadPath); n != 2 {
		t.Errorf("after one backend was lost, the adapter was loaded %d times, want twice", n)
	}
}

// stall returns the address of a proxy in front of a backend that holds requests for a path until release is called.
func stall(t *testing.T, backend, path string) (address string, release func()) {
	t.Helper()
	to, err := url.Parse(backend)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan struct{})
	forward := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			<-released
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	return front.URL, release
}

func TestRequestSaysThatItWaitsForAnAdapter(t *testing.T) {
	t.Parallel() // it waits for a comment
	address, release := stall(t, startLoRA(t).URL(), loadPath)
	spans := tracetest.NewInMemoryExporter()
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)})(o)
		o.tracer = sdk.NewTracerProvider(sdk.WithSyncer(spans)).Tracer("test")
	}, address)
	const body = `{"model":"a","prompt":"x","max_tokens":2,"stream":true}`
	s := h.beginStream("5", body)
	if got := s.line(); got != ": loading adapter\n" {
		t.Errorf("got %q", got)
	}
	release()
	if got := s.rest(); !strings.Contains(got, ": server-timing adapter;dur=") || !strings.HasSuffix(got, "data: [DONE]\n\n") {
		t.Errorf("got %q", got)
	}
	if all := await(t, spans); all["adapter"].Name == "" {
		t.Errorf("no span of the wait in %v", all)
	}
	if got := h.complete(body); strings.Contains(got.header.Get("Server-Timing"), "adapter") {
		t.Errorf("a request that need not wait: got %s", got.header.Get("Server-Timing"))
	}
}

// A backend that nothing was heard of is no backend that cannot load the adapter.
func TestAdapterAtABackendThatCannotBeReached(t *testing.T) {
	t.Parallel()
	mock := startLoRA(t)
	h := newHarness(t, withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)}), mock.URL())
	mock.Close()
	got := h.complete(`{"model":"a","prompt":[1],"max_tokens":2}`)
	if got.status != http.StatusBadGateway || gjson.Get(got.body, "error.code").Str != "upstream_unreachable" || got.header.Get("X-Should-Retry") == "false" {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
}

func TestLeastRecentlyUsedAdapterMakesRoom(t *testing.T) {
	t.Parallel()
	mock := startLoRA(t)
	address, err := url.Parse(mock.URL())
	if err != nil {
		t.Fatal(err)
	}
	adapters := map[string]string{}
	for i := range 3 {
		adapters[fmt.Sprint("a", i)] = loratest.Write(t, t.TempDir(), 8, uint64(i))
	}
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(adapters)(o)
		o.model.Backends = []config.Backend{{Name: "b", URL: address, APIKey: config.NewSecret("backend-key"), MaxLoaded: 2}}
	})
	for _, id := range []string{"a0", "a1", "a0", "a2", "a0", "a2"} {
		h.ask(id)
	}
	var changes []string
	for _, r := range mock.Requests() {
		if id, _, _ := strings.Cut(gjson.GetBytes(r.Body, "lora_name").Str, "@"); id != "" {
			changes = append(changes, strings.TrimSuffix(strings.TrimPrefix(r.Path, "/v1/"), "_lora_adapter")+" "+id)
		}
	}
	if got := strings.Join(changes, ", "); got != "load a0, load a1, unload a1, load a2" {
		t.Errorf("got %s", got)
	}
}

// A stream ends with the weights that it began with, and the version is unloaded when it has ended.
func TestRemovingAnAdapterEndsNothingThatRuns(t *testing.T) {
	t.Parallel()
	mock := startMockOf(t, mockvllm.Options{EnableLoRA: true, TokenDelay: 5 * time.Millisecond})
	h := newHarness(t, withAdapters(nil), mock.URL())
	if _, err := h.fleet.AddAdapter(t.Context(), fleet.Adapter{ID: "a", Model: "m", Path: loratest.Write(t, t.TempDir(), 8, 1)}); err != nil {
		t.Fatal(err)
	}
	mock.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: 2}) // the stream runs until it is cleared
	s := h.beginStream("60", `{"model":"a","prompt":"x","max_tokens":60,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`)
	for !strings.HasPrefix(s.line(), "data: ") {
	}
	if _, err := h.fleet.RemoveAdapter(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if got := h.complete(`{"model":"a","prompt":"x"}`); gjson.Get(got.body, "error.code").Str != "model_not_found" {
		t.Errorf("a new request: got %d %s", got.status, got.body)
	}
	if n := count(mock, unloadPath); n != 0 {
		t.Error("the adapter was unloaded under a stream")
	}
	mock.ClearFaults()
	if got := s.rest(); !strings.Contains(got, `"completion_tokens":60`) || !strings.HasSuffix(got, "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %q", got[max(0, len(got)-300):])
	}
	poll.Until(t, "the adapter to be unloaded", func() bool { return count(mock, unloadPath) == 1 })
}

// inspect_ai names an adapter after its folder, or its repository with a revision, and looks for it by that name.
func TestAdaptersNamedAfterTheirPath(t *testing.T) {
	t.Parallel()
	dir, mock := t.TempDir(), startLoRA(t)
	folder := loratest.Write(t, filepath.Join(dir, "sql", "v3"), 8, 1)
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(nil)(o)
		o.model.AdaptersDir = dir
	}, mock.URL())
	h.allowAdapters()
	ids := []string{folder, "org/adapter@v2", "sql@5"}
	for _, id := range ids {
		if got := h.addWith(fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, id, folder)); got.status != http.StatusOK || gjson.Get(got.body, "id").Str != id {
			t.Fatalf("%s: got %d %s", id, got.status, got.body)
		}
		h.ask(id)
		h.ask(id)
		shown := h.do(h.newRequest(t.Context(), http.MethodGet, "/v1/models/"+url.PathEscape(id), ""))
		if gjson.Get(shown.body, "id").Str != id || gjson.Get(shown.body, "parent").Str != "m" {
			t.Errorf("%s: got %d %s", id, shown.status, shown.body)
		}
	}
	if n := count(mock, loadPath); n != len(ids) {
		t.Errorf("%d adapters were loaded %d times", len(ids), n)
	}
	if got := h.addWith(fmt.Sprintf(`{"lora_name":"wide","lora_path":%q}`, loratest.Write(t, filepath.Join(dir, "wide"), 64, 1))); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	if got := h.complete(`{"model":"wide","prompt":"x"}`); strings.Contains(got.body, dir) || !strings.Contains(got.body, "rank 64") {
		t.Errorf("got %s, want vLLM's words without a path", got.body)
	}
}

func TestReceiptHasTheVersionOfTheAdapter(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)})(o)
		o.receipts = true
	}, startLoRA(t).URL())
	name := h.fleet.Models()[1].Served()
	for model, want := range map[string]string{"a": name, "m": ""} {
		for _, stream := range []string{"true", "false"} {
			got := h.receiptOf(h.withReceipt("/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":2,"stream":`+stream+`}`))
			if got.Entry.Adapter != want || strings.Contains(got.Entry.Backend(), "adapter="+name) != (want != "") {
				t.Errorf("%s: got %+v", model, got.Entry)
			}
		}
		if got := h.receiptOf(h.withReceipt("/v1/tokenize", `{"model":"`+model+`","prompt":"x"}`)); got.Entry.Adapter != "" {
			t.Errorf("the tokenizer uses no adapter: got %+v", got.Entry)
		}
	}
}

func TestChangedFilesOfAnAdapterAreAWarning(t *testing.T) {
	t.Parallel()
	dir := loratest.Write(t, t.TempDir(), 8, 1)
	h := newHarness(t, withAdapters(map[string]string{"a": dir}), startLoRA(t).URL())
	a := h.fleet.Models()[1].Adapter()
	h.ask("a")
	if warned := strings.Contains(h.log.String(), "the files of an adapter have changed"); a.Changed() || warned {
		t.Error("they count as changed")
	}
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(filepath.Join(dir, "adapter_model.safetensors"), later, later); err != nil {
		t.Fatal(err)
	}
	if !a.Changed() {
		t.Error("they do not count as changed")
	}
	if _, err := h.fleet.BaseModels()[0].Backends()[0].Post(t.Context(), unloadPath, fmt.Appendf(nil, `{"lora_name":%q}`, a.Name())); err != nil {
		t.Fatal(err)
	}
	h.ask("a") // which loads it again
	if !strings.Contains(h.log.String(), "the files of an adapter have changed") {
		t.Error("the log has no warning")
	}
}

func TestChatOfAnAdapter(t *testing.T) {
	t.Parallel()
	mock := startMockOf(t, mockvllm.Options{EnableLoRA: true, ChatTemplate: mockvllm.TemplateChatML})
	h := newHarness(t, func(o *harnessOptions) {
		withAdapters(map[string]string{"a": loratest.Write(t, t.TempDir(), 8, 1)})(o)
		o.model.Chat = true
	}, mock.URL())
	got := h.post("/v1/chat/completions", `{"model":"a","messages":[{"role":"user","content":"x"}],"max_tokens":2}`)
	if got.status != http.StatusOK || !strings.HasPrefix(gjson.Get(got.body, "model").Str, "a@") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}
