package console

import (
	"net/http"
	"strconv"
	"time"

	"basegate/internal/ratelimit"
)

// anonymousForms limits the forms that the clients of one network send without signing in.
var anonymousForms = ratelimit.Settings{Interval: 6 * time.Minute, Burst: 10, MaxKeys: 1 << 12}

// allowAnonymousForm returns a problem if the client's network has sent too many forms without signing in.
func (c *Console) allowAnonymousForm(r *request) error {
	retryIn := c.formLimiter.Take(ratelimit.Network(c.clientAddress(r)), 1)
	if retryIn == 0 {
		return nil
	}
	r.setRetryAfter(retryIn)
	return &problem{
		status: http.StatusTooManyRequests, title: "Too many requests",
		text: "Too many forms have been sent from your network. Try again in " + formatDuration(retryIn) + ".",
	}
}

func (c *Console) clientAddress(r *request) string {
	return c.settings.Load().ClientAddress(r.Request())
}

// setRetryAfter sets the header that says when to try again.
func (r *request) setRetryAfter(d time.Duration) {
	seconds := max(int64((d+time.Second-1)/time.Second), 1)
	r.Response().Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
}
