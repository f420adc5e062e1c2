package docs_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/docs"
)

var variables = docs.Variables{Base: "http://gate.example", Model: "my-model", MaxLogprobs: [2]int{5, 20}}

func TestEveryFileOfTutorialAndOperationsIsAPage(t *testing.T) {
	var files []string
	for _, pattern := range []string{"tutorial/*.md", "operations/*.md"} {
		found, err := fs.Glob(os.DirFS("."), pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	known := map[string]bool{}
	for _, p := range docs.Pages() {
		known[p.Slug] = true
		if p.Operators != strings.HasPrefix(p.Slug, "operations-") {
			t.Errorf("%s: for operators: %t", p.Slug, p.Operators)
		}
	}
	for _, file := range files {
		slug := strings.ReplaceAll(strings.TrimPrefix(strings.TrimSuffix(file, ".md"), "tutorial/"), "/", "-")
		if !known[slug] {
			t.Errorf("%s is not listed as a page", file)
		}
	}
	if n := len(files) + 1; n != len(known) { // and the API reference
		t.Errorf("got %d pages, want %d", len(known), n)
	}
}

func TestPagesAreThoseOfTheGateway(t *testing.T) {
	text := string(docs.Pages()[0].HTML(variables))
	for _, part := range []string{"http://gate.example/v1", "my-model", `<code class="language-sh">`} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in %s", part, text)
		}
	}
	for _, p := range docs.Pages() {
		text := string(p.HTML(variables))
		if strings.Contains(text, "{{") || strings.Contains(text, "prints:") || strings.Contains(text, "raw HTML") {
			t.Errorf("%s: contains a placeholder, a test comment or raw HTML", p.Slug)
		}
		if !p.Operators && (strings.Contains(text, "127.0.0.1:8080") || strings.Contains(text, "&quot;llama-8b&quot;") || strings.Contains(text, "(here: 20)")) {
			t.Errorf("%s: contains the address or the model of the demo", p.Slug)
		}
	}
}

// What a reader copies must run: no snippet has a part that is left out.
func TestSnippetsAreWhole(t *testing.T) {
	snippet := regexp.MustCompile("(?ms)^```(?:sh|bash|python|js)\n.*?^```")
	for _, p := range docs.Pages() {
		for _, text := range snippet.FindAllString(p.Markdown(variables), -1) {
			if strings.Contains(text, "…") {
				t.Errorf("%s: a snippet leaves something out:\n%s", p.Slug, text)
			}
		}
	}
}

// A value, such as an address, must not become markup.
func TestPlaceholderValuesAreNotMarkup(t *testing.T) {
	text := docs.Pages()[0].HTML(docs.Variables{Base: "<script>alert(1)</script>", Model: "m"})
	if strings.Contains(string(text), "<script>") {
		t.Errorf("the value became markup: %s", text)
	}
}

func TestLinksHaveTargets(t *testing.T) {
	all := docs.Pages()
	bodies := map[string]string{}
	for _, p := range all {
		bodies[p.Slug] = string(p.HTML(variables))
	}
	link := regexp.MustCompile(`href="([^"]*)"`)
	for slug, body := range bodies {
		for _, m := range link.FindAllStringSubmatch(body, -1) {
			page, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(page, "://") || strings.HasPrefix(page, "/") {
				continue
			}
			if page == "" {
				page = slug
			}
			target, ok := bodies[page]
			if !ok || anchor != "" && !strings.Contains(target, `id="`+anchor+`"`) {
				t.Errorf("%s links to %s, which does not exist", slug, m[1])
			}
		}
	}
}

func TestSearchFindsSectionsWithAllWords(t *testing.T) {
	all := docs.Pages()
	for query, want := range map[string]string{"token ids": "prompts#token-ids", "SCORING a text": "logprobs#scoring-a-text", "cold boot max_retries": "models#", "keep_requests months": "operations-ledger-and-backup#how-long-requests-are-kept", "": "", "xyzzy plugh": ""} {
		got := ""
		if found := docs.Search(all, query, variables); len(found) > 0 {
			got = found[0].Page.Slug + "#" + found[0].Anchor
		}
		if got != want {
			t.Errorf("search for %q: got %q, want %q", query, got, want)
		}
	}
	for _, f := range docs.Search(all, "the", variables) {
		body := string(f.Page.HTML(variables))
		if f.Anchor != "" && !strings.Contains(body, `id="`+f.Anchor+`"`) {
			t.Errorf("%s has no anchor %q", f.Page.Slug, f.Anchor)
		}
	}
}

func TestOpenAPINamesTheHeadersOfEveryRequestToAnEngine(t *testing.T) {
	document, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/loglikelihood"} {
		parameters := gjson.GetBytes(document, "paths."+path+".post.parameters.#.name").Raw
		for _, header := range []string{"X-Acs-Workload", "X-Acs-Run", "X-Acs-Replay", "X-Acs-Receipt"} {
			if !strings.Contains(parameters, `"`+header+`"`) {
				t.Errorf("%s: %s is not among %s", path, header, parameters)
			}
		}
	}
}

func TestOpenAPIHasTheRefusalsOfEveryBody(t *testing.T) {
	document, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	bodies := 0
	gjson.GetBytes(document, "paths").ForEach(func(path, operations gjson.Result) bool {
		operations.ForEach(func(method, operation gjson.Result) bool {
			if !operation.Get("requestBody").Exists() {
				return true
			}
			bodies++
			for _, status := range []string{"400", "413", "415"} {
				if !operation.Get("responses." + status).Exists() {
					t.Errorf("%s %s has no response %s", method, path, status)
				}
			}
			return true
		})
		return true
	})
	if bodies == 0 {
		t.Error("no operation has a body")
	}
}
