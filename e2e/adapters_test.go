//go:build e2e

package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/loopback"
	"basegate/internal/loratest"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// An adapter is added, used, replaced and removed at a running gateway, and outlives restarts of its backend.
func TestAdapterOfARunningGateway(t *testing.T) {
	address, dir := loopback.Address(t), t.TempDir()
	start := func() *mockvllm.Process {
		mock, err := mockvllm.Start(t.Context(), address, mockvllm.Options{Models: []string{checkpoint}, EnableLoRA: true})
		must(t, err)
		return mock
	}
	mock := start()
	env := newEnvironment(t, settings{models: fmt.Sprintf(
		`{id: m, checkpoint: %s, adapters_dir: %q, backends: [{name: b0, url: %q, max_loaded: 2}]}`, checkpoint, dir, mock.URL())})
	g := env.serve()
	ask := func(model string) string {
		t.Helper()
		got := g.complete(fmt.Sprintf(`{"model":%q,"prompt":"The capital of France is","max_tokens":6,"temperature":0}`, model))
		if got.status != http.StatusOK {
			t.Fatalf("%s: got %d %s", model, got.status, got.body)
		}
		return gjson.Get(got.body, "choices.0.text").Str
	}
	knows := func(id string) bool { return g.get(g.url, "/v1/models/"+id).status == http.StatusOK }

	g.run("adapter", "add", "m", "sql", "--path", loratest.Write(t, dir+"/sql/1", 8, 1))
	poll.Until(t, "the gateway knows the adapter", func() bool { return knows("sql") })
	base, first := ask("m"), ask("sql")
	if base == first {
		t.Error("the adapter changes nothing")
	}
	must(t, mock.Close())
	mock = start()
	t.Cleanup(func() { must(t, mock.Close()) })
	poll.Until(t, "the backend is ready again", func() bool { return g.complete(`{"model":"m","prompt":"x","max_tokens":1}`).status == http.StatusOK })
	if again := ask("sql"); again != first {
		t.Errorf("after a restart of the backend: got %q, want %q", again, first)
	}

	load := fmt.Sprintf(`{"lora_name":"chat","lora_path":%q}`, loratest.Write(t, dir+"/chat", 8, 2))
	if got := g.call(http.MethodPost, "/v1/load_lora_adapter", g.secret, load); got.status != http.StatusForbidden {
		t.Errorf("a key without the right: got %d %s", got.status, got.body)
	}
	trainer := strings.TrimSpace(g.run("key", "create", "--account", g.email, "--name", "trainer", "--adapters"))
	var loaded response
	poll.Until(t, "the key adds an adapter", func() bool {
		loaded = g.call(http.MethodPost, "/v1/load_lora_adapter", trainer, load)
		return loaded.status == http.StatusOK
	})
	must(t, validateSchema(t, openAPIDocument(t, g).Components.Schemas["Adapter"], loaded.body))
	id := g.createBatch(g.secret, `{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"model":"chat","prompt":"a","max_tokens":2,"min_tokens":2}}`+"\n")
	b := g.waitForBatch(g.secret, id, "completed")
	line := g.results(g.secret, b.Get("output_file_id").Str)["1"]
	if name := line.Get("response.body.model").Str; name != fmt.Sprintf("chat@%d", gjson.Get(loaded.body, "version").Int()) {
		t.Errorf("got the line %s", line.Raw)
	}

	g.run("adapter", "add", "m", "sql", "--path", loratest.Write(t, dir+"/sql/2", 8, 3))
	poll.Until(t, "the gateway has the new version", func() bool { return ask("sql") != first })
	g.run("adapter", "remove", "sql")
	poll.Until(t, "the gateway does not know the adapter", func() bool { return !knows("sql") })
	if got := g.complete(`{"model":"sql","prompt":"x"}`); got.apiError(t).Code != "model_not_found" {
		t.Errorf("got %d %s", got.status, got.body)
	}
	tokens := map[string]int64{}
	for _, row := range gjson.Parse(g.run("usage", "--by", "model", "--json")).Array() {
		tokens[row.Get("model").Str] = row.Get("completion_tokens").Int()
	}
	if tokens["sql"] == 0 || tokens["chat"] != 2 || tokens["m"] == 0 {
		t.Errorf("the ledger has %v", tokens)
	}
}

func TestCheckOfAdapters(t *testing.T) {
	good, wide := loratest.Write(t, t.TempDir(), 8, 1), loratest.Write(t, t.TempDir(), 64, 1)
	mocks := map[bool]*mockvllm.Process{} // by whether they are enabled to load adapters
	for _, enabled := range []bool{false, true} {
		mocks[enabled] = startMock(t, mockvllm.Options{EnableLoRA: enabled})
	}
	with := func(path string, mock *mockvllm.Process) settings {
		return settings{probeTimeout: loadedProbe, models: fmt.Sprintf(
			`{id: m, checkpoint: %s, adapters: [{id: a, path: %q}], backends: [{name: b0, url: %q}]}`, checkpoint, path, mock.URL())}
	}
	env := newEnvironment(t, with(good, mocks[true]))
	env.run("adapter", "add", "m", "added", "--path", wide)
	for name, c := range map[string]struct {
		enabled bool
		path    string
		code    int
		said    string
	}{
		"vLLM without LoRA": {path: good, code: 1, said: "--enable-lora"},
		"vLLM with LoRA":    {enabled: true, path: good},
		"a rank that vLLM refuses": {
			enabled: true, path: wide, code: 1, said: "adapter a: it cannot load the adapter: Call to add_lora method failed: LoRA rank 64 is greater than max_lora_rank 16.",
		},
		"no files": {enabled: true, path: "/none", code: 1, said: "No adapter found for /none"},
	} {
		env.writeConfig(with(c.path, mocks[c.enabled]))
		table, code := env.check()
		if code != c.code || !strings.Contains(table, c.said) || strings.Contains(table, "adapter added: ") != c.enabled || strings.Contains(table, "--enable-lora") == c.enabled {
			t.Errorf("%s: exit code %d\n%s", name, code, table)
		}
	}
}

// askForAdapter returns the model and the text of a completion.
func (g *gateway) askForAdapter(id string) (name, text string) {
	got := g.complete(fmt.Sprintf(`{"model":%q,"prompt":"The capital of France is","max_tokens":6,"temperature":0}`, id))
	if got.status != http.StatusOK {
		g.t.Errorf("%s: got %d %s", id, got.status, got.body)
	}
	return gjson.Get(got.body, "model").Str, gjson.Get(got.body, "choices.0.text").Str
}

// loadsOf returns how often the mock was asked to load each name.
func loadsOf(mock *mockvllm.Process) (loads map[string]int) {
	loads = map[string]int{}
	for _, r := range mock.Requests() {
		if r.Path == "/v1/load_lora_adapter" {
			loads[gjson.GetBytes(r.Body, "lora_name").Str]++
		}
	}
	return loads
}

// While an adapter is replaced, fifty clients get one version or the other, each response named after the weights that made it.
func TestReplacedAdapterMixesNoVersions(t *testing.T) {
	dir := t.TempDir()
	mock := startMock(t, mockvllm.Options{EnableLoRA: true, TokenDelay: time.Millisecond})
	env := newEnvironment(t, settings{extra: "limits: {concurrency_per_key: 100}", models: fmt.Sprintf(
		`{id: m, checkpoint: %s, adapters_dir: %q, backends: [{name: b0, url: %q, max_loaded: 2}]}`, checkpoint, dir, mock.URL())})
	g := env.serve()
	g.secret = strings.TrimSpace(g.run("key", "create", "--account", g.email, "--name", "trainer", "--adapters"))
	g.waitForStatus(g.secret, http.StatusOK)
	add := func(version int) (name string) {
		path := loratest.Write(t, fmt.Sprintf("%s/%d", dir, version), 8, uint64(version))
		got := g.call(http.MethodPost, "/v1/load_lora_adapter", g.secret, fmt.Sprintf(`{"lora_name":"a","lora_path":%q}`, path))
		if got.status != http.StatusOK {
			t.Errorf("got %d %s", got.status, got.body)
		}
		return fmt.Sprintf("a@%d", gjson.Get(got.body, "version").Int())
	}
	last := add(0)
	var mu sync.Mutex
	texts := map[string]map[string]int{} // by the name
	var clients sync.WaitGroup
	replaced := make(chan struct{})
	for range 50 {
		clients.Go(func() {
			for asked := 0; ; asked++ {
				select {
				case <-replaced:
					if asked > 2 {
						return
					}
				default:
				}
				name, text := g.askForAdapter("a")
				mu.Lock()
				if texts[name] == nil {
					texts[name] = map[string]int{}
				}
				texts[name][text]++
				mu.Unlock()
			}
		})
	}
	for version := 1; version < 6; version++ {
		poll.Until(t, "the version is used", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(texts[last]) > 0
		})
		last = add(version)
	}
	close(replaced)
	clients.Wait()
	seen := map[string]bool{}
	for name, all := range texts {
		for text := range all {
			if len(all) > 1 || seen[text] {
				t.Errorf("%s gave %v; want one text, that no other version gives", name, all)
			}
			seen[text] = true
		}
	}
	if name, _ := g.askForAdapter("a"); name != last {
		t.Errorf("got %s, want %s", name, last)
	}
	if len(texts) < 5 {
		t.Errorf("%d versions were used, want every one", len(texts))
	}
}

// Of two replicas one is restarted under load: no request fails, and it loads the adapter again.
func TestAdapterOutlivesTheRestartOfOneReplica(t *testing.T) {
	addresses := []string{loopback.Address(t), loopback.Address(t)}
	start := func(i int) *mockvllm.Process {
		mock, err := mockvllm.Start(t.Context(), addresses[i], mockvllm.Options{Models: []string{checkpoint}, EnableLoRA: true, TokenDelay: time.Millisecond})
		must(t, err)
		return mock
	}
	mocks := []*mockvllm.Process{start(0), start(1)}
	env := newEnvironment(t, settings{extra: "limits: {concurrency_per_key: 100}", models: fmt.Sprintf(
		`{id: m, checkpoint: %s, adapters: [{id: a, path: %q}], backends: [{name: b0, url: %q}, {name: b1, url: %q}]}`,
		checkpoint, loratest.Write(t, t.TempDir(), 8, 1), mocks[0].URL(), mocks[1].URL())})
	g := env.serve()
	_, want := g.askForAdapter("a")
	var clients sync.WaitGroup
	var asked atomic.Int64
	end := make(chan struct{})
	for range 40 {
		clients.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				if _, text := g.askForAdapter("a"); text != want {
					t.Errorf("got %q, want %q", text, want)
				}
				asked.Add(1)
			}
		})
	}
	poll.Until(t, "both replicas have it", func() bool { return len(loadsOf(mocks[0])) > 0 && len(loadsOf(mocks[1])) > 0 })
	must(t, mocks[0].Close())
	before := asked.Load()
	poll.Until(t, "the other serves", func() bool { return asked.Load() > before+100 })
	mocks[0] = start(0)
	poll.Until(t, "the restarted one has it again", func() bool { return len(loadsOf(mocks[0])) > 0 && completionRequests(mocks[0]) > 5 })
	close(end)
	clients.Wait()
	for i, mock := range mocks {
		for name, n := range loadsOf(mock) {
			if n != 1 {
				t.Errorf("replica %d loaded %s %d times", i, name, n)
			}
		}
		must(t, mock.Close())
	}
}

// The gateway is killed while a backend loads an adapter, before it knows that it is loaded; and while keys add adapters. The next
// gateway has the adapters that were confirmed, under the names that the backend has loaded them by, and loads none twice.
func TestKillBetweenLoadingAndRecording(t *testing.T) {
	dir := t.TempDir()
	mock := startMock(t, mockvllm.Options{EnableLoRA: true})
	to, err := url.Parse(mock.URL())
	must(t, err)
	forward := httputil.NewSingleHostReverseProxy(to)
	loading, loaded := make(chan struct{}), make(chan struct{})
	var once sync.Once
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/load_lora_adapter" {
			forward.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		once.Do(func() { close(loading); <-loaded }) // the gateway is killed meanwhile; the backend loads it all the same
		r.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, r.WithContext(t.Context()))
	}))
	defer front.Close()
	env := newEnvironment(t, settings{models: fmt.Sprintf(
		`{id: m, checkpoint: %s, adapters_dir: %q, adapters: [{id: configured, path: %q}], max_adapters: 1000, backends: [{name: b0, url: %q, max_loaded: 3}]}`,
		checkpoint, dir, loratest.Write(t, dir+"/1", 8, 1), front.URL)})
	secret := strings.TrimSpace(env.run("key", "create", "--account", env.email, "--name", "trainer", "--adapters"))
	g := env.serveWithKey(secret)
	var client sync.WaitGroup
	client.Go(func() { _, _ = post(g.url, secret, `{"model":"configured","prompt":"x"}`) })
	<-loading
	g.signal(syscall.SIGKILL)
	<-g.exited
	client.Wait()
	close(loaded)
	poll.Until(t, "the backend has loaded it", func() bool { return len(loadsOf(mock)) == 1 })

	confirmed := map[string]int64{} // id to version
	path := loratest.Write(t, dir+"/2", 8, 2)
	for n := range 5 {
		g = env.serveWithKey(secret)
		if n == 0 {
			g.askForAdapter("configured")
			if loads := loadsOf(mock); len(loads) != 1 {
				t.Errorf("the backend was asked to load %v, want one name", loads)
			}
		}
		listed := gjson.Get(g.get(g.url, "/v1/models").body, `data.#(parent="m")#.id`).Array()
		if len(listed) < len(confirmed)+1 || len(listed) > len(confirmed)+1+n {
			t.Errorf("%d adapters are listed; %d were confirmed, and one is configured", len(listed), len(confirmed))
		}
		for id, version := range confirmed {
			if name, _ := g.askForAdapter(id); name != fmt.Sprintf("%s@%d", id, version) {
				t.Errorf("got %s, want version %d of %s", name, version, id)
			}
		}
		var adding sync.WaitGroup
		adding.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("a%d-%d", n, i)
				got, err := g.tryAdd(id, path)
				if err != nil || got.status != http.StatusOK {
					return
				}
				confirmed[id] = gjson.Get(got.body, "version").Int()
				if i == 3 {
					g.signal(syscall.SIGKILL) // while more are added
				}
			}
		})
		<-g.exited
		adding.Wait()
	}
	env.run("database", "check")
}

// tryAdd sends POST /v1/load_lora_adapter; the gateway may be killed meanwhile.
func (g *gateway) tryAdd(id, path string) (response, error) {
	req := g.request(g.t.Context(), http.MethodPost, g.url+"/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, id, path))
	resp, err := httpClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, string(body)}, err
}

// An adapter that one gateway adds is used, replaced and removed at the other.
func TestAdaptersOfTwoGateways(t *testing.T) {
	dir := t.TempDir()
	backend := startMock(t, mockvllm.Options{EnableLoRA: true})
	first, second, _ := startTwo(t, postgrestest.Shared(t), settings{models: fmt.Sprintf(
		`{id: m, checkpoint: %s, adapters_dir: %q, adapters: [{id: configured, path: %q}], backends: [{name: b0, url: %q, max_loaded: 4}]}`,
		checkpoint, dir, loratest.Write(t, dir+"/0", 8, 9), backend.URL())}, mockvllm.Options{})
	trainer := strings.TrimSpace(first.run("key", "create", "--account", first.email, "--name", "trainer", "--adapters"))
	add := func(g *gateway, version int) (name string) {
		g.waitForStatus(trainer, http.StatusOK)
		body := fmt.Sprintf(`{"lora_name":"a","lora_path":%q}`, loratest.Write(t, fmt.Sprintf("%s/%d", dir, version), 8, uint64(version)))
		got := g.call(http.MethodPost, "/v1/load_lora_adapter", trainer, body)
		if got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		return fmt.Sprintf("a@%d", gjson.Get(got.body, "version").Int())
	}
	texts := map[string]string{}
	for version, g := range []*gateway{first, second} {
		name, other := add(g, version+1), []*gateway{second, first}[version]
		own, text := g.askForAdapter("a") // at once
		if own != name {
			t.Errorf("the gateway that has added %s uses %s", name, own)
		}
		poll.Until(t, "the other gateway uses it", func() bool {
			if other.get(other.url, "/v1/models/a").status != http.StatusOK {
				return false
			}
			got, same := other.askForAdapter("a")
			return got == name && same == text
		})
		texts[text] = name
	}
	if len(texts) != 2 {
		t.Errorf("the versions are alike: %v", texts)
	}
	one, _ := first.askForAdapter("configured")
	if other, _ := second.askForAdapter("configured"); other != one {
		t.Errorf("the gateways use %s and %s for what is configured", one, other)
	}
	second.run("adapter", "remove", "a")
	for _, g := range []*gateway{first, second} {
		poll.Until(t, "it is removed", func() bool { return g.get(g.url, "/v1/models/a").status == http.StatusNotFound })
	}
	poll.Until(t, "the backend has only what is configured", func() bool {
		return gjson.Get(first.get(backend.URL(), "/v1/models").body, "data.#").Int() == 2
	})
}

// Two gateways whose requests need two adapters at a backend with one place take it from each other, and no request fails.
func TestAdaptersOfTwoGatewaysTakeTurns(t *testing.T) {
	dir := t.TempDir()
	backend := startMock(t, mockvllm.Options{EnableLoRA: true})
	first, second, _ := startTwo(t, postgrestest.Shared(t), settings{models: fmt.Sprintf(
		`{id: m, checkpoint: %s, adapters: [{id: a, path: %q}, {id: b, path: %q}], backends: [{name: b0, url: %q}]}`,
		checkpoint, loratest.Write(t, dir+"/a", 8, 1), loratest.Write(t, dir+"/b", 8, 2), backend.URL())}, mockvllm.Options{})
	var clients sync.WaitGroup
	for i := range 8 {
		g, id := []*gateway{first, second}[i%2], []string{"a", "b"}[i/2%2]
		clients.Go(func() {
			for range 40 {
				if name, _ := g.askForAdapter(id); !strings.HasPrefix(name, id+"@") {
					t.Errorf("got %s for %s", name, id)
				}
			}
		})
	}
	clients.Wait()
}
