package quota

import (
	"fmt"
	"slices"
	"strings"
)

// Window is the time in which a cap counts tokens: a calendar month or day, in UTC, or all time.
type Window uint8

// The windows. A refusal by several caps names one with an earlier window: it lasts longer.
const (
	Life Window = iota // it never resets
	Month
	Day
	Windows // their number
)

var windowNames = [Windows]string{"life", "month", "day"}

// String returns the name of the window in responses and in the database.
func (w Window) String() string { return windowNames[w] }

// MarshalText implements encoding.TextMarshaler.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *Window) UnmarshalText(text []byte) (err error) { return parse(w, windowNames[:], text) }

// Meter is the kind of tokens that a cap counts.
type Meter uint8

// The meters.
const (
	Total Meter = iota
	Input
	Output
)

var meterNames = [...]string{"total", "input", "output"}

// String returns the name of the meter in responses and in the database.
func (m Meter) String() string { return meterNames[m] }

// MarshalText implements encoding.TextMarshaler.
func (m Meter) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Meter) UnmarshalText(text []byte) error { return parse(m, meterNames[:], text) }

func parse[T ~uint8](into *T, names []string, text []byte) error {
	at := slices.Index(names, string(text))
	if at < 0 {
		return fmt.Errorf("%q is none of %s", text, strings.Join(names, ", "))
	}
	*into = T(at)
	return nil
}

// Of returns the tokens that the meter counts.
func (m Meter) Of(t Tokens) int64 {
	switch m {
	case Input:
		return t.Input
	case Output:
		return t.Output
	case Total:
	}
	return t.Total()
}

// Tokens are prompt and completion tokens.
type Tokens struct{ Input, Output int64 }

// Total returns all tokens.
func (t Tokens) Total() int64 { return t.Input + t.Output }

// Plus returns the sum of both.
func (t Tokens) Plus(other Tokens) Tokens {
	return Tokens{t.Input + other.Input, t.Output + other.Output}
}

// ID is a cap: its place in Table and in Caps.
type ID uint8

// The caps.
const (
	MonthTotal ID = iota
	DayTotal
	MonthInput
	MonthOutput
	LifeTotal
	LifeInput
	LifeOutput
	Count // their number
)

// Kind says what a cap counts, and how it is called where people set it.
type Kind struct {
	Window Window
	Meter  Meter
	Name   string // in messages

	// In commands. Without Help, there is no flag for it, and lists do not have it.
	Help    string // of its flag
	Heading string // of its column in lists

	// In the console. Without Label, the forms do not have it.
	Field, Label string // of its input
	Title        string // of its usage
}

// Table has all caps, in the order in which they are evaluated.
var Table = [Count]Kind{
	MonthTotal: {
		Month, Total, "monthly budget", "tokens a month, prompts and completions together", "MONTH",
		"month", "Tokens per month", "This month",
	},
	DayTotal: {
		Day, Total, "daily budget", "tokens a day, prompts and completions together", "DAY",
		"day", "Tokens per day", "Today",
	},
	MonthInput: {
		Month, Input, "input budget", "tokens of prompts a month", "INPUT",
		"input", "Prompt tokens per month", "Prompt tokens, this month",
	},
	MonthOutput: {
		Month, Output, "output budget", "tokens of completions a month", "OUTPUT",
		"output", "Completion tokens per month", "Completion tokens, this month",
	},
	LifeTotal:  {Window: Life, Meter: Total, Name: "lifetime budget"},
	LifeInput:  {Window: Life, Meter: Input, Name: "lifetime input budget"},
	LifeOutput: {Window: Life, Meter: Output, Name: "lifetime output budget"},
}

// Key returns the name of the cap in the database, such as "month_total".
func (k *Kind) Key() string { return k.Window.String() + "_" + k.Meter.String() }

// Flag returns the flag that sets the cap, such as "monthly-budget".
func (k *Kind) Flag() string { return strings.ReplaceAll(k.Name, " ", "-") }

// Member returns the name of the cap in the JSON of lists, such as "monthly_budget".
func (k *Kind) Member() string { return strings.ReplaceAll(k.Name, " ", "_") }
