package fleet

import (
	"errors"
	"sync"
	"syscall"
	"time"
)

const (
	// RefusedFor is how long a backend must have refused connections for its silent attempts to end: the engine may be gone
	// although the connections of its requests are open, as those of 0.33 are after a SIGTERM.
	RefusedFor = 3 * time.Second
	// refusedProbeInterval is the probe interval while attempts may hang so.
	refusedProbeInterval = 500 * time.Millisecond
)

// listening is whether a backend accepts connections, as probes see it.
type listening struct {
	mu        sync.Mutex // guards the fields below
	refusedAt time.Time  // when the first probe was refused; zero while they are not
	waiting   map[*Lease]func()
}

func (l *listening) observe(refused bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !refused:
		l.refusedAt = time.Time{}
	case l.refusedAt.IsZero():
		l.refusedAt = now
	case now.Sub(l.refusedAt) >= RefusedFor:
		for _, f := range l.waiting {
			f()
		}
	}
}

// decides reports whether probes must follow soon, because attempts may hang at a backend that refuses connections.
func (l *listening) decides() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) > 0 && !l.refusedAt.IsZero()
}

// WhenRefused calls f, which must return at once, after each refused probe of a backend that has refused connections for
// RefusedFor, until the lease is released.
func (l *Lease) WhenRefused(f func()) {
	b := &l.listening
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == nil {
		b.waiting = map[*Lease]func(){}
	}
	b.waiting[l] = f
}

// forget ends WhenRefused.
func (l *listening) forget(lease *Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, lease)
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
