package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // the time zones, for images that contain only the binary
)

// Window is a recurring time during which a model is kept warm: weekdays, a start and an end in the local time of
// Location.
//
// From and To are local times of day, as the duration since midnight. To may be 24h. If To is not after From, the
// window ends on the next day; it belongs to the day on which it begins.
type Window struct {
	Days     Days
	From     time.Duration
	To       time.Duration
	Location *time.Location
}

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

// ParseClock parses a time of day, HH:MM up to 24:00, and returns the duration since midnight.
func ParseClock(text string) (time.Duration, error) {
	if len(text) != len("15:04") || text[2] != ':' {
		return 0, errClock
	}
	hour, err := strconv.ParseUint(text[:2], 10, 8)
	if err != nil {
		return 0, errClock
	}
	minute, err := strconv.ParseUint(text[3:], 10, 8)
	at := time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute
	if err != nil || minute > 59 || at > 24*time.Hour {
		return 0, errClock
	}
	return at, nil
}

var errClock = errors.New("HH:MM from 00:00 to 24:00")

// parsed decodes a text with parse.
func parsed[T any](to *T, parse func(string) (T, error)) decodeFunc {
	return func(v value) {
		var s string
		text(&s, func(s string) error {
			t, err := parse(s)
			if err == nil {
				*to = t
			}
			return err
		})(v)
	}
}

var errZone = errors.New("a time zone such as Europe/Prague or UTC")

// parseLocation returns a time zone by its name. It rejects Local, with which a file would mean different times on
// different machines.
func parseLocation(name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, errZone
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, errZone
	}
	return location, nil
}

// parseStartClock parses the start of a window, HH:MM before 24:00.
func parseStartClock(text string) (time.Duration, error) {
	at, err := ParseClock(text)
	if err != nil || at == 24*time.Hour {
		return 0, errors.New("HH:MM from 00:00 to 23:59")
	}
	return at, nil
}
