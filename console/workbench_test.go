package console_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/console"
	"basegate/fleet"
	"basegate/mockvllm"
)

// completer notes in whose name it is asked.
type completer struct{ asked []string }

func (c *completer) ServeOnBehalfOf(account, key string, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.asked = append(c.asked, account+" "+key+" "+string(body))
	io.WriteString(w, "answered")
}

func TestACompletionIsAskedForInTheAccountsName(t *testing.T) {
	c := &completer{}
	s := newSite(t, func(_ *console.Settings, p *console.Deps) { p.Completer = c })
	ada := s.account("ada@example.org", false)
	body := `{"model":"llama-8b","prompt":"` + strings.Repeat("long ", 100_000) + `"}`
	if got := s.as("ada@example.org").script(http.MethodPost, "/console/api/completions?key=key_X", body); got.status != http.StatusOK || got.body != "answered" {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if len(c.asked) != 1 || c.asked[0] != ada.ID+" key_X "+body {
		t.Errorf("asked %.200q", c.asked)
	}
	if got := s.browser().script(http.MethodPost, "/console/api/completions?key=key_X", body); got.status != http.StatusUnauthorized || gjson.Get(got.body, "error.message").Str == "" {
		t.Errorf("who is not signed in: %d %s", got.status, got.body)
	}
	if len(c.asked) != 1 {
		t.Errorf("who is not signed in was served: %.200q", c.asked[1:])
	}
}

func TestTheWorkbenchOffersOwnKeysAndAllModels(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	own, secret := s.key("ada@example.org", "mine")
	s.key("eve@example.org", "hers")
	got := s.as("ada@example.org").get("/console/api/workbench")
	has(t, got.body, own.ID, own.Prefix, `"state":"active"`, `"id":"llama-8b"`, `"max_logprobs":20`, `"status":"unavailable"`)
	lacks(t, got.body, "hers", secret)
	has(t, s.as("ada@example.org").get("/workbench?prompt=%22%3E%3Cscript%3E").body, `data-prompt="&#34;&gt;&lt;script&gt;"`)
}

// running is a site whose model answers.
func running(t *testing.T) *site {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/llama-8b"}})
	must(t, err)
	t.Cleanup(func() { mock.Close() })
	address, err := url.Parse(mock.URL())
	must(t, err)
	settings := fleetSettings
	settings.ProbeInterval, settings.ProbeTimeout = time.Hour, 10*time.Second
	models := fleet.New([]config.Model{{
		ID: "llama-8b", Checkpoint: "org/llama-8b", MaxLogprobs: 20, Backends: []config.Backend{{Name: "mock", URL: address}},
	}}, settings, &http.Transport{DisableKeepAlives: true}, nil, zap.NewNop())
	must(t, models.Start(t.Context()))
	t.Cleanup(models.Close)
	s := newSite(t, func(_ *console.Settings, p *console.Deps) { p.Fleet = models })
	s.account("ada@example.org", false)
	return s
}

func TestTokensOfATextAreThoseOfTheModel(t *testing.T) {
	b := running(t).as("ada@example.org")
	got := b.script(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"The café is — 東京"}`)
	ids := gjson.Get(got.body, "tokens")
	if got.status != http.StatusOK || len(ids.Array()) < 3 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	for range 2 { // asked, and remembered
		back := b.script(http.MethodPost, "/console/api/detokenize", `{"model":"llama-8b","tokens":`+ids.Raw+`}`)
		has(t, gjson.Get(back.body, "text").Str, "The café is — 東京")
		if n := len(gjson.Get(back.body, "pieces").Array()); n != len(ids.Array()) {
			t.Errorf("%d pieces for %d tokens", n, len(ids.Array()))
		}
	}
	for _, id := range []string{"-1", "99999999"} {
		if got := b.script(http.MethodPost, "/console/api/detokenize", `{"model":"llama-8b","tokens":[1,`+id+`]}`); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "no token of the model") {
			t.Errorf("%s: %d %s", id, got.status, got.body)
		}
	}
	for body, part := range map[string]string{
		`{"model":"llama-9b","prompt":"x"}`: "llama-9b",
		`{"model":"llama-8b","prompt":3}`:   "not understood",
		`{"model":"llama-8b","words":"x"}`:  "words",
		`{"model":`:                         "JSON",
		`{"model":"llama-8b"} {}`:           "goes on behind its end",
	} {
		if got := b.script(http.MethodPost, "/console/api/tokenize", body); got.status < 400 || got.status >= 500 || !strings.Contains(got.body, part) {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

func TestAModelThatDoesNotAnswerHasNoTokens(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	got := s.as("ada@example.org").script(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"x"}`)
	if got.status != http.StatusBadGateway || gjson.Get(got.body, "error.code").Str != "upstream_unreachable" {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestPromptsAreSavedFoundChangedAndDeleted(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.as("ada@example.org")
	first := b.savePrompt("A study", `{"tree":{"nodes":[{"text":"50% of_it","tokens":[{"id":1,"text":"50% of_it"}]},{"text":"","tokens":[{"id":7,"text":" \"a"},{"id":8,"text":"llegro\""}]}]}}`)
	second := b.savePrompt("Another", `{"tree":{"nodes":[{"text":"Étude","tokens":[{"id":3,"text":null}]}]}}`)
	names := func(q string) string {
		var all []string
		for _, p := range gjson.Get(b.get("/console/api/prompts?q="+url.QueryEscape(q)).body, "prompts.#.name").Array() {
			all = append(all, p.Str)
		}
		return strings.Join(all, ", ")
	}
	for q, want := range map[string]string{
		"": "Another, A study", "study": "A study", "STUDY 50%": "A study", "% of": "A study", "of_it": "A study", "ofXit": "", "study another": "", "tude": "Another",
		"étude": "Another", "E\u0301TUDE": "Another", `"allegro"`: "A study", "tokens": "", "null": "",
	} {
		if got := names(q); got != want {
			t.Errorf("%q finds %q, want %q", q, got, want)
		}
	}
	got := b.get("/console/api/prompts/" + first).body
	has(t, got, `"document":{"tree":{"nodes":[{"text":"50% of_it"`, `"version":1`, `"name":"A study"`, `"model":"llama-8b"`)

	change := func(version int, text string) answer {
		return b.script(http.MethodPut, "/console/api/prompts/"+first, fmt.Sprintf(`{"name":"A study","model":"m","version":%d,"document":{"text":%q}}`, version, text))
	}
	if got := change(1, "newer"); got.status != http.StatusOK || gjson.Get(got.body, "version").Int() != 2 {
		t.Errorf("change: %d %s", got.status, got.body)
	}
	if got := change(1, "of who had the old one open"); got.status != http.StatusConflict || gjson.Get(got.body, "error.code").Str != "conflict" {
		t.Errorf("a change of an old version: %d %s", got.status, got.body)
	}
	has(t, b.get("/console/api/prompts/"+first).body, "newer")
	if got := b.script(http.MethodDelete, "/console/api/prompts/"+second, ""); got.status != http.StatusNoContent {
		t.Errorf("delete: %d %s", got.status, got.body)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if got := b.script(method, "/console/api/prompts/"+second, ""); got.status != http.StatusNotFound {
			t.Errorf("%s of one that is gone: %d %s", method, got.status, got.body)
		}
	}
	if names("") != "A study" {
		t.Errorf("left is %q", names(""))
	}
}

func TestAPromptThatCannotBeSavedIsToldWhy(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.as("ada@example.org")
	for body, part := range map[string]string{
		`{"name":" ","model":"m","document":{}}`:                                            "name",
		`{"name":"` + strings.Repeat("n", 201) + `","model":"m","document":{}}`:             "200",
		`{"name":"n","model":"` + strings.Repeat("m", 201) + `","document":{}}`:             "model",
		`{"name":"n","model":"m"}`:                                                          "document",
		`{"name":"n","model":"m","document":[]}`:                                            "document",
		`{"name":"n","model":"m","document":{"text":"` + strings.Repeat("x", 4<<20) + `"}}`: "more than",
		`{"name":"n","model":"m","document":{},"account_id":"acc_other"}`:                   "account_id",
	} {
		got := b.script(http.MethodPost, "/console/api/prompts", body)
		if got.status < 400 || got.status >= 500 || !strings.Contains(got.body, part) {
			t.Errorf("%.60s: %d %s", body, got.status, got.body)
		}
	}
	for i := range 1000 {
		b.savePrompt(fmt.Sprint("prompt ", i), `{}`)
	}
	if list := b.get("/console/api/prompts").body; len(gjson.Get(list, "prompts").Array()) != 100 || !gjson.Get(list, "more").Bool() {
		t.Errorf("a long list is not cut, or does not say so: %.300s", list)
	}
	many := strings.Repeat("a ", 2000)
	if got := b.get("/console/api/prompts?q=" + url.QueryEscape(many)); got.status != http.StatusUnprocessableEntity {
		t.Errorf("a search for 2,000 words: %d %.300s", got.status, got.body)
	}
	got := b.script(http.MethodPost, "/console/api/prompts", `{"name":"n","model":"m","document":{}}`)
	if got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "Delete some") {
		t.Errorf("one too many: %d %s", got.status, got.body)
	}
}

// Nothing of what goes through the workbench is kept but what is saved, and that no longer than until it is deleted.
func TestTheDatabaseHoldsOnlyWhatIsSaved(t *testing.T) {
	s := running(t)
	b := s.as("ada@example.org")
	const passing, kept = "a-text-that-passes", "a-text-that-is-saved"
	if got := b.script(http.MethodPost, "/console/api/tokenize", `{"model":"llama-8b","prompt":"`+passing+`"}`); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	id := b.savePrompt("n", `{"text":"`+strings.Repeat(kept, 1000)+`"}`)
	if text := s.files(); !strings.Contains(text, kept) || strings.Contains(text, passing) {
		t.Errorf("saved: %v, passing: %v", strings.Contains(text, kept), strings.Contains(text, passing))
	}
	b.script(http.MethodDelete, "/console/api/prompts/"+id, "")
	must(t, s.db.Close()) // what the write-ahead log holds goes into the file
	if strings.Contains(s.files(), kept) {
		t.Error("what was deleted is still in the database's file")
	}
}

// files is all that the database's files hold.
func (s *site) files() string {
	s.t.Helper()
	names, err := filepath.Glob(s.path + "*")
	must(s.t, err)
	var all strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(s.t, err)
		all.Write(text)
	}
	return all.String()
}
