package cli

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"basegate/keys"
)

// capFlag is a flag's value: a number of tokens, or unbounded.
type capFlag struct {
	tokens *int64 // nil: unbounded
}

const unbounded = "unbounded"

var errBudget = errors.New(`a budget is a number of tokens, such as 5_000_000, or "unbounded"`)

// Set implements pflag.Value.
func (b *capFlag) Set(text string) error {
	if text == unbounded {
		b.tokens = nil
		return nil
	}
	if strings.HasPrefix(text, "_") || strings.HasSuffix(text, "_") || strings.Contains(text, "__") {
		return errBudget
	}
	tokens, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, 63)
	if err != nil {
		return errBudget
	}
	b.tokens = new(int64(tokens))
	return nil
}

// String implements pflag.Value.
func (b *capFlag) String() string {
	if b.tokens == nil {
		return unbounded
	}
	return strconv.FormatInt(*b.tokens, 10)
}

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
func (b *budgetFlags) apply(c *keys.Caps) {
	for _, f := range []struct {
		name  string
		value *capFlag
		cap   **int64
	}{
		{"monthly-budget", &b.monthly, &c.MonthTotal},
		{"daily-budget", &b.daily, &c.DayTotal},
		{"input-budget", &b.input, &c.MonthInput},
		{"output-budget", &b.output, &c.MonthOutput},
	} {
		if b.flags.Changed(f.name) {
			*f.cap = f.value.tokens
		}
	}
}

// budgetsJSON is how lists show caps; null is unbounded.
type budgetsJSON struct {
	Monthly *int64 `json:"monthly_budget"`
	Daily   *int64 `json:"daily_budget"`
	Input   *int64 `json:"input_budget"`
	Output  *int64 `json:"output_budget"`
}

func budgetsOf(c keys.Caps) budgetsJSON {
	return budgetsJSON{c.MonthTotal, c.DayTotal, c.MonthInput, c.MonthOutput}
}

// budgetHeadings stand over what cells returns.
var budgetHeadings = []string{"MONTH", "DAY", "INPUT", "OUTPUT"}

func (b budgetsJSON) cells() []string {
	out := make([]string, 0, len(budgetHeadings))
	for _, tokens := range []*int64{b.Monthly, b.Daily, b.Input, b.Output} {
		cell := "-"
		if tokens != nil {
			cell = strconv.FormatInt(*tokens, 10)
		}
		out = append(out, cell)
	}
	return out
}
