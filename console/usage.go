package console

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	"basegate/budget"
	"basegate/identity"
	"basegate/quota"
)

// scope is whose usage is looked at, and of which month.
type scope struct {
	Month   month
	Account string // id; "all" is all accounts, for administrators
	Email   string // of that account, or what stands for all
	caps    quota.Caps
	own     bool
}

const allAccounts = "all"

// filter is the scope as the ledger takes it.
func (s scope) filter() budget.Filter {
	f := budget.Filter{Since: s.Month.begin, Until: s.Month.end(), Account: s.Account}
	if s.Account == allAccounts {
		f.Account = ""
	}
	return f
}

// Query is the scope in addresses.
func (s scope) Query() string {
	q := url.Values{"month": {s.Month.ID()}}
	if !s.own {
		q.Set("account", s.Account)
	}
	return q.Encode()
}

// All tells whether it is all accounts.
func (s scope) All() bool { return s.Account == allAccounts }

// scope reads whose usage is asked for. An account that is not the visitor's own is there for administrators only.
func (c *Console) scope(r *request) (scope, error) {
	s := scope{Month: parseMonth(r.query("month"), c.clock()), Account: r.query("account")}
	switch {
	case s.Account == "" || s.Account == r.account.ID:
		s.Account, s.Email, s.caps, s.own = r.account.ID, r.account.Email, r.account.Caps, true
		return s, nil
	case !r.account.Admin:
		return s, errNotFound
	case s.All():
		s.Email = "all accounts"
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

// usagePage is a month.
type usagePage struct {
	scope
	Months   []month
	Accounts []identity.Account // to choose from, for administrators
	Chart    chart
	Totals   share
	Caps     []outlook
	Shares   []shares
}

// share is what one model, key, workload or user has taken.
type share struct {
	Name, Note         string
	Requests           int64
	Prompt, Completion int64
	Percent            float64 // of all
}

// Total is prompt and completion.
func (s share) Total() int64 { return s.Prompt + s.Completion }

// shares are a month divided up in one way.
type shares struct {
	By   budget.By
	Head string
	Rows []share
	Rest *share // what is not in Rows; nil where nothing is left
}

// maxShares is how many shares are shown; a user tag may be another one with every request.
const maxShares = 15

// outlook is a cap and how the month will end.
type outlook struct {
	Name  string
	Gauge gauge
	Words string
}

// divisions are the ways in which a month is divided up.
var divisions = []struct {
	by   budget.By
	head string
}{
	{budget.ByModel, "Model"}, {budget.ByKey, "Key"}, {budget.ByWorkload, "Workload"}, {budget.ByUser, "User tag"},
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
	days, err := c.ledger.Usage(ctx, s.filter(), budget.ByDayModel)
	if err != nil {
		return err
	}
	page.Chart = newChart(s.Month, days)
	for _, day := range days {
		page.Totals.Requests += day.Requests
		page.Totals.Prompt += day.PromptTokens
		page.Totals.Completion += day.CompletionTokens
	}
	ways := divisions
	if s.All() {
		ways = append(slices.Clip(ways), struct {
			by   budget.By
			head string
		}{budget.ByAccount, "Account"})
	}
	for _, way := range ways {
		filter := s.filter()
		filter.Limit = maxShares
		rows, err := c.ledger.Usage(ctx, filter, way.by)
		if err != nil {
			return err
		}
		shown := names.shares(rows, way.by, page.Totals.Total())
		page.Shares = append(page.Shares, shares{way.by, way.head, shown, rest(shown, page.Totals)})
	}
	page.Caps = outlooks(s, page.Totals, c.clock())
	return c.render(r, "usage", "Usage", page)
}

// rest is what the shares leave of all.
func rest(shown []share, all share) *share {
	left := share{Requests: all.Requests, Prompt: all.Prompt, Completion: all.Completion}
	for _, s := range shown {
		left.Requests -= s.Requests
		left.Prompt -= s.Prompt
		left.Completion -= s.Completion
	}
	if len(shown) < maxShares || left.Requests <= 0 { // a request may have ended between the two questions
		return nil
	}
	left.Percent = percent(left, all.Total())
	return &left
}

func percent(s share, total int64) float64 {
	if total == 0 {
		return 0
	}
	return 100 * float64(s.Total()) / float64(total)
}

// outlooks tell how the month will end, against the caps where there are any.
func outlooks(s scope, t share, now time.Time) []outlook {
	var all []outlook
	for _, one := range []struct {
		name  string
		used  int64
		limit quota.Cap
	}{
		{"Tokens", t.Total(), s.caps.MonthTotal}, {"Of prompts", t.Prompt, s.caps.MonthInput}, {"Of completions", t.Completion, s.caps.MonthOutput},
	} {
		all = append(all, outlook{one.name, newGauge(one.used, one.limit), outlookWords(s.Month, one.used, one.limit, now)})
	}
	return all
}

func outlookWords(m month, used int64, c quota.Cap, now time.Time) string {
	tokens, ok := m.projection(used, now)
	if !ok || used == 0 {
		return ""
	}
	words := fmt.Sprintf("At this rate about %s by the end of the month", short(tokens))
	limit, bounded := c.Tokens()
	if !bounded {
		return words + "."
	}
	if used >= limit {
		return "The budget is used up."
	}
	if at, reached := m.reaches(used, limit, now); reached {
		return fmt.Sprintf("%s: the budget will be used up about %s.", words, at.Format("2 January"))
	}
	return fmt.Sprintf("%s, %.0f %% of the budget.", words, 100*float64(tokens)/float64(limit))
}

// names are people's words for the ids on the ledger.
type names struct {
	keys     map[string]identity.Key
	emails   map[string]string
	accounts []identity.Account
}

// readNames reads as many as the visitor may know.
func (c *Console) readNames(ctx context.Context, a identity.Account) (names, error) {
	n := names{keys: map[string]identity.Key{}, emails: map[string]string{a.ID: a.Email}}
	owned, err := c.keys.ListOf(ctx, a.ID)
	if err == nil && a.Admin {
		if owned, err = c.keys.List(ctx); err == nil {
			n.accounts, err = c.accounts.List(ctx)
		}
	}
	if err != nil {
		return n, err
	}
	for _, k := range owned {
		n.keys[k.ID] = k
	}
	for _, other := range n.accounts {
		n.emails[other.ID] = other.Email
	}
	return n, nil
}

func (n names) key(id string) string     { return cmp.Or(n.keys[id].Name, id) }
func (n names) account(id string) string { return cmp.Or(n.emails[id], id) }

func (n names) shares(rows []budget.Row, by budget.By, total int64) []share {
	all := make([]share, len(rows))
	for i, r := range rows {
		s := share{Requests: r.Requests, Prompt: r.PromptTokens, Completion: r.CompletionTokens}
		switch by {
		case budget.ByModel:
			s.Name = r.Model
		case budget.ByKey:
			s.Name, s.Note = n.key(r.KeyID), n.keys[r.KeyID].Prefix
		case budget.ByWorkload:
			s.Name = cmp.Or(r.Workload, "not given")
		case budget.ByUser:
			s.Name = cmp.Or(r.User, "not given")
		case budget.ByAccount:
			s.Name = n.account(r.AccountID)
		case budget.ByDay, budget.ByDayModel, budget.ByRequest:
		}
		s.Percent = percent(s, total)
		all[i] = s
	}
	return all
}
