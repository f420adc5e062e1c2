package identity

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"basegate/database"
)

// TooManyAttemptsError is returned when too many sign-ins have failed for an account or from a network. The password was
// not checked.
type TooManyAttemptsError struct {
	RetryIn time.Duration
}

// Error implements error.
func (e *TooManyAttemptsError) Error() string {
	return fmt.Sprintf("too many attempts to sign in have failed; try again in %s", e.RetryIn.Round(time.Second))
}

// slowdownSettings say how failed attempts delay the next one.
type slowdownSettings struct {
	free     float64       // failures that delay nothing
	forget   time.Duration // after which one failure is forgotten
	maxDelay time.Duration // the first failure beyond free delays by a second, and each further one by twice as long
}

// The delays of failed sign-ins. They bound the guesses at a password: 720 a day for an account, whatever networks they
// come from, and 4,800 a day from a network. A whole laboratory may share a network, so that has more free failures.
var (
	accountSlowdown = slowdownSettings{free: 5, forget: 3 * time.Minute, maxDelay: 2 * time.Minute}
	networkSlowdown = slowdownSettings{free: 50, forget: 18 * time.Second, maxDelay: 20 * time.Second}
)

// maxSubjects limits the subjects in memory; anyone can cause entries.
const maxSubjects = 1 << 14

// attempts delay those of each subject, such as an account or a network, the more of them have failed.
type attempts interface {
	// begin counts an attempt as failed, before its password is checked, so that concurrent attempts are delayed too. The
	// error is a *TooManyAttemptsError, and the attempt not counted, if it comes before the next is allowed.
	begin(ctx context.Context, subject string) error

	// takeBack makes the attempt that begin has counted a success.
	takeBack(ctx context.Context, subject string) error

	// forget forgets the failures of a subject.
	forget(ctx context.Context, subject string) error
}

// newAttempts returns those of a database. The kind tells them from others in it.
func newAttempts(db *database.DB, kind string, s slowdownSettings) attempts {
	if db.Postgres() != nil {
		return &sharedSlowdown{db, kind, s}
	}
	return newSlowdown(s)
}

// slowdown are attempts in memory, so a restart forgets the failures.
type slowdown struct {
	settings slowdownSettings

	mu       sync.Mutex
	subjects map[string]*failures
}

// failures are the failed attempts of a subject.
type failures struct {
	count   float64   // failures at the time of the latest attempt that was allowed, less those forgotten
	counted time.Time // that time
	next    time.Time // when the next attempt is allowed
}

func newSlowdown(s slowdownSettings) *slowdown {
	return &slowdown{settings: s, subjects: map[string]*failures{}}
}

// begin implements attempts.
func (s *slowdown) begin(_ context.Context, subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	f := s.subjects[subject]
	if f == nil {
		if len(s.subjects) >= maxSubjects {
			s.evict(now)
		}
		f = &failures{}
		s.subjects[subject] = f
	}
	return s.settings.begin(f, now)
}

// begin counts an attempt of a subject at a time, unless it is delayed.
func (s slowdownSettings) begin(f *failures, now time.Time) error {
	if now.Before(f.next) {
		return &TooManyAttemptsError{RetryIn: f.next.Sub(now)}
	}
	f.count, f.counted = s.remembered(f, now)+1, now
	if excess := math.Ceil(f.count - s.free); excess > 0 {
		delay := math.Min(math.Exp2(excess-1)*float64(time.Second), float64(s.maxDelay))
		f.next = now.Add(time.Duration(delay))
	}
	return nil
}

// takeBack implements attempts.
func (s *slowdown) takeBack(_ context.Context, subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.subjects[subject]; f != nil {
		f.takeBack()
	}
	return nil
}

func (f *failures) takeBack() { f.count, f.next = max(f.count-1, 0), time.Time{} }

// forget implements attempts.
func (s *slowdown) forget(_ context.Context, subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.subjects, subject)
	return nil
}

// remembered returns the failures of a subject that are not forgotten.
func (s slowdownSettings) remembered(f *failures, now time.Time) float64 {
	return max(f.count-float64(now.Sub(f.counted))/float64(s.forget), 0)
}

// evict removes the subjects whose failures are forgotten, or else the one with the fewest: those that are delayed stay.
func (s *slowdown) evict(now time.Time) {
	var fewest string
	least := math.Inf(1)
	for subject, f := range s.subjects {
		n := s.settings.remembered(f, now)
		if n == 0 {
			delete(s.subjects, subject)
		} else if n < least {
			fewest, least = subject, n
		}
	}
	if len(s.subjects) >= maxSubjects {
		delete(s.subjects, fewest)
	}
}
