// Package poll waits in tests for a condition that another goroutine or process brings about. It is imported by tests
// only.
package poll

import (
	"testing"
	"time"
)

const (
	// timeout is long enough for a machine whose disk stalls: a condition that holds ends the wait at once.
	timeout  = 5 * time.Minute
	interval = 5 * time.Millisecond
)

// Until polls condition until it holds, and fails the test after five minutes. The description completes the sentence
// "timed out waiting until …".
func Until(tb testing.TB, description string, condition func() bool) {
	tb.Helper()
	Within(tb, timeout, description, condition)
}

// Within is Until with a limit of the caller's.
func Within(tb testing.TB, limit time.Duration, description string, condition func() bool) {
	tb.Helper()
	deadline := time.Now().Add(limit)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			tb.Fatalf("timed out after %v waiting until %s", limit, description)
		}
		<-ticker.C
	}
}
