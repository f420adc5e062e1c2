package console_test

import (
	"net/http"
	"regexp"
	"testing"
)

func TestTutorialIsPublic(t *testing.T) {
	anonymous := newSite(t).browser()
	page := anonymous.get("/tutorial/overview")
	has(t, page.body, "http://basegate.example.org/v1", "&quot;llama-8b&quot;", `href="/tutorial/models"`)
	lacks(t, page.body, "127.0.0.1:8080")
	wantRedirect(t, "without a page", anonymous.get("/tutorial"), "/tutorial/overview")
	wantStatus(t, "an unknown page", anonymous.get("/tutorial/none"), http.StatusNotFound)
}

func TestTutorialSearch(t *testing.T) {
	b := newSite(t).browser()
	has(t, b.get("/tutorial?q=token+ids").body, `href="/tutorial/prompts#token-ids"`)
	has(t, b.get("/tutorial?q=drain_timeout").body, `href="/tutorial/operations-run#signals"`, "for operators")
	has(t, b.get("/tutorial/operations-run").body, "SIGHUP", `href="operations-postgresql"`)
	has(t, b.get("/tutorial?q=%3Cscript%3Exyzzy").body, "No results for “&lt;script&gt;xyzzy”")
}

func TestTutorialIsServedAsMarkdown(t *testing.T) {
	b := newSite(t).browser()
	list := b.get("/llms.txt")
	has(t, list.body, "# Basegate\n\n> ", "/tutorial/all.md")
	pages := regexp.MustCompile(`\(http://basegate\.example\.org(/tutorial/[a-z-]+\.md)\)`).FindAllStringSubmatch(list.body, -1)
	if len(pages) < 10 {
		t.Fatalf("llms.txt: got %d pages, want 10 or more: %s", len(pages), list.body)
	}
	all := b.get("/tutorial/all.md")
	lacks(t, list.body+all.body, "tutorial/operations-", "# Run the gateway")
	for _, p := range pages {
		got := b.get(p[1])
		if got.status != http.StatusOK || got.header.Get("Content-Type") != "text/markdown; charset=utf-8" {
			t.Errorf("%s: got %d %s, want 200 and Markdown", p[1], got.status, got.header.Get("Content-Type"))
		}
		has(t, all.body, got.body)
	}
}
