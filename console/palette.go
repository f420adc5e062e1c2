package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"basegate/docs"
)

// paletteItem is something that the command palette can open or do.
type paletteItem struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Note string `json:"note"` // beside the name; may be empty
	Path string `json:"path"`
	Post bool   `json:"post,omitempty"` // an action: the path is that of a form
}

// palettePages are the pages that the palette lists besides those of the navigation.
var palettePages = []destination{
	{"Requests", "/usage/requests", signedIn},
	{"Runs", "/usage/runs", signedIn},
	{"Account and password", "/account", signedIn},
	{"Feedback", "/feedback", signedIn},
	{"Overview", "/admin/overview", administrators},
	{"Accounts and invitations", "/admin/accounts", administrators},
	{"Models and backends", "/admin/models", administrators},
	{"Feedback received", "/admin/feedback", administrators},
	{"Batches of all accounts", "/admin/batches", administrators},
	{"Runs of all accounts", "/admin/runs", administrators},
	{"Audit log", "/admin/audit", administrators},
	{"Settings", "/admin/settings", administrators},
}

// palette lists what the user can do and open: actions, pages, keys of the user's own, models and saved prompts, and for administrators all
// accounts. The page's script searches the list.
func (c *Console) palette(r *request) error {
	items := []paletteItem{{Kind: "Action", Name: "Create key", Path: "/keys/new"}}
	for _, d := range slices.Concat(destinations, palettePages) {
		if r.mayUse(d.access) {
			items = append(items, paletteItem{Kind: "Page", Name: d.Name, Path: d.Path})
		}
	}
	for _, p := range docs.Pages() {
		switch {
		case !p.Operators:
			items = append(items, paletteItem{Kind: "Tutorial", Name: p.Title, Path: "/tutorial/" + p.Slug})
		case r.account.Admin:
			items = append(items, paletteItem{Kind: "Operations", Name: p.Title, Path: "/tutorial/" + p.Slug})
		}
	}
	keys, err := c.Keys.ListOf(r.ctx(), r.account.ID, 0)
	if err != nil {
		return err
	}
	for _, k := range keys {
		items = append(items, paletteItem{Kind: "Key", Name: k.Name, Note: strings.TrimSpace(k.Prefix + "… " + string(k.State)), Path: "/keys/" + url.PathEscape(k.ID)})
	}
	for _, m := range c.Fleet.Models() {
		path := "/dashboard#models"
		if r.account.Admin {
			path = modelPath(url.PathEscape(m.Base().ID()))
		}
		row := newModelRow(m)
		items = append(items, paletteItem{Kind: "Model", Name: m.ID(), Note: row.Label, Path: path})
		if row.Warmable {
			items = append(items, paletteItem{Kind: "Action", Name: "Warm " + m.ID(), Note: row.Meaning, Path: "/models/" + url.PathEscape(m.ID()) + "/warm", Post: true})
		}
	}
	saved, _, err := c.Prompts.Search(r.ctx(), r.account.ID, nil, maxPromptsReturned)
	if err != nil {
		return err
	}
	for _, p := range saved {
		items = append(items, paletteItem{Kind: "Saved prompt", Name: p.Name, Note: p.Model, Path: "/workbench?" + url.Values{"prompt": {p.ID}}.Encode()})
	}
	shared, _, err := c.Prompts.SearchShared(r.ctx(), r.account.ID, nil, maxPromptsReturned)
	if err != nil {
		return err
	}
	for _, p := range shared {
		items = append(items, paletteItem{Kind: "Shared prompt", Name: p.Name, Note: p.Owner, Path: "/workbench?" + url.Values{"shared": {p.Share}}.Encode()})
	}
	if r.account.Admin {
		accounts, err := c.Accounts.List(r.ctx())
		if err != nil {
			return err
		}
		for _, a := range accounts {
			items = append(items, paletteItem{Kind: "Account", Name: a.Email, Note: a.Name, Path: "/admin/accounts/" + url.PathEscape(a.ID)})
		}
	}
	return r.sendJSON(http.StatusOK, map[string]any{"items": items})
}
