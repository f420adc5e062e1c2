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

// The limits of forms that are sent without signing in.
const (
	FormBurst      = formBurst
	FormInterval   = formInterval
	MaxFormSenders = maxFormSenders
)

// FormLimiter exports formLimiter.
type FormLimiter struct{ limiter formLimiter }

// Allow takes a token of the address, or returns the time until there is one.
func (l *FormLimiter) Allow(address string) (retryIn time.Duration) { return l.limiter.allow(address) }

// Len returns the number of addresses with a bucket.
func (l *FormLimiter) Len() int { return len(l.limiter.buckets) }
