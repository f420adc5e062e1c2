package console

import (
	"html/template"
	"net/http"
	"strings"

	"basegate/docs"
	"basegate/identity"
)

// readTutorial reads the pages of the tutorial, which are in the program.
func readTutorial() []docs.Page {
	all, err := docs.Pages()
	if err != nil { // cannot be: the pages' own test reads them
		panic("read tutorial: " + err.Error())
	}
	return all
}

// What snippets say where nothing is known of who reads them.
const (
	anyKey   = "acs-bm-…"
	anyModel = "llama-8b"
)

// reader is who reads the tutorial: the address for everybody, and for who is signed in a key's beginning. Secrets are
// not known here.
func (c *Console) reader(v *visit) (docs.Variables, error) {
	r := docs.Variables{Base: strings.TrimSuffix(c.settings.Load().PublicURL.String(), "/"), Key: anyKey, Model: anyModel}
	if models := c.fleet.Models(); len(models) > 0 {
		r.Model = models[0].ID()
	}
	if !v.signedIn() {
		return r, nil
	}
	own, err := c.keys.ListOf(v.r.Context(), v.account.ID)
	if err != nil {
		return r, err
	}
	for _, k := range own {
		if k.State == identity.KeyActive {
			r.Key = k.Prefix + "…"
			break
		}
	}
	return r, nil
}

// tutorialView is a page, or what a search has found.
type tutorialView struct {
	Pages    []docs.Page
	Slug     string
	HTML     template.HTML
	Previous *docs.Page
	Next     *docs.Page
	Query    string
	Found    []docs.SearchResult
}

// tutorialSearch is the tutorial's first page, or what was found.
func (c *Console) tutorialSearch(v *visit) error {
	query := v.query("q")
	if query == "" {
		return v.redirect("/tutorial/" + c.tutorial[0].Slug)
	}
	r, err := c.reader(v)
	if err != nil {
		return err
	}
	found := docs.Search(c.tutorial, query, r)
	return c.render(v, "tutorial", "Tutorial: "+query, tutorialView{Pages: c.tutorial, Query: query, Found: found})
}

// tutorialPage is one page; with .md behind its name it is the Markdown, and all.md is that of all pages.
func (c *Console) tutorialPage(v *visit) error {
	r, err := c.reader(v)
	if err != nil {
		return err
	}
	slug, markdown := strings.CutSuffix(v.r.PathValue("page"), ".md")
	if markdown && slug == "all" {
		return v.text("text/markdown", c.allPages(r))
	}
	for i, p := range c.tutorial {
		if p.Slug != slug {
			continue
		}
		if markdown {
			return v.text("text/markdown", p.Markdown(r))
		}
		show := tutorialView{Pages: c.tutorial, Slug: slug}
		if show.HTML, err = p.HTML(r); err != nil {
			return err
		}
		if i > 0 {
			show.Previous = &c.tutorial[i-1]
		}
		if i+1 < len(c.tutorial) {
			show.Next = &c.tutorial[i+1]
		}
		return c.render(v, "tutorial", p.Title, show)
	}
	return errNoPage
}

func (c *Console) allPages(r docs.Variables) string {
	var all []string
	for _, p := range c.tutorial {
		all = append(all, p.Markdown(r))
	}
	return strings.Join(all, "\n")
}

// llms is the list of pages for language models, in the form of llmstxt.org.
func (c *Console) llms(v *visit) error {
	r, err := c.reader(v)
	if err != nil {
		return err
	}
	var list strings.Builder
	list.WriteString("# Basegate\n\n> " + c.tutorial[0].Summary(r) + "\n\n## Pages\n\n")
	for _, p := range c.tutorial {
		list.WriteString("- [" + p.Title + "](" + r.Base + "/tutorial/" + p.Slug + ".md): " + p.Summary(r) + "\n")
	}
	list.WriteString("\n## Optional\n\n- [Everything on one page](" + r.Base + "/tutorial/all.md)\n- [OpenAPI 3.1](" + r.Base + "/openapi.json)\n")
	return v.text("text/plain", list.String())
}

// openAPI is the description of the API for programs.
func (*Console) openAPI(v *visit) error { return v.text("application/json", docs.OpenAPI) }

// text answers with a text as it is.
func (v *visit) text(kind, text string) error {
	v.w.Header().Set("Content-Type", kind+"; charset=utf-8")
	v.w.WriteHeader(http.StatusOK)
	_, _ = v.w.Write([]byte(text)) // whoever does not read it to the end has gone
	return nil
}
