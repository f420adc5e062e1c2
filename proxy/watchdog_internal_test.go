package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Comments are no sign that the backend works on the request: a proxy in between, or a server whose engine hangs, sends them for
// ever. However many there are, they neither extend the time that the backend may be silent nor shorten it.
func TestCommentsLeaveTheWatchdogAsItIs(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 7 * time.Second, 15 * time.Second, 59 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			var w watchdog
			w.start(time.Minute, cancel)
			<-time.After(30 * time.Second)
			w.stop()
			w.progress(time.Hour)
			w.resume()
			began := time.Now()
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-time.After(every):
					w.stop()
					w.noProgress()
					w.resume()
				}
			}
			if silent := time.Since(began); silent != time.Hour || !errors.Is(context.Cause(ctx), errTimeout) {
				t.Errorf("comments every %v: ended after %v by %v, want an hour", every, silent, context.Cause(ctx))
			}
		})
	}
}
