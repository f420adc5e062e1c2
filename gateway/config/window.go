package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the time zones, for images that contain only the binary
)

// String formats the window: mon-fri 09:00 to 18:00 Europe/Prague.
func (w Window) String() string {
	return fmt.Sprintf("%s %s to %s %s", w.Days, formatClock(w.From), formatClock(w.To), w.Location)
}

func formatClock(at time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(at.Hours()), int(at.Minutes())%60)
}

// Days is a set of weekdays, one bit each, Sunday the lowest.
type Days uint8

// Has reports whether the day is in the set.
func (d Days) Has(day time.Weekday) bool { return d&(1<<day) != 0 }

// String formats the set as ParseDays parses it, beginning with Monday.
func (d Days) String() string {
	if d == everyDay {
		return "daily"
	}
	var parts []string
	for day := 1; day <= 7; day++ {
		if !d.Has(time.Weekday(day % 7)) {
			continue
		}
		first := day
		for day < 7 && d.Has(time.Weekday((day+1)%7)) {
			day++
		}
		name := dayNames[first%7]
		if day > first {
			name += "-" + dayNames[day%7]
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, ",")
}

const everyDay Days = 1<<7 - 1

var dayNames = []string{time.Sunday: "sun", "mon", "tue", "wed", "thu", "fri", "sat"}

var errDays = errors.New("daily, a day (sat), a range (mon-fri) or several joined by commas (mon,wed,fri)")

// ParseDays parses daily, sat, mon-fri, mon,wed,fri. A range may wrap around the end of the week.
func ParseDays(text string) (Days, error) {
	if text == "daily" {
		return everyDay, nil
	}
	var days Days
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, to := slices.Index(dayNames, first), slices.Index(dayNames, last)
		if from < 0 || to < 0 {
			return 0, errDays
		}
		for day := from; ; day = (day + 1) % 7 {
			days |= 1 << day
			if day == to {
				break
			}
		}
	}
	return days, nil
}

// parseClock parses a time of day, HH:MM up to 24:00, and returns the duration since midnight.
func parseClock(text string) (time.Duration, error) {
	if text == "24:00" {
		return day, nil
	}
	at, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, errors.New("HH:MM from 00:00 to 24:00")
	}
	return time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute, nil
}

// parseStartClock parses the start of a window, HH:MM before 24:00.
func parseStartClock(text string) (time.Duration, error) {
	at, err := parseClock(text)
	if err != nil || at == day {
		return 0, errors.New("HH:MM from 00:00 to 23:59")
	}
	return at, nil
}

// parseLocation returns a time zone by its name. It rejects Local, with which a file would mean different times on
// different machines.
func parseLocation(name string) (*time.Location, error) {
	location, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		return nil, errors.New("a time zone such as Europe/Prague or UTC")
	}
	return location, nil
}
