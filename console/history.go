package console

import (
	"cmp"
	"net/url"
	"time"

	"basegate/budget/usage"
	"basegate/fleet"
	"basegate/identity"
)

const (
	maxRequestsShown  = 200 // in the CSV file of the newest requests
	requestsOfOnePage = 50
)

// endings are the options of the filter, in their order.
var endings = []struct {
	Value usage.Ending
	Name  string
}{
	{usage.AnyEnding, "Any"}, {usage.Succeeded, "Succeeded"}, {usage.HasFailed, "Failed"}, {usage.WereRefused, "Refused"},
}

// historyPage is the data of the page of requests. They are metadata: prompts and completions are not stored.
type historyPage struct {
	Key, Model, Search string
	Account            string             // id of another account, "all", or empty for the user's own
	Accounts           []identity.Account // options for administrators
	From, To           string             // days, UTC; empty: no bound
	Ending             usage.Ending
	Endings            any            // options of the filter
	Keys               []identity.Key // options of the filter
	Models             []*fleet.Model // options of the filter
	Rows               []requestRow
	Searched           time.Time // how far back the filter was applied; zero if the page is full or the last one
	Newer              bool      // this is not the first page
	next               usage.Cursor
}

// requestRow is one request of the table.
type requestRow struct {
	usage.Row
	KeyName string
	Email   string // of the account; empty for the user's own
}

// Level returns the CSS class of the request's outcome: good, warn or bad.
func (r requestRow) Level() string {
	switch {
	case r.State == usage.Interrupted, r.State == usage.Refused && r.Status < 500:
		return "warn"
	case r.Code != "" || r.Status >= 400:
		return "bad"
	}
	return "good"
}

// Outcome returns the error code, or that the request was interrupted. It is empty for a success.
func (r requestRow) Outcome() string {
	if r.State == usage.Interrupted {
		return "interrupted"
	}
	return r.Code
}

// Refused reports whether the request has no row on the ledger, so it was not charged.
func (r requestRow) Refused() bool { return r.State == usage.Refused }

// Took returns the duration of the request.
func (r requestRow) Took() string { return formatLatency(r.Total) }

// query returns the filter as the query of a URL.
func (p *historyPage) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"key": p.Key, "model": p.Model, "q": p.Search, "from": p.From, "to": p.To, "ending": string(p.Ending),
		"account": p.Account,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// CSV returns the URL of the CSV file: of the newest requests on the ledger that the filter selects.
func (p *historyPage) CSV() string {
	q := p.query()
	q.Set("by", string(usage.ByRequest))
	if p.Ending == usage.HasFailed {
		q.Set("failed", "1")
	}
	return "/usage/csv?" + q.Encode()
}

// First returns the URL of the first page.
func (p *historyPage) First() string { return "/usage/requests?" + p.query().Encode() }

// Older returns the URL of the next page; empty if there is none.
func (p *historyPage) Older() string {
	if p.next.IsZero() {
		return ""
	}
	q := p.query()
	q.Set("after", p.next.String())
	return "/usage/requests?" + q.Encode()
}

func (c *Console) requests(r *request) error {
	page := historyPage{
		Key: r.query("key"), Model: r.query("model"), Search: r.query("q"), Ending: usage.Ending(r.query("ending")),
		From: validDay(r.query("from")), To: validDay(r.query("to")), Endings: endings, Models: c.fleet.Models(),
	}
	if page.Ending == usage.AnyEnding && r.query("failed") != "" { // as links to this page had it
		page.Ending = usage.HasFailed
	}
	after, err := usage.ParseCursor(r.query("after"))
	if err != nil {
		return errNotFound
	}
	page.Newer = !after.IsZero()
	filter, err := c.requestsFilter(r)
	if err != nil {
		return err
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	page.Accounts = known.accounts
	if filter.Account != r.account.ID {
		page.Account = cmp.Or(filter.Account, allAccounts)
	}
	if filter.Account != "" {
		if page.Keys, err = c.keyOptions(r.ctx(), filter.Account, page.Key); err != nil {
			return err
		}
	}
	filter.Limit = requestsOfOnePage
	found, err := c.usages.History(r.ctx(), filter, page.Ending, after)
	if err != nil {
		return err
	}
	page.Searched, page.next = found.Searched, found.Next
	for _, row := range found.Rows {
		shown := requestRow{Row: row, KeyName: known.key(row.KeyID)}
		if page.Account != "" {
			shown.Email = known.account(row.AccountID)
		}
		page.Rows = append(page.Rows, shown)
	}
	return c.render(r, "history", "Requests", &page)
}

// validDay returns the text if it is a day such as 2026-11-21, otherwise nothing.
func validDay(text string) string {
	if _, err := time.Parse(time.DateOnly, text); err != nil {
		return ""
	}
	return text
}

// requestsFilter returns the filter in the query, limited to the newest requests. Only administrators can select other
// accounts than their own.
func (c *Console) requestsFilter(r *request) (usage.Filter, error) {
	selected, err := c.scope(r)
	f := usage.Filter{
		Reader: r.account.ID, Limit: maxRequestsShown,
		Account: selected.filter().Account, Key: r.query("key"), Model: r.query("model"),
		Search: r.query("q"), Failed: r.query("failed") != "",
	}
	if day, err := time.Parse(time.DateOnly, r.query("from")); err == nil {
		f.Since = day
	}
	if day, err := time.Parse(time.DateOnly, r.query("to")); err == nil {
		f.Until = day.AddDate(0, 0, 1)
	}
	return f, err
}
