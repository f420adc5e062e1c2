package console

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"time"

	"basegate/budget/usage"
	"basegate/fleet"
	"basegate/identity"
)

// exploration selects usage: a range of days, UTC, in intervals, by something that requests have in common.
type exploration struct {
	From, To      time.Time      // the first and the last day
	Interval      usage.Grouping // ByHour, ByDay or ByMonth
	By            usage.Grouping
	Key, Model    string // ids; empty: all
	Account       string // id, or allAccounts
	Email         string // of the account
	own           bool
	latencyOfDays int // the longest range, in days, whose latencies are read
}

// Limits of a range, in days. Longer ones have fewer, longer intervals.
const (
	maxDaysByHour    = 14
	maxDaysByHourAll = 4 // of all accounts
	maxDaysByDay     = 400
	maxDaysByMonth   = 3660

	// Latencies are stored by series and day, so a range of all accounts has many more of them.
	maxLatencyDays    = 400
	maxLatencyDaysAll = 31
)

// exploreOption is an option of a choice.
type exploreOption struct {
	Value usage.Grouping
	Name  string
}

var (
	intervalOptions = []exploreOption{{usage.ByHour, "Hour"}, {usage.ByDay, "Day"}, {usage.ByMonth, "Month"}}
	groupOptions    = []exploreOption{
		{usage.ByModel, "Model"},
		{usage.ByKey, "Key"},
		{usage.ByUser, "User tag"},
		{usage.ByWorkload, "Workload"},
		{usage.ByEndpoint, "Endpoint"},
	}
)

func has(options []exploreOption, value usage.Grouping) bool {
	return slices.ContainsFunc(options, func(o exploreOption) bool { return o.Value == value })
}

// options returns what usage can be grouped by. User tags are not counted by model.
func (e *exploration) options() []exploreOption {
	all := slices.Clone(groupOptions)
	if e.Account == allAccounts {
		all = append(all, exploreOption{usage.ByAccount, "Account"})
	}
	if e.Model != "" {
		all = slices.DeleteFunc(all, func(o exploreOption) bool { return o.Value == usage.ByUser })
	}
	return all
}

// exploration returns what the query selects: by default the last 30 days by day and model.
func (c *Console) exploration(r *request) (exploration, error) {
	s, err := c.scope(r)
	if err != nil {
		return exploration{}, err
	}
	e := exploration{
		Account: s.Account, Email: s.Email, own: s.own, Key: r.query("key"), Model: r.query("model"),
		Interval: usage.Grouping(r.query("interval")), By: usage.Grouping(r.query("by")), latencyOfDays: maxLatencyDays,
	}
	if e.Account == allAccounts {
		e.latencyOfDays = maxLatencyDaysAll
	}
	today := c.clock().UTC().Truncate(24 * time.Hour)
	e.From, e.To = parseDay(r.query("from"), today.AddDate(0, 0, -29)), parseDay(r.query("to"), today)
	if e.To.Before(e.From) {
		e.From, e.To = e.To, e.From
	}
	if e.To.After(today) {
		e.To = today
	}
	if e.From.After(e.To) {
		e.From = e.To
	}
	if e.days() > maxDaysByMonth {
		e.From = e.To.AddDate(0, 0, 1-maxDaysByMonth)
	}
	e.Interval = e.interval()
	if !has(e.options(), e.By) {
		e.By = usage.ByModel
	}
	return e, nil
}

func parseDay(text string, otherwise time.Time) time.Time {
	day, err := time.Parse(time.DateOnly, text)
	if err != nil || day.Year() < 2000 {
		return otherwise
	}
	return day
}

// days returns the length of the range.
func (e *exploration) days() int { return int(e.To.Sub(e.From)/(24*time.Hour)) + 1 }

// interval returns the chosen interval, or the shortest one that suits the range.
func (e *exploration) interval() usage.Grouping {
	chosen, days := e.Interval, e.days()
	if !has(intervalOptions, chosen) {
		chosen = usage.ByDay
		if days <= 2 {
			chosen = usage.ByHour
		}
	}
	byHour := maxDaysByHour
	if e.Account == allAccounts {
		byHour = maxDaysByHourAll
	}
	if chosen == usage.ByHour && days > byHour {
		chosen = usage.ByDay
	}
	if chosen == usage.ByDay && days > maxDaysByDay {
		chosen = usage.ByMonth
	}
	return chosen
}

// latency reports whether the percentiles of latencies are read. User tags have no histograms.
func (e *exploration) latency() bool { return e.By != usage.ByUser && e.days() <= e.latencyOfDays }

// LatencyDays returns the longest range, in days, whose latencies are shown.
func (e *exploration) LatencyDays() int { return e.latencyOfDays }

// filter returns the ledger's filter, of the range or of the one before it.
func (e *exploration) filter(reader string, before bool) usage.Filter {
	f := usage.Filter{
		Reader: reader, Since: e.From, Until: e.To.AddDate(0, 0, 1), Account: e.Account, Key: e.Key, Model: e.Model,
	}
	if e.Account == allAccounts {
		f.Account = ""
	}
	if before {
		f.Since, f.Until = e.From.AddDate(0, 0, -e.days()), e.From
	}
	return f
}

// over returns the grouping of the chart. User tags are not counted by interval, so their chart shows models.
func (e *exploration) over() usage.Grouping { return usage.Over(e.Interval, e.charted()) }

func (e *exploration) charted() usage.Grouping {
	if e.By == usage.ByUser {
		return usage.ByModel
	}
	return e.By
}

// query returns the selection as the query of a URL.
func (e *exploration) query() url.Values {
	q := url.Values{
		"from": {e.From.Format(time.DateOnly)}, "to": {e.To.Format(time.DateOnly)},
		"interval": {string(e.Interval)}, "by": {string(e.By)},
	}
	for name, value := range map[string]string{"key": e.Key, "model": e.Model} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if !e.own {
		q.Set("account", e.Account)
	}
	return q
}

// explorePage is the data of the page.
type explorePage struct {
	exploration
	Intervals, Groups []exploreOption
	Keys              []identity.Key
	Models            []*fleet.Model
	Accounts          []identity.Account // options for administrators
	Presets           []preset
	Chart             chart
	Head              string // of the first column
	ChartHead         string
	Rows              []exploreRow
	Rest              *exploreRow
	Total             exploreRow
	Refused           []usage.RefusalCount
	RefusedTotal      int64
	PreviousDays      string
	HasLatency        bool
}

// preset is a link to a common range.
type preset struct {
	Name, URL string
	Current   bool
}

// exploreRow is the usage of one group, beside that of the range before.
type exploreRow struct {
	share
	Errors   int64
	Latency  *usage.Latency
	Previous int64 // tokens
}

// Change says how the tokens differ from those of the range before.
func (r exploreRow) Change() string {
	switch {
	case r.Previous == 0 && r.Total() == 0:
		return "–"
	case r.Previous == 0:
		return "new"
	}
	return fmt.Sprintf("%+.0f\u202f%%", 100*float64(r.Total()-r.Previous)/float64(r.Previous))
}

// ErrorRate returns the requests that failed as a percentage of all.
func (r exploreRow) ErrorRate() float64 {
	if r.Requests == 0 {
		return 0
	}
	return 100 * float64(r.Errors) / float64(r.Requests)
}

// Percentiles returns p50, p95 and p99 of the time to the first token and of the whole time; a dash for each of those
// that no request has.
func (r exploreRow) Percentiles() []string {
	var all []string
	for _, h := range []*usage.Histogram{&r.Latency.FirstToken, &r.Latency.Total} {
		for _, p := range []float64{.5, .95, .99} {
			if h.Count() == 0 {
				all = append(all, "–")
				continue
			}
			all = append(all, formatLatency(h.Quantile(p)))
		}
	}
	return all
}

// Export returns the URL of a file with the groups, or with the intervals.
func (p *explorePage) Export(what, format string) string {
	q := p.query()
	q.Set("what", what)
	q.Set("format", format)
	return "/usage/explore/export?" + q.Encode()
}

func (c *Console) explore(r *request) error {
	e, err := c.exploration(r)
	if err != nil {
		return err
	}
	page := explorePage{
		exploration: e, Intervals: intervalOptions, Groups: e.options(), Models: c.fleet.Models(),
		Presets: e.presets(c.clock()), HasLatency: e.latency(),
	}
	names, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	if r.account.Admin {
		page.Accounts = names.accounts
	}
	account := e.Account
	if account == allAccounts {
		account = ""
	}
	if page.Keys, err = c.keyOptions(r.ctx(), account, e.Key); err != nil {
		return err
	}
	slices.SortFunc(page.Keys, func(a, b identity.Key) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	if err := c.readExploration(r, &page, names); err != nil {
		return err
	}
	return c.render(r, "explore", "Explore usage", &page)
}

// presets returns links to common ranges that end today.
func (e *exploration) presets(now time.Time) []preset {
	today := now.UTC().Truncate(24 * time.Hour)
	var all []preset
	for _, p := range []struct {
		name string
		from time.Time
	}{
		{"Today", today},
		{"7 days", today.AddDate(0, 0, -6)},
		{"30 days", today.AddDate(0, 0, -29)},
		{"This month", monthOf(now).begin},
		{"12 months", monthOf(now).begin.AddDate(0, -11, 0)},
	} {
		chosen := *e
		chosen.From, chosen.To, chosen.Interval = p.from, today, ""
		if p.name == "12 months" {
			chosen.Interval = usage.ByMonth
		}
		chosen.Interval = chosen.interval()
		all = append(all, preset{
			p.name, "/usage/explore?" + chosen.query().Encode(), p.from.Equal(e.From) && today.Equal(e.To),
		})
	}
	return all
}
