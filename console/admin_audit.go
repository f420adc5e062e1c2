package console

import (
	"net/url"
	"strings"

	"basegate/identity"
)

const (
	auditPageSize   = 50
	maxAccountAudit = 20 // on the page of an account
)

type auditPage struct {
	pager
	days
	Search, Action string
	Actions        []string
	Rows           []auditRow
}

type auditRow struct {
	identity.AuditEntry
	Name string // of the subject
	Link string // to the subject's page; may be empty
}

func (c *Console) auditPage(r *request) error {
	page := auditPage{Search: r.query("q"), Action: r.query("action"), days: r.days()}
	filter := identity.AuditFilter{Search: page.Search, Action: page.Action, Since: page.since, Until: page.until}
	entries, next, err := c.AuditLog.Find(r.ctx(), filter, r.query("after"), auditPageSize)
	if err != nil {
		return err
	}
	q := queryOf(map[string]string{"q": page.Search, "action": page.Action, "from": page.From, "to": page.To})
	page.pager = r.pager(q, next)
	if page.Actions, err = c.AuditLog.Actions(r.ctx()); err != nil {
		return err
	}
	if page.Rows, err = c.auditRows(r, entries); err != nil {
		return err
	}
	return c.render(r, "admin-audit", "Audit log", page)
}

// auditRows returns entries with the names and pages of what they are about.
func (c *Console) auditRows(r *request, entries []identity.AuditEntry) ([]auditRow, error) {
	accounts, err := c.Accounts.List(r.ctx())
	if err != nil {
		return nil, err
	}
	ids := map[string]string{} // by e-mail address
	for _, a := range accounts {
		ids[a.Email] = a.ID
	}
	known := c.names(r)
	rows := make([]auditRow, len(entries))
	for i, e := range entries {
		rows[i] = auditRow{AuditEntry: e, Name: e.Subject}
		if k, ok := known.Keys(e.Subject); ok {
			rows[i].Name, rows[i].Link = k.KeyName, "/admin/keys/"+url.PathEscape(k.KeyID)
		} else if id, ok := ids[e.Subject]; ok {
			rows[i].Link = "/admin/accounts/" + url.PathEscape(id)
		} else if strings.HasSuffix(e.Action, " model") || strings.HasSuffix(e.Action, " window") {
			rows[i].Link = modelPath(url.PathEscape(e.Subject))
		}
	}
	return rows, nil
}
