package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/identity"
)

// scope selects the usage of an account, or of all accounts, in one month.
type scope struct {
	Month   month
	Account string // id, or allAccounts, for administrators
	Email   string // of that account, or "All accounts"
	caps    quota.Caps
	own     bool // the account is the user's own
}

const allAccounts = "all"

// accountID returns the account of the scope; empty for all.
func (s scope) accountID() string {
	if s.All() {
		return ""
	}
	return s.Account
}

// filter returns the ledger's filter for the scope, for a user who reads it.
func (s scope) filter(reader string) usage.Filter {
	return usage.Filter{Reader: reader, Since: s.Month.begin, Until: s.Month.end(), Account: s.accountID()}
}

// CSV returns the path and query of the scope's CSV file in a grouping. A template takes it as a whole, since
// html/template escapes the separators of a query that is only a part of an attribute.
func (s scope) CSV(by usage.Grouping) string {
	q := url.Values{"by": {string(by)}, "month": {s.Month.ID()}}
	if !s.own {
		q.Set("account", s.Account)
	}
	return "/usage/csv?" + q.Encode()
}

// All reports whether the scope is all accounts.
func (s scope) All() bool { return s.Account == allAccounts }

// scope returns the scope in the query. Only administrators may see other accounts than their own.
func (c *Console) scope(r *request) (scope, error) {
	s := scope{Month: parseMonth(r.query("month"), c.clock()), Account: r.query("account")}
	switch {
	case s.Account == "" || s.Account == r.account.ID:
		s.Account, s.Email, s.caps, s.own = r.account.ID, r.account.Email, r.account.Caps, true
		return s, nil
	case !r.account.Admin:
		return s, errNotFound
	case s.All():
		s.Email = "All accounts"
		return s, nil
	}
	a, found, err := c.accountOf(r.ctx(), s.Account)
	if err == nil && !found {
		err = errNotFound
	}
	s.Email, s.caps = a.Email, a.Caps
	return s, err
}

// usagePage is the data of the usage page.
type usagePage struct {
	scope
	Months     []month            // options
	Accounts   []identity.Account // options for administrators
	Chart      chart
	Totals     share
	Forecasts  []forecast
	Breakdowns []breakdown
}

// share is the usage of one model, key, account, workload or user tag.
type share struct {
	usage.Row
	Name, Note string
	Percent    float64 // of the total tokens
	Previous   int64   // tokens of the range before
}

// Total returns the tokens of prompts and completions.
func (s share) Total() int64 { return tokensOf(&s.Row) }

func tokensOf(r *usage.Row) int64 { return r.PromptTokens + r.CompletionTokens }

// add adds the figures of a row to a sum.
func add(sum, r *usage.Row) {
	sum.Requests += r.Requests
	sum.Errors += r.Errors
	sum.PromptTokens += r.PromptTokens
	sum.CompletionTokens += r.CompletionTokens
	if r.Latency != nil {
		sum.Latency = cmp.Or(sum.Latency, new(usage.Latency))
		sum.Latency.Merge(r.Latency)
	}
}

// breakdown is the usage of a month by model, key, account, workload or user tag.
type breakdown struct {
	dimension
	Rows []share
	Rest *share // the sum of what is not in Rows; nil if nothing is left
}

// maxShares limits the rows of a breakdown. There may be as many user tags as requests.
const maxShares = 15

// forecast is the usage of a cap so far and at the end of the month.
type forecast struct {
	Name  string
	Gauge gauge
	Text  string // empty if there is nothing to extrapolate
}

// dimension is one way to break down usage.
type dimension struct {
	By   usage.Grouping
	Head string // of the table's first column
}

// dimensions are the breakdowns of one account.
var dimensions = []dimension{
	{usage.ByModel, "Model"}, {usage.ByKey, "Key"}, {usage.ByWorkload, "Workload"}, {usage.ByUser, "User tag"},
}

func (c *Console) usage(r *request) error {
	s, err := c.scope(r)
	if err != nil {
		return err
	}
	page := usagePage{scope: s, Months: recentMonths(c.clock())}
	ctx := r.ctx()
	names, err := c.readNames(ctx, r.account)
	if err != nil {
		return err
	}
	if r.account.Admin {
		page.Accounts = names.accounts
	}
	shown := dimensions
	if s.All() {
		shown = append(slices.Clip(shown), dimension{usage.ByAccount, "Account"})
	}
	groupings := []usage.Grouping{usage.ByDayModel}
	for _, d := range shown {
		groupings = append(groupings, d.By)
	}
	groups, err := c.Usage.Groups(ctx, s.filter(r.account.ID), groupings...)
	if err != nil {
		return err
	}
	days := groups[0]
	page.Chart = newMonthChart(s.Month, days)
	for i := range days {
		add(&page.Totals.Row, &days[i])
	}
	for i, d := range shown {
		page.Breakdowns = append(page.Breakdowns, newBreakdown(d, groups[i+1], page.Totals, names))
	}
	page.Forecasts = forecasts(s, page.Totals, c.clock())
	return c.render(r, "usage", "Usage", page)
}

// newBreakdown returns the largest groups of a month, and the sum of the others.
func newBreakdown(d dimension, rows []usage.Row, total share, n names) breakdown {
	b, rest := breakdown{dimension: d}, share{}
	for i := range rows {
		s := share{Row: rows[i], Percent: percent(tokensOf(&rows[i]), total.Total())}
		s.Name, s.Note = n.group(&rows[i], d.By)
		if i < maxShares {
			b.Rows = append(b.Rows, s)
			continue
		}
		add(&rest.Row, &s.Row)
		b.Rest = &rest
	}
	rest.Percent = percent(rest.Total(), total.Total())
	return b
}

func percent(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// forecasts returns the forecast of each monthly cap.
func forecasts(s scope, t share, now time.Time) []forecast {
	newForecast := func(name string, used int64, limit quota.Cap) forecast {
		return forecast{name, newGauge(used, limit), forecastText(s.Month, used, limit, now)}
	}
	return []forecast{
		newForecast("Tokens", t.Total(), s.caps.MonthTotal),
		newForecast("Prompt tokens", t.PromptTokens, s.caps.MonthInput),
		newForecast("Completion tokens", t.CompletionTokens, s.caps.MonthOutput),
	}
}

// forecastText says how the month will end if usage continues at its average rate so far, and when it will reach the
// cap.
func forecastText(m month, used int64, c quota.Cap, now time.Time) string {
	tokens, ok := m.projection(used, now)
	if !ok || used == 0 {
		return ""
	}
	text := fmt.Sprintf("At this rate, about %s by the end of the month", formatShort(tokens))
	limit, bounded := c.Tokens()
	if !bounded {
		return text + "."
	}
	if used >= limit {
		return "Budget used up."
	}
	if at, reached := m.exhaustion(used, limit, now); reached {
		return fmt.Sprintf("%s: the budget will be used up around %s.", text, at.Format("2 Jan"))
	}
	return fmt.Sprintf("%s, %.0f %% of the budget.", text, 100*float64(tokens)/float64(limit))
}

// names are the names of the keys and accounts whose ids are in the ledger.
type names struct {
	lookUp   func(key string) (identity.Principal, bool) // false for a key that the user may not see
	emails   map[string]string
	accounts []identity.Account
}

// readNames returns the names that the user may see: those of the user's own account, or all for an administrator.
func (c *Console) readNames(ctx context.Context, a identity.Account) (names, error) {
	n := names{emails: map[string]string{a.ID: a.Email}}
	n.lookUp = func(key string) (identity.Principal, bool) {
		p, err := c.Keys.Lookup(key)
		if errors.Is(err, identity.ErrKeyUnknown) || !a.Admin && p.AccountID != a.ID {
			return identity.Principal{}, false
		}
		return p, true
	}
	if a.Admin {
		var err error
		if n.accounts, err = c.Accounts.List(ctx); err != nil {
			return n, err
		}
	}
	for _, other := range n.accounts {
		n.emails[other.ID] = other.Email
	}
	return n, nil
}

// ofReport returns the names for a report.
func (n names) ofReport() report.Names { return report.Names{Keys: n.lookUp, Emails: n.emails} }

func (n names) key(id string) string {
	p, _ := n.lookUp(id)
	return cmp.Or(p.KeyName, id)
}

func (n names) account(id string) string { return cmp.Or(n.emails[id], id) }

// group returns the name of a group, and the prefix of its key if it is one.
func (n names) group(r *usage.Row, by usage.Grouping) (name, note string) {
	switch by {
	case usage.ByModel:
		return r.Model, ""
	case usage.ByKey:
		key, _ := n.lookUp(r.KeyID)
		return cmp.Or(key.KeyName, r.KeyID), key.KeyPrefix
	case usage.ByWorkload:
		return cmp.Or(r.Workload, "Not set"), ""
	case usage.ByUser:
		return cmp.Or(r.User, "Not set"), ""
	case usage.ByAccount:
		return n.account(r.AccountID), ""
	case usage.ByEndpoint:
		return r.Endpoint, ""
	default:
		return "", ""
	}
}

// month is a calendar month in UTC.
type month struct {
	begin time.Time
}

func monthOf(t time.Time) month {
	year, m, _ := t.UTC().Date()
	return month{time.Date(year, m, 1, 0, 0, 0, 0, time.UTC)}
}

// parseMonth parses a month such as 2026-11. It returns the current month if the text is not a month, or if it is one
// in the future or before 2000.
func parseMonth(text string, now time.Time) month {
	begin, err := time.Parse("2006-01", text)
	if err != nil || begin.After(now) || begin.Year() < 2000 {
		return monthOf(now)
	}
	return month{begin}
}

func (m month) end() time.Time { return m.begin.AddDate(0, 1, 0) }

// ID returns the month as URLs have it.
func (m month) ID() string { return m.begin.Format("2006-01") }

// Name returns the month as pages show it.
func (m month) Name() string { return m.begin.Format("January 2006") }

// maxMonths is the number of months to choose from.
const maxMonths = 24

// recentMonths returns the last months, the current one first.
func recentMonths(now time.Time) []month {
	all := make([]month, maxMonths)
	for i := range all {
		all[i] = month{monthOf(now).begin.AddDate(0, -i, 0)}
	}
	return all
}

// minElapsed is the part of a month that must have passed before its usage is projected.
const minElapsed = 24 * time.Hour

// projection extrapolates the usage of a running month to its end. ok is false if the month is over or has only begun.
func (m month) projection(used int64, now time.Time) (tokens int64, ok bool) {
	elapsed, whole := now.Sub(m.begin), m.end().Sub(m.begin)
	if elapsed < minElapsed || elapsed >= whole {
		return 0, false
	}
	return int64(float64(used) * whole.Seconds() / elapsed.Seconds()), true
}

// exhaustion returns the time at which usage will reach the limit at its average rate so far. ok is false if that is
// not within the month.
func (m month) exhaustion(used, limit int64, now time.Time) (at time.Time, ok bool) {
	tokens, ok := m.projection(used, now)
	if !ok || used >= limit || tokens <= limit {
		return time.Time{}, false
	}
	elapsed := now.Sub(m.begin).Seconds()
	return m.begin.Add(time.Duration(elapsed * float64(limit) / float64(used) * float64(time.Second))), true
}
