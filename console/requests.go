package console

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"basegate/budget/usage"
	apierr "basegate/errors"
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
	{usage.AnyEnding, "Any"}, {usage.Succeeded, "Succeeded"}, {usage.HasFailed, "Unsuccessful"}, {usage.WereRefused, "Refused"},
}

// historyPage is the data of the page of requests. They are metadata: prompts and completions are not stored.
type historyPage struct {
	pager
	days
	Key, Model, Run string
	Search          string
	Account         string             // id of another account, "all", or empty for the user's own
	Accounts        []identity.Account // options for administrators
	Ending          usage.Ending
	Endings         any            // options of the filter
	Keys            []identity.Key // options of the filter
	Models          []*fleet.Model // options of the filter
	CSV             string         // URL of the file of the newest requests that the filter selects
	Rows            []requestRow
	Searched        time.Time // how far back the filter was applied; zero if the page is full or the last one
}

type requestRow struct {
	usage.Row
	KeyName string
	Email   string // of the account; empty for the user's own
}

// Level returns the CSS class of the request's outcome: good, warn or bad.
func (r requestRow) Level() string {
	switch {
	case r.State == usage.Interrupted, r.State == usage.Refused && r.Status < 500, r.Code == string(apierr.ColdBoot):
		return "warn"
	case r.Code != "" || r.Status >= 400:
		return "bad"
	}
	return "good"
}

// Outcome returns the error code, or that the request was interrupted or replayed. It is empty for any other success.
func (r requestRow) Outcome() string {
	if r.State == usage.Interrupted || r.State == usage.Replayed {
		return string(r.State)
	}
	return r.Code
}

// Refused reports whether the request has no row on the ledger, so it was not charged.
func (r requestRow) Refused() bool { return r.State == usage.Refused }

func (c *Console) requests(r *request) error {
	page := historyPage{
		Key: r.query("key"), Model: r.query("model"), Run: r.query("run"), Search: r.query("q"), Ending: usage.Ending(r.query("ending")),
		days: r.days(), Endings: endings, Models: c.Fleet.Models(),
	}
	after, err := usage.ParseCursor(r.query("after"))
	if err != nil {
		return errNotFound
	}
	filter, err := c.requestsFilter(r)
	if err != nil {
		return err
	}
	if page.Accounts, err = c.accountOptions(r); err != nil {
		return err
	}
	known := c.names(r)
	if filter.Account != r.account.ID {
		page.Account = cmp.Or(filter.Account, allAccounts)
	}
	if filter.Account != "" {
		if page.Keys, err = c.keyOptions(r.ctx(), filter.Account, page.Key); err != nil {
			return err
		}
	}
	filter.Limit = requestsOfOnePage
	found, err := c.Usage.History(r.ctx(), filter, page.Ending, after)
	if err != nil {
		return err
	}
	q := queryOf(map[string]string{
		"key": page.Key, "model": page.Model, "run": page.Run, "q": page.Search, "from": page.From, "to": page.To,
		"ending": string(page.Ending), "account": page.Account,
	})
	page.Searched, page.pager, page.CSV = found.Searched, r.pager(q, found.Next.String()), withQuery("/usage/requests.csv", q)
	for _, row := range found.Rows {
		shown := requestRow{Row: row, KeyName: known.key(row.KeyID)}
		if page.Account != "" {
			shown.Email = known.Account(row.AccountID)
		}
		page.Rows = append(page.Rows, shown)
	}
	return c.render(r, "history", "Requests", page)
}

// requestsFilter returns the filter in the query, limited to the newest requests. Only administrators can select other
// accounts than their own.
func (c *Console) requestsFilter(r *request) (usage.Filter, error) {
	selected, err := c.scope(r)
	within := r.days()
	return usage.Filter{
		Reader: r.account.ID, Limit: maxRequestsShown, Since: within.since, Until: within.until,
		Account: selected.accountID(), Key: r.query("key"), Model: r.query("model"), Run: r.query("run"),
		Search: r.query("q"),
	}, err
}

type requestPage struct {
	requestRow
	KeyPrefix string
	Phases    []phase
	Attempts  []attemptRow
	Speed     float64 // completion tokens a second after the first one; 0 if not known
	Boot      time.Duration
	ChainID   string
	Meaning   string // of the error code, with what to do; empty if it has none
	Param     string // the field that was refused; may be empty
	Expected  string // of that field; may be empty
}

// phase is a part of a request's time. Positions and sizes are percentages of the whole.
type phase struct {
	Name     string
	Number   int // of its color
	Took     time.Duration
	X, Width float64
}

type attemptRow struct {
	usage.Attempt
	X, Width float64 // percentages of the request's time
}

// Failed reports whether the attempt brought no response, or only a part.
func (a attemptRow) Failed() bool { return a.Class != "success" }

func (c *Console) requestPage(r *request) error {
	account := r.account.ID
	if r.account.Admin {
		account = "" // an administrator may see the requests of all
	}
	d, found, err := c.Usage.Request(r.ctx(), account, r.param("id"))
	if err != nil {
		return err
	}
	if !found {
		return errNotFound
	}
	page := requestPage{requestRow: requestRow{Row: d.Row, KeyName: d.KeyID}, Boot: d.Boot, ChainID: d.ChainID}
	if d.Code != "" {
		page.Meaning = errorTable[apierr.Code(d.Code)].String()
	}
	page.Param, page.Expected = d.Param, d.Expected
	if k, err := c.keyOf(r.ctx(), d.KeyID, d.AccountID); err == nil {
		page.KeyName, page.KeyPrefix = k.Name, k.Prefix
	} else if !errors.Is(err, identity.ErrNoKey) {
		return err
	}
	page.Phases = phases(&d)
	for _, a := range d.Attempts {
		x := part(a.Start, d.Total)
		page.Attempts = append(page.Attempts, attemptRow{a, x, min(part(a.Took, d.Total), 100-x)})
	}
	if streaming := d.Total - d.FirstToken; d.FirstToken > 0 && d.CompletionTokens > 1 && streaming > 0 {
		page.Speed = float64(d.CompletionTokens-1) / streaming.Seconds()
	}
	return c.render(r, "request", "Request", &page)
}

// EngineTimes says how long the engine took by its own report; empty if it has none.
func (p *requestPage) EngineTimes() string {
	var all []string
	for _, t := range []struct {
		name   string
		micros *int64
	}{{"queue", p.Reported.Queue}, {"prefill", p.Reported.Prefill}, {"first token after", p.Reported.FirstToken()}, {"between tokens", p.Reported.Between}} {
		if t.micros != nil {
			all = append(all, t.name+" "+formatLatency(time.Duration(*t.micros)*time.Microsecond))
		}
	}
	return strings.Join(all, ", ")
}

// phases divides the time of a request: the wait for the model's boot, the wait in the queue, the time until the first
// token, and the stream; or the whole response, if it was no stream.
func phases(d *usage.Detail) []phase {
	var all []phase
	left, x := d.Total, 0.0
	add := func(name string, number int, took time.Duration) {
		took = min(took, left)
		if took <= 0 {
			return
		}
		left -= took
		p := phase{Name: name, Number: number, Took: took, X: x, Width: part(took, d.Total)}
		x += p.Width
		all = append(all, p)
	}
	add("Boot", 5, d.Boot)
	add("Queue", 2, d.Queue)
	switch {
	case d.State == usage.Refused:
		add("Checks", 6, left)
	case d.FirstToken > 0:
		add("To the first token", 4, d.FirstToken-(d.Total-left))
		add("Stream", 1, left)
	default:
		add("Response", 1, left)
	}
	return all
}

// part returns a duration as a percentage of another.
func part(d, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return min(100, 100*float64(d)/float64(whole))
}
