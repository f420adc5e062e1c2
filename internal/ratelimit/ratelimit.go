// Package ratelimit limits how often callers do something: a token bucket for each key, such as an account or the
// network of a client, in bounded memory. It decides only whether a call is allowed now; what to respond otherwise is
// left to the caller. The buckets are in memory, so a restart fills them.
package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Settings configure a Limiter.
type Settings struct {
	Interval time.Duration // after which a key gets one more token
	Burst    int           // tokens of a key that has not taken any for long
	MaxKeys  int           // keys in memory; if anyone can choose keys, this limits them
}

// Limiter has a token bucket for each key. It is safe for concurrent use.
type Limiter struct {
	settings Settings

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

// New returns a Limiter whose buckets are full.
func New(s Settings) *Limiter { return &Limiter{settings: s, buckets: map[string]*rate.Limiter{}} }

// Take takes n tokens of the key, or all of a full bucket if n is more than that, and returns 0. If there are not
// enough, it takes none and returns the time until there are.
func (l *Limiter) Take(key string, n int) (retryIn time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	bucket := l.bucket(key, now)
	if bucket == nil {
		return l.settings.Interval
	}
	reservation := bucket.ReserveN(now, min(n, l.settings.Burst))
	if retryIn = reservation.DelayFrom(now); retryIn > 0 {
		reservation.CancelAt(now)
	}
	return retryIn
}

// Len returns the number of keys in memory.
func (l *Limiter) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// bucket returns the bucket of a key, or nil if there are too many keys for a new one.
func (l *Limiter) bucket(key string, now time.Time) *rate.Limiter {
	if bucket := l.buckets[key]; bucket != nil {
		return bucket
	}
	if len(l.buckets) >= l.settings.MaxKeys {
		l.evictFull(now)
	}
	if len(l.buckets) >= l.settings.MaxKeys {
		return nil
	}
	bucket := rate.NewLimiter(rate.Every(l.settings.Interval), l.settings.Burst)
	l.buckets[key] = bucket
	return bucket
}

// evictFull removes the buckets that are full again: a new one would be equal.
func (l *Limiter) evictFull(now time.Time) {
	for key, bucket := range l.buckets {
		if bucket.TokensAt(now) >= float64(l.settings.Burst) {
			delete(l.buckets, key)
		}
	}
}
