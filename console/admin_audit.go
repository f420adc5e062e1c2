package console

import (
	"net/url"
	"strings"
	"time"

	"basegate/identity"
)

const (
	auditPageSize   = 50
	maxAccountAudit = 20 // on the page of an account
)

// auditPage is the data of the page of the audit log.
type auditPage struct {
	Search, Action string
	From, To       string // days, UTC; empty: no bound
	Actions        []string
	Rows           []auditRow
	Newer          bool // this is not the first page
	next           identity.AuditCursor
}

// auditRow is one entry of the audit log.
type auditRow struct {
	identity.AuditEntry
	Name string // of the subject
	Link string // to the subject's page; may be empty
}

// query returns the filter as the query of a URL.
func (p *auditPage) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"q": p.Search, "action": p.Action, "from": p.From, "to": p.To} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// First returns the URL of the first page.
func (p *auditPage) First() string { return "/admin/audit?" + p.query().Encode() }

// Older returns the URL of the next page; empty if there is none.
func (p *auditPage) Older() string {
	if p.next.IsZero() {
		return ""
	}
	q := p.query()
	q.Set("after", p.next.String())
	return "/admin/audit?" + q.Encode()
}

func (c *Console) auditPage(r *request) error {
	page := auditPage{
		Search: r.query("q"), Action: r.query("action"), From: validDay(r.query("from")), To: validDay(r.query("to")),
	}
	filter := identity.AuditFilter{Search: page.Search, Action: page.Action}
	if day, err := time.Parse(time.DateOnly, page.From); err == nil {
		filter.Since = day
	}
	if day, err := time.Parse(time.DateOnly, page.To); err == nil {
		filter.Until = day.AddDate(0, 0, 1)
	}
	after, err := identity.ParseAuditCursor(r.query("after"))
	if err != nil {
		return errNotFound
	}
	page.Newer = !after.IsZero()
	var entries []identity.AuditEntry
	if entries, page.next, err = c.auditLog.Find(r.ctx(), filter, after, auditPageSize); err != nil {
		return err
	}
	if page.Actions, err = c.auditLog.Actions(r.ctx()); err != nil {
		return err
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	page.Rows = auditRows(entries, known)
	return c.render(r, "admin-audit", "Audit log", &page)
}

// auditRows returns entries with the names and pages of what they are about.
func auditRows(entries []identity.AuditEntry, known names) []auditRow {
	accounts := map[string]string{} // ids by e-mail address
	for id, email := range known.emails {
		accounts[email] = id
	}
	rows := make([]auditRow, len(entries))
	for i, e := range entries {
		rows[i] = auditRow{AuditEntry: e, Name: e.Subject}
		if k, ok := known.lookUp(e.Subject); ok {
			rows[i].Name, rows[i].Link = k.KeyName, "/admin/keys/"+url.PathEscape(k.KeyID)
		} else if id, ok := accounts[e.Subject]; ok {
			rows[i].Link = "/admin/accounts/" + url.PathEscape(id)
		} else if strings.HasSuffix(e.Action, " model") || strings.HasSuffix(e.Action, " window") {
			rows[i].Link = modelPath(url.PathEscape(e.Subject))
		}
	}
	return rows
}
