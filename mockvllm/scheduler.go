package mockvllm

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// scheduler admits requests to the engine, as vLLM's does: at most limit sequences run at once, and the others wait in
// a queue. The head of the queue holds back the requests behind it, however small they are.
type scheduler struct {
	limit      int  // 0 means none
	byPriority bool // the queue is ordered by priority, lower first, then by arrival; otherwise by arrival

	mu      sync.Mutex
	running int       // sequences
	queue   []*waiter // the next to run first
}

type waiter struct {
	sequences int
	priority  int
	admitted  chan struct{} // closed at admission
}

// acquire blocks until the sequences of a request may run, or ctx ends. A request of more sequences than the limit runs
// alone. The caller must call release.
func (s *scheduler) acquire(ctx context.Context, sequences, priority int) (release func(), err error) {
	release = func() { s.release(sequences) }
	s.mu.Lock()
	if len(s.queue) == 0 && s.fits(sequences) {
		s.running += sequences
		s.mu.Unlock()
		return release, nil
	}
	if !s.byPriority {
		priority = 0
	}
	w := &waiter{sequences: sequences, priority: priority, admitted: make(chan struct{})}
	s.queue = append(s.queue, w)
	slices.SortStableFunc(s.queue, func(a, b *waiter) int { return cmp.Compare(a.priority, b.priority) })
	s.mu.Unlock()
	select {
	case <-w.admitted:
		return release, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.queue, w); at < 0 {
		s.running -= sequences // admitted at the same moment
	} else {
		s.queue = slices.Delete(s.queue, at, at+1)
	}
	s.admit()
	return nil, context.Cause(ctx)
}

func (s *scheduler) release(sequences int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running -= sequences
	s.admit()
}

func (s *scheduler) fits(sequences int) bool {
	return s.limit == 0 || s.running == 0 || s.running+sequences <= s.limit
}

// admit runs the head of the queue while it fits. s.mu must be held.
func (s *scheduler) admit() {
	for len(s.queue) > 0 && s.fits(s.queue[0].sequences) {
		w := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
		s.running += w.sequences
		close(w.admitted)
	}
}

// load returns the number of sequences that run and that wait.
func (s *scheduler) load() (running, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.queue {
		queued += w.sequences
	}
	return s.running, queued
}
