package fleet

import (
	"context"
	"maps"
	"sync"
)

// crew is the goroutines of a fleet, from start to stop: probes, commands, timers. Before and after, nothing is run.
type crew struct {
	mu   sync.Mutex
	life context.Context //nolint:containedctx // from start to stop
	end  context.CancelFunc
	all  sync.WaitGroup
}

func (c *crew) start(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
}

// run does something beside its caller, which it never waits for.
func (c *crew) run(do func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life == nil || c.life.Err() != nil {
		return
	}
	ctx := c.life
	c.all.Go(func() { do(ctx) })
}

// stop ends all of it and waits.
func (c *crew) stop() {
	c.mu.Lock()
	if c.end != nil {
		c.end()
	}
	c.mu.Unlock()
	c.all.Wait()
}

// move is a change of state.
type move struct{ from, to State }

// moves counts the changes of all backends, and tells whoever waits that there was one.
type moves struct {
	mu     sync.Mutex
	counts map[move]int64
	next   chan struct{} // closed by the next change; nil while nobody waits
}

func (m *moves) note(from, to State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[move]int64{}
	}
	m.counts[move{from, to}]++
	if m.next != nil {
		close(m.next)
		m.next = nil
	}
}

// news is closed by the next change.
func (m *moves) news() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next == nil {
		m.next = make(chan struct{})
	}
	return m.next
}

// all is how often each change has been.
func (m *moves) all() map[move]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.counts)
}
