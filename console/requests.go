package console

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"basegate/budget"
	"basegate/fleet"
	"basegate/identity"
)

// maxRequestsShown is how many of the last requests are shown.
const maxRequestsShown = 200

// requestsPage is the last requests, as metadata.
type requestsPage struct {
	Key, Model, Search string
	Failed             bool
	Keys               []identity.Key // to choose from
	Models             []*fleet.Model
	Rows               []requestRow
	Most               int
}

// requestRow is one request.
type requestRow struct {
	budget.Row
	KeyName string
}

// Level is whether it went well.
func (r requestRow) Level() string {
	switch {
	case r.State == budget.Interrupted:
		return "warn"
	case r.Code != "" || r.Status >= 400:
		return "bad"
	}
	return "good"
}

// Outcome is the error's code, or what else is to be said.
func (r requestRow) Outcome() string {
	if r.State == budget.Interrupted {
		return "interrupted"
	}
	return r.Code
}

// Seconds is how long it took.
func (r requestRow) Seconds() string { return fmt.Sprintf("%.2f s", r.Total.Seconds()) }

// Query is the filter in addresses.
func (p requestsPage) Query() string {
	q := url.Values{"by": {string(budget.ByRequest)}}
	for name, value := range map[string]string{"key": p.Key, "model": p.Model, "q": p.Search} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if p.Failed {
		q.Set("failed", "1")
	}
	return q.Encode()
}

func (c *Console) requests(r *request) error {
	page := requestsPage{
		Key: r.query("key"), Model: r.query("model"), Search: r.query("q"), Failed: r.query("failed") != "",
		Models: c.fleet.Models(), Most: maxRequestsShown,
	}
	var err error
	if page.Keys, err = c.keys.ListOf(r.ctx(), r.account.ID); err != nil {
		return err
	}
	names := map[string]string{}
	for _, k := range page.Keys {
		names[k.ID] = k.Name
	}
	filter := requestsFilter(r)
	filter.Limit = maxRequestsShown
	rows, err := c.ledger.Usage(r.ctx(), filter, budget.ByRequest)
	if err != nil {
		return err
	}
	for _, row := range rows {
		page.Rows = append(page.Rows, requestRow{row, cmp.Or(names[row.KeyID], row.KeyID)})
	}
	return c.render(r, "requests", "Requests", page)
}

// requestsFilter is what the page of requests was asked for, of the visitor's own account.
func requestsFilter(r *request) budget.Filter {
	return budget.Filter{
		Account: r.account.ID, Key: r.query("key"), Model: r.query("model"),
		Search: r.query("q"), Failed: r.query("failed") != "",
	}
}

// milliseconds are for what is read by programs.
func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', -1, 64)
}
