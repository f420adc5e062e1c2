package console

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"
	"time"

	"basegate/budget/admission"
	"basegate/budget/cluster"
	"basegate/budget/usage"
	"basegate/console/history"
)

type overviewPage struct {
	Period   overviewPeriod
	Periods  []overviewPeriod
	Selected string // name of the series of the charts; empty: all requests
	Names    []string
	Now      time.Time
	Latest   latestFigures
	Charts   chartData
	Rows     []overviewRow // by model and backend
	Errors   []history.CodeSeries
	Refusals []history.CodeSeries // clients that left included
	Times    []overviewTime       // the charts as a table, the newest first
	Events   []timelineEvent
	Interval string   // of a point
	Accounts []topRow // that have used the most tokens of late
	Keys     []topRow
	Gateways []gatewayRow // none if there is only one
	Turns    []turnsRow   // accounts that hold places or wait for one
}

// turnsRow is an account that holds places of some work, or waits for one.
type turnsRow struct {
	admission.AccountTurns
	Work   string
	Places int    // of all accounts
	Email  string // empty: the gateway's own work
	Wait   string // the longest; empty if none waits
}

// workNames are the names of the work for which accounts wait.
var workNames = map[string]string{
	"uploads": "Uploads of files", "validations": "Checks of batches", "large_validations": "Checks of large batches",
	"reports": "Reports and searches", "prompt_saves": "Saves of prompts", "large_bodies": "Parsing of large bodies",
}

// maxTurnsShown limits the accounts of one work on the page: those that have waited longest.
const maxTurnsShown = 20

// turnsRows returns who waits for what.
func (c *Console) turnsRows(known names) (rows []turnsRow) {
	for _, work := range slices.Sorted(maps.Keys(c.Turns)) {
		accounts := c.Turns[work].Accounts()
		slices.SortStableFunc(accounts, func(a, b admission.AccountTurns) int { return cmp.Compare(b.Longest, a.Longest) })
		for _, a := range accounts[:min(len(accounts), maxTurnsShown)] {
			row := turnsRow{AccountTurns: a, Work: cmp.Or(workNames[work], work), Places: c.Turns[work].Stats().Places, Email: known.Email(a.Account)}
			if a.Waiting > 0 {
				row.Wait = formatSeconds(a.Longest.Seconds())
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// topRow is an account, or a key of one, with its use in the last 60 minutes.
type topRow struct {
	usage.Row
	Account, Key string // names
}

// maxTopShown limits the accounts and the keys on the page.
const maxTopShown = 8

// topRows returns the accounts and the keys that have used the most tokens; none if they cannot be read in time.
func (c *Console) topRows(r *request, known names) (accounts, keys []topRow, err error) {
	byAccount, byKey, err := c.History.Top(r.ctx(), r.account.ID)
	if err != nil {
		return nil, nil, unlessBusy(err)
	}
	named := func(rows []usage.Row) (all []topRow) {
		for _, row := range rows[:min(len(rows), maxTopShown)] {
			all = append(all, topRow{row, known.Account(row.AccountID), known.key(row.KeyID)})
		}
		return all
	}
	return named(byAccount), named(byKey), nil
}

type gatewayRow struct {
	cluster.Gateway
	Level string // CSS class of the state
	Lag   string // age of the last heartbeat
}

type overviewPeriod struct{ ID, Name string } // ID: in the query

var overviewPeriods = []overviewPeriod{{"hour", "Last hour"}, {lastQuarter, "Last 15 minutes"}, {lastDay, "Last day"}}

// lastDay is the period of the ledger's sums. The other ones are those of this gateway.
const (
	lastDay     = "day"
	lastQuarter = "quarter"
)

const (
	maxEventsShown = 100 // in the timeline
	maxCodesShown  = 15
)

// latestFigures are those of the last whole minute.
type latestFigures struct {
	Requests, Tokens, P50, P95 string
	Failed, Refused            string // shares of the requests; empty if there were none
	Waiting, Running           string
}

type overviewRow struct {
	Name             string
	Backend          bool // it is a backend of the model above
	Requests, Tokens int64
	Failed, Refused  string // shares of the requests
	Cached, P50, P95 string
}

type overviewTime struct {
	Time                                               time.Time
	Requests, Tokens, Errors, Refused, Queue, P50, P95 string
}

// timelineEvent is an event with the names of what it is about.
type timelineEvent struct {
	history.Event
	Text    string
	Level   string // CSS class: good, warn, bad or empty
	Subject string
	Link    string // to the page of the subject; may be empty
}

type chartData struct {
	Begin    int64       `json:"begin"`    // Unix time of the first point
	Interval int64       `json:"interval"` // seconds
	Points   int         `json:"points"`
	UTC      bool        `json:"utc"` // its times are days or hours of UTC, not of the browser's zone
	Charts   []lineChart `json:"charts"`
	Marks    []chartMark `json:"marks"`
}

// chartMark is the start or the end of a backend, drawn in all charts.
type chartMark struct {
	Time  int64  `json:"time"` // Unix time
	Text  string `json:"text"`
	Level string `json:"level"` // good or bad
}

// lineChart is one chart. A value of null is unknown.
type lineChart struct {
	ID     string      `json:"id"`
	Unit   string      `json:"unit"` // after a value; may be empty
	Series []chartLine `json:"series"`
}

type chartLine struct {
	Name   string     `json:"name"`
	Values []*float64 `json:"values"`
}

func (c *Console) overviewPage(r *request) (err error) {
	page := overviewPage{Period: overviewPeriods[0], Periods: overviewPeriods, Now: c.clock(), Selected: r.query("series")}
	for _, p := range overviewPeriods {
		if p.ID == r.query("period") {
			page.Period = p
		}
	}
	var report, rows history.Report // of the charts, and of the table
	switch page.Period.ID {
	case lastDay:
		if report, err = c.History.Day(r.ctx(), r.account.ID); err != nil {
			return err
		}
		rows = report
	case lastQuarter:
		report, rows = c.History.Read(15*time.Minute, history.Step), c.History.Read(15*time.Minute, time.Minute)
	default:
		report, rows = c.History.Read(time.Hour, history.Step), c.History.Read(time.Hour, 5*time.Minute)
	}
	selected := page.selectSeries(report)
	page.Latest = newLatestFigures(c.History.Read(2*time.Minute, time.Minute), c.History.Totals(2*time.Minute), page.Selected)
	page.Charts = newChartData(report, selected)
	page.Rows = overviewRows(report)
	errors, refusals := codesOf(report, true), codesOf(report, false)
	page.Errors, page.Refusals = errors[:min(len(errors), maxCodesShown)], refusals[:min(len(refusals), maxCodesShown)]
	page.Interval = formatDuration(report.Interval)
	page.Times = overviewTimes(rows, page.Selected)
	known := c.names(r)
	if page.Events, err = c.timeline(r.ctx(), known, report.Begin); err != nil {
		return err
	}
	page.Charts.Marks = chartMarks(page.Events, selected.Model)
	page.Charts.trim()
	if page.Gateways, err = c.gatewayRows(r.ctx()); err != nil {
		return err
	}
	if page.Accounts, page.Keys, err = c.topRows(r, known); err != nil {
		return err
	}
	page.Turns = c.turnsRows(known)
	return c.render(r, "admin-overview", "Overview", page)
}

// gatewayRows returns the gateways on the database; none if there is only this one.
func (c *Console) gatewayRows(ctx context.Context) (rows []gatewayRow, err error) {
	if c.Gateways == nil {
		return nil, nil
	}
	all, err := c.Gateways(ctx)
	if err != nil {
		return nil, err
	}
	levels := map[cluster.GatewayState]string{cluster.GatewayAlive: "good", cluster.GatewaySilent: "bad", cluster.GatewayEnded: "warn"}
	for _, g := range all {
		rows = append(rows, gatewayRow{g, levels[g.State], formatSeconds(g.HeartbeatLag)})
	}
	return rows, nil
}

// seriesName returns the name of a series in the query and for the user; empty for all requests.
func seriesName(k history.Key) string {
	if k.Backend == "" {
		return k.Model
	}
	return k.Model + " / " + k.Backend
}

// selectSeries lists the names of all series, and returns the one that is selected: all requests if none is.
func (p *overviewPage) selectSeries(report history.Report) history.Series {
	selected := findSeries(report.Series, p.Selected)
	for _, s := range report.Series {
		if name := seriesName(s.Key); name != "" {
			p.Names = append(p.Names, name)
		}
	}
	p.Selected = seriesName(selected.Key)
	return selected
}

// findSeries returns the series of this name, or that of all requests.
func findSeries(series []history.Series, name string) history.Series {
	for _, s := range series {
		if seriesName(s.Key) == name {
			return s
		}
	}
	return series[0]
}

// newChartData returns the charts of a series. Those of all requests have a line for each model.
func newChartData(report history.Report, selected history.Series) chartData {
	data := chartData{
		Begin: report.Begin.Unix(), Interval: int64(report.Interval / time.Second), Points: report.Points, Marks: []chartMark{},
	}
	requests := []chartLine{{"all", selected.Requests}}
	tokens := []chartLine{{"all", selected.Tokens}}
	queue := []chartLine{{"waiting", report.Waiting}, {"running", report.Running}}
	switch selected.Model {
	case "":
		for _, s := range report.Series {
			if s.Model != "" && s.Backend == "" && len(requests) < maxSeries {
				requests = append(requests, chartLine{s.Model, s.Requests})
				tokens = append(tokens, chartLine{s.Model, s.Tokens})
			}
		}
	default:
		requests[0].Name, tokens[0].Name = seriesName(selected.Key), seriesName(selected.Key)
		if selected.InFlight != nil {
			queue = []chartLine{{"attempts in flight", selected.InFlight}}
		}
	}
	data.Charts = []lineChart{
		{"requests", "/s", requests},
		{"tokens", "/s", tokens},
		{"errors", "", codeLines(report, codesOf(report, true), selected.Model)},
		{"refusals", "", codeLines(report, codesOf(report, false), selected.Model)},
		{"queue", "", queue},
		{"first-token", " s", []chartLine{{"median", selected.FirstToken}, {"95th percentile", selected.FirstToken5}}},
	}
	return data
}

// trim drops the points before the first known value and the first mark, such as those before the gateway's start, but keeps a twelfth
// of the period.
func (d *chartData) trim() {
	first := d.Points - d.Points/12
	for _, m := range d.Marks {
		first = max(0, min(first, int((m.Time-d.Begin)/d.Interval)))
	}
	for _, c := range d.Charts {
		for _, line := range c.Series {
			if known := slices.IndexFunc(line.Values, func(v *float64) bool { return v != nil }); known >= 0 {
				first = min(first, known)
			}
		}
	}
	d.Begin += int64(first) * d.Interval
	d.Points -= first
	for _, c := range d.Charts {
		for i := range c.Series {
			c.Series[i].Values = c.Series[i].Values[first:]
		}
	}
}

// codesOf returns the errors of the service, or the other codes: refusals, and clients that left.
func codesOf(report history.Report, failed bool) (codes []history.CodeSeries) {
	for _, s := range report.Codes {
		if failed == (s.Outcome == history.Failed) {
			codes = append(codes, s)
		}
	}
	return codes
}

// markedEvents are the starts and the ends of backends.
var markedEvents = []history.EventKind{history.BootEnded, history.BootFailed, history.BackendDied}

// chartMarks returns the starts and the ends of the backends of a model, or of all.
func chartMarks(events []timelineEvent, model string) []chartMark {
	marks := []chartMark{}
	for _, e := range events {
		if slices.Contains(markedEvents, e.Kind) && (model == "" || e.Model == model) {
			marks = append(marks, chartMark{e.Time.Unix(), e.Subject + ": " + e.Text, e.Level})
		}
	}
	return marks
}

// codeLines returns the codes of a model, or of all: the most frequent ones. Without any, it returns a line of none.
func codeLines(report history.Report, codes []history.CodeSeries, model string) []chartLine {
	lines := []chartLine{}
	index := map[string]int{}
	for _, s := range codes {
		if model != "" && s.Model != model {
			continue
		}
		at, known := index[s.Code]
		if !known {
			if len(lines) == maxSeries {
				continue
			}
			at = len(lines)
			index[s.Code] = at
			lines = append(lines, chartLine{s.Code, make([]*float64, report.Points)})
		}
		addValues(lines[at].Values, s.Counts)
	}
	if len(lines) == 0 {
		lines = append(lines, chartLine{"none", make([]*float64, report.Points)})
		for i, v := range report.Series[0].Requests {
			if v != nil {
				lines[0].Values[i] = new(float64)
			}
		}
	}
	return lines
}

func addValues(to, values []*float64) {
	for i, v := range values {
		if v == nil {
			continue
		}
		sum := *v
		if to[i] != nil {
			sum += *to[i]
		}
		to[i] = &sum
	}
}

func newLatestFigures(report history.Report, totals map[history.Key]*history.Totals, name string) latestFigures {
	const lastWhole = 0 // of the last two minutes
	s := findSeries(report.Series, name)
	f := latestFigures{
		Requests: formatKnown(s.Requests[lastWhole], formatRate), Tokens: formatKnown(s.Tokens[lastWhole], formatRate),
		P50: formatKnown(s.FirstToken[lastWhole], formatSeconds), P95: formatKnown(s.FirstToken5[lastWhole], formatSeconds),
		Waiting: formatKnown(lastKnown(report.Waiting), formatRate), Running: formatKnown(lastKnown(report.Running), formatRate),
	}
	if t := totals[s.Key]; t != nil && t.Requests > 0 {
		f.Failed, f.Refused = formatShare(t.Failed, t.Requests), formatShare(t.Refused, t.Requests)
	}
	return f
}

// lastKnown returns the last value that is known, or nil.
func lastKnown(values []*float64) *float64 {
	for _, v := range slices.Backward(values) {
		if v != nil {
			return v
		}
	}
	return nil
}

func overviewRows(report history.Report) []overviewRow {
	var rows []overviewRow
	for _, s := range report.Series {
		row := overviewRow{
			Name: s.Model, Requests: s.Total.Requests, Tokens: s.Total.Prompt + s.Total.Completion,
			Failed: formatShare(s.Total.Failed, s.Total.Requests), Refused: formatShare(s.Total.Refused, s.Total.Requests),
			Cached: formatCached(s.Total.Cached, s.Total.Known),
			P50:    formatKnown(s.Total.FirstToken(.5), formatSeconds), P95: formatKnown(s.Total.FirstToken(.95), formatSeconds),
		}
		switch {
		case s.Backend != "":
			row.Name, row.Backend = s.Backend, true
		case s.Model == "":
			row.Name = "All requests"
		}
		rows = append(rows, row)
	}
	return rows
}

func overviewTimes(report history.Report, name string) []overviewTime {
	s := findSeries(report.Series, name)
	var rows []overviewTime
	for i := report.Points - 1; i >= 0; i-- {
		if s.Requests[i] == nil {
			continue // the gateway did not run
		}
		row := overviewTime{
			Time:     report.Begin.Add(time.Duration(i) * report.Interval),
			Requests: formatKnown(s.Requests[i], formatRate), Tokens: formatKnown(s.Tokens[i], formatRate),
			Errors: formatKnown(s.Failed[i], formatRate), Refused: formatKnown(s.Refused[i], formatRate),
			Queue: formatKnown(report.Waiting[i], formatRate),
			P50:   formatKnown(s.FirstToken[i], formatSeconds), P95: formatKnown(s.FirstToken5[i], formatSeconds),
		}
		if s.Backend != "" {
			row.Queue = "" // of all
		}
		rows = append(rows, row)
	}
	return rows
}

var eventTexts = map[history.EventKind]struct{ text, level string }{
	history.BreakerOpened: {"Breaker opened", "bad"},
	history.BreakerClosed: {"Healthy", "good"},
	history.BootBegun:     {"Boot begun", ""},
	history.BootEnded:     {"Boot ended: ready", "good"},
	history.BootStopped:   {"Boot stopped", "warn"},
	history.BootFailed:    {"Boot failed", "bad"},
	history.BackendDied:   {"Does not respond", "bad"},
	history.BudgetNear:    {"Budget 80\u202f% used", "warn"},
	history.BudgetUsed:    {"Budget used up", "bad"},
	history.DiskLow:       {"Disk nearly full", "bad"},
}

// timeline returns the latest events with the names of accounts and keys.
func (c *Console) timeline(ctx context.Context, known names, since time.Time) ([]timelineEvent, error) {
	events, err := c.History.Events(ctx, since, maxEventsShown)
	if err != nil {
		return nil, err
	}
	all := make([]timelineEvent, len(events))
	for i, e := range events {
		look := eventTexts[e.Kind]
		t := timelineEvent{Event: e, Text: look.text, Level: look.level, Subject: seriesName(history.Key{Model: e.Model, Backend: e.Backend})}
		switch {
		case e.KeyID != "":
			t.Subject, t.Link = known.Account(e.AccountID)+", key "+known.key(e.KeyID), "/admin/keys/"+url.PathEscape(e.KeyID)
		case e.AccountID != "":
			t.Subject, t.Link = known.Account(e.AccountID), "/admin/accounts/"+url.PathEscape(e.AccountID)
		case e.Model != "":
			t.Link = modelPath(url.PathEscape(e.Model))
		}
		all[i] = t
	}
	return all, nil
}
