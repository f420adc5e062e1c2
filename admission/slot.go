package admission

// Slot is the right to run one request, or the place in the queue for it.
type Slot struct {
	queue *Queue
	lane  *lane
	place place
	bytes int64
	turn  chan struct{} // closed when a place in the queue becomes a slot; nil for a slot that was free at once

	before, after *Slot // in the queue
}

// place is where a request is.
type place int

const (
	waiting place = iota
	running
	gone
)

// Release gives the slot back and hands it to the next in the queue at once. To leave twice, or from several goroutines,
// changes nothing.
func (s *Slot) Release() {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch s.place {
	case waiting:
		q.unqueue(s)
	case running:
		s.lane.running--
		q.totals.Running--
		q.admit(s.lane)
	case gone:
		return
	}
	q.forget(s.lane)
	s.place, s.lane = gone, nil
}

// lane is one key's slots and queue.
type lane struct {
	key         string
	limit       int
	running     int   // over the limit after a reduction, until enough have left
	first, last *Slot // the queue; empty unless running has reached the limit
}

// push puts s at the end of the queue.
func (l *lane) push(s *Slot) {
	s.before = l.last
	if l.last == nil {
		l.first = s
	} else {
		l.last.after = s
	}
	l.last = s
}

// remove takes s out of the queue, wherever it stands.
func (l *lane) remove(s *Slot) {
	if s.before == nil {
		l.first = s.after
	} else {
		s.before.after = s.after
	}
	if s.after == nil {
		l.last = s.before
	} else {
		s.after.before = s.before
	}
	s.before, s.after = nil, nil
}
