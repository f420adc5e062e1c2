package console

import (
	"time"

	"basegate/quota"
)

// Routes lists the patterns of all routes.
func Routes() []string {
	var all []string
	for _, r := range routes {
		all = append(all, r.pattern)
	}
	return all
}

// Outlook is what is said of how a month will end.
func Outlook(begin, now time.Time, used int64, limit quota.Cap) string {
	return outlookWords(month{begin}, used, limit, now)
}
