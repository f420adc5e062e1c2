package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// paletteItem is something that the command palette can open.
type paletteItem struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Note string `json:"note"` // beside the name; may be empty
	Path string `json:"path"`
}

// palettePages are the pages that the palette lists besides those of the navigation.
var palettePages = []destination{
	{"Requests", "/usage/requests", signedIn},
	{"New key", "/keys/new", signedIn},
	{"Account and password", "/account", signedIn},
	{"Feedback", "/feedback", signedIn},
	{"Overview", "/admin/overview", administrators},
	{"Accounts and invitations", "/admin/accounts", administrators},
	{"Models and backends", "/admin/models", administrators},
	{"Feedback received", "/admin/feedback", administrators},
	{"Batches of all accounts", "/admin/batches", administrators},
	{"Audit log", "/admin/audit", administrators},
	{"Settings", "/admin/settings", administrators},
}

// palette lists what the user can open: pages, keys of the user's own, models and saved prompts, and for administrators all
// accounts. The page's script searches the list.
func (c *Console) palette(r *request) error {
	items := []paletteItem{}
	for _, d := range slices.Concat(destinations, palettePages) {
		if r.mayUse(d.access) {
			items = append(items, paletteItem{"Page", d.Name, "", d.Path})
		}
	}
	for _, p := range c.tutorial {
		items = append(items, paletteItem{"Tutorial", p.Title, "", "/tutorial/" + p.Slug})
	}
	keys, err := c.Keys.ListOf(r.ctx(), r.account.ID, 0)
	if err != nil {
		return err
	}
	for _, k := range keys {
		items = append(items, paletteItem{"Key", k.Name, strings.TrimSpace(k.Prefix + "… " + string(k.State)), "/keys/" + url.PathEscape(k.ID)})
	}
	for _, m := range c.Fleet.Models() {
		path := "/dashboard#models"
		if r.account.Admin {
			path = modelPath(url.PathEscape(m.ID()))
		}
		items = append(items, paletteItem{"Model", m.ID(), m.Status(), path})
	}
	saved, _, err := c.Prompts.Search(r.ctx(), r.account.ID, nil, maxPromptsReturned)
	if err != nil {
		return err
	}
	for _, p := range saved {
		items = append(items, paletteItem{"Saved prompt", p.Name, p.Model, "/workbench?" + url.Values{"prompt": {p.ID}}.Encode()})
	}
	if r.account.Admin {
		accounts, err := c.Accounts.List(r.ctx())
		if err != nil {
			return err
		}
		for _, a := range accounts {
			items = append(items, paletteItem{"Account", a.Email, a.Name, "/admin/accounts/" + url.PathEscape(a.ID)})
		}
	}
	return r.sendJSON(http.StatusOK, map[string]any{"items": items})
}
