package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"basegate/budget/usage"
	"basegate/budget/usage/report"
)

// readExploration reads the figures of the page: of the range and of the one before it.
func (c *Console) readExploration(r *request, page *explorePage, n names) error {
	e := &page.exploration
	filter := e.filter(r.account.ID, false)
	charted, current, err := c.readRange(r, e)
	if err != nil {
		return err
	}
	previousRange := e.filter(r.account.ID, true)
	previous, err := c.usages.Groups(r.ctx(), previousRange, e.By)
	if err != nil {
		return err
	}
	if page.Refused, err = c.usages.Refusals(r.ctx(), filter); err != nil {
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
	filter := e.filter(r.account.ID, false)
	if e.By != usage.ByUser && (!e.latency() || e.Interval != usage.ByHour) {
		filter.Latency = e.latency()
		read, err := c.usages.Groups(r.ctx(), filter, e.over())
		if err != nil {
			return nil, nil, err
		}
		return read[0], fold(read[0]), nil
	}
	over, err := c.usages.Groups(r.ctx(), filter, e.over())
	if err != nil {
		return nil, nil, err
	}
	filter.Latency = e.latency()
	read, err := c.usages.Groups(r.ctx(), filter, e.By)
	if err != nil {
		return nil, nil, err
	}
	return over[0], read[0], nil
}

// fold adds up the intervals of each group. The group with the most tokens comes first.
func fold(rows []usage.Row) []usage.Row {
	type group struct{ key, account, model, workload, endpoint string }
	sums := map[group]*usage.Row{}
	for i := range rows {
		r := rows[i]
		id := group{r.KeyID, r.AccountID, r.Model, r.Workload, r.Endpoint}
		sum := sums[id]
		if sum == nil {
			r.Time = time.Time{}
			sums[id] = &r
			continue
		}
		sum.Requests += r.Requests
		sum.Errors += r.Errors
		sum.Streams += r.Streams
		sum.PromptTokens += r.PromptTokens
		sum.CompletionTokens += r.CompletionTokens
		if sum.Latency != nil {
			sum.Latency.Merge(r.Latency)
		}
	}
	all := make([]usage.Row, 0, len(sums))
	for _, sum := range sums {
		all = append(all, *sum)
	}
	slices.SortFunc(all, func(a, b usage.Row) int {
		return cmp.Or(
			cmp.Compare(b.PromptTokens+b.CompletionTokens, a.PromptTokens+a.CompletionTokens),
			cmp.Compare(a.KeyID, b.KeyID), cmp.Compare(a.AccountID, b.AccountID), cmp.Compare(a.Model, b.Model),
			cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Endpoint, b.Endpoint),
		)
	})
	return all
}

func nameOf(options []exploreOption, value usage.Grouping) string {
	for _, o := range options {
		if o.Value == value {
			return o.Name
		}
	}
	return ""
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
	before := map[string]int64{}
	for i := range previous {
		name, note := n.group(&previous[i], p.By)
		before[name+"\x00"+note] += previous[i].PromptTokens + previous[i].CompletionTokens
		p.Total.Previous += previous[i].PromptTokens + previous[i].CompletionTokens
	}
	if p.HasLatency {
		p.Total.Latency = new(usage.Latency)
	}
	p.Total.Name = "All"
	for i := range current {
		row := newExploreRow(&current[i])
		row.Name, row.Note = n.group(&current[i], p.By)
		row.Previous = before[row.Name+"\x00"+row.Note]
		p.Total.merge(&row)
		if i < maxExploreRows {
			p.Rows = append(p.Rows, row)
			continue
		}
		if p.Rest == nil {
			p.Rest = &exploreRow{share: share{Name: "All others"}}
			if p.HasLatency {
				p.Rest.Latency = new(usage.Latency)
			}
		}
		p.Rest.merge(&row)
		p.Rest.Previous += row.Previous
	}
	for i := range p.Rows {
		p.Rows[i].Percent = percent(p.Rows[i].share, p.Total.Total())
	}
}

// maxExploreRows limits the rows of the table. The files have all.
const maxExploreRows = 50

func newExploreRow(r *usage.Row) exploreRow {
	return exploreRow{
		share:  share{Requests: r.Requests, Prompt: r.PromptTokens, Completion: r.CompletionTokens},
		Errors: r.Errors, Latency: r.Latency,
	}
}

// merge adds a row, but for the range before.
func (r *exploreRow) merge(other *exploreRow) {
	r.Requests += other.Requests
	r.Prompt += other.Prompt
	r.Completion += other.Completion
	r.Errors += other.Errors
	if r.Latency != nil && other.Latency != nil {
		r.Latency.Merge(other.Latency)
	}
}

// group returns the name of a group, and the prefix of its key if it is one.
func (n names) group(r *usage.Row, by usage.Grouping) (name, note string) {
	if by == usage.ByEndpoint {
		return r.Endpoint, ""
	}
	s := n.shares([]usage.Row{*r}, by, 0)[0]
	return s.Name, s.Note
}

// newRangeChart draws tokens by interval, stacked by group.
func newRangeChart(e *exploration, rows []usage.Row, n names) chart {
	for i := range rows { // series are told apart by their model, see rank
		name, note := n.group(&rows[i], e.charted())
		if note != "" {
			name += " (" + note + "…)"
		}
		rows[i].Model = name
	}
	c := chart{Series: rank(rows)}
	index := map[string]int{}
	for i, s := range c.Series {
		index[s.Name] = i
	}
	slots := map[int64]int{}
	for at := e.first(); !at.After(e.To.AddDate(0, 0, 1).Add(-time.Second)); at = e.next(at) {
		slots[at.Unix()] = len(c.Days)
		c.Days = append(c.Days, dayRow{Day: e.label(at), Tokens: make([]int64, len(c.Series))})
	}
	for i := range rows {
		r := &rows[i]
		at, ok := index[r.Model]
		if !ok {
			at = len(c.Series) - 1
		}
		slot, ok := slots[r.Time.Unix()]
		if !ok {
			continue
		}
		c.Days[slot].Tokens[at] += r.PromptTokens + r.CompletionTokens
		c.Days[slot].Total += r.PromptTokens + r.CompletionTokens
	}
	if len(rows) == 0 {
		return chart{}
	}
	if last := len(c.Series) - 1; last == maxSeries-1 && c.Series[last].Name == "other models" {
		c.Series[last].Name = "others"
	}
	c.draw()
	c.Labels = e.axis(len(c.Days))
	return c
}

// first returns the start of the first interval.
func (e *exploration) first() time.Time {
	if e.Interval == usage.ByMonth {
		return monthOf(e.From).begin
	}
	return e.From
}

// next returns the start of the interval after the one that starts at a time.
func (e *exploration) next(at time.Time) time.Time {
	switch e.Interval {
	case usage.ByHour:
		return at.Add(time.Hour)
	case usage.ByMonth:
		return at.AddDate(0, 1, 0)
	default:
		return at.AddDate(0, 0, 1)
	}
}

func (e *exploration) label(at time.Time) string {
	switch e.Interval {
	case usage.ByHour:
		return at.Format("2006-01-02 15:04")
	case usage.ByMonth:
		return at.Format("2006-01")
	default:
		return at.Format(time.DateOnly)
	}
}

// axis returns at most seven labels below the chart.
func (e *exploration) axis(intervals int) []label {
	const most = 7
	step := max(1, (intervals+most-1)/most)
	format := "2 Jan"
	switch {
	case e.Interval == usage.ByMonth:
		format = "Jan 06"
	case e.Interval == usage.ByHour && e.days() <= 2:
		format = "15:04"
	}
	var all []label
	at := e.first()
	for i := range intervals {
		if i%step == 0 {
			all = append(all, label{X: 100 * (float64(i) + .5) / float64(intervals), Text: at.Format(format)})
		}
		at = e.next(at)
	}
	return all
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
	finish, ok := c.downloads.start(r.account.ID)
	if !ok {
		return errBusy
	}
	defer finish()
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
	u := report.Usage{
		Columns: columns, Names: report.Names{Keys: known.lookUp, Emails: known.emails}, Rows: c.usages.Rows(r.ctx(), filter, by),
	}
	if format == "csv" {
		return c.download(r, name, u)
	}
	rows, err := collect(u.Rows)
	if err != nil {
		return err
	}
	u.Rows = withoutErrors(rows)
	header := r.Response().Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Disposition", "attachment; filename="+strconv.Quote(name))
	r.Response().WriteHeader(http.StatusOK)
	_ = u.WriteJSON(r.Response()) // fails only if the client has disconnected
	return nil
}
