// Package docs embeds the user documentation, the tutorial and the API reference, and the pages for operators: it lists the
// Markdown files in reading order, fills in a gateway's address and model, renders them as HTML and searches them. It leaves
// serving the pages to the console. The other files of this folder are not embedded.
package docs

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
)

//go:embed api.md errors.md tutorial/*.md operations/*.md
var files embed.FS

// openAPI is the OpenAPI description with placeholders.
//
//go:embed openapi.json
var openAPI string

// Page is one page of the tutorial or the reference, or one for operators.
type Page struct {
	Slug      string // the page's name in URLs
	Title     string
	Operators bool   // it is for those who run the gateway
	text      string // Markdown with the address, the model and the limits of the demo
}

// Variables holds what a gateway's pages have in place of the demo's. The values are inserted unchanged.
type Variables struct {
	Base        string // the gateway's address, without /v1
	Model       string // a model id
	MaxLogprobs [2]int // the smallest and the largest limit that a model has on logprobs
}

// pageFiles lists the files in reading order.
var pageFiles = []string{
	"tutorial/overview.md",
	"tutorial/models.md",
	"tutorial/streaming.md",
	"tutorial/chat.md",
	"tutorial/logprobs.md",
	"tutorial/scoring.md",
	"tutorial/prompts.md",
	"tutorial/sampling.md",
	"tutorial/queue.md",
	"tutorial/batches.md",
	"tutorial/account.md",
	"tutorial/runs.md",
	"tutorial/dialects.md",
	"tutorial/errors.md",
	"tutorial/workbench.md",
	"api.md",
	"operations/run.md",
	"operations/host.md",
	"operations/console.md",
	"operations/accounts-and-keys.md",
	"operations/budgets-and-usage.md",
	"operations/overview.md",
	"operations/backends.md",
	"operations/lifecycle.md",
	"operations/queue.md",
	"operations/batches.md",
	"operations/ledger-and-backup.md",
	"operations/postgresql.md",
	"operations/check.md",
	"operations/verify.md",
	"operations/log.md",
	"operations/metrics.md",
	"operations/bad-day.md",
}

// slugOf returns the slug of a file; ok is false if it is no page.
func slugOf(file string) (slug string, ok bool) {
	name := strings.TrimSuffix(file, ".md")
	return strings.ReplaceAll(strings.TrimPrefix(name, "tutorial/"), "/", "-"), slices.Contains(pageFiles, file)
}

var (
	// expectedOutput is a comment that only the test of the snippets uses.
	expectedOutput = regexp.MustCompile(`(?m)^<!-- prints: .* -->\n`)
	// fileLink is a link to another file of the project.
	fileLink = regexp.MustCompile(`\[([^\]]+)\]\(([^():#\s]+)(#[^()\s]*)?\)`)
)

// linkPages makes links to files links to their pages. Of a link to a file that is no page only the text is kept.
func linkPages(file, text string) string {
	return fileLink.ReplaceAllStringFunc(text, func(link string) string {
		parts := fileLink.FindStringSubmatch(link)
		if slug, ok := slugOf(path.Join(path.Dir(file), parts[2])); ok {
			return "[" + parts[1] + "](" + slug + parts[3] + ")"
		}
		return parts[1]
	})
}

// Pages returns all pages in reading order, those for operators last. Callers share them.
var Pages = sync.OnceValue(func() (all []Page) {
	for _, file := range pageFiles {
		content, err := files.ReadFile(file)
		text := linkPages(file, expectedOutput.ReplaceAllString(string(content), ""))
		heading, _, _ := strings.Cut(text, "\n")
		title, ok := strings.CutPrefix(heading, "# ")
		if err != nil || !ok {
			panic(file + " is no page that begins with its title") // impossible: the files are embedded
		}
		slug, _ := slugOf(file)
		all = append(all, Page{Slug: slug, Title: title, Operators: strings.HasPrefix(file, "operations/"), text: text})
	}
	return all
})

// Markdown returns the page's Markdown. For users it has the gateway's address, model and limits.
func (p Page) Markdown(v Variables) string {
	if p.Operators {
		return p.text
	}
	return strings.NewReplacer("http://127.0.0.1:8080", v.Base, `"llama-8b"`, strconv.Quote(v.Model),
		"(here: 20)", "(here: "+v.maxLogprobs()+")").Replace(p.text)
}

func (v Variables) maxLogprobs() string {
	if smallest, largest := v.MaxLogprobs[0], v.MaxLogprobs[1]; smallest != largest {
		return fmt.Sprintf("%d to %d, depending on the model", smallest, largest)
	}
	return strconv.Itoa(v.MaxLogprobs[1])
}

// OpenAPI returns the OpenAPI 3.1 description of the API, in JSON, with the address and the limits of this gateway.
func OpenAPI(v Variables) string {
	base, _ := json.Marshal(v.Base) // cannot fail
	return strings.NewReplacer(
		`"url": "/"`, `"url": `+string(base),
		`"maximum": "{{max_logprobs}}"`, `"maximum": `+strconv.Itoa(v.MaxLogprobs[1]),
		"{{max_logprobs}}", v.maxLogprobs(),
	).Replace(openAPI)
}

// Summary returns the page's first paragraph as one line.
func (p Page) Summary(v Variables) string {
	_, rest, _ := strings.Cut(p.Markdown(v), "\n\n")
	first, _, _ := strings.Cut(rest, "\n\n")
	return strings.Join(strings.Fields(first), " ")
}

var renderer = goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))

// HTML renders the page. Headings have anchors; raw HTML in the Markdown is omitted.
func (p Page) HTML(v Variables) template.HTML {
	var out bytes.Buffer
	_ = renderer.Convert([]byte(p.Markdown(v)), &out) // its only errors are those of writing
	return template.HTML(out.String())                //nolint:gosec // rendered from embedded files, without raw HTML
}

// SearchResult is a section of a page that contains the searched words.
type SearchResult struct {
	Page    Page
	Heading string
	Anchor  string // of the heading; empty for the top of the page
	Excerpt string
}

// excerptSize is the length of an excerpt in bytes.
const excerptSize = 160

// Search returns the sections (from heading to heading) that contain all words of the query; sections with all words in
// the heading come first.
func Search(pages []Page, query string, v Variables) []SearchResult {
	words := strings.Fields(strings.ToLower(query))
	if len(words) == 0 {
		return nil
	}
	var inHeading, inText []SearchResult
	for _, p := range pages {
		for _, section := range p.sections(v) {
			heading, text := strings.ToLower(section.Heading), strings.ToLower(section.Heading+" "+section.Excerpt)
			if !containsAll(text, words) {
				continue
			}
			section.Excerpt = excerpt(section.Excerpt, words)
			if containsAll(heading, words) {
				inHeading = append(inHeading, section)
			} else {
				inText = append(inText, section)
			}
		}
	}
	return append(inHeading, inText...)
}

func containsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// sections splits the page at its headings; Excerpt holds the whole text of a section. In code blocks, lines that begin
// with # are not headings.
func (p Page) sections(v Variables) []SearchResult {
	var all []SearchResult
	ids := parser.NewContext().IDs() // gives headings the anchors that HTML gives them
	code := false
	for line := range strings.Lines(p.Markdown(v)) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		level := len(line) - len(strings.TrimLeft(line, "#"))
		if !code && level > 0 && strings.HasPrefix(line[level:], " ") {
			heading := strings.TrimSpace(line[level:])
			section := SearchResult{Page: p, Heading: heading}
			if id := ids.Generate([]byte(heading), ast.KindHeading); level > 1 {
				section.Anchor = string(id)
			}
			all = append(all, section)
			continue
		}
		if len(all) > 0 {
			all[len(all)-1].Excerpt += line
		}
	}
	return all
}

// excerpt returns the text around the first word, without Markdown syntax.
func excerpt(text string, words []string) string {
	text = strings.Join(strings.Fields(strings.NewReplacer("`", "", "|", " ", "**", "", "---", "").Replace(text)), " ")
	match := strings.Index(strings.ToLower(text), words[0])
	from := max(0, min(match, len(text))-excerptSize/4)
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
