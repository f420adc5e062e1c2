package ratelimit_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"basegate/internal/ratelimit"
)

var settings = ratelimit.Settings{Interval: 6 * time.Minute, Burst: 10, MaxKeys: 100}

func wantWait(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got a wait of %v, want %v", what, got, want)
	}
}

func TestEveryKeyHasItsOwnBurstAndRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(settings)
		for i := range settings.Burst {
			wantWait(t, fmt.Sprint("call ", i+1), l.Take("a", 1), 0)
		}
		for range 2 { // a refused call does not lengthen the wait
			wantWait(t, "after the burst", l.Take("a", 1), settings.Interval)
		}
		wantWait(t, "three tokens after the burst", l.Take("a", 3), 3*settings.Interval)
		wantWait(t, "another key", l.Take("b", 1), 0)
		<-time.NewTimer(settings.Interval).C
		wantWait(t, "after the interval", l.Take("a", 1), 0)
	})
}

func TestMoreTokensThanTheBurstTakeAFullBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(settings)
		wantWait(t, "a full bucket", l.Take("a", 1000), 0)
		wantWait(t, "an empty one", l.Take("a", 1000), 10*settings.Interval)
	})
}

func TestFullBucketsAreEvictedAndOthersAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.New(settings)
		l.Take("a", settings.Burst)
		for i := range settings.MaxKeys {
			l.Take(fmt.Sprint(i), 1)
		}
		if got := l.Len(); got != settings.MaxKeys {
			t.Errorf("got %d keys, want %d", got, settings.MaxKeys)
		}
		wantWait(t, "a new key if no bucket can be evicted", l.Take("b", 1), settings.Interval)
		<-time.NewTimer(settings.Interval).C
		wantWait(t, "a new key if buckets are full again", l.Take("b", 1), 0)
		if got := l.Len(); got != 2 {
			t.Errorf("got %d keys, want a and b", got)
		}
		l.Take("a", 1)
		wantWait(t, "a key that has used its burst", l.Take("a", 1), settings.Interval)
	})
}

func TestNetworkIsTheSlash24OrTheSlash56(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1":             "192.0.2.0/24",
		"192.0.2.255":           "192.0.2.0/24",
		"::ffff:192.0.2.7":      "192.0.2.0/24",
		"2001:db8:0:1ff::1":     "2001:db8:0:100::/56",
		"2001:db8:0:100:5::2":   "2001:db8:0:100::/56",
		"2001:db8:0:200::1":     "2001:db8:0:200::/56",
		"fe80::1%eth0":          "fe80::/56",
		"":                      "",
		"unix":                  "unix",
		"192.0.2.1, 192.0.2.77": "192.0.2.1, 192.0.2.77",
	} {
		if got := ratelimit.Network(address); got != want {
			t.Errorf("network of %q: got %q, want %q", address, got, want)
		}
	}
}
