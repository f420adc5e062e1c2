package receipt

import (
	"context"
	"runtime"
	"sync"
	"time"

	"basegate/internal/wait"
)

// group is streams that end within pace of each other. Its leader commits the transaction and signs the tree head for all,
// so that each of the others is woken once, with both done.
type group struct{ done chan struct{} } // closed by the leader

// gate forms the groups. The zero value is ready for use.
type gate struct {
	mu     sync.Mutex
	opened time.Time
	next   *group // nil if nobody waits
}

// join returns the group of a stream that ends now, and whether the stream leads it. The leader waits until the group is
// complete, or ctx ends; one that arrives alone does not wait. The others return at once.
func (g *gate) join(ctx context.Context) (joined *group, leads bool) {
	g.mu.Lock()
	if next := g.next; next != nil {
		g.mu.Unlock()
		return next, false
	}
	joined = &group{done: make(chan struct{})}
	remaining := time.Until(g.opened.Add(pace))
	if remaining <= 0 {
		g.opened = time.Now()
		g.mu.Unlock()
		return joined, true
	}
	g.next = joined
	g.mu.Unlock()
	wait.For(ctx, remaining)
	g.mu.Lock()
	g.opened, g.next = time.Now(), nil
	g.mu.Unlock()
	runtime.Gosched() // those that have joined last are about to queue their writes
	return joined, true
}
