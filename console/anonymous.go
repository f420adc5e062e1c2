package console

import (
	"strconv"
	"time"
)

// setRetryAfter sets the header that says when to try again.
func (r *request) setRetryAfter(d time.Duration) {
	seconds := max(int64((d+time.Second-1)/time.Second), 1)
	r.Response().Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
}
