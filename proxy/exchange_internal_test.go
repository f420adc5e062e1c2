package proxy

import (
	"regexp"
	"testing"
	"time"
)

func TestRequestIDsAscendWithTime(t *testing.T) {
	pattern := regexp.MustCompile(`^req_[0-9A-V]{26}$`)
	now := time.Date(2026, 11, 21, 23, 59, 59, 999e6, time.UTC)
	last := ""
	for range 10_000 {
		id := newRequestID(now)
		if !pattern.MatchString(id) {
			t.Fatalf("%s does not match %s", id, pattern)
		}
		if id <= last {
			t.Fatalf("got %s after %s", id, last)
		}
		last, now = id, now.Add(time.Millisecond)
	}
}

func TestRequestIDsOfOneMillisecondDiffer(t *testing.T) {
	now := time.Now()
	seen := map[string]bool{}
	for range 10_000 {
		seen[newRequestID(now)] = true
	}
	if len(seen) != 10_000 {
		t.Errorf("got %d different ids, want 10,000", len(seen))
	}
}
