package console_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/console"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/mockvllm"
)

// recordingCompleter records its calls.
type recordingCompleter struct{ calls []string }

func (c *recordingCompleter) ServeOnBehalfOf(account, key, path string, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.calls = append(c.calls, path+" "+account+" "+key+" "+string(body))
	io.WriteString(w, "answered at "+path)
}

func (*recordingCompleter) AllowFreeText(budget.Payer, int64) error { return nil }

func TestRequestsAreServedOnBehalfOfTheAccount(t *testing.T) {
	for endpoint, body := range map[string]string{
		"/estimate":         `{"model":"llama-8b","prompt":"long"}`,
		"/chat/completions": `{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}`,
		"/loglikelihood":    `{"model":"llama-8b","context":"Once","continuations":[" upon"]}`,
	} {
		c := &recordingCompleter{}
		s := newSite(t, func(_ *console.Settings, d *console.Deps) { d.Completer = c })
		ada := s.account("ada@example.org", false)
		path := "/console/api" + endpoint + "?key=key_X"
		got := s.signIn("ada@example.org").sendJSON(http.MethodPost, path, body)
		if got.status != http.StatusOK || got.body != "answered at /v1"+endpoint {
			t.Errorf("got %d %s, want 200 and the completer's response", got.status, got.body)
		}
		wantStatus(t, "without a session", s.browser().sendJSON(http.MethodPost, path, body), http.StatusUnauthorized)
		if want := "/v1" + endpoint + " " + ada.ID + " key_X " + body; len(c.calls) != 1 || c.calls[0] != want {
			t.Errorf("got calls %q, want %q", c.calls, want)
		}
	}
}

func TestCompletionIsServedOnBehalfOfTheAccount(t *testing.T) {
	c := &recordingCompleter{}
	s := newSite(t, func(_ *console.Settings, d *console.Deps) { d.Completer = c })
	ada := s.account("ada@example.org", false)
	body := `{"model":"llama-8b","prompt":"` + strings.Repeat("long ", 100_000) + `"}`
	const path = "/console/api/completions?key=key_X"
	got := s.signIn("ada@example.org").sendJSON(http.MethodPost, path, body)
	if got.status != http.StatusOK || got.body != "answered at /v1/completions" {
		t.Errorf("got %d %s, want 200 and the completer's response", got.status, got.body)
	}
	if len(c.calls) != 1 || c.calls[0] != "/v1/completions "+ada.ID+" key_X "+body {
		t.Errorf("got calls %.200q, want one with the account, the key and the body", c.calls)
	}
	got = s.browser().sendJSON(http.MethodPost, path, body)
	if got.status != http.StatusUnauthorized || gjson.Get(got.body, "error.message").Str == "" {
		t.Errorf("without a session: got %d %s, want 401 and a message", got.status, got.body)
	}
	if len(c.calls) != 1 {
		t.Errorf("without a session: got calls %.200q, want none", c.calls[1:])
	}
}

func TestWorkbenchListsOwnUsableKeysAndAllModels(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	own, secret := s.key("ada@example.org", "mine")
	s.key("eve@example.org", "hers")
	paused, _ := s.key("ada@example.org", "paused")
	_, err := s.keys.Pause(t.Context(), paused.ID)
	must(t, err)
	got := s.signIn("ada@example.org").get("/console/api/workbench")
	has(t, got.body, own.ID, own.Prefix, fmt.Sprintf(`"concurrency":%d`, identity.DefaultConcurrencyPerKey), `"id":"llama-8b"`, `"max_logprobs":20`,
		`"status":"unavailable"`, `"completions":true,"chat":false`)
	lacks(t, got.body, "hers", paused.ID, secret)
	page := s.signIn("ada@example.org").get("/workbench?prompt=%22%3E%3Cscript%3E")
	has(t, page.body, `data-prompt="&#34;&gt;&lt;script&gt;"`)
}

// newSiteWithBackend starts a console whose model has a backend that answers.
func newSiteWithBackend(t *testing.T) *site {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/llama-8b"}})
	must(t, err)
	t.Cleanup(func() { mock.Close() })
	address, err := url.Parse(mock.URL())
	must(t, err)
	settings := fleetSettings
	settings.ProbeInterval, settings.ProbeTimeout = time.Hour, 10*time.Second
	models := fleet.New([]config.Model{{
		ID: "llama-8b", Checkpoint: "org/llama-8b", MaxLogprobs: 20,
		Backends: []config.Backend{{Name: "mock", URL: address}},
	}}, settings, &http.Transport{DisableKeepAlives: true}, nil, zap.NewNop())
	must(t, models.Start(t.Context()))
	t.Cleanup(models.Close)
	s := newSite(t, func(_ *console.Settings, d *console.Deps) { d.Fleet = models })
	s.account("ada@example.org", false)
	return s
}

func TestTokenizeAndDetokenizeUseTheModelsTokenizer(t *testing.T) {
	b := newSiteWithBackend(t).signIn("ada@example.org")
	got := b.sendJSON(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"The café is — 東京"}`)
	ids := gjson.Get(got.body, "tokens")
	if got.status != http.StatusOK || len(ids.Array()) < 3 {
		t.Fatalf("tokenize: got %d %s, want 200 and the ids", got.status, got.body)
	}
	for range 2 { // from the backend, then from the cache
		back := b.sendJSON(http.MethodPost, "/console/api/detokenize", `{"model":"llama-8b","tokens":`+ids.Raw+`}`)
		has(t, gjson.Get(back.body, "text").Str, "The café is — 東京")
		if n := len(gjson.Get(back.body, "pieces").Array()); n != len(ids.Array()) {
			t.Errorf("got %d pieces, want one for each of the %d tokens", n, len(ids.Array()))
		}
	}
	whole := b.sendJSON(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"once upon"}`)
	fragment := b.sendJSON(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"once upon","fragment":true}`)
	withSpecial, without := gjson.Get(whole.body, "tokens").Array(), gjson.Get(fragment.body, "tokens").Array()
	if len(without) == 0 || len(withSpecial) != len(without)+1 || withSpecial[1].Int() != without[0].Int() {
		t.Errorf("got %s for a prompt and %s for a fragment, want the same without the token at the beginning", whole.body, fragment.body)
	}
	split := b.sendJSON(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"ř東🦉"}`)
	back := b.sendJSON(http.MethodPost, "/console/api/detokenize", `{"model":"llama-8b","tokens":`+gjson.Get(split.body, "tokens").Raw+`}`)
	characters := gjson.Get(back.body, "characters.#.text").String()
	has(t, characters, "ř", "東", "🦉")
	lacks(t, characters, "\ufffd")
	for _, id := range []string{"-1", "99999999"} {
		got := b.sendJSON(http.MethodPost, "/console/api/detokenize", `{"model":"llama-8b","tokens":[1,`+id+`]}`)
		wantStatus(t, "token id "+id, got, http.StatusUnprocessableEntity)
		has(t, got.body, "no token of the model")
	}
	for body, part := range map[string]string{
		`{"model":"llama-9b","prompt":"x"}`: "llama-9b",
		`{"model":"llama-8b","prompt":3}`:   "not understood",
		`{"model":"llama-8b","words":"x"}`:  "words",
		`{"model":`:                         "JSON",
		`{"model":"llama-8b"} {}`:           "data after the JSON value",
	} {
		got := b.sendJSON(http.MethodPost, "/console/api/tokenize", body)
		if got.status < 400 || got.status >= 500 || !strings.Contains(got.body, part) {
			t.Errorf("%s: got %d %s, want a client error that contains %q", body, got.status, got.body, part)
		}
	}
}

func TestTokenizeFailsIfNoBackendAnswers(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	got := s.signIn("ada@example.org").sendJSON(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"x"}`)
	if got.status != http.StatusBadGateway || gjson.Get(got.body, "error.code").Str != "upstream_unreachable" {
		t.Errorf("got %d %s, want 502 and upstream_unreachable", got.status, got.body)
	}
}

func TestPromptsAreSavedFoundChangedAndDeleted(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	first := b.savePrompt("A study", `{"tree":{"nodes":[{"text":"50% of_it","tokens":[{"id":1,"text":"50% of_it"}]},`+
		`{"text":"","tokens":[{"id":7,"text":" \"a"},{"id":8,"text":"llegro\""}]}]}}`)
	second := b.savePrompt("Another", `{"tree":{"nodes":[{"text":"Étude","tokens":[{"id":3,"text":null}]}]}}`)
	names := func(q string) string {
		var names []string
		found := b.get("/console/api/prompts?q=" + url.QueryEscape(q)).body
		for _, name := range gjson.Get(found, "prompts.#.name").Array() {
			names = append(names, name.Str)
		}
		return strings.Join(names, ", ")
	}
	for q, want := range map[string]string{
		"": "Another, A study", "study": "A study", "STUDY 50%": "A study", "% of": "A study", "of_it": "A study",
		"ofXit": "", "study another": "", "tude": "Another", "étude": "Another", "E\u0301TUDE": "Another",
		`"allegro"`: "A study", "tokens": "", "null": "",
	} {
		if got := names(q); got != want {
			t.Errorf("search %q: got %q, want %q", q, got, want)
		}
	}
	saved := b.get("/console/api/prompts/" + first).body
	has(t, saved, `"document":{"tree":{"nodes":[{"text":"50% of_it"`, `"version":1`, `"name":"A study"`, `"model":"llama-8b"`)

	if version := b.saveAgain(first, 1, "A study", `{"text":"newer"}`); version != 2 {
		t.Errorf("change: got version %d, want 2", version)
	}
	has(t, b.get("/console/api/prompts/"+first).body, "newer")
	wantStatus(t, "delete", b.sendJSON(http.MethodDelete, "/console/api/prompts/"+second, ""), http.StatusNoContent)
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		got := b.sendJSON(method, "/console/api/prompts/"+second, "")
		wantStatus(t, method+" of a deleted prompt", got, http.StatusNotFound)
	}
	if names("") != "A study" {
		t.Errorf("after the deletion: got prompts %q, want the other one", names(""))
	}
}

func TestInvalidPromptIsRefusedWithAReason(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	for body, part := range map[string]string{
		`{"name":" ","model":"m","document":{}}`:                                            "name",
		`{"name":"` + strings.Repeat("n", 201) + `","model":"m","document":{}}`:             "200",
		`{"name":"n","model":"` + strings.Repeat("m", 201) + `","document":{}}`:             "model",
		`{"name":"n","model":"m"}`:                                                          "document",
		`{"name":"n","model":"m","document":[]}`:                                            "document",
		`{"name":"n","model":"m","document":{"text":"` + strings.Repeat("x", 8<<20) + `"}}`: "larger than",
		`{"name":"n","model":"m","document":{},"account_id":"acc_other"}`:                   "account_id",
	} {
		got := b.sendJSON(http.MethodPost, "/console/api/prompts", body)
		if got.status < 400 || got.status >= 500 || !strings.Contains(got.body, part) {
			t.Errorf("%.60s: got %d %s, want a client error that contains %q", body, got.status, got.body, part)
		}
	}
	for i := range 1000 {
		b.savePrompt(fmt.Sprint("prompt ", i), `{}`)
	}
	list := b.get("/console/api/prompts").body
	if len(gjson.Get(list, "prompts").Array()) != 100 || !gjson.Get(list, "more").Bool() {
		t.Errorf("1000 prompts: got %.300s, want 100 and that there are more", list)
	}
	many := strings.Repeat("a ", 2000)
	got := b.get("/console/api/prompts?q=" + url.QueryEscape(many))
	wantStatus(t, "a search for 2,000 words", got, http.StatusUnprocessableEntity)
	got = b.sendJSON(http.MethodPost, "/console/api/prompts", `{"name":"n","model":"m","document":{}}`)
	wantStatus(t, "the 1001st prompt", got, http.StatusUnprocessableEntity)
	has(t, got.body, "Delete some")
}

// Of the texts that pass through the workbench, the database and the storage have only saved prompts, and the database has
// their words only until they are deleted.
func TestDatabaseContainsOnlySavedPrompts(t *testing.T) {
	databasetest.SkipPostgres(t, "the files of its server belong to all databases")
	s := newSiteWithBackend(t)
	b := s.signIn("ada@example.org")
	const tokenized, saved = "a-text-that-is-tokenized", "a-text-that-is-saved"
	got := b.sendJSON(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"`+tokenized+`"}`)
	if got.status != http.StatusOK {
		t.Fatalf("tokenize: got %d %s, want 200", got.status, got.body)
	}
	id := b.savePrompt("n", `{"tree":{"nodes":[{"text":"`+strings.Repeat(saved, 1000)+`"}]}}`)
	if text := s.databaseFiles(); !strings.Contains(text, saved) || strings.Contains(text+s.objects(), tokenized) {
		t.Errorf("got saved text in the files: %v, tokenized text: %v, want only the saved text",
			strings.Contains(text, saved), strings.Contains(text, tokenized))
	}
	b.sendJSON(http.MethodDelete, "/console/api/prompts/"+id, "")
	must(t, s.db.Close()) // moves the write-ahead log into the database file
	if strings.Contains(s.databaseFiles(), saved) {
		t.Error("the database file still contains the deleted prompt")
	}
}

// objects returns the content of the storage of saved prompts.
func (s *site) objects() string {
	s.t.Helper()
	names, err := filepath.Glob(s.path + ".files/*")
	must(s.t, err)
	var all strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(s.t, err)
		all.Write(text)
	}
	return all.String()
}

// databaseFiles returns the content of the database file and its write-ahead log.
func (s *site) databaseFiles() string {
	s.t.Helper()
	var all strings.Builder
	for _, suffix := range []string{"", "-wal"} {
		text, err := os.ReadFile(s.path + suffix)
		if !errors.Is(err, fs.ErrNotExist) {
			must(s.t, err)
		}
		all.Write(text)
	}
	return all.String()
}
