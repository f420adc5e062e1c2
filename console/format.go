package console

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"basegate/quota"
)

// functions are what templates can call.
func functions(a assets) template.FuncMap {
	return template.FuncMap{
		"asset":   a.url,
		"number":  number,
		"limit":   limit,
		"date":    func(t time.Time) string { return t.UTC().Format("2 January 2006") },
		"moment":  func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") },
		"instant": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"plural":  plural,
		"span":    span,
		"percent": func(share float64) string { return fmt.Sprintf("%.1f\u202f%%", share) },
	}
}

// number groups the digits of a count by threes, with a narrow space that does not break.
func number(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var out strings.Builder
	for i, d := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && digits[i-1] != '-' {
			out.WriteRune('\u202f')
		}
		out.WriteRune(d)
	}
	return out.String()
}

// limit is the number of tokens of a bounded cap.
func limit(c quota.Cap) string {
	tokens, _ := c.Tokens()
	return number(tokens)
}

// plural is "1 key" or "2 keys".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(int64(n)) + " " + many
}

// span is a duration as one says it, rounded to what matters.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return plural(int(max(d.Round(time.Second), time.Second)/time.Second), "second", "seconds")
	case d < 2*time.Hour:
		return plural(int(d.Round(time.Minute)/time.Minute), "minute", "minutes")
	case d < 48*time.Hour:
		return plural(int(d.Round(time.Hour)/time.Hour), "hour", "hours")
	}
	return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
}
