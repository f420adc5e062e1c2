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

// filter returns the ledger's filter for the scope.
func (s scope) filter() usage.Filter {
	f := usage.Filter{Since: s.Month.begin, Until: s.Month.end(), Account: s.Account}
	if s.Account == allAccounts {
		f.Account = ""
	}
	return f
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
	accounts, err := c.accounts.List(r.ctx())
	if err != nil {
		return s, err
	}
	for _, a := range accounts {
		if a.ID == s.Account {
			s.Email, s.caps = a.Email, a.Caps
			return s, nil
		}
	}
	return s, errNotFound
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
	Name, Note         string
	Requests           int64
	Prompt, Completion int64
	Percent            float64 // of the total tokens
}

// Total returns the tokens of prompts and completions.
func (s share) Total() int64 { return s.Prompt + s.Completion }

// breakdown is the usage of a month by model, key, account, workload or user tag.
type breakdown struct {
	By   usage.Grouping
	Head string // of the table's first column
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
	by   usage.Grouping
	head string
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
		groupings = append(groupings, d.by)
	}
	filter := s.filter()
	filter.Reader = r.account.ID
	groups, err := c.usages.Groups(ctx, filter, groupings...)
	if err != nil {
		return err
	}
	days := groups[0]
	page.Chart = newChart(s.Month, days)
	for _, day := range days {
		page.Totals.Requests += day.Requests
		page.Totals.Prompt += day.PromptTokens
		page.Totals.Completion += day.CompletionTokens
	}
	for i, d := range shown {
		rows := groups[i+1]
		shares := names.shares(rows[:min(len(rows), maxShares)], d.by, page.Totals.Total())
		page.Breakdowns = append(page.Breakdowns, breakdown{d.by, d.head, shares, remainder(shares, page.Totals)})
	}
	page.Forecasts = forecasts(s, page.Totals, c.clock())
	return c.render(r, "usage", "Usage", page)
}

// remainder returns the usage that is not in the shares shown, or nil if they are complete.
func remainder(shown []share, total share) *share {
	left := share{Requests: total.Requests, Prompt: total.Prompt, Completion: total.Completion}
	for _, s := range shown {
		left.Requests -= s.Requests
		left.Prompt -= s.Prompt
		left.Completion -= s.Completion
	}
	if left.Requests <= 0 {
		return nil
	}
	left.Percent = percent(left, total.Total())
	return &left
}

func percent(s share, total int64) float64 {
	if total == 0 {
		return 0
	}
	return 100 * float64(s.Total()) / float64(total)
}

// forecasts returns the forecast of each monthly cap.
func forecasts(s scope, t share, now time.Time) []forecast {
	newForecast := func(name string, used int64, limit quota.Cap) forecast {
		return forecast{name, newGauge(used, limit), forecastText(s.Month, used, limit, now)}
	}
	return []forecast{
		newForecast("Tokens", t.Total(), s.caps.MonthTotal),
		newForecast("Prompt tokens", t.Prompt, s.caps.MonthInput),
		newForecast("Completion tokens", t.Completion, s.caps.MonthOutput),
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
		p, err := c.keys.Lookup(key)
		if errors.Is(err, identity.ErrKeyUnknown) || !a.Admin && p.AccountID != a.ID {
			return identity.Principal{}, false
		}
		return p, true
	}
	if a.Admin {
		var err error
		if n.accounts, err = c.accounts.List(ctx); err != nil {
			return n, err
		}
	}
	for _, other := range n.accounts {
		n.emails[other.ID] = other.Email
	}
	return n, nil
}

func (n names) key(id string) string {
	p, _ := n.lookUp(id)
	return cmp.Or(p.KeyName, id)
}

func (n names) account(id string) string { return cmp.Or(n.emails[id], id) }

func (n names) shares(rows []usage.Row, by usage.Grouping, total int64) []share {
	all := make([]share, len(rows))
	for i, r := range rows {
		s := share{Requests: r.Requests, Prompt: r.PromptTokens, Completion: r.CompletionTokens}
		switch by {
		case usage.ByModel:
			s.Name = r.Model
		case usage.ByKey:
			key, _ := n.lookUp(r.KeyID)
			s.Name, s.Note = cmp.Or(key.KeyName, r.KeyID), key.KeyPrefix
		case usage.ByWorkload:
			s.Name = cmp.Or(r.Workload, "Not set")
		case usage.ByUser:
			s.Name = cmp.Or(r.User, "Not set")
		case usage.ByAccount:
			s.Name = n.account(r.AccountID)
		case usage.ByDay, usage.ByHour, usage.ByDayModel, usage.ByRequest, usage.ByMonth, usage.ByEndpoint:
		}
		s.Percent = percent(s, total)
		all[i] = s
	}
	return all
}
