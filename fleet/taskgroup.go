package fleet

import (
	"context"
	"sync"
)

// taskGroup runs the background goroutines of a fleet (probes, commands, timers) between start and stop.
type taskGroup struct {
	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

func (g *taskGroup) start(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(ctx)) // tasks end with stop
}

// run runs a task in a new goroutine and returns at once. It does nothing before start and after stop.
func (g *taskGroup) run(task func(context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil || g.ctx.Err() != nil {
		return
	}
	ctx := g.ctx
	g.tasks.Go(func() { task(ctx) })
}

// stop cancels all tasks and waits for them.
func (g *taskGroup) stop() {
	g.mu.Lock()
	if g.cancel != nil {
		g.cancel()
	}
	g.mu.Unlock()
	g.tasks.Wait()
}
