package identity_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"basegate/identity"
)

func TestFailedSignInsAreLimitedByAccountAndByAddress(t *testing.T) {
	ctx, s := t.Context(), startStoreWithAda(t)
	must(t, s.Sessions.SetPassword(ctx, ada, password))
	tooMany := func(email, password, address string) bool {
		_, err := s.Sessions.SignIn(ctx, email, password, address)
		_, ok := errors.AsType[*identity.TooManyAttemptsError](err)
		return ok
	}
	for i := range 9 {
		tooMany(ada, "wrong", fmt.Sprintf("192.0.2.%d", i))
	}
	if tooMany(ada, password, "192.0.2.100") {
		t.Error("the right password is refused after 9 failures, want after 10")
	}
	for i := range 10 {
		tooMany(strings.ToUpper(ada), "wrong", fmt.Sprintf("192.0.2.%d", i))
	}
	if !tooMany(ada, password, "198.51.100.1") {
		t.Error("an attempt from another address is allowed after 10 failures of the account")
	}
	for i := range 50 {
		tooMany(fmt.Sprintf("%d@example.org", i), "wrong", fmt.Sprintf("2001:db8::%x", i))
	}
	if !tooMany("bea@example.org", password, "2001:db8::ffff") {
		t.Error("an attempt on another account is allowed after 50 failures from the IPv6 /64")
	}
	if tooMany("bea@example.org", password, "2001:db8:0:1::1") {
		t.Error("an attempt from another IPv6 /64 is refused")
	}
}

func TestFailureWindowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := identity.NewSignInFailures()
		for range identity.MaxFailuresPerAccount {
			must(t, f.Add(ada, address))
		}
		tooMany, ok := errors.AsType[*identity.TooManyAttemptsError](f.Add(ada, address))
		if !ok || tooMany.RetryIn != identity.FailureWindow {
			t.Errorf("after the limit: got error %v, want to retry in %v", tooMany, identity.FailureWindow)
		}
		<-time.NewTimer(tooMany.RetryIn).C
		must(t, f.Add(ada, address))
	})
}

func TestFailureCountsAreEvictedButNotThoseRefused(t *testing.T) {
	f := identity.NewSignInFailures()
	for range identity.MaxFailuresPerAccount {
		must(t, f.Add(ada, address))
	}
	for i := range 2 * identity.MaxFailureCounts {
		must(t, f.Add(fmt.Sprintf("%d@example.org", i), fmt.Sprintf("2001:db8:0:%x::", i)))
	}
	if f.Len() > identity.MaxFailureCounts+1 {
		t.Errorf("got %d counts, want at most %d", f.Len(), identity.MaxFailureCounts+1)
	}
	if err := f.Add(ada, "192.0.2.2"); err == nil {
		t.Error("the count of a refused account was evicted")
	}
}
