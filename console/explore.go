package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/fleet"
	"basegate/identity"
)

// exploration selects usage: a range of days, UTC, in intervals, by something that requests have in common.
type exploration struct {
	scope
	From, To   time.Time      // the first and the last day
	Interval   usage.Grouping // ByHour, ByDay or ByMonth
	By         usage.Grouping
	Key, Model string // ids; empty: all
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

// nameOf returns the name of an option; empty if there is none with this value.
func nameOf(options []exploreOption, value usage.Grouping) string {
	for _, o := range options {
		if o.Value == value {
			return o.Name
		}
	}
	return ""
}

// options returns what usage can be grouped by. User tags are not counted by model.
func (e *exploration) options() []exploreOption {
	all := slices.Clone(groupOptions)
	if e.All() {
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
		scope: s, Key: r.query("key"), Model: r.query("model"),
		Interval: usage.Grouping(r.query("interval")), By: usage.Grouping(r.query("by")),
	}
	today := c.clock().UTC().Truncate(24 * time.Hour)
	e.From, e.To = parseDay(r.query("from"), today.AddDate(0, 0, -29)), parseDay(r.query("to"), today)
	if e.To.Before(e.From) {
		e.From, e.To = e.To, e.From
	}
	e.To = earlier(e.To, today)
	e.From = earlier(e.From, e.To)
	if e.days() > maxDaysByMonth {
		e.From = e.To.AddDate(0, 0, 1-maxDaysByMonth)
	}
	e.Interval = e.interval()
	if nameOf(e.options(), e.By) == "" {
		e.By = usage.ByModel
	}
	return e, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
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
	if nameOf(intervalOptions, chosen) == "" {
		chosen = usage.ByDay
		if days <= 2 {
			chosen = usage.ByHour
		}
	}
	byHour := maxDaysByHour
	if e.All() {
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
func (e *exploration) latency() bool { return e.By != usage.ByUser && e.days() <= e.LatencyDays() }

// LatencyDays returns the longest range, in days, whose latencies are shown.
func (e *exploration) LatencyDays() int {
	if e.All() {
		return maxLatencyDaysAll
	}
	return maxLatencyDays
}

// filter returns the ledger's filter, of the range or of the one before it.
func (e *exploration) filter(reader string, before bool) usage.Filter {
	f := usage.Filter{
		Reader: reader, Since: e.From, Until: e.To.AddDate(0, 0, 1), Account: e.accountID(), Key: e.Key, Model: e.Model,
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
	q := queryOf(map[string]string{
		"from": e.From.Format(time.DateOnly), "to": e.To.Format(time.DateOnly),
		"interval": string(e.Interval), "by": string(e.By), "key": e.Key, "model": e.Model,
	})
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
	Rows              []share
	Rest              *share
	Total             share
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

// Change says how the tokens differ from those of the range before.
func (s share) Change() string {
	switch {
	case s.Previous == 0 && s.Total() == 0:
		return "–"
	case s.Previous == 0:
		return "new"
	}
	return fmt.Sprintf("%+.0f\u202f%%", 100*float64(s.Total()-s.Previous)/float64(s.Previous))
}

// ErrorRate returns the requests that failed as a percentage of all.
func (s share) ErrorRate() float64 {
	if s.Requests == 0 {
		return 0
	}
	return 100 * float64(s.Errors) / float64(s.Requests)
}

// Percentiles returns p50, p95 and p99 of the time to the first token and of the whole time; a dash for each of those
// that no request has.
func (s share) Percentiles() []string {
	var all []string
	for _, h := range []*usage.Histogram{&s.Latency.FirstToken, &s.Latency.Total} {
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
		exploration: e, Intervals: intervalOptions, Groups: e.options(), Models: c.Fleet.Models(),
		Presets: e.presets(c.clock()), HasLatency: e.latency(),
	}
	names, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	if r.account.Admin {
		page.Accounts = names.accounts
	}
	if page.Keys, err = c.keyOptions(r.ctx(), e.accountID(), e.Key); err != nil {
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

// readExploration reads the figures of the page: of the range and of the one before it.
func (c *Console) readExploration(r *request, page *explorePage, n names) error {
	e := &page.exploration
	filter := e.filter(r.account.ID, false)
	charted, current, err := c.readRange(r, e)
	if err != nil {
		return err
	}
	previousRange := e.filter(r.account.ID, true)
	previous, err := c.Usage.Groups(r.ctx(), previousRange, e.By)
	if err != nil {
		return err
	}
	if page.Refused, err = c.Usage.Refusals(r.ctx(), filter); err != nil {
		return err
	}
	for _, refused := range page.Refused {
		page.RefusedTotal += refused.Requests
	}
	page.PreviousDays = formatRange(previousRange.Since, previousRange.Until.AddDate(0, 0, -1))
	page.Chart = newRangeChart(e, charted, n)
	page.Head, page.ChartHead = nameOf(page.Groups, e.By), nameOf(intervalOptions, e.Interval)
	page.fill(current, previous[0], n)
	return nil
}

// readRange reads the usage of the range by interval and group, for the chart, and by group. Both come from one read, unless
// user tags or the latencies of many hours would make that expensive.
func (c *Console) readRange(r *request, e *exploration) (charted, groups []usage.Row, err error) {
	inOne := e.By != usage.ByUser && (!e.latency() || e.Interval != usage.ByHour)
	filter := e.filter(r.account.ID, false)
	filter.Latency = inOne && e.latency()
	over, err := c.Usage.Groups(r.ctx(), filter, e.over())
	if err != nil {
		return nil, nil, err
	}
	if inOne {
		return over[0], fold(over[0]), nil
	}
	filter.Latency = e.latency()
	by, err := c.Usage.Groups(r.ctx(), filter, e.By)
	if err != nil {
		return nil, nil, err
	}
	return over[0], by[0], nil
}

// fold adds up the intervals of each group. The group with the most tokens comes first.
func fold(rows []usage.Row) []usage.Row {
	sums := map[usage.Row]*usage.Row{}
	for i := range rows {
		r := &rows[i]
		group := usage.Row{KeyID: r.KeyID, AccountID: r.AccountID, Model: r.Model, Workload: r.Workload, Endpoint: r.Endpoint}
		if sums[group] == nil {
			sums[group] = new(group)
		}
		add(sums[group], r)
	}
	all := make([]usage.Row, 0, len(sums))
	for _, sum := range sums {
		all = append(all, *sum)
	}
	slices.SortFunc(all, func(a, b usage.Row) int {
		return cmp.Or(
			cmp.Compare(tokensOf(&b), tokensOf(&a)),
			cmp.Compare(a.KeyID, b.KeyID), cmp.Compare(a.AccountID, b.AccountID), cmp.Compare(a.Model, b.Model),
			cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Endpoint, b.Endpoint),
		)
	})
	return all
}

// formatRange formats a range of days.
func formatRange(from, to time.Time) string {
	if from.Equal(to) {
		return from.Format("2 Jan 2006")
	}
	return from.Format("2 Jan") + " – " + to.Format("2 Jan 2006")
}

// fill adds the rows of the table: the largest groups, the sum of the others, and the total.
func (p *explorePage) fill(current, previous []usage.Row, n names) {
	type group struct{ name, note string }
	groupOf := func(r *usage.Row) (g group) {
		g.name, g.note = n.group(r, p.By)
		return g
	}
	before := map[group]int64{}
	for i := range previous {
		before[groupOf(&previous[i])] += tokensOf(&previous[i])
		p.Total.Previous += tokensOf(&previous[i])
	}
	rest := share{Name: "All others"}
	for i := range current {
		g := groupOf(&current[i])
		row := share{Row: current[i], Name: g.name, Note: g.note, Previous: before[g]}
		add(&p.Total.Row, &row.Row)
		if i < maxExploreRows {
			p.Rows = append(p.Rows, row)
			continue
		}
		add(&rest.Row, &row.Row)
		rest.Previous += row.Previous
		p.Rest = &rest
	}
}

// maxExploreRows limits the rows of the table. The files have all.
const maxExploreRows = 50

// newRangeChart draws tokens by interval, stacked by group.
func newRangeChart(e *exploration, rows []usage.Row, n names) chart {
	of := make([]chartRow, len(rows))
	for i := range rows {
		name, note := n.group(&rows[i], e.charted())
		if note != "" {
			name += " (" + note + "…)"
		}
		of[i] = chartRow{rows[i].Time, name, tokensOf(&rows[i])}
	}
	layout, axis := time.DateOnly, "2 Jan"
	first, next := e.From, func(at time.Time) time.Time { return at.AddDate(0, 0, 1) }
	switch e.Interval {
	case usage.ByMonth:
		layout, axis = "2006-01", "Jan 06"
		first, next = monthOf(e.From).begin, func(at time.Time) time.Time { return at.AddDate(0, 1, 0) }
	case usage.ByHour:
		layout, next = "2006-01-02 15:04", func(at time.Time) time.Time { return at.Add(time.Hour) }
		if e.days() <= 2 {
			axis = "15:04"
		}
	default: // days
	}
	var starts []time.Time
	for at := first; at.Before(e.To.AddDate(0, 0, 1)); at = next(at) {
		starts = append(starts, at)
	}
	const maxLabels = 7
	step := max(1, (len(starts)+maxLabels-1)/maxLabels)
	return newChart(of, starts, layout, "others", func(i int) string {
		if i%step != 0 {
			return ""
		}
		return starts[i].Format(axis)
	})
}

// exportUsage sends what the page shows as a CSV or JSON file: the groups, or the intervals.
func (c *Console) exportUsage(r *request) error {
	e, err := c.exploration(r)
	if err != nil {
		return err
	}
	format := cmp.Or(r.query("format"), "csv")
	if format != "csv" && format != "json" {
		return errNotFound
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	filter := e.filter(r.account.ID, false)
	by, columns, what := e.By, report.ExploreColumns("", e.By, e.latency()), "by-"+string(e.By)
	if r.query("what") == "intervals" {
		by, columns, what = e.over(), report.ExploreColumns(e.Interval, e.charted(), false), "by-"+string(e.over())
	} else {
		filter.Latency = e.latency()
	}
	name := fmt.Sprintf("basegate-usage-%s-%s-%s.%s", e.From.Format("20060102"), e.To.Format("20060102"), what, format)
	u := report.Usage{Columns: columns, Names: known.ofReport(), Rows: c.Usage.Rows(r.ctx(), filter, by)}
	if format == "csv" {
		return c.sendFile(r, name, mediaCSV, func(w http.ResponseWriter) error { return u.WriteCSV(w) })
	}
	return c.sendFile(r, name, "application/json", func(w http.ResponseWriter) error { return u.WriteJSON(w) })
}
