package wait

import (
	"context"
	"sync"
	"time"
)

// Loop is a goroutine, or several, between Start and Close.
type Loop struct {
	mu   sync.Mutex
	ctx  context.Context // of the goroutines; nil before Start
	stop context.CancelFunc
	done sync.WaitGroup
}

// Start calls each run in a goroutine, with a context that ends at Close and not with ctx.
func (l *Loop) Start(ctx context.Context, run ...func(context.Context)) {
	l.mu.Lock()
	l.ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	l.mu.Unlock()
	for _, f := range run {
		l.Run(f)
	}
}

// Run is Start for one goroutine more. It does nothing before Start and after Close.
func (l *Loop) Run(run func(context.Context)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx := l.ctx; ctx != nil && ctx.Err() == nil {
		l.done.Go(func() { run(ctx) })
	}
}

// Close ends the context of the goroutines, and waits until all have returned.
func (l *Loop) Close() {
	l.mu.Lock()
	if l.stop != nil {
		l.stop()
	}
	l.mu.Unlock()
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
