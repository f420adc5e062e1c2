package console

import (
	"html/template"
	"strings"

	"basegate/docs"
)

// exampleModel is shown if there is no model.
const exampleModel = "llama-8b"

// tutorialVariables returns the values that the pages fill into their snippets: the public URL, a model, and the limits of the
// models. Secrets are not stored, so the snippets take the key from the environment.
func (c *Console) tutorialVariables() docs.Variables {
	vars := docs.Variables{Base: strings.TrimSuffix(c.settings.Load().PublicURL.String(), "/"), Model: exampleModel}
	for i, m := range c.Fleet.Models() {
		n := m.MaxLogprobs()
		if i == 0 {
			vars.Model, vars.MaxLogprobs = m.ID(), [2]int{n, n}
		}
		vars.MaxLogprobs = [2]int{min(vars.MaxLogprobs[0], n), max(vars.MaxLogprobs[1], n)}
	}
	return vars
}

// tutorialView is a page of the tutorial, or the results of a search.
type tutorialView struct {
	Pages     []docs.Page
	Slug      string
	Operators bool // the page is for operators
	HTML      template.HTML
	Previous  *docs.Page
	Next      *docs.Page
	Query     string
	Found     []docs.SearchResult
}

// tutorialSearch shows the results of a search. Without a query it redirects to the first page.
func (c *Console) tutorialSearch(r *request) error {
	query := r.query("q")
	if query == "" {
		return r.redirect("/tutorial/" + docs.Pages()[0].Slug)
	}
	found := docs.Search(docs.Pages(), query, c.tutorialVariables())
	return c.render(r, "tutorial", "Tutorial: "+query, tutorialView{Pages: docs.Pages(), Query: query, Found: found})
}

// tutorialPage shows one page. The suffix .md selects its Markdown, and all.md is the Markdown of all pages for users.
func (c *Console) tutorialPage(r *request) error {
	pages, vars := docs.Pages(), c.tutorialVariables()
	slug, markdown := strings.CutSuffix(r.param("page"), ".md")
	if markdown && slug == "all" {
		var texts []string
		for _, p := range pages {
			if !p.Operators {
				texts = append(texts, p.Markdown(vars))
			}
		}
		return r.sendText("text/markdown", strings.Join(texts, "\n"))
	}
	for i, p := range pages {
		if p.Slug != slug {
			continue
		}
		if markdown {
			return r.sendText("text/markdown", p.Markdown(vars))
		}
		view := tutorialView{Pages: pages, Slug: slug, Operators: p.Operators, HTML: p.HTML(vars)}
		if i > 0 && pages[i-1].Operators == p.Operators {
			view.Previous = &pages[i-1]
		}
		if i+1 < len(pages) && pages[i+1].Operators == p.Operators {
			view.Next = &pages[i+1]
		}
		return c.render(r, "tutorial", p.Title, view)
	}
	return errNotFound
}

// llms lists the pages of users for language models, in the format of llmstxt.org.
func (c *Console) llms(r *request) error {
	vars := c.tutorialVariables()
	var list strings.Builder
	list.WriteString("# Basegate\n\n> " + docs.Pages()[0].Summary(vars) + "\n\n## Pages\n\n")
	for _, p := range docs.Pages() {
		if p.Operators {
			continue
		}
		list.WriteString("- [" + p.Title + "](" + vars.Base + "/tutorial/" + p.Slug + ".md): " + p.Summary(vars) + "\n")
	}
	list.WriteString("\n## Optional\n\n- [Everything on one page](" + vars.Base + "/tutorial/all.md)\n" +
		"- [OpenAPI 3.1](" + vars.Base + "/openapi.json)\n")
	return r.sendText("text/plain", list.String())
}

func (c *Console) openAPI(r *request) error {
	return r.sendText("application/json", docs.OpenAPI(c.tutorialVariables()))
}
