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
	"sync"
)

//go:embed templates/*.html
var templateFiles embed.FS

// templates are the pages by name, each within the layout.
type templates map[string]*template.Template

// parseTemplates parses all templates: layout.html surrounds every page, and every page can use what _*.html define.
var parseTemplates = sync.OnceValue(func() templates {
	layout := template.Must(template.New("layout.html").Funcs(templateFunctions(readAssets())).
		ParseFS(templateFiles, "templates/layout.html", "templates/_*.html"))
	files, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil { // impossible: the pattern is well-formed
		panic("list templates: " + err.Error())
	}
	all := templates{}
	for _, file := range files {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || strings.HasPrefix(name, "_") {
			continue
		}
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(templateFiles, file))
	}
	return all
})

type pageData struct {
	Title      string
	Path       string // of the page
	Email      string // of the user; empty if nobody is signed in
	Admin      bool
	Navigation []navigationItem
	Done       string // confirms what a form has done; empty if nothing was done
	Data       any    // of the page itself
}

type navigationItem struct {
	destination
	Current bool // the page shown is this one or below it
}

// render responds with the page of that name, whose template gets the data as .Data.
func (c *Console) render(r *request, name, title string, data any) error {
	return c.renderStatus(r, http.StatusOK, name, title, data)
}

// renderStatus is render with another status. The whole page is rendered before any of it is sent, so that a template
// that fails is an error and not half a page.
func (c *Console) renderStatus(r *request, status int, name, title string, data any) error {
	page, ok := c.templates[name]
	if !ok {
		return fmt.Errorf("render page: there is no template %q", name)
	}
	var html bytes.Buffer
	done := c.takeMessage(r)
	err := page.ExecuteTemplate(&html, "layout.html", pageData{
		Title: title, Path: r.Request().URL.Path, Email: r.account.Email, Admin: r.account.Admin,
		Navigation: r.navigation(), Done: done, Data: data,
	})
	if err != nil {
		return fmt.Errorf("render page: %w", err)
	}
	return r.send(status, "text/html; charset=utf-8", html.Bytes())
}

func (r *request) navigation() []navigationItem {
	var items []navigationItem
	path := r.Request().URL.Path
	for _, d := range destinations {
		if r.mayUse(d.access) {
			items = append(items, navigationItem{d, path == d.Path || strings.HasPrefix(path, d.Path+"/")})
		}
	}
	return items
}
