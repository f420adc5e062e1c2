package identity

import (
	"errors"
	"testing"
	"time"
)

// attempt counts a failed attempt, or returns the time until one is allowed.
func attempt(t throttle, f *failures, now time.Time) (retryIn time.Duration) {
	if tooMany, ok := errors.AsType[*TooManyAttemptsError](t.begin(f, now)); ok {
		return tooMany.RetryIn
	}
	return 0
}

func TestDelaysGrowWithFailuresAndEndWithThem(t *testing.T) {
	f, clock := &failures{}, now()
	for i := range 5 {
		if retryIn := attempt(accountThrottle, f, clock); retryIn != 0 {
			t.Errorf("attempt %d: got a delay of %v, want none", i+1, retryIn)
		}
	}
	attempt(accountThrottle, f, clock)
	for _, seconds := range []int64{1, 2, 4, 8, 16, 32, 64, 120, 120} {
		want := time.Duration(seconds) * time.Second
		for range 2 { // an attempt that comes too early does not lengthen the delay
			if got := attempt(accountThrottle, f, clock); got != want {
				t.Errorf("got a delay of %v, want %v", got, want)
			}
		}
		clock = clock.Add(want)
		if got := attempt(accountThrottle, f, clock); got != 0 {
			t.Errorf("after the delay: got another one of %v", got)
		}
	}
	clock = clock.Add(time.Hour)
	for i := range 5 {
		if retryIn := attempt(accountThrottle, f, clock); retryIn != 0 {
			t.Errorf("attempt %d an hour later: got a delay of %v, want none", i+1, retryIn)
		}
	}
}

// An attacker who tries whenever an attempt is allowed gets this many guesses a day.
func TestGuessesPerDayAreBounded(t *testing.T) {
	for _, c := range []struct {
		throttle throttle
		most     int
	}{{accountThrottle, 740}, {networkThrottle, 4900}} {
		f, clock, guesses := &failures{}, now(), 0
		for end := clock.Add(24 * time.Hour); clock.Before(end); {
			if retryIn := attempt(c.throttle, f, clock); retryIn > 0 {
				clock = clock.Add(retryIn)
				continue
			}
			guesses++
		}
		if guesses > c.most || guesses < c.most/2 {
			t.Errorf("%s: got %d guesses in a day, want up to %d", c.throttle.kind, guesses, c.most)
		}
	}
}

func TestCorrectedClockDelaysNobodyForLong(t *testing.T) {
	f, clock := &failures{}, now()
	for range 6 {
		attempt(accountThrottle, f, clock.Add(time.Hour)) // the clock is ahead
	}
	if retryIn := attempt(accountThrottle, f, clock); retryIn != 0 {
		t.Errorf("after the correction: got a delay of %v, want none", retryIn)
	}
	if retryIn := attempt(accountThrottle, f, clock); retryIn == 0 || retryIn > accountThrottle.maxDelay {
		t.Errorf("the next attempt: got a delay of %v, want one of at most %v", retryIn, accountThrottle.maxDelay)
	}
}
