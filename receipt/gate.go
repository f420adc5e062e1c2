package receipt

import (
	"context"
	"runtime"
	"sync"
	"time"

	"basegate/internal/wait"
)

// gate lets those through together that arrive within pace of each other: streams that end one by one would otherwise have a
// transaction and a tree head each. One that arrives alone does not wait. The zero value is ready for use.
type gate struct {
	mu     sync.Mutex
	opened time.Time
	next   chan struct{} // closed when the gate opens; nil if nobody waits
}

// pass waits until the gate opens, or ctx ends. The first to wait opens it for all.
func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	if next := g.next; next != nil {
		g.mu.Unlock()
		select {
		case <-next:
		case <-ctx.Done():
		}
		return
	}
	remaining := time.Until(g.opened.Add(pace))
	if remaining <= 0 {
		g.opened = time.Now()
		g.mu.Unlock()
		return
	}
	next := make(chan struct{})
	g.next = next
	g.mu.Unlock()
	wait.For(ctx, remaining)
	g.mu.Lock()
	g.opened, g.next = time.Now(), nil
	g.mu.Unlock()
	close(next)
	runtime.Gosched() // so that the others enqueue their writes before this one leads their commit
}
