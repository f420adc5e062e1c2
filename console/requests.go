package console

import (
	"cmp"
	"fmt"
	"net/url"
	"time"

	"basegate/fleet"
	"basegate/identity"
	"basegate/usage"
)

// maxRequestsShown limits the requests on the page.
const maxRequestsShown = 200

// requestsPage is the data of the page of the last requests. They are metadata: prompts and completions are not stored.
type requestsPage struct {
	Key, Model, Search string
	Failed             bool
	Keys               []identity.Key // options of the filter
	Models             []*fleet.Model // options of the filter
	Rows               []requestRow
	Limit              int
	Searched           time.Time // how far back the filter was applied; zero if to all requests
}

// requestRow is one request of the table.
type requestRow struct {
	usage.Row
	KeyName string
}

// Level returns the CSS class of the request's outcome: good, warn or bad.
func (r requestRow) Level() string {
	switch {
	case r.State == usage.Interrupted:
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

// Seconds returns the duration of the request.
func (r requestRow) Seconds() string { return fmt.Sprintf("%.2f s", r.Total.Seconds()) }

// Filtered reports whether only some requests are shown.
func (p requestsPage) Filtered() bool { return p.Key+p.Model+p.Search != "" || p.Failed }

// CSV returns the path and query of the CSV file with the page's filter.
func (p requestsPage) CSV() string {
	q := url.Values{"by": {string(usage.ByRequest)}}
	for name, value := range map[string]string{"key": p.Key, "model": p.Model, "q": p.Search} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if p.Failed {
		q.Set("failed", "1")
	}
	return "/usage/csv?" + q.Encode()
}

func (c *Console) requests(r *request) error {
	page := requestsPage{
		Key: r.query("key"), Model: r.query("model"), Search: r.query("q"), Failed: r.query("failed") != "",
		Models: c.fleet.Models(), Limit: maxRequestsShown,
	}
	var err error
	if page.Keys, err = c.keys.ListOf(r.ctx(), r.account.ID); err != nil {
		return err
	}
	names := map[string]string{}
	for _, k := range page.Keys {
		names[k.ID] = k.Name
	}
	rows, searched, err := c.usages.Recent(r.ctx(), requestsFilter(r))
	if err != nil {
		return err
	}
	page.Searched = searched
	for _, row := range rows {
		page.Rows = append(page.Rows, requestRow{row, cmp.Or(names[row.KeyID], row.KeyID)})
	}
	return c.render(r, "requests", "Requests", page)
}

// requestsFilter returns the filter in the query, limited to the newest requests of the user's own account.
func requestsFilter(r *request) usage.Filter {
	return usage.Filter{
		Reader: r.account.ID, Limit: maxRequestsShown,
		Account: r.account.ID, Key: r.query("key"), Model: r.query("model"),
		Search: r.query("q"), Failed: r.query("failed") != "",
	}
}
