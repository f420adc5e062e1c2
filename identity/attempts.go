package identity

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// How many attempts to sign in may fail within a window before the next one has to wait for its end. An address may be
// that of a whole laboratory.
const (
	attemptsPerAccount = 10
	attemptsPerAddress = 50
	attemptsWindow     = 15 * time.Minute
	attemptsKept       = 1 << 14 // of accounts and addresses, lest strangers fill the memory
)

// TooManyError says that no password is looked at for now, because too many have been wrong.
type TooManyError struct {
	RetryIn time.Duration
}

// Error implements error.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("too many attempts to sign in have failed; try again in %s", e.RetryIn.Round(time.Second))
}

// attempts counts attempts to sign in. They live in memory: a restart forgives them, and nothing else can.
type attempts struct {
	mu     sync.Mutex
	counts map[string]*attemptCount
}

// attemptCount is what has been tried for one account, or from one address, since the window began.
type attemptCount struct {
	began time.Time
	n     int
}

func newAttempts() *attempts { return &attempts{counts: map[string]*attemptCount{}} }

// take counts an attempt before its password is looked at, so that many at once gain nothing. The error is a
// *TooManyError.
func (t *attempts) take(email, address string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Now()
	account, from := t.count(accountSubject(email), at), t.count(addressSubject(address), at)
	for _, c := range []struct {
		*attemptCount
		most int
	}{{account, attemptsPerAccount}, {from, attemptsPerAddress}} {
		if c.n >= c.most {
			return &TooManyError{RetryIn: c.began.Add(attemptsWindow).Sub(at)}
		}
	}
	account.n++
	from.n++
	return nil
}

// forgive takes back what was counted, since the password was right.
func (t *attempts) forgive(email, address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.counts, accountSubject(email))
	if c := t.counts[addressSubject(address)]; c != nil && c.n > 0 {
		c.n--
	}
}

// count finds the present window of a subject, or begins it.
func (t *attempts) count(subject string, at time.Time) *attemptCount {
	c := t.counts[subject]
	if c != nil && at.Sub(c.began) < attemptsWindow {
		return c
	}
	if c == nil && len(t.counts) >= attemptsKept {
		t.sweep(at)
	}
	c = &attemptCount{began: at}
	t.counts[subject] = c
	return c
}

// sweep forgets windows that have ended, and where none has, everything but the subjects that are refused now.
func (t *attempts) sweep(at time.Time) {
	for subject, c := range t.counts {
		if at.Sub(c.began) >= attemptsWindow {
			delete(t.counts, subject)
		}
	}
	if len(t.counts) < attemptsKept {
		return
	}
	for subject, c := range t.counts {
		if c.n < attemptsPerAccount {
			delete(t.counts, subject)
		}
	}
}

func accountSubject(email string) string { return "account " + strings.ToLower(email) }

// addressSubject takes a network of IPv6 for one address, since that is what one customer gets.
func addressSubject(address string) string {
	if a, err := netip.ParseAddr(address); err == nil && a.Unmap().Is6() {
		if network, err := a.Prefix(64); err == nil {
			return "address " + network.String()
		}
	}
	return "address " + address
}
