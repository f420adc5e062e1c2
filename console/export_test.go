package console

import (
	"time"

	"basegate/quota"
)

// Routes returns the method and the path of every route, with a space between them.
func Routes() []string {
	var all []string
	for _, r := range routes {
		all = append(all, r.method+" "+r.path)
	}
	return all
}

// ForecastText exports forecastText.
func ForecastText(begin, now time.Time, used int64, limit quota.Cap) string {
	return forecastText(month{begin}, used, limit, now)
}
