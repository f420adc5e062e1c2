package cli

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"basegate/quota"
)

// capFlag is the value of a flag: a number of tokens, or "unbounded".
type capFlag struct{ limit quota.Cap }

var errBudget = errors.New(`a budget is a number of tokens, such as 5_000_000, or "unbounded"`)

// Set implements pflag.Value.
func (b *capFlag) Set(text string) error {
	if text == quota.Unbounded().String() {
		b.limit = quota.Unbounded()
		return nil
	}
	if strings.HasPrefix(text, "_") || strings.HasSuffix(text, "_") || strings.Contains(text, "__") {
		return errBudget
	}
	tokens, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, 63)
	if err != nil {
		return errBudget
	}
	b.limit = quota.Limit(int64(tokens))
	return nil
}

// String implements pflag.Value.
func (b *capFlag) String() string { return b.limit.String() }

// Type implements pflag.Value; it is what help calls the value.
func (*capFlag) Type() string { return "TOKENS" }

// budgetFlags are the four budgets of an account or a key. Those that are not given change nothing.
type budgetFlags struct {
	flags                         *pflag.FlagSet
	monthly, daily, input, output capFlag
}

// add adds them to a command that creates something, where those that are not given are unbounded.
func (b *budgetFlags) add(flags *pflag.FlagSet) {
	b.flags = flags
	flags.Var(&b.monthly, "monthly-budget", "tokens a month, prompts and completions together")
	flags.Var(&b.daily, "daily-budget", "tokens a day, prompts and completions together")
	flags.Var(&b.input, "input-budget", "tokens of prompts a month")
	flags.Var(&b.output, "output-budget", "tokens of completions a month")
}

// apply changes the caps whose flags were given.
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

// budgetsJSON is how lists show caps; null is unbounded.
type budgetsJSON struct {
	Monthly quota.Cap `json:"monthly_budget"`
	Daily   quota.Cap `json:"daily_budget"`
	Input   quota.Cap `json:"input_budget"`
	Output  quota.Cap `json:"output_budget"`
}

func budgetsOf(c quota.Caps) budgetsJSON {
	return budgetsJSON{c.MonthTotal, c.DayTotal, c.MonthInput, c.MonthOutput}
}

// budgetHeadings stand over what cells returns.
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
