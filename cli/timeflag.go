package cli

import (
	"errors"
	"time"
)

// timeFlag is a flag's value: a time with its offset from UTC.
type timeFlag struct{ at time.Time }

var errNotATime = errors.New("expected a time such as 2026-11-21T09:30:00Z, or with an offset such as +01:00")

// Set implements pflag.Value.
func (f *timeFlag) Set(text string) (err error) {
	if f.at, err = time.Parse(time.RFC3339, text); err != nil {
		if f.at, err = time.Parse("2006-01-02T15:04Z07:00", text); err != nil {
			return errNotATime
		}
	}
	return nil
}

// String implements pflag.Value.
func (f *timeFlag) String() string { return formatFlag(f.at) }

// Type implements pflag.Value; help shows it in place of the value.
func (*timeFlag) Type() string { return "TIME" }

// dateFlag is a flag's value: a whole day, UTC, or a time.
type dateFlag struct {
	at       time.Time
	endOfDay bool // a day means its end, otherwise its start
}

var errNotADate = errors.New("expected a day such as 2026-11-21, or a time such as 2026-11-21T09:30:00Z")

// Set implements pflag.Value.
func (f *dateFlag) Set(text string) error {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		f.at = at
		return nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return errNotADate
	}
	if f.at = day; f.endOfDay {
		f.at = day.AddDate(0, 0, 1)
	}
	return nil
}

// String implements pflag.Value.
func (f *dateFlag) String() string { return formatFlag(f.at) }

// Type implements pflag.Value; help shows it in place of the value.
func (*dateFlag) Type() string { return "DATE" }

// formatFlag returns "" for the zero time, so that help shows no default.
func formatFlag(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339)
}
