package console_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"basegate/console"
)

func TestFormsAreLimitedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l console.FormLimiter
		for i := range console.FormBurst {
			if got := l.Allow("192.0.2.1"); got != 0 {
				t.Errorf("form %d: got a wait of %v, want none", i+1, got)
			}
		}
		for range 2 { // a refused form does not lengthen the wait
			if got := l.Allow("192.0.2.1"); got != console.FormInterval {
				t.Errorf("after the burst: got a wait of %v, want %v", got, console.FormInterval)
			}
		}
		if got := l.Allow("192.0.2.2"); got != 0 {
			t.Errorf("another address: got a wait of %v, want none", got)
		}
		<-time.NewTimer(console.FormInterval).C
		if got := l.Allow("192.0.2.1"); got != 0 {
			t.Errorf("after the interval: got a wait of %v, want none", got)
		}
	})
}

func TestFormLimiterEvictsFullBucketsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l console.FormLimiter
		for range console.FormBurst {
			l.Allow("192.0.2.1")
		}
		for i := range console.MaxFormSenders {
			l.Allow(fmt.Sprint(i))
		}
		if got := l.Len(); got != console.MaxFormSenders {
			t.Errorf("got %d buckets, want %d", got, console.MaxFormSenders)
		}
		if got := l.Allow("192.0.2.2"); got != console.FormInterval {
			t.Errorf("a new address, when no bucket can be evicted: got a wait of %v, want %v", got, console.FormInterval)
		}
		<-time.NewTimer(console.FormInterval).C
		if got := l.Allow("192.0.2.2"); got != 0 {
			t.Errorf("a new address, when buckets are full again: got a wait of %v, want none", got)
		}
		if got := l.Len(); got != 2 {
			t.Errorf("got %d buckets, want those of 192.0.2.1 and 192.0.2.2", got)
		}
		l.Allow("192.0.2.1")
		if got := l.Allow("192.0.2.1"); got != console.FormInterval {
			t.Errorf("an address that has used its burst: got a wait of %v, want %v", got, console.FormInterval)
		}
	})
}
