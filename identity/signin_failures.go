package identity

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limits of failed sign-in attempts. The limit of an address is higher, because a whole laboratory may share one.
const (
	maxFailuresPerAccount = 10
	maxFailuresPerAddress = 50
	failureWindow         = 15 * time.Minute
	maxFailureCounts      = 1 << 14 // accounts and addresses in memory; anyone can cause entries, so this limits them
)

// TooManyAttemptsError is returned when too many sign-ins have failed for an account or from an address. The password
// was not checked.
type TooManyAttemptsError struct {
	RetryIn time.Duration
}

// Error implements error.
func (e *TooManyAttemptsError) Error() string {
	return fmt.Sprintf("too many attempts to sign in have failed; try again in %s", e.RetryIn.Round(time.Second))
}

// signInFailures counts failed sign-ins by account and by client address, each in a window that begins with its first
// failure. The counts are in memory, so a restart clears them.
type signInFailures struct {
	mu     sync.Mutex
	counts map[string]*failureCount // by subject: an account or an address
}

// failureCount is the number of failures in the current window of a subject.
type failureCount struct {
	began time.Time
	n     int
}

func newSignInFailures() *signInFailures { return &signInFailures{counts: map[string]*failureCount{}} }

// add counts an attempt as failed, before its password is checked, so that concurrent attempts cannot exceed the
// limits. The error is a *TooManyAttemptsError.
func (f *signInFailures) add(email, address string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := time.Now()
	byAccount, byAddress := f.count(accountSubject(email), at), f.count(addressSubject(address), at)
	for _, c := range []struct {
		*failureCount
		limit int
	}{{byAccount, maxFailuresPerAccount}, {byAddress, maxFailuresPerAddress}} {
		if c.n >= c.limit {
			return &TooManyAttemptsError{RetryIn: c.began.Add(failureWindow).Sub(at)}
		}
	}
	byAccount.n++
	byAddress.n++
	return nil
}

// reset clears the account's failures, and takes back the one that add counted for the address, after a sign-in with
// the right password.
func (f *signInFailures) reset(email, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.counts, accountSubject(email))
	if c := f.counts[addressSubject(address)]; c != nil && c.n > 0 {
		c.n--
	}
}

// count returns the count of a subject's current window, or starts a new window.
func (f *signInFailures) count(subject string, at time.Time) *failureCount {
	c := f.counts[subject]
	if c != nil && at.Sub(c.began) < failureWindow {
		return c
	}
	if c == nil && len(f.counts) >= maxFailureCounts {
		f.evict(at)
	}
	c = &failureCount{began: at}
	f.counts[subject] = c
	return c
}

// evict removes the windows that have ended. If there are too many counts even so, it removes all below
// maxFailuresPerAccount: subjects that are being refused stay refused.
func (f *signInFailures) evict(at time.Time) {
	for subject, c := range f.counts {
		if at.Sub(c.began) >= failureWindow {
			delete(f.counts, subject)
		}
	}
	if len(f.counts) < maxFailureCounts {
		return
	}
	for subject, c := range f.counts {
		if c.n < maxFailuresPerAccount {
			delete(f.counts, subject)
		}
	}
}

func accountSubject(email string) string { return "account " + strings.ToLower(email) }

// addressSubject returns the subject of an address. All addresses of an IPv6 /64 are one subject, because a provider
// gives each customer at least that many.
func addressSubject(address string) string {
	if a, err := netip.ParseAddr(address); err == nil && a.Unmap().Is6() {
		if network, err := a.Prefix(64); err == nil {
			return "address " + network.String()
		}
	}
	return "address " + address
}
