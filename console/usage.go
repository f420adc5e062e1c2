package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/console/history"
	"basegate/fleet"
	"basegate/identity"
)

type usagePage struct {
	selection
	Intervals, Groups []option
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
	Charts            *chartData // of latencies and errors; nil if the range is too long, or they cannot be read in time
	Outcomes          string     // of the requests that did not succeed; empty if there were none, and without the charts
	Forecasts         []string   // of the current month's tokens; none for other selections
}

type preset struct {
	Name, URL string
	Current   bool
}

// share is the usage of one model, key, account, workload or user tag.
type share struct {
	usage.Row
	Name, Note string
	URL        string // of its requests; may be empty
	Previous   int64  // tokens of the range before
}

// Change says how the tokens differ from those of the range before.
func (s share) Change() string {
	switch {
	case s.Previous == 0 && s.Tokens() == 0:
		return "–"
	case s.Previous == 0:
		return "new"
	}
	return fmt.Sprintf("%+.0f\u202f%%", 100*float64(s.Tokens()-s.Previous)/float64(s.Previous))
}

// ErrorRate returns the requests that failed as a percentage of all.
func (s share) ErrorRate() float64 {
	if s.Requests == 0 {
		return 0
	}
	return 100 * float64(s.Errors) / float64(s.Requests)
}

// CachedShare returns the cached part of the prompt tokens, or that no backend has reported it.
func (s share) CachedShare() string { return formatCached(s.CachedTokens, s.KnownTokens) }

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

// Export returns the URL of a file with the groups, the intervals or the requests.
func (p *usagePage) Export(what, format string) string {
	q := p.query()
	q.Set("what", what)
	q.Set("format", format)
	return "/usage/export?" + q.Encode()
}

func (c *Console) usage(r *request) error {
	s, err := c.selection(r)
	if err != nil {
		return err
	}
	page := usagePage{
		selection: s, Intervals: intervalOptions, Groups: s.options(), Models: c.Fleet.Models(),
		Presets: s.presets(c.clock()), HasLatency: s.latency(),
	}
	if page.Accounts, err = c.accountOptions(r); err != nil {
		return err
	}
	if page.Keys, err = c.keyOptions(r.ctx(), s.accountID(), s.Key); err != nil {
		return err
	}
	slices.SortFunc(page.Keys, func(a, b identity.Key) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	if err := c.readUsage(r, &page, c.names(r)); err != nil {
		return err
	}
	if now := c.clock(); s.From.Equal(monthOf(now)) && s.To.Equal(now.UTC().Truncate(24*time.Hour)) && s.Key == "" && s.Model == "" {
		page.Forecasts = forecasts(&page.Total, &s.caps, now)
	}
	return c.render(r, "usage", "Usage", &page)
}

// forecasts returns the forecast of all tokens, and those of prompts and completions if they have a budget.
func forecasts(t *share, caps *quota.Caps, now time.Time) (all []string) {
	of := map[quota.Meter]string{quota.Input: "Prompts: ", quota.Output: "Completions: "}
	for id, k := range quota.Table {
		if k.Window == quota.Month && (k.Meter == quota.Total || caps[id].Bounded()) {
			used := k.Meter.Of(quota.Tokens{Input: t.PromptTokens, Output: t.CompletionTokens})
			all = append(all, forecast(used, caps[id], of[k.Meter], now))
		}
	}
	return slices.DeleteFunc(all, func(text string) bool { return text == "" })
}

// forecast says how the month will end if usage continues at its average rate so far, and when it will reach the cap. It
// is empty on the first day of a month, and if nothing was used.
func forecast(used int64, limit quota.Cap, of string, now time.Time) string {
	begin := monthOf(now)
	elapsed, whole := now.Sub(begin), begin.AddDate(0, 1, 0).Sub(begin)
	if elapsed < 24*time.Hour || used == 0 {
		return ""
	}
	atEnd := int64(float64(used) * whole.Seconds() / elapsed.Seconds())
	text := of + fmt.Sprintf("At this rate, about %s by the end of the month", formatShort(atEnd))
	tokens, bounded := limit.Tokens()
	switch {
	case !bounded:
		return text + "."
	case used >= tokens:
		return of + "Budget used up."
	case atEnd > tokens:
		at := begin.Add(time.Duration(float64(elapsed) * float64(tokens) / float64(used)))
		return fmt.Sprintf("%s: the budget will be used up around %s.", text, at.Format("2 Jan"))
	}
	return fmt.Sprintf("%s, %.0f %% of the budget.", text, 100*float64(atEnd)/float64(tokens))
}

func (s *selection) presets(now time.Time) []preset {
	today, month := now.UTC().Truncate(24*time.Hour), monthOf(now)
	var all []preset
	for _, p := range []struct {
		name     string
		from, to time.Time
		interval usage.Grouping
	}{
		{"Today", today, today, ""},
		{"7 days", today.AddDate(0, 0, -6), today, ""},
		{"30 days", today.AddDate(0, 0, -29), today, ""},
		{"This month", month, today, ""},
		{"Last month", month.AddDate(0, -1, 0), month.AddDate(0, 0, -1), ""},
		{"12 months", month.AddDate(0, -11, 0), today, usage.ByMonth},
	} {
		chosen := *s
		chosen.From, chosen.To, chosen.Interval = p.from, p.to, p.interval
		chosen.Interval = chosen.interval()
		all = append(all, preset{p.name, "/usage?" + chosen.query().Encode(), p.from.Equal(s.From) && p.to.Equal(s.To)})
	}
	return all
}

// readUsage reads the figures of the page: of the range and of the one before it.
func (c *Console) readUsage(r *request, page *usagePage, n names) error {
	s := &page.selection
	filter := s.filter(r.account.ID, false)
	charted, err := c.Usage.Groups(r.ctx(), filter, s.over())
	if err != nil {
		return err
	}
	filter.Latency = s.latency()
	current, err := c.Usage.Groups(r.ctx(), filter, s.By)
	if err != nil {
		return err
	}
	previousRange := s.filter(r.account.ID, true)
	previous, err := c.Usage.Groups(r.ctx(), previousRange, s.By)
	if err != nil {
		return err
	}
	if page.Refused, err = c.Usage.Refusals(r.ctx(), filter); err != nil {
		return err
	}
	for _, refused := range page.Refused {
		page.RefusedTotal += refused.Requests
	}
	if s.days() <= s.LatencyDays() {
		if page.Charts, page.Outcomes, err = c.usageCharts(r.ctx(), s, filter); err != nil {
			return err
		}
	}
	page.PreviousDays = formatRange(previousRange.Since, previousRange.Until.AddDate(0, 0, -1))
	page.Chart = newUsageChart(s, charted[0], n)
	page.Head, page.ChartHead = nameOf(page.Groups, s.By), nameOf(intervalOptions, s.Interval)
	page.fill(current[0], previous[0], n)
	return nil
}

// usageCharts returns the charts of latencies and errors, by hour or day, and the outcomes of the requests that did not succeed.
func (c *Console) usageCharts(ctx context.Context, s *selection, filter usage.Filter) (*chartData, string, error) {
	interval := 24 * time.Hour
	if s.Interval == usage.ByHour && !s.All() { // which reads each request
		interval = time.Hour
	}
	of, err := c.History.OfLedger(ctx, filter, interval)
	if err != nil {
		return nil, "", unlessBusy(err)
	}
	data := newChartData(of, findSeries(of.Series, s.Model))
	data.UTC = true
	data.Charts = slices.DeleteFunc(data.Charts, func(one lineChart) bool {
		return one.ID != "errors" && one.ID != "refusals" && one.ID != "first-token"
	})
	return &data, outcomesText(of.Codes), nil
}

// outcomesText says how many of the requests on the ledger had which outcome. Those that were refused at once have no model.
func outcomesText(codes []history.CodeSeries) string {
	of := map[history.Outcome]int64{}
	for _, s := range codes {
		if s.Model != "" {
			of[s.Outcome] += s.Total
		}
	}
	var all []string
	for _, one := range []struct {
		outcome history.Outcome
		text    string
	}{{history.Failed, "failed"}, {history.Refused, "refused"}, {history.Left, "left by the client"}} {
		if n := of[one.outcome]; n > 0 {
			all = append(all, formatNumber(n)+" "+one.text)
		}
	}
	return strings.Join(all, ", ")
}

func formatRange(from, to time.Time) string {
	if from.Equal(to) {
		return from.Format("2 Jan 2006")
	}
	return from.Format("2 Jan") + " – " + to.Format("2 Jan 2006")
}

// fill adds the rows of the table: the largest groups, the sum of the others, and the total.
func (p *usagePage) fill(current, previous []usage.Row, n names) {
	type group struct{ name, note string }
	groupOf := func(r *usage.Row) (g group) {
		g.name, g.note = n.group(r, p.By)
		return g
	}
	before := map[group]int64{}
	for i := range previous {
		before[groupOf(&previous[i])] += previous[i].Tokens()
		p.Total.Previous += previous[i].Tokens()
	}
	rest := share{Name: "All others"}
	for i := range current {
		g := groupOf(&current[i])
		row := share{Row: current[i], Name: g.name, Note: g.note, Previous: before[g]}
		row.URL = p.requests(&row.Row, p.By, p.From.Format(time.DateOnly), p.To.Format(time.DateOnly))
		p.Total.Add(&row.Row)
		if i < maxUsageRows {
			p.Rows = append(p.Rows, row)
			continue
		}
		rest.Add(&row.Row)
		rest.Previous += row.Previous
		p.Rest = &rest
	}
}

// maxUsageRows limits the rows of the table. The files have all.
const maxUsageRows = 50

func newUsageChart(s *selection, rows []usage.Row, n names) chart {
	of := make([]chartRow, len(rows))
	groups := map[string]*usage.Row{} // by the name of the series
	for i := range rows {
		name, note := n.group(&rows[i], s.charted())
		if note != "" {
			name += " (" + note + "…)"
		}
		of[i] = chartRow{rows[i].Time, name, rows[i].Tokens()}
		groups[name] = &rows[i]
	}
	layout, axis := time.DateOnly, "2 Jan"
	first, next := s.From, func(at time.Time) time.Time { return at.AddDate(0, 0, 1) }
	switch s.Interval {
	case usage.ByMonth:
		layout, axis = "2006-01", "Jan 06"
		first, next = monthOf(s.From), func(at time.Time) time.Time { return at.AddDate(0, 1, 0) }
	case usage.ByHour:
		layout, next = "2006-01-02 15:04", func(at time.Time) time.Time { return at.Add(time.Hour) }
		if s.days() <= 2 {
			axis = "15:04"
		}
	default: // days
	}
	var starts []time.Time
	for at := first; at.Before(s.To.AddDate(0, 0, 1)); at = next(at) {
		starts = append(starts, at)
	}
	return newChart(of, starts, layout, axis, func(series string, start time.Time) string {
		if groups[series] == nil { // the sum of others
			return ""
		}
		layout, last := time.DateOnly, next(start).AddDate(0, 0, -1)
		if s.Interval == usage.ByHour {
			layout, last = formTime, start.Add(59*time.Minute)
		}
		return s.requests(groups[series], s.charted(), start.Format(layout), last.Format(layout))
	})
}

// exportUsage sends the groups, the intervals or the requests of what the page shows as a CSV or JSON file.
func (c *Console) exportUsage(r *request) error {
	s, err := c.selection(r)
	if err != nil {
		return err
	}
	format := cmp.Or(r.query("format"), "csv")
	if format != "csv" && format != "json" {
		return errNotFound
	}
	filter := s.filter(r.account.ID, false)
	by, columns := s.By, report.GroupColumns("", s.By, s.latency())
	switch r.query("what") {
	case "requests":
		by, columns = usage.ByRequest, report.RequestColumns
	case "intervals":
		by, columns = s.over(), report.GroupColumns(s.Interval, s.charted(), false)
	case "", "groups":
		filter.Latency = s.latency()
	default:
		return errNotFound
	}
	const day = "20060102"
	name := fmt.Sprintf("basegate-usage-%s-%s-by-%s.%s", s.From.Format(day), s.To.Format(day), by, format)
	u := report.Usage{Columns: columns, Names: c.names(r).Names, Rows: c.Usage.Rows(r.ctx(), filter, by)}
	if format == "csv" {
		return c.sendFile(r, name, mediaCSV, func(w http.ResponseWriter) error { return u.WriteCSV(w) })
	}
	return c.sendFile(r, name, "application/json", func(w http.ResponseWriter) error { return u.WriteJSON(w) })
}
