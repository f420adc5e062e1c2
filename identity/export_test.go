package identity

// How attempts to sign in are limited, for tests.
const (
	AttemptsPerAccount = attemptsPerAccount
	AttemptsWindow     = attemptsWindow
	AttemptsKept       = attemptsKept
)

// Attempts are attempts to sign in, without passwords.
type Attempts struct{ counts *attempts }

// NewAttempts has none.
func NewAttempts() Attempts { return Attempts{newAttempts()} }

// Take counts one.
func (a Attempts) Take(email, address string) error { return a.counts.take(email, address) }

// Len is how many accounts and addresses are remembered.
func (a Attempts) Len() int { return len(a.counts.counts) }

// HoldHashing takes every place at which passwords are hashed.
func (d *Directory) HoldHashing() (release func()) {
	for range hashesAtOnce {
		d.hashing <- struct{}{}
	}
	return func() {
		for range hashesAtOnce {
			<-d.hashing
		}
	}
}
