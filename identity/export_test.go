package identity

// The limits of failed sign-ins.
const (
	MaxFailuresPerAccount = maxFailuresPerAccount
	FailureWindow         = failureWindow
	MaxFailureCounts      = maxFailureCounts
)

// SignInFailures exports signInFailures.
type SignInFailures struct{ failures *signInFailures }

// NewSignInFailures returns SignInFailures without a failure.
func NewSignInFailures() SignInFailures { return SignInFailures{newSignInFailures()} }

// Add counts a failure.
func (f SignInFailures) Add(email, address string) error { return f.failures.add(email, address) }

// Len returns the number of accounts and addresses with a count.
func (f SignInFailures) Len() int { return len(f.failures.counts) }

// BlockHashing makes every password hash wait until unblock is called.
func (s *Sessions) BlockHashing() (unblock func()) {
	for range maxConcurrentHashes {
		s.hasher.running <- struct{}{}
	}
	return func() {
		for range maxConcurrentHashes {
			<-s.hasher.running
		}
	}
}
