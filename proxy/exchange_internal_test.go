package proxy

import (
	"regexp"
	"testing"
	"time"
)

func TestRequestIDsAreInTheOrderOfTheirTime(t *testing.T) {
	form := regexp.MustCompile(`^req_[0-9A-V]{26}$`)
	now := time.Date(2026, 11, 21, 23, 59, 59, 999e6, time.UTC)
	last := ""
	for range 10_000 {
		id := newRequestID(now)
		if !form.MatchString(id) {
			t.Fatalf("%s is not of the form %s", id, form)
		}
		if id <= last {
			t.Fatalf("%s came after %s", id, last)
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
		t.Errorf("%d of 10,000 ids differ", len(seen))
	}
}
