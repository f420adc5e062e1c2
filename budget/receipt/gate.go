package receipt

import (
	"context"
	"sync"
	"time"
)

// group is streams that end within pace of each other. Its leader commits the transaction and signs the tree head for all,
// so that each of the others is woken once, with both done.
type group struct {
	done     chan struct{} // closed by the leader
	complete chan struct{} // closed when no other stream can join
}

// gate forms the groups. The zero value is ready for use.
type gate struct {
	mu     sync.Mutex
	opened time.Time // when the latest group went on
	next   *group    // nil if none forms
	open   int       // streams that have begun and have not queued their writes: a group has no reason to wait for others
}

// begin counts a stream that may join a group. end must follow.
func (g *gate) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open++
}

// end is called for a stream that has queued its write or will queue none.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	if g.open == 1 && g.next != nil { // its leader alone is left
		close(g.next.complete)
		g.next = nil
	}
}

// join returns the group of a stream that ends now, and whether the stream leads it. The leader waits until the group is
// complete, pace has passed or ctx ends; one that arrives alone does not wait. The others return at once.
func (g *gate) join(ctx context.Context) (joined *group, leads bool) {
	joined, leads, remaining := g.enter()
	if remaining > 0 {
		joined.await(ctx, remaining)
		g.close(joined)
	}
	return joined, leads
}

// enter adds a stream to the group that forms, or makes it the leader of a new one, which has to wait for the remaining time.
func (g *gate) enter() (joined *group, leads bool, remaining time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next != nil {
		return g.next, false, 0
	}
	joined = &group{done: make(chan struct{}), complete: make(chan struct{})}
	remaining = time.Until(g.opened.Add(pace))
	if remaining <= 0 || g.open == 1 {
		g.opened = time.Now()
		return joined, true, 0
	}
	g.next = joined
	return joined, true, remaining
}

// await waits until no other stream can join the group, d has passed or ctx ends.
func (p *group) await(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.complete:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// close lets no other stream join the group.
func (g *gate) close(joined *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened = time.Now()
	if g.next == joined {
		g.next = nil
	}
}
