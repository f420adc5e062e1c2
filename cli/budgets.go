package cli

import (
	"github.com/spf13/pflag"

	"basegate/budget/quota"
)

// budgetFlags are the flags of the four caps of an account or a key.
type budgetFlags struct{ flags *pflag.FlagSet }

// budgetFlag is the flag of one cap.
type budgetFlag struct {
	name, help string
	of         func(*quota.Caps) *quota.Cap
}

var allBudgetFlags = []budgetFlag{
	{"monthly-budget", "tokens a month, prompts and completions together", func(c *quota.Caps) *quota.Cap { return &c.MonthTotal }},
	{"daily-budget", "tokens a day, prompts and completions together", func(c *quota.Caps) *quota.Cap { return &c.DayTotal }},
	{"input-budget", "tokens of prompts a month", func(c *quota.Caps) *quota.Cap { return &c.MonthInput }},
	{"output-budget", "tokens of completions a month", func(c *quota.Caps) *quota.Cap { return &c.MonthOutput }},
}

// add adds the flags to a command. Help shows unbounded as their default, which is right for create; asSetCommand removes it.
func (b *budgetFlags) add(flags *pflag.FlagSet) {
	b.flags = flags
	for _, f := range allBudgetFlags {
		flags.Var(newCapFlag(quota.Unbounded()), f.name, f.help)
	}
}

// apply sets the caps whose flags are given and leaves the others as they are.
func (b *budgetFlags) apply(c *quota.Caps) {
	for _, f := range allBudgetFlags {
		if given := b.flags.Lookup(f.name); given.Changed {
			*f.of(c) = given.Value.(*parsedFlag[quota.Cap]).value
		}
	}
}

// budgetsJSON has the caps of an account or a key in lists; unbounded is null.
type budgetsJSON struct {
	Monthly quota.Cap `json:"monthly_budget"`
	Daily   quota.Cap `json:"daily_budget"`
	Input   quota.Cap `json:"input_budget"`
	Output  quota.Cap `json:"output_budget"`
}

func newBudgetsJSON(c quota.Caps) budgetsJSON {
	return budgetsJSON{c.MonthTotal, c.DayTotal, c.MonthInput, c.MonthOutput}
}

// budgetHeadings are the headings of the columns of budgetsJSON.cells.
var budgetHeadings = []string{"MONTH", "DAY", "INPUT", "OUTPUT"}

func (b budgetsJSON) cells() (cells []string) {
	for _, limit := range []quota.Cap{b.Monthly, b.Daily, b.Input, b.Output} {
		cell := "-"
		if limit.Bounded() {
			cell = limit.String()
		}
		cells = append(cells, cell)
	}
	return cells
}
