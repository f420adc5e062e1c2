package console

import (
	"net/url"
	"slices"
	"time"

	"basegate/budget/quota"
	"basegate/budget/usage"
)

// scope selects the usage of an account, or of all accounts.
type scope struct {
	Account string     // id, or allAccounts, for administrators
	caps    quota.Caps // of that account
	own     bool       // the account is the user's own
}

const allAccounts = "all"

// accountID returns the account of the scope; empty for all.
func (s scope) accountID() string {
	if s.All() {
		return ""
	}
	return s.Account
}

// All reports whether the scope is all accounts.
func (s scope) All() bool { return s.Account == allAccounts }

// scope returns the scope in the query. Only administrators may see other accounts than their own.
func (c *Console) scope(r *request) (scope, error) {
	s := scope{Account: r.query("account")}
	switch {
	case s.Account == "" || s.Account == r.account.ID:
		s.Account, s.caps, s.own = r.account.ID, r.account.Caps, true
		return s, nil
	case !r.account.Admin:
		return s, errNotFound
	case s.All():
		return s, nil
	}
	a, err := c.accountOf(r.ctx(), s.Account)
	s.caps = a.Caps
	return s, err
}

// selection selects usage: a range of days, UTC, in intervals, by something that requests have in common.
type selection struct {
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

type option struct {
	Value usage.Grouping
	Name  string
}

var (
	intervalOptions = []option{{usage.ByHour, "Hour"}, {usage.ByDay, "Day"}, {usage.ByMonth, "Month"}}
	groupOptions    = []option{
		{usage.ByModel, "Model"},
		{usage.ByKey, "Key"},
		{usage.ByUser, "User tag"},
		{usage.ByWorkload, "Workload"},
		{usage.ByRun, "Run"},
		{usage.ByEndpoint, "Endpoint"},
	}
)

// groupings are what the requests of a group have in common, and the parameter by which the list of requests selects them; empty if
// none does.
var groupings = map[usage.Grouping]struct {
	value     func(*usage.Row) string
	parameter string
}{
	usage.ByModel:    {func(r *usage.Row) string { return r.Model }, "model"},
	usage.ByKey:      {func(r *usage.Row) string { return r.KeyID }, "key"},
	usage.ByUser:     {func(r *usage.Row) string { return r.User }, "q"},
	usage.ByWorkload: {func(r *usage.Row) string { return r.Workload }, "q"},
	usage.ByRun:      {func(r *usage.Row) string { return r.Run }, "run"},
	usage.ByEndpoint: {func(r *usage.Row) string { return r.Endpoint }, ""},
	usage.ByAccount:  {func(r *usage.Row) string { return r.AccountID }, "account"},
}

// nameOf returns the name of an option; empty if there is none with this value.
func nameOf(options []option, value usage.Grouping) string {
	for _, o := range options {
		if o.Value == value {
			return o.Name
		}
	}
	return ""
}

// options returns what usage can be grouped by. User tags are not counted by model.
func (s *selection) options() []option {
	all := slices.Clone(groupOptions)
	if s.All() {
		all = append(all, option{usage.ByAccount, "Account"})
	}
	if s.Model != "" {
		all = slices.DeleteFunc(all, func(o option) bool { return o.Value == usage.ByUser })
	}
	return all
}

// selection returns what the query selects: by default the last 30 days by day and model.
func (c *Console) selection(r *request) (selection, error) {
	selected, err := c.scope(r)
	if err != nil {
		return selection{}, err
	}
	s := selection{
		scope: selected, Key: r.query("key"), Model: r.query("model"),
		Interval: usage.Grouping(r.query("interval")), By: usage.Grouping(r.query("by")),
	}
	today := c.clock().UTC().Truncate(24 * time.Hour)
	s.From, s.To = parseDay(r.query("from"), today.AddDate(0, 0, -29)), parseDay(r.query("to"), today)
	if s.To.Before(s.From) {
		s.From, s.To = s.To, s.From
	}
	s.To = earlier(s.To, today)
	s.From = earlier(s.From, s.To)
	if s.days() > maxDaysByMonth {
		s.From = s.To.AddDate(0, 0, 1-maxDaysByMonth)
	}
	s.Interval = s.interval()
	if nameOf(s.options(), s.By) == "" {
		s.By = usage.ByModel
	}
	return s, nil
}

func monthOf(t time.Time) time.Time {
	year, month, _ := t.UTC().Date()
	return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
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

func (s *selection) days() int { return int(s.To.Sub(s.From)/(24*time.Hour)) + 1 }

// interval returns the chosen interval, or the shortest one that suits the range.
func (s *selection) interval() usage.Grouping {
	chosen, days := s.Interval, s.days()
	if nameOf(intervalOptions, chosen) == "" {
		chosen = usage.ByDay
		if days <= 2 {
			chosen = usage.ByHour
		}
	}
	byHour := maxDaysByHour
	if s.All() {
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
func (s *selection) latency() bool { return s.By != usage.ByUser && s.days() <= s.LatencyDays() }

// LatencyDays returns the longest range, in days, whose latencies are shown.
func (s *selection) LatencyDays() int {
	if s.All() {
		return maxLatencyDaysAll
	}
	return maxLatencyDays
}

// filter returns the ledger's filter, of the range or of the one before it.
func (s *selection) filter(reader string, before bool) usage.Filter {
	f := usage.Filter{
		Reader: reader, Since: s.From, Until: s.To.AddDate(0, 0, 1), Account: s.accountID(), Key: s.Key, Model: s.Model,
	}
	if before {
		f.Since, f.Until = s.From.AddDate(0, 0, -s.days()), s.From
	}
	return f
}

// over returns the grouping of the chart. User tags are not counted by interval, so their chart shows models.
func (s *selection) over() usage.Grouping { return usage.Over(s.Interval, s.charted()) }

func (s *selection) charted() usage.Grouping {
	if s.By == usage.ByUser {
		return usage.ByModel
	}
	return s.By
}

// requests returns the URL of the list of the requests of a group, from a day or time to another; empty if the list cannot select
// them.
func (s *selection) requests(r *usage.Row, by usage.Grouping, from, to string) string {
	q := map[string]string{"from": from, "to": to, "key": s.Key, "model": s.Model}
	if !s.own {
		q["account"] = s.Account
	}
	group := groupings[by]
	value := group.value(r)
	if value == "" || group.parameter == "" {
		return ""
	}
	q[group.parameter] = value
	return withQuery("/usage/requests", queryOf(q))
}

func (s *selection) query() url.Values {
	q := queryOf(map[string]string{
		"from": s.From.Format(time.DateOnly), "to": s.To.Format(time.DateOnly),
		"interval": string(s.Interval), "by": string(s.By), "key": s.Key, "model": s.Model,
	})
	if !s.own {
		q.Set("account", s.Account)
	}
	return q
}
