package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed templates/*.html
var templateFiles embed.FS

// pages are the templates by their names, each within the layout.
type pages map[string]*template.Template

// readPages parses all templates: layout.html is around every page, and what _part.html files define is at hand in all.
func readPages(a assets) pages {
	layout := template.Must(template.New("layout.html").Funcs(functions(a)).
		ParseFS(templateFiles, "templates/layout.html", "templates/_*.html"))
	files, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil { // cannot be: the pattern is well-formed
		panic("list templates: " + err.Error())
	}
	all := pages{}
	for _, file := range files {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || strings.HasPrefix(name, "_") {
			continue
		}
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(templateFiles, file))
	}
	return all
}

// view is what a template is given.
type view struct {
	Title  string
	Path   string // of the page
	Email  string // of who is signed in; empty where nobody is
	Admin  bool
	Places []place // the navigation
	Data   any     // of the page itself
}

// place is a destination as a page shows it.
type place struct {
	destination
	Here bool
}

// render sends a page: the template of that name, with data as .Data.
func (c *Console) render(v *visit, name, title string, data any) error {
	return c.renderStatus(v, http.StatusOK, name, title, data)
}

// renderStatus is render with another status. The page is made before any of it is sent, so that a page that fails is
// an error and no half page.
func (c *Console) renderStatus(v *visit, status int, name, title string, data any) error {
	page, ok := c.pages[name]
	if !ok {
		return fmt.Errorf("render page: there is no template %q", name)
	}
	var html bytes.Buffer
	err := page.ExecuteTemplate(&html, "layout.html", view{
		Title: title, Path: v.r.URL.Path, Email: v.account.Email, Admin: v.account.Admin,
		Places: v.places(), Data: data,
	})
	if err != nil {
		return fmt.Errorf("render page: %w", err)
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = html.WriteTo(v.w) // whoever does not read it to the end has gone
	return nil
}

// places is the navigation as the visitor has it.
func (v *visit) places() []place {
	var all []place
	for _, d := range destinations {
		if v.may(d.access) {
			here := v.r.URL.Path == d.Path || strings.HasPrefix(v.r.URL.Path, d.Path+"/")
			all = append(all, place{d, here})
		}
	}
	return all
}
