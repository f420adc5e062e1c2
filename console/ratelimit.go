package console

import (
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits of the forms that are sent without signing in.
const (
	formBurst      = 10              // forms that an address may send at once
	formInterval   = 6 * time.Minute // after which an address may send one more
	maxFormSenders = 1 << 12         // addresses in memory; anyone can send forms, so this limits them
)

// formLimiter limits the forms of each client address with a token bucket. Its zero value is ready to use. The buckets
// are in memory, so a restart fills them.
type formLimiter struct {
	mu      sync.Mutex
	buckets map[string]*rate.Limiter // by address
}

// allow takes a token of the address and returns 0. If there is none, it returns the time until there is one.
func (l *formLimiter) allow(address string) (retryIn time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	bucket := l.bucket(address, now)
	if bucket == nil {
		return formInterval
	}
	reservation := bucket.ReserveN(now, 1)
	if retryIn = reservation.DelayFrom(now); retryIn > 0 {
		reservation.CancelAt(now)
	}
	return retryIn
}

// bucket returns the bucket of an address, or nil if there are too many addresses for a new one.
func (l *formLimiter) bucket(address string, now time.Time) *rate.Limiter {
	if bucket := l.buckets[address]; bucket != nil {
		return bucket
	}
	if len(l.buckets) >= maxFormSenders {
		l.evictFull(now)
	}
	if len(l.buckets) >= maxFormSenders {
		return nil
	}
	if l.buckets == nil {
		l.buckets = map[string]*rate.Limiter{}
	}
	bucket := rate.NewLimiter(rate.Every(formInterval), formBurst)
	l.buckets[address] = bucket
	return bucket
}

// evictFull removes the buckets that are full again: a new one would be equal.
func (l *formLimiter) evictFull(now time.Time) {
	for address, bucket := range l.buckets {
		if bucket.TokensAt(now) >= formBurst {
			delete(l.buckets, address)
		}
	}
}

func errTooOften(retryIn time.Duration) error {
	return &problem{
		http.StatusTooManyRequests, "This is too often",
		"Too much has been sent from your address. Try again in " + formatDuration(retryIn) + ".",
	}
}
