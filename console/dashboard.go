package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/identity"
)

type dashboardPage struct {
	Summary     summary
	Batches     batchHint
	Warnings    []string // why requests are refused, and until when
	Keys        []keyRow // that are not revoked
	RevokedKeys []keyRow
	KeyPager    pager
	Search      string // for keys
	Filterable  bool   // there are many keys, or a search
	Models      []modelRow
	Reply       bool // an administrator has replied to feedback, and the reply was not read
}

// minFiltered is the number of keys from which on the list has a filter.
const minFiltered = 6

type keyRow struct {
	identity.Key
	gauges
	LastUse      budget.Use
	Spark        *sparkline // of the last days; nil if nothing was used
	LiveChildren int        // keys that it has made, neither revoked nor expired
}

// gauges show the usage of a key or an account in the current windows, by the caps that the console has.
type gauges []gauge

// All returns those that show the usage.
func (g gauges) All() []gauge { return g }

// Month returns the usage of the month.
func (g gauges) Month() gauge { return g.total(quota.Month) }

// Day returns the usage of the day.
func (g gauges) Day() gauge { return g.total(quota.Day) }

func (g gauges) total(w quota.Window) gauge {
	return g[slices.IndexFunc(g, func(one gauge) bool { return one.kind.Window == w && one.kind.Meter == quota.Total })]
}

// Parts returns the usage of prompts or completions alone that has a limit.
func (g gauges) Parts() (parts []gauge) {
	for _, one := range g {
		if one.kind.Meter != quota.Total && one.Bounded {
			parts = append(parts, one)
		}
	}
	return parts
}

type gauge struct {
	kind quota.Kind

	Used    int64   // tokens, or bytes
	Bounded bool    // there is a limit
	Limit   int64   // tokens, or bytes
	Percent float64 // of the limit, at most 100
	Level   string  // CSS class: near, full, or empty
}

// Title says what is shown.
func (g gauge) Title() string { return g.kind.Title }

// Tokens says which tokens a part shows.
func (g gauge) Tokens() string {
	return map[quota.Meter]string{quota.Input: "prompt", quota.Output: "completion"}[g.kind.Meter]
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

func (c *Console) keyCounters(ctx context.Context, id string) budget.Counters {
	return c.Ledger.Recent(ctx, budget.Payer{Key: id}).Key
}

func (c *Console) accountCounters(ctx context.Context, id string) budget.Counters {
	return c.Ledger.Recent(ctx, budget.Payer{Account: id}).Account
}

func newGauges(t budget.Counters, c quota.Caps) (all gauges) {
	for id, k := range quota.Table {
		if k.Title != "" {
			one := newGauge(k.Meter.Of(t.Used[k.Window]), c[id])
			one.kind = k
			all = append(all, one)
		}
	}
	return all
}

func (c *Console) dashboard(r *request) (err error) {
	ctx, a := r.ctx(), r.account
	page := dashboardPage{}
	stats := c.modelActivity()
	for _, m := range c.Fleet.Models() {
		row := newModelRow(m)
		row.Activity = stats[m.ID()]
		page.Models = append(page.Models, row)
	}
	if page.Batches, err = c.batchHint(r); err != nil {
		return err
	}
	var keys []keyRow
	var spark *sparkline
	if keys, spark, page.KeyPager, err = c.keyRows(r, a.ID); err != nil {
		return err
	}
	page.Search = r.query("keys")
	page.Filterable = page.Search != "" || page.KeyPager.Older != "" || page.KeyPager.Newer || len(keys) >= minFiltered
	page.Summary = c.summary(ctx, a, keys, spark)
	if page.Search != "" {
		page.Summary.Steps = nil // other keys may have been used
	}
	for _, k := range keys {
		if k.State == identity.KeyRevoked {
			page.RevokedKeys = append(page.RevokedKeys, k)
			continue
		}
		page.Keys = append(page.Keys, k)
	}
	page.Warnings = c.warnings(ctx, a, page)
	if page.Reply, err = c.hasUnreadReply(ctx, a.ID); err != nil {
		return err
	}
	return c.render(r, "dashboard", "Dashboard", page)
}

// keyRows returns the keys of an account with their usage, on the page of the list that the query names and those that it searches
// for, and the recent usage of the account, which is nil if it cannot be read in time.
func (c *Console) keyRows(r *request, account string) (rows []keyRow, spark *sparkline, others pager, err error) {
	skip, err := strconv.Atoi(cmp.Or(r.query("after"), "0"))
	if err != nil || skip < 0 {
		return nil, nil, others, errNotFound
	}
	var keys []identity.Key
	search := r.query("keys")
	if search == "" {
		keys, err = c.Keys.ListOf(r.ctx(), account, skip)
	} else {
		keys, err = c.Keys.Search(r.ctx(), account, search, skip)
	}
	if err != nil {
		return nil, nil, others, err
	}
	next := ""
	if len(keys) == identity.MaxListed {
		next = strconv.Itoa(skip + len(keys))
	}
	payers := make([]budget.Payer, len(keys))
	for i, k := range keys {
		payers[i] = budget.Payer{Key: k.ID}
	}
	balances := c.Ledger.RecentOf(r.ctx(), payers) // which sparklines then finds in memory
	sparks, err := c.sparklines(r.ctx(), account, keys)
	if err != nil {
		return nil, nil, others, err
	}
	children, err := c.Keys.LiveChildren(r.ctx(), account)
	if err != nil {
		return nil, nil, others, err
	}
	for i, k := range keys {
		row := keyRow{Key: k, gauges: newGauges(balances[i].Key, k.Caps), Spark: sparks[k.ID], LiveChildren: children[k.ID]}
		if row.LastUse, err = c.Ledger.LastUse(r.ctx(), k.ID); err != nil {
			return nil, nil, others, err
		}
		rows = append(rows, row)
	}
	return rows, sparks[""], r.pager(queryOf(map[string]string{"keys": search}), next), nil
}

// warnings says why requests are refused: because a budget is used up, or because no backend of a model answers.
func (c *Console) warnings(ctx context.Context, a identity.Account, page dashboardPage) []string {
	var warnings []string
	account := budget.Payer{Account: a.ID, AccountCaps: a.Caps}
	if e := c.Ledger.Recent(ctx, account).Exhausted(); e != nil {
		warnings = append(warnings, budgetWarning("Account", e))
	}
	for _, k := range page.Keys {
		if k.State != identity.KeyActive || !k.Caps.Any() {
			continue
		}
		if e := c.Ledger.Recent(ctx, budget.Payer{Key: k.ID, KeyCaps: k.Caps}).Exhausted(); e != nil {
			warnings = append(warnings, budgetWarning("Key "+k.Name, e))
		}
	}
	for _, m := range page.Models {
		if m.Down {
			warnings = append(warnings, m.ID()+" is down. Requests to it fail until a backend is back; try again in a few minutes.")
		}
	}
	return warnings
}

var (
	windowNames = map[quota.Window]string{quota.Life: "lifetime", quota.Month: "monthly", quota.Day: "daily"}
	meterNames  = map[quota.Meter]string{quota.Total: "", quota.Input: " prompt token", quota.Output: " completion token"}
)

// budgetWarning says which budget is used up, and until when.
func budgetWarning(owner string, e *budget.Exceeded) string {
	text := fmt.Sprintf("%s: %s%s budget used up (%s of %s tokens).",
		owner, windowNames[e.Window], meterNames[e.Meter], formatNumber(e.Used), formatNumber(e.Limit))
	if e.ResetsAt.IsZero() {
		return text
	}
	return text + " Resets " + e.ResetsAt.Format("2 Jan") + ", 00:00 UTC."
}

type capField struct {
	Label, Name string
	Value       string    // digits, or empty for unbounded
	Operator    quota.Cap // what the operator has set for the key
}

// newCapFields returns the fields of a form. value returns what one has.
func newCapFields(operator quota.Caps, value func(quota.ID) string) (all []capField) {
	for id, k := range quota.Table {
		if k.Label != "" {
			all = append(all, capField{k.Label, k.Field, value(quota.ID(id)), operator[id]})
		}
	}
	return all
}

// fieldsOf returns the fields with caps.
func fieldsOf(c, operator quota.Caps) []capField {
	return newCapFields(operator, func(id quota.ID) string {
		if !c[id].Bounded() {
			return ""
		}
		return c[id].String()
	})
}

// capFields returns the caps of a form as the user has entered them.
func (r *request) capFields(operator quota.Caps) []capField {
	return newCapFields(operator, func(id quota.ID) string { return r.field(quota.Table[id].Field) })
}

// readCaps reads the caps of a form into those before; the form may not have all.
func (r *request) readCaps(c *quota.Caps) error {
	for id, k := range quota.Table {
		if k.Label == "" {
			continue
		}
		var ok bool
		if c[id], ok = parseCap(r.field(k.Field)); !ok {
			return invalid(fmt.Sprintf(
				"%q is not a budget. Enter a number of tokens such as 500000, 500k or 1.5M, or leave the field blank for no limit.",
				r.field(k.Field))).on(k.Field)
		}
	}
	return nil
}

// parseCap parses a number of tokens in one of the ways that people write it: those of quota.ParseTokens, also with
// spaces and commas between digits, and with b for billions.
func parseCap(text string) (c quota.Cap, ok bool) {
	digits := strings.NewReplacer(" ", "", ",", "", "_", "", "\u202f", "", "\u00a0", "").Replace(text)
	if digits == "" || strings.EqualFold(digits, "unbounded") || strings.EqualFold(digits, "nolimit") {
		return quota.Unbounded(), true
	}
	if billions := strings.TrimRight(digits, "bB"); len(billions) == len(digits)-1 {
		digits = billions + "G"
	}
	n, err := quota.ParseTokens(digits)
	return quota.Limit(n), err == nil && n <= maxCap
}

// maxCap is the highest cap in tokens: more than any account spends, and far from an overflow.
const maxCap = 1e15
