package console

import (
	"cmp"
	"fmt"
	"net/url"

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

func (c *Console) requests(v *visit) error {
	page := requestsPage{
		Key: v.query("key"), Model: v.query("model"), Search: v.query("q"), Failed: v.query("failed") != "",
		Models: c.fleet.Models(), Most: maxRequestsShown,
	}
	var err error
	if page.Keys, err = c.keys.ListOf(v.r.Context(), v.account.ID); err != nil {
		return err
	}
	names := map[string]string{}
	for _, k := range page.Keys {
		names[k.ID] = k.Name
	}
	filter := requestsFilter(v)
	filter.Limit = maxRequestsShown
	rows, err := c.ledger.Usage(v.r.Context(), filter, budget.ByRequest)
	if err != nil {
		return err
	}
	for _, r := range rows {
		page.Rows = append(page.Rows, requestRow{r, cmp.Or(names[r.KeyID], r.KeyID)})
	}
	return c.render(v, "requests", "Requests", page)
}

// requestsFilter is what the page of requests was asked for, of the visitor's own account.
func requestsFilter(v *visit) budget.Filter {
	return budget.Filter{
		Account: v.account.ID, Key: v.query("key"), Model: v.query("model"),
		Search: v.query("q"), Failed: v.query("failed") != "",
	}
}
