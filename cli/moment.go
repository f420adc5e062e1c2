package cli

import (
	"errors"
	"time"
)

// moment is a flag's value: a day or a time.
type moment struct {
	at  time.Time
	end bool // a day stands for its end
}

var errMoment = errors.New("expected a day such as 2026-11-21, or a time such as 2026-11-21T09:30:00Z")

// Set implements pflag.Value.
func (m *moment) Set(text string) error {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		m.at = at
		return nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return errMoment
	}
	if m.at = day; m.end {
		m.at = day.AddDate(0, 0, 1)
	}
	return nil
}

// String implements pflag.Value.
func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.Format(time.RFC3339)
}

// Type implements pflag.Value; it is what help calls the value.
func (*moment) Type() string { return "DATE" }
