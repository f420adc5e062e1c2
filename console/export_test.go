package console

import (
	"time"

	"basegate/budget/quota"
)

// Routes returns the method and the path of every route, with a space between them.
func Routes() []string {
	var all []string
	for _, r := range routes {
		all = append(all, r.method+" "+r.path)
	}
	return all
}

// Forecast exports forecast.
var Forecast = forecast

// ForecastEnd exports forecastEnd.
func ForecastEnd(used, limit, recent int64, since, now time.Time) (text string, usedUpAt time.Time) {
	return forecastEnd(newGauge(used, quota.Limit(limit)), recent, since, now)
}

// SetPatience sets how long the client of a download may read nothing.
func (c *Console) SetPatience(d time.Duration) { c.patience = d }

// Downloads returns how many downloads of an account run.
func (c *Console) Downloads(account string) int { return int(c.downloadsOf(account).Load()) }

// MaxDownloads is the limit of the downloads of an account at the same time.
const MaxDownloads = maxDownloads
