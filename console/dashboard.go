package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/identity"
)

// dashboardPage is the data of the dashboard.
type dashboardPage struct {
	Summary     summary
	Batches     batchHint
	Warnings    []string // why requests are refused, and until when
	Total       gauges   // of the account
	Keys        []keyRow // that are not revoked
	RevokedKeys []keyRow
	KeyPager    keyPager
	Models      []modelRow
	CanWarm     bool // models can be started from the console
	Reply       bool // an administrator has replied to feedback, and the reply was not read
}

// keyRow is one key of a table.
type keyRow struct {
	identity.Key
	gauges
	LastUse time.Time
	Spark   *sparkline // of the last days; nil if nothing was used
	Form    capFields
}

// gauges show the usage of a key or an account in the current windows.
type gauges struct {
	Month, Day, Input, Output gauge
}

// gauge shows the usage of one cap.
type gauge struct {
	Used    int64   // tokens
	Bounded bool    // there is a limit
	Limit   int64   // tokens
	Percent float64 // of the limit, at most 100
	Level   string  // CSS class: near, full, or empty
}

func newGauge(used int64, c quota.Cap) gauge {
	g := gauge{Used: used}
	limit, bounded := c.Tokens()
	if !bounded {
		return g
	}
	g.Bounded, g.Limit, g.Percent = true, limit, 100
	if limit > 0 {
		g.Percent = min(100, 100*float64(used)/float64(limit))
	}
	switch {
	case used >= limit:
		g.Level = "full"
	case g.Percent >= nearPercent:
		g.Level = "near"
	}
	return g
}

// nearPercent is the usage from which on a cap is shown as nearly used up.
const nearPercent = 85

func newGauges(t budget.WindowTotals, c quota.Caps) gauges {
	return gauges{
		Month:  newGauge(t.Month(), c.MonthTotal),
		Day:    newGauge(t.Day, c.DayTotal),
		Input:  newGauge(t.MonthInput, c.MonthInput),
		Output: newGauge(t.MonthOutput, c.MonthOutput),
	}
}

func (c *Console) dashboard(r *request) error {
	page, err := c.dashboardPage(r, r.account)
	if err != nil {
		return err
	}
	if page.Batches, err = c.batchHint(r); err != nil {
		return err
	}
	return c.render(r, "dashboard", "Dashboard", page)
}

func (c *Console) dashboardPage(r *request, a identity.Account) (dashboardPage, error) {
	ctx := r.ctx()
	page := dashboardPage{
		Total:  newGauges(c.ledger.AccountTotals(a.ID), a.Caps),
		Models: c.modelRows(), CanWarm: c.warm != nil,
	}
	for i, stats := 0, c.modelActivity(ctx); i < len(page.Models); i++ {
		page.Models[i].Activity = stats[page.Models[i].ID]
	}
	keys, pager, err := c.keyRows(r, a.ID, "/dashboard")
	if err != nil {
		return page, err
	}
	page.KeyPager = pager
	activity, err := c.dashboardActivity(ctx, a.ID, keys)
	if err != nil {
		return page, err
	}
	page.Summary = c.summary(a, keys, activity)
	for _, k := range keys {
		if activity != nil {
			k.Spark = activity.Keys[k.ID]
		}
		if k.State == identity.KeyRevoked {
			page.RevokedKeys = append(page.RevokedKeys, k)
			continue
		}
		page.Keys = append(page.Keys, k)
	}
	page.Warnings = c.warnings(a, page)
	page.Reply, err = c.hasUnreadReply(ctx, a.ID)
	return page, err
}

// keyPager links to the other pages of a list of keys.
type keyPager struct{ First, Next string } // empty if there is none

// keyRows returns the keys of an account with their usage, on the page of the list that the query names.
func (c *Console) keyRows(r *request, account, path string) (rows []keyRow, pager keyPager, err error) {
	skip, err := strconv.Atoi(cmp.Or(r.query("keys"), "0"))
	if err != nil || skip < 0 {
		return nil, pager, errNotFound
	}
	keys, err := c.keys.ListOf(r.ctx(), account, skip)
	if err != nil {
		return nil, pager, err
	}
	if skip > 0 {
		pager.First = path + "#keys"
	}
	if len(keys) == identity.MaxListed {
		pager.Next = fmt.Sprintf("%s?keys=%d#keys", path, skip+len(keys))
	}
	rows = make([]keyRow, len(keys))
	for i, k := range keys {
		rows[i] = keyRow{Key: k, gauges: newGauges(c.ledger.KeyTotals(k.ID), k.Caps), Form: newKeyCapFields(k)}
		if rows[i].LastUse, err = c.ledger.LastUse(r.ctx(), k.ID); err != nil {
			return nil, pager, err
		}
	}
	return rows, pager, nil
}

// warnings says why requests are refused: because a budget is used up, or because no backend of a model answers.
func (c *Console) warnings(a identity.Account, page dashboardPage) []string {
	var warnings []string
	account := budget.Payer{Account: a.ID, AccountCaps: a.Caps}
	if e := c.ledger.Exhausted(account); e != nil {
		warnings = append(warnings, budgetWarning("Account", e))
	}
	for _, k := range page.Keys {
		key := budget.Payer{Key: k.ID, KeyCaps: k.Caps}
		if e := c.ledger.Exhausted(key); e != nil && k.State == identity.KeyActive {
			warnings = append(warnings, budgetWarning("Key "+k.Name, e))
		}
	}
	for _, m := range page.Models {
		if m.Down {
			warnings = append(warnings, m.ID+" is down. Requests to it fail until a backend is back; try again in a few minutes.")
		}
	}
	return warnings
}

var (
	windowNames = map[budget.Window]string{budget.Month: "monthly", budget.Day: "daily"}
	meterNames  = map[budget.Meter]string{budget.Total: "", budget.Input: " prompt token", budget.Output: " completion token"}
)

// budgetWarning says which budget is used up, and until when.
func budgetWarning(owner string, e *budget.Exceeded) string {
	return fmt.Sprintf("%s: %s%s budget used up (%s of %s tokens). Resets %s, 00:00 UTC.",
		owner, windowNames[e.Window], meterNames[e.Meter], formatNumber(e.Used), formatNumber(e.Limit),
		e.ResetsAt.Format("2 Jan"))
}

// capFields are the form fields of caps: digits, or empty for unbounded.
type capFields struct {
	Month, Day, Input, Output string
	Operator                  quota.Caps // what the operator has set for the key
}

func newCapFields(c quota.Caps) capFields {
	format := func(limit quota.Cap) string {
		if !limit.Bounded() {
			return ""
		}
		return limit.String()
	}
	return capFields{
		Month: format(c.MonthTotal), Day: format(c.DayTotal), Input: format(c.MonthInput), Output: format(c.MonthOutput),
	}
}

// newKeyCapFields returns the form fields of a key's caps.
func newKeyCapFields(k identity.Key) capFields {
	fields := newCapFields(k.Caps)
	fields.Operator = k.Operator.Caps
	return fields
}

// capFields returns the caps of a key's or an account's form as the user has entered them. For an account, k is zero.
func (r *request) capFields(k identity.Key) capFields {
	return capFields{r.field("month"), r.field("day"), r.field("input"), r.field("output"), k.Operator.Caps}
}

// caps parses the caps of a form.
func (r *request) caps() (c quota.Caps, err error) {
	for _, f := range []struct {
		limit *quota.Cap
		name  string
	}{{&c.MonthTotal, "month"}, {&c.DayTotal, "day"}, {&c.MonthInput, "input"}, {&c.MonthOutput, "output"}} {
		if *f.limit, err = parseCap(r.field(f.name)); err != nil {
			if p, ok := errors.AsType[*problem](err); ok {
				err = p.on(f.name)
			}
			return c, err
		}
	}
	return c, nil
}

// parseCap parses a number of tokens in one of the ways that people write it: those of quota.ParseTokens, also with
// spaces and commas between digits, and with b for billions.
func parseCap(text string) (quota.Cap, error) {
	digits := strings.NewReplacer(" ", "", ",", "", "_", "", "\u202f", "", "\u00a0", "").Replace(text)
	if digits == "" || slices.ContainsFunc([]string{"unbounded", "nolimit"}, func(w string) bool { return strings.EqualFold(digits, w) }) {
		return quota.Unbounded(), nil
	}
	if last := len(digits) - 1; digits[last] == 'b' || digits[last] == 'B' {
		digits = digits[:last] + "G"
	}
	n, err := quota.ParseTokens(digits)
	if err != nil || n > maxCap {
		return quota.Cap{}, &problem{status: http.StatusUnprocessableEntity, title: "Not a budget", text: fmt.Sprintf(
			"%q is not a budget. Enter a number of tokens such as 500000, 500k or 1.5M, or leave the field blank for no limit.", text)}
	}
	return quota.Limit(n), nil
}

// maxCap is the highest cap in tokens: more than any account spends, and far from an overflow.
const maxCap = 1e15
