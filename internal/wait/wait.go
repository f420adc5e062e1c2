// Package wait pauses a goroutine until a time has passed or a context ends, and wakes one.
package wait

import (
	"context"
	"time"
)

// For waits for d and returns true, or returns false as soon as ctx ends.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 { // in a bubble of synctest, two timers that fire at once crash the race detector (golang/go#78156)
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Wake puts a token into a channel with room for one, unless there is one: its receiver looks again.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
