package cli

import (
	"github.com/spf13/pflag"

	"basegate/budget/quota"
)

// budgetFlags are the flags of the caps of an account or a key.
type budgetFlags struct{ flags *pflag.FlagSet }

// offered returns the caps that commands set and list.
func offered() (all []quota.ID) {
	for id := range quota.Count {
		if quota.Table[id].Help != "" {
			all = append(all, id)
		}
	}
	return all
}

// add adds the flags to a command. Help shows unbounded as their default, which is right for create; asSetCommand removes it.
func (b *budgetFlags) add(flags *pflag.FlagSet) {
	b.flags = flags
	for _, id := range offered() {
		k := &quota.Table[id]
		flags.Var(newCapFlag(quota.Unbounded()), k.Flag(), k.Help)
	}
}

// apply sets the caps whose flags are given and leaves the others as they are.
func (b *budgetFlags) apply(c *quota.Caps) {
	for _, id := range offered() {
		if given := b.flags.Lookup(quota.Table[id].Flag()); given.Changed {
			c[id] = given.Value.(*parsedFlag[quota.Cap]).value
		}
	}
}

// budgetsJSON are the offered caps of an account or a key; null is unbounded.
type budgetsJSON struct {
	Monthly quota.Cap `json:"monthly_budget"`
	Daily   quota.Cap `json:"daily_budget"`
	Input   quota.Cap `json:"input_budget"`
	Output  quota.Cap `json:"output_budget"`
}

func newBudgetsJSON(c *quota.Caps) budgetsJSON {
	return budgetsJSON{c[quota.MonthTotal], c[quota.DayTotal], c[quota.MonthInput], c[quota.MonthOutput]}
}

// budgetHeadings returns the headings of the columns of budgetCells.
func budgetHeadings() (headings []string) {
	for _, id := range offered() {
		headings = append(headings, quota.Table[id].Heading)
	}
	return headings
}

func budgetCells(c *quota.Caps) (cells []string) {
	for _, id := range offered() {
		cells = append(cells, budgetCell(c[id]))
	}
	return cells
}

func budgetCell(c quota.Cap) string {
	if !c.Bounded() {
		return "-"
	}
	return c.String()
}
