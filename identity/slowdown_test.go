package identity_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"basegate/identity"
)

func wait(d time.Duration) { <-time.NewTimer(d).C }

func TestDelaysGrowWithFailuresAndEndWithThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := identity.NewAccountSlowdown()
		for i := range 5 {
			if retryIn := s.Begin(ada); retryIn != 0 {
				t.Errorf("attempt %d: got a delay of %v, want none", i+1, retryIn)
			}
		}
		s.Begin(ada)
		for _, seconds := range []int64{1, 2, 4, 8, 16, 32, 64, 120, 120} {
			want := time.Duration(seconds) * time.Second
			for range 2 { // an attempt that comes too early does not lengthen the delay
				if got := s.Begin(ada); got != want {
					t.Errorf("got a delay of %v, want %v", got, want)
				}
			}
			wait(want)
			if got := s.Begin(ada); got != 0 {
				t.Errorf("after the delay: got another one of %v", got)
			}
		}
		wait(time.Hour)
		for i := range 5 {
			if retryIn := s.Begin(ada); retryIn != 0 {
				t.Errorf("attempt %d an hour later: got a delay of %v, want none", i+1, retryIn)
			}
		}
	})
}

// An attacker who tries whenever an attempt is allowed gets this many guesses a day.
func TestGuessesPerDayAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		slowdown func() identity.Slowdown
		most     int
	}{
		"account": {identity.NewAccountSlowdown, 740},
		"network": {identity.NewNetworkSlowdown, 4900},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, guesses := c.slowdown(), 0
			for end := time.Now().Add(24 * time.Hour); time.Now().Before(end); {
				if retryIn := s.Begin("x"); retryIn > 0 {
					wait(retryIn)
					continue
				}
				guesses++
			}
			if guesses > c.most || guesses < c.most/2 {
				t.Errorf("%s: got %d guesses in a day, want up to %d", name, guesses, c.most)
			}
		})
	}
}

// Many people of one network sign in at the same time, and some fail.
func TestSuccessesDoNotCountForTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := identity.NewNetworkSlowdown()
		for i := range 1000 {
			if retryIn := s.Begin("network"); retryIn != 0 {
				t.Fatalf("attempt %d: got a delay of %v, want none", i+1, retryIn)
			}
			if i%25 != 0 {
				s.TakeBack("network")
			}
		}
	})
}

func TestSubjectsInMemoryAreLimitedAndDelayedOnesStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := identity.NewAccountSlowdown()
		for range 6 {
			s.Begin(ada)
		}
		for i := range identity.MaxSubjects + 100 {
			s.Begin(fmt.Sprint(i))
		}
		if s.Len() > identity.MaxSubjects {
			t.Errorf("got %d subjects, want at most %d", s.Len(), identity.MaxSubjects)
		}
		if s.Begin(ada) == 0 {
			t.Error("the failures of a delayed subject were forgotten")
		}
		wait(time.Hour)
		s.Begin("new")
		if s.Len() != 1 {
			t.Errorf("after an hour: got %d subjects, want the new one", s.Len())
		}
	})
}
