// Package docs holds the tutorial and the reference: Markdown files within the program, their order, and how they become
// HTML. Who reads them, and on what page, is for others. What only operators need stays in the folder beside.
package docs

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
)

//go:embed api.md tutorial/*.md
var files embed.FS

// OpenAPI is the API's description, in JSON, by OpenAPI 3.1.
//
//go:embed openapi.json
var OpenAPI string

// Page is one page of the tutorial.
type Page struct {
	Slug  string // its name in addresses
	Title string
	text  string // Markdown, with places for what is the reader's
}

// Reader is what a page is filled in with: what whoever reads it would write. All are shown as they are.
type Reader struct {
	Base  string // the gateway's address, without /v1
	Key   string
	Model string
}

// order is the pages as they are read: slug and file.
var order = [][2]string{
	{"overview", "tutorial/overview.md"},
	{"models", "tutorial/models.md"},
	{"streaming", "tutorial/streaming.md"},
	{"logprobs", "tutorial/logprobs.md"},
	{"prompts", "tutorial/prompts.md"},
	{"sampling", "tutorial/sampling.md"},
	{"batches", "tutorial/batches.md"},
	{"account", "tutorial/account.md"},
	{"errors", "tutorial/errors.md"},
	{"workbench", "tutorial/workbench.md"},
	{"api", "api.md"},
}

var (
	// expected is what the test of the snippets looks for, and nobody else.
	expected = regexp.MustCompile(`(?m)^<!-- prints: .* -->\n`)
	// sibling is a link to another file of this folder, which is a page of its own.
	sibling = regexp.MustCompile(`\]\(([a-z-]+)\.md(#[a-z0-9-]*)?\)`)
	// elsewhere is a link to a file of the project that is no page.
	elsewhere = regexp.MustCompile(`\[([^\]]+)\]\((?:\.\./|operations\.md)[^)]*\)`)
)

// Pages lists all pages in their order.
func Pages() ([]Page, error) {
	var all []Page
	for _, entry := range order {
		content, err := files.ReadFile(entry[1])
		if err != nil {
			return nil, fmt.Errorf("read page: %w", err)
		}
		text := expected.ReplaceAllString(string(content), "")
		text = sibling.ReplaceAllString(elsewhere.ReplaceAllString(text, "$1"), "]($1$2)")
		heading, _, _ := strings.Cut(text, "\n")
		title, ok := strings.CutPrefix(heading, "# ")
		if !ok {
			return nil, fmt.Errorf("read page: %s does not begin with its title", entry[1])
		}
		all = append(all, Page{Slug: entry[0], Title: title, text: text})
	}
	return all, nil
}

// Markdown is the page as text.
func (p Page) Markdown(r Reader) string {
	return strings.NewReplacer("{{base}}", r.Base, "{{key}}", r.Key, "{{model}}", r.Model).Replace(p.text)
}

// Summary is the page's first paragraph, in one line.
func (p Page) Summary(r Reader) string {
	_, rest, _ := strings.Cut(p.Markdown(r), "\n\n")
	first, _, _ := strings.Cut(rest, "\n\n")
	return strings.Join(strings.Fields(first), " ")
}

var renderer = goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))

// HTML is the page rendered. Headings have anchors; HTML within the text is left out.
func (p Page) HTML(r Reader) (template.HTML, error) {
	var out bytes.Buffer
	if err := renderer.Convert([]byte(p.Markdown(r)), &out); err != nil {
		return "", fmt.Errorf("render %s: %w", p.Slug, err)
	}
	return template.HTML(out.String()), nil //nolint:gosec // rendered from files of the program, without raw HTML
}

// Found is a part of a page that has the words that were looked for.
type Found struct {
	Page    Page
	Heading string
	Anchor  string // empty for the page itself
	Excerpt string
}

// excerptSize is how much of a part is shown around the first word, in bytes.
const excerptSize = 160

// Search finds the parts of pages, from heading to heading, that have all the words; those with all in the heading first.
func Search(pages []Page, query string, r Reader) []Found {
	words := strings.Fields(strings.ToLower(query))
	if len(words) == 0 {
		return nil
	}
	var inHeading, inText []Found
	for _, p := range pages {
		for _, part := range p.parts(r) {
			heading, text := strings.ToLower(part.Heading), strings.ToLower(part.Heading+" "+part.Excerpt)
			switch {
			case hasAll(heading, words):
				part.Excerpt = excerpt(part.Excerpt, words)
				inHeading = append(inHeading, part)
			case hasAll(text, words):
				part.Excerpt = excerpt(part.Excerpt, words)
				inText = append(inText, part)
			}
		}
	}
	return append(inHeading, inText...)
}

func hasAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// parts cuts the page at its headings; Excerpt is the whole text of each. A line that begins with # in a snippet is none.
func (p Page) parts(r Reader) []Found {
	var all []Found
	code := false
	for line := range strings.Lines(p.Markdown(r)) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		marks := len(line) - len(strings.TrimLeft(line, "#"))
		if !code && marks > 0 && strings.HasPrefix(line[marks:], " ") {
			heading := strings.TrimSpace(line[marks:])
			found := Found{Page: p, Heading: heading}
			if marks > 1 {
				found.Anchor = anchor(heading)
			}
			all = append(all, found)
			continue
		}
		if len(all) > 0 {
			all[len(all)-1].Excerpt += line
		}
	}
	return all
}

// anchor is what goldmark makes of a heading: letters and digits in lower case, with a dash for each space.
func anchor(heading string) string {
	var id strings.Builder
	for _, c := range strings.ToLower(heading) {
		switch {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-':
			id.WriteRune(c)
		case c == ' ':
			id.WriteByte('-')
		}
	}
	return id.String()
}

// excerpt is the text around the first of the words, without the marks of Markdown.
func excerpt(text string, words []string) string {
	text = strings.Join(strings.Fields(strings.NewReplacer("`", "", "|", " ", "**", "", "---", "").Replace(text)), " ")
	at := strings.Index(strings.ToLower(text), words[0])
	from := max(0, min(at, len(text))-excerptSize/4)
	to := min(len(text), from+excerptSize)
	cut := strings.ToValidUTF8(text[from:to], "")
	if from > 0 {
		cut = "…" + cut
	}
	if to < len(text) {
		cut += "…"
	}
	return cut
}
