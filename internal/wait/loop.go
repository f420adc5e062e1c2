package wait

import (
	"context"
	"sync"
	"time"
)

// Loop is a goroutine that runs from Start to Close.
type Loop struct {
	stop context.CancelFunc // nil before Start
	done sync.WaitGroup
}

// Start calls run in a goroutine, with a context that ends at Close.
func (l *Loop) Start(ctx context.Context, run func(context.Context)) {
	ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	l.done.Go(func() { run(ctx) })
}

// Close ends the context of run, and waits until it has returned.
func (l *Loop) Close() {
	if l.stop != nil {
		l.stop()
	}
	l.done.Wait()
}

// Every calls work at once and then at each interval, until ctx ends.
func Every(ctx context.Context, interval time.Duration, work func(context.Context)) {
	EveryOrWoken(ctx, interval, nil, work)
}

// EveryOrWoken is Every that also calls work for each token of Wake.
func EveryOrWoken(ctx context.Context, interval time.Duration, woken <-chan struct{}, work func(context.Context)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		work(ctx)
		select {
		case <-ctx.Done():
			return
		case <-woken:
		case <-ticker.C:
		}
	}
}
