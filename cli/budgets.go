package cli

import (
	"errors"
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"basegate/budget/quota"
)

// capFlag is a flag's value: a number of tokens, or "unbounded".
type capFlag struct{ limit quota.Cap }

var errBudget = errors.New(`a budget is a number of tokens, such as 5_000_000, 500k or 1.5M, or "unbounded"`)

// Set implements pflag.Value.
func (f *capFlag) Set(text string) (err error) {
	if f.limit, err = quota.Parse(text); err != nil {
		return errBudget
	}
	return nil
}

// String implements pflag.Value.
func (f *capFlag) String() string { return f.limit.String() }

// Type implements pflag.Value; help shows it in place of the value.
func (*capFlag) Type() string { return "TOKENS" }

// tokensFlag is a flag's value: a number of tokens.
type tokensFlag int

// Set implements pflag.Value.
func (f *tokensFlag) Set(text string) error {
	tokens, err := quota.ParseTokens(text)
	if err != nil || tokens > math.MaxInt32 {
		return quota.ErrNotTokens
	}
	*f = tokensFlag(tokens)
	return nil
}

// String implements pflag.Value.
func (f *tokensFlag) String() string { return strconv.Itoa(int(*f)) }

// Type implements pflag.Value; help shows it in place of the value.
func (*tokensFlag) Type() string { return "TOKENS" }

// budgetFlags are the flags of the four caps of an account or a key.
type budgetFlags struct {
	flags                         *pflag.FlagSet
	monthly, daily, input, output capFlag
}

// add adds the flags to a command. Help shows unbounded as their default, which is right for create; asSetCommand removes it.
func (b *budgetFlags) add(flags *pflag.FlagSet) {
	b.flags = flags
	flags.Var(&b.monthly, "monthly-budget", "tokens a month, prompts and completions together")
	flags.Var(&b.daily, "daily-budget", "tokens a day, prompts and completions together")
	flags.Var(&b.input, "input-budget", "tokens of prompts a month")
	flags.Var(&b.output, "output-budget", "tokens of completions a month")
}

// apply sets the caps whose flags are given and leaves the others as they are.
func (b *budgetFlags) apply(c *quota.Caps) {
	for _, f := range []struct {
		name  string
		value *capFlag
		cap   *quota.Cap
	}{
		{"monthly-budget", &b.monthly, &c.MonthTotal},
		{"daily-budget", &b.daily, &c.DayTotal},
		{"input-budget", &b.input, &c.MonthInput},
		{"output-budget", &b.output, &c.MonthOutput},
	} {
		if b.flags.Changed(f.name) {
			*f.cap = f.value.limit
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

func (b budgetsJSON) cells() []string {
	out := make([]string, 0, len(budgetHeadings))
	for _, limit := range []quota.Cap{b.Monthly, b.Daily, b.Input, b.Output} {
		cell := "-"
		if limit.Bounded() {
			cell = limit.String()
		}
		out = append(out, cell)
	}
	return out
}
