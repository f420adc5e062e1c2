package console

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"basegate/budget/quota"
)

func templateFunctions(a assets) template.FuncMap {
	return template.FuncMap{
		"asset":    a.url,
		"mark":     markField,
		"number":   formatNumber,
		"limit":    formatLimit,
		"monthly":  func(c quota.Caps) quota.Cap { return c[quota.MonthTotal] },
		"count":    formatCount,
		"bytes":    formatBytes,
		"percent":  formatPercent,
		"rate":     formatRate,
		"latency":  formatLatency,
		"duration": formatDuration,
		"date":     func(t time.Time) string { return t.UTC().Format("2 Jan 2006") },
		"datetime": func(t time.Time) string { return t.UTC().Format("2 Jan 2006, 15:04:05") + " UTC" },
		"unix":     func(seconds int64) time.Time { return time.Unix(seconds, 0) },
		"window":   formatWindow,
		"rfc3339":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	}
}

// markField returns the attributes of a form field: those that mark it as the cause of the problem, if it is.
func markField(p *problem, field string) template.HTMLAttr {
	if p == nil || p.field != field {
		return ""
	}
	return `aria-invalid="true" aria-describedby="problem" autofocus`
}

// formatNumber formats a number with its digits in groups of three, separated by commas.
func formatNumber(n int64) string { return humanize.Comma(n) }

// unit is a unit of a number that is formatted with at most one decimal.
type unit struct {
	size int64
	name string
}

// formatShort formats a number with a unit: 950, 1.2k, 30M.
func formatShort(n int64) string {
	return formatUnits(n, strconv.FormatInt(n, 10), unit{1e12, "T"}, unit{1e9, "G"}, unit{1e6, "M"}, unit{1e3, "k"})
}

// formatBytes formats a size with a binary unit: 950 bytes, 1.2 KiB, 100 MiB.
func formatBytes(n int64) string {
	const space = "\u202f"
	return formatUnits(n, formatCount(int(n), "byte", "bytes"),
		unit{1 << 30, space + "GiB"}, unit{1 << 20, space + "MiB"}, unit{1 << 10, space + "KiB"})
}

// formatUnits formats a number with the first of the units that it has, the largest first. small is the text without one.
func formatUnits(n int64, small string, units ...unit) string {
	for _, u := range units {
		if n >= u.size {
			return strconv.FormatFloat(math.Round(float64(n)/float64(u.size)*10)/10, 'f', -1, 64) + u.name
		}
	}
	return small
}

// formatLimit formats the tokens of a bounded cap.
func formatLimit(c quota.Cap) string {
	tokens, _ := c.Tokens()
	return formatNumber(tokens)
}

// formatCount formats a number with its noun: "1 key" or "2 keys".
func formatCount(n int, singular, plural string) string {
	if n == 1 {
		return "1 " + singular
	}
	return formatNumber(int64(n)) + " " + plural
}

// unknown stands for a figure that is not known, or of which there is none.
const unknown = "–"

// formatKnown formats a figure that may not be known.
func formatKnown(v *float64, format func(float64) string) string {
	if v == nil {
		return unknown
	}
	return format(*v)
}

func formatPercent(percentage float64) string { return fmt.Sprintf("%.1f\u202f%%", percentage) }

// formatShare formats a part of a whole as a percentage.
func formatShare(part, whole int64) string {
	if whole == 0 {
		return unknown
	}
	return formatPercent(100 * float64(part) / float64(whole))
}

// formatCached formats the cached part of those prompt tokens of which it is known.
func formatCached(cached, known int64) string {
	if known == 0 {
		return "not reported"
	}
	return formatShare(cached, known)
}

// formatRate formats a rate or a level: below ten with at most two decimals.
func formatRate(v float64) string {
	if v >= 10 {
		return formatNumber(int64(v + .5))
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
}

// formatLatency formats a measured duration with a precision that suits its size: 0.3 ms, 45 ms, 1.24 s, 75.1 s.
func formatLatency(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f\u202fms", float64(d.Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%d\u202fms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.2f\u202fs", d.Seconds())
	default:
		return fmt.Sprintf("%.1f\u202fs", d.Seconds())
	}
}

// formatSeconds is formatLatency for seconds.
func formatSeconds(s float64) string { return formatLatency(time.Duration(s * float64(time.Second))) }

// inUnit returns a duration in one unit, from seconds to days.
func inUnit(d time.Duration) (n int, unit string) {
	switch {
	case d < time.Minute:
		return int(max(d.Round(time.Second), time.Second) / time.Second), "second"
	case d < 2*time.Hour:
		return int(d.Round(time.Minute) / time.Minute), "minute"
	case d < 48*time.Hour:
		return int(d.Round(time.Hour) / time.Hour), "hour"
	}
	return int(d / (24 * time.Hour)), "day"
}

var unitSymbols = map[string]string{"second": "s", "minute": "min", "hour": "h", "day": "d"}

// formatBrief formats an estimate as formatDuration does, with symbols for units: 6 s.
func formatBrief(d time.Duration) string {
	n, unit := inUnit(d)
	return formatNumber(int64(n)) + "\u202f" + unitSymbols[unit]
}

// formatDuration formats an estimate or a setting in words and one unit, from seconds to days.
func formatDuration(d time.Duration) string {
	n, unit := inUnit(d)
	return formatCount(n, unit, unit+"s")
}
