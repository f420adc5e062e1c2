package console

import (
	"html/template"
	"strings"

	"basegate/docs"
)

// readTutorial returns the embedded pages of the tutorial.
func readTutorial() []docs.Page {
	pages, err := docs.Pages()
	if err != nil { // impossible: a test of package docs reads the same pages
		panic("read tutorial: " + err.Error())
	}
	return pages
}

// The placeholders in snippets, used if there is no key or no model to show.
const (
	exampleKey   = "acs-bm-…"
	exampleModel = "llama-8b"
)

// tutorialVariables returns the values that the pages fill into their snippets: the public URL, a model, the limits of
// the models, and for a user who is signed in the prefix of an active key. Secrets are not stored, so they cannot be
// shown.
func (c *Console) tutorialVariables(r *request) (docs.Variables, error) {
	vars := docs.Variables{
		Base: strings.TrimSuffix(c.settings.Load().PublicURL.String(), "/"), Key: exampleKey, Model: exampleModel,
	}
	for i, m := range c.Fleet.Models() {
		n := m.MaxLogprobs()
		if i == 0 {
			vars.Model, vars.MaxLogprobs = m.ID(), [2]int{n, n}
		}
		vars.MaxLogprobs = [2]int{min(vars.MaxLogprobs[0], n), max(vars.MaxLogprobs[1], n)}
	}
	if !r.signedIn() {
		return vars, nil
	}
	keys, err := c.Keys.Usable(r.ctx(), r.account.ID)
	if len(keys) > 0 {
		vars.Key = keys[0].Prefix + "…"
	}
	return vars, err
}

// tutorialView is a page of the tutorial, or the results of a search.
type tutorialView struct {
	Pages    []docs.Page
	Slug     string
	HTML     template.HTML
	Previous *docs.Page
	Next     *docs.Page
	Query    string
	Found    []docs.SearchResult
}

// tutorialSearch shows the results of a search. Without a query it redirects to the first page.
func (c *Console) tutorialSearch(r *request) error {
	query := r.query("q")
	if query == "" {
		return r.redirect("/tutorial/" + c.tutorial[0].Slug)
	}
	vars, err := c.tutorialVariables(r)
	if err != nil {
		return err
	}
	found := docs.Search(c.tutorial, query, vars)
	return c.render(r, "tutorial", "Tutorial: "+query, tutorialView{Pages: c.tutorial, Query: query, Found: found})
}

// tutorialPage shows one page. The suffix .md selects its Markdown, and all.md is the Markdown of all pages.
func (c *Console) tutorialPage(r *request) error {
	vars, err := c.tutorialVariables(r)
	if err != nil {
		return err
	}
	slug, markdown := strings.CutSuffix(r.param("page"), ".md")
	if markdown && slug == "all" {
		var pages []string
		for _, p := range c.tutorial {
			pages = append(pages, p.Markdown(vars))
		}
		return r.sendText("text/markdown", strings.Join(pages, "\n"))
	}
	for i, p := range c.tutorial {
		if p.Slug != slug {
			continue
		}
		if markdown {
			return r.sendText("text/markdown", p.Markdown(vars))
		}
		view := tutorialView{Pages: c.tutorial, Slug: slug}
		if view.HTML, err = p.HTML(vars); err != nil {
			return err
		}
		if i > 0 {
			view.Previous = &c.tutorial[i-1]
		}
		if i+1 < len(c.tutorial) {
			view.Next = &c.tutorial[i+1]
		}
		return c.render(r, "tutorial", p.Title, view)
	}
	return errNotFound
}

// llms lists the pages for language models, in the format of llmstxt.org.
func (c *Console) llms(r *request) error {
	vars, err := c.tutorialVariables(r)
	if err != nil {
		return err
	}
	var list strings.Builder
	list.WriteString("# Basegate\n\n> " + c.tutorial[0].Summary(vars) + "\n\n## Pages\n\n")
	for _, p := range c.tutorial {
		list.WriteString("- [" + p.Title + "](" + vars.Base + "/tutorial/" + p.Slug + ".md): " + p.Summary(vars) + "\n")
	}
	list.WriteString("\n## Optional\n\n- [Everything on one page](" + vars.Base + "/tutorial/all.md)\n" +
		"- [OpenAPI 3.1](" + vars.Base + "/openapi.json)\n")
	return r.sendText("text/plain", list.String())
}

// openAPI serves the OpenAPI description of the API.
func (c *Console) openAPI(r *request) error {
	vars, err := c.tutorialVariables(r)
	if err != nil {
		return err
	}
	text, err := docs.OpenAPI(vars)
	if err != nil {
		return err
	}
	return r.sendText("application/json", text)
}
