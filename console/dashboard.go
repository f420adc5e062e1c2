package console

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"basegate/budget"
	"basegate/identity"
	"basegate/quota"
)

// overview is the dashboard.
type overview struct {
	Warnings []string // what does not work at the moment, and until when
	Total    standing
	Keys     []keyRow
	Gone     []keyRow // revoked
	Models   []modelRow
	CanWarm  bool
}

// keyRow is a key as the dashboard shows it.
type keyRow struct {
	identity.Key
	standing
	LastUse time.Time
	Form    capFields
}

// standing is what a key or an account has taken of its caps.
type standing struct {
	Month, Day, Input, Output gauge
}

// gauge is one cap and what counts against it.
type gauge struct {
	Used    int64
	Bounded bool
	Limit   int64
	Percent float64 // of the limit, at most 100
	Level   string  // near, full, or empty
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

// nearPercent is from where on a cap is nearly used up.
const nearPercent = 85

func newStanding(s budget.WindowTotals, c quota.Caps) standing {
	return standing{
		Month:  newGauge(s.Month(), c.MonthTotal),
		Day:    newGauge(s.Day, c.DayTotal),
		Input:  newGauge(s.MonthInput, c.MonthInput),
		Output: newGauge(s.MonthOutput, c.MonthOutput),
	}
}

func (c *Console) dashboard(r *request) error {
	data, err := c.overview(r.ctx(), r.account)
	if err != nil {
		return err
	}
	return c.render(r, "dashboard", "Dashboard", data)
}

func (c *Console) overview(ctx context.Context, a identity.Account) (overview, error) {
	o := overview{
		Total:  newStanding(c.ledger.AccountTotals(a.ID), a.Caps),
		Models: c.modelRows(), CanWarm: c.warm != nil,
	}
	all, err := c.keyRows(ctx, a.ID)
	if err != nil {
		return o, err
	}
	for _, k := range all {
		if k.State == identity.KeyRevoked {
			o.Gone = append(o.Gone, k)
			continue
		}
		o.Keys = append(o.Keys, k)
	}
	o.Warnings = c.warnings(a, o)
	return o, nil
}

func (c *Console) keyRows(ctx context.Context, account string) ([]keyRow, error) {
	owned, err := c.keys.ListOf(ctx, account)
	if err != nil {
		return nil, err
	}
	rows := make([]keyRow, len(owned))
	for i, k := range owned {
		rows[i] = keyRow{Key: k, standing: newStanding(c.ledger.KeyTotals(k.ID), k.Caps), Form: newCapFields(k.Caps)}
		if rows[i].LastUse, err = c.ledger.LastUse(ctx, k.ID); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// warnings tell in words why requests are refused now: a budget that is used up, a model that does not answer.
func (c *Console) warnings(a identity.Account, o overview) []string {
	var all []string
	whole := budget.Payer{Account: a.ID, AccountCaps: a.Caps}
	if e := c.ledger.Spent(whole); e != nil {
		all = append(all, capHit("your account", "No key works", e))
	}
	for _, k := range o.Keys {
		one := budget.Payer{Key: k.ID, KeyCaps: k.Caps}
		if e := c.ledger.Spent(one); e != nil && k.State == identity.KeyActive {
			all = append(all, capHit("the key "+k.Name, "It is refused", e))
		}
	}
	for _, m := range o.Models {
		if m.Down {
			all = append(all, fmt.Sprintf("The model %s does not answer: none of its backends does. Requests to it fail until "+
				"one is back, and are worth trying again in a few minutes.", m.ID))
		}
	}
	return all
}

var (
	windowNames = map[budget.Window]string{budget.Month: "monthly", budget.Day: "daily"}
	meterNames  = map[budget.Meter]string{budget.Total: "", budget.Input: " input", budget.Output: " output"}
)

// capHit says which budget is used up, what that does, and until when.
func capHit(whose, effect string, e *budget.Exceeded) string {
	return fmt.Sprintf("The %s%s budget of %s is used up: %s of %s tokens. %s until %s, 00:00 UTC, or until the budget is raised.",
		windowNames[e.Window], meterNames[e.Meter], whose, number(e.Used), number(e.Limit), effect,
		e.ResetsAt.Format("2 January"))
}

// capFields are caps as a form has them: digits, or empty for unbounded.
type capFields struct {
	Month, Day, Input, Output string
}

func newCapFields(c quota.Caps) capFields {
	text := func(limit quota.Cap) string {
		if !limit.Bounded() {
			return ""
		}
		return limit.String()
	}
	return capFields{text(c.MonthTotal), text(c.DayTotal), text(c.MonthInput), text(c.MonthOutput)}
}

// caps reads the caps of a form.
func (r *request) caps() (c quota.Caps, err error) {
	for _, one := range []struct {
		to   *quota.Cap
		name string
	}{{&c.MonthTotal, "month"}, {&c.DayTotal, "day"}, {&c.MonthInput, "input"}, {&c.MonthOutput, "output"}} {
		if *one.to, err = parseCap(r.field(one.name)); err != nil {
			return c, err
		}
	}
	return c, nil
}

// parseCap reads a number of tokens as people write it: 1000000, 1 000 000, 1,000,000, 500k, 20M.
func parseCap(text string) (quota.Cap, error) {
	digits := strings.NewReplacer(" ", "", ",", "", "_", "", "\u202f", "", "\u00a0", "").Replace(text)
	if digits == "" || strings.EqualFold(digits, "unbounded") {
		return quota.Unbounded(), nil
	}
	unit := int64(1)
	switch digits[len(digits)-1] {
	case 'k', 'K':
		unit, digits = 1e3, digits[:len(digits)-1]
	case 'm', 'M':
		unit, digits = 1e6, digits[:len(digits)-1]
	case 'g', 'G', 'b', 'B':
		unit, digits = 1e9, digits[:len(digits)-1]
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > maxCap/unit {
		return quota.Cap{}, &problem{http.StatusUnprocessableEntity, "This is no budget", fmt.Sprintf(
			"A budget is a number of tokens such as 500000, 500k or 20M, or nothing for unbounded; this is %q.", text)}
	}
	return quota.Limit(n * unit), nil
}

// maxCap is far beyond what anybody spends, and far from an overflow.
const maxCap = 1e15
