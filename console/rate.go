package console

import (
	"net/http"
	"sync"
	"time"
)

// How often one address may send what nobody has to be signed in for.
const (
	askingMost   = 10
	askingWindow = time.Hour
	askingKept   = 1 << 12 // addresses
)

// rate counts by address, in windows. What is counted is forgotten by a restart.
type rate struct {
	clock  func() time.Time
	mu     sync.Mutex
	began  time.Time
	counts map[string]int
}

// take counts one more; where that is too many, it is how long to wait instead.
func (r *rate) take(address string) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	if r.counts == nil || now.Sub(r.began) >= askingWindow {
		r.began, r.counts = now, map[string]int{}
	}
	if r.counts[address] >= askingMost || len(r.counts) >= askingKept {
		return r.began.Add(askingWindow).Sub(now)
	}
	r.counts[address]++
	return 0
}

func errTooOften(wait time.Duration) error {
	return &problem{
		http.StatusTooManyRequests, "This is too often",
		"Too much has been sent from your address. Try again in " + span(wait) + ".",
	}
}
