// Package admission says whose turn it is: each key has so many slots, and who comes when all are taken waits in the
// key's queue, first come first served, for as long as it takes.
//
// Waiting costs no goroutine besides the caller's own. Who stops waiting gives up its place at once, wherever in the
// queue it stood, and a slot that is handed to it in the same moment goes on to the next. A key is remembered only
// while it has requests.
package admission

import (
	"context"
	"errors"
	"sync"
)

// ErrFull means that a request would have to wait and there is no room for it: what waits would pass
// Settings.MaxBufferedBytes.
var ErrFull = errors.New("too much is waiting already")

// Settings bound what may wait.
type Settings struct {
	MaxBufferedBytes int64 // of all waiting requests of all keys together
}

// Queue is the slots and queues of all keys. It is safe for concurrent use.
type Queue struct {
	mu       sync.Mutex // guards everything, lanes and slots included; held for moments only
	settings Settings
	lanes    map[string]*lane // only of keys that have requests
	totals   Stats
	spare    sync.Pool // of *lane: coming and going alone allocates no lane
}

// Stats are the totals over all keys.
type Stats struct {
	Keys          int   // that have requests
	Running       int   // requests that have a slot
	Waiting       int   // requests that wait for one
	BufferedBytes int64 // of the requests that wait, for a slot or for what Hold is told of
	Refused       int64 // with ErrFull, ever
}

// New makes a Queue.
func New(s Settings) *Queue {
	return &Queue{
		settings: s,
		lanes:    map[string]*lane{},
		spare:    sync.Pool{New: func() any { return new(lane) }},
	}
}

// Reload changes the settings for whoever comes from then on. Nobody who waits is turned away.
func (q *Queue) Reload(s Settings) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settings = s
}

// SetLimits takes over the limit of each key that has requests, for those who wait too.
func (q *Queue) SetLimits(limit func(key string) int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, l := range q.lanes {
		l.limit = max(limit(key), 1)
		q.admit(l)
	}
}

// Stats tells the totals of this moment.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.totals
	s.Keys = len(q.lanes)
	return s
}

// Acquire waits until it is the caller's turn and returns its slot, which the caller must Leave, whatever happens. A key
// has limit slots, at least 1; a limit that differs from the last Acquire's holds for all who wait, so that a raise lets
// as many in as fit, while a reduction takes no slot from anybody. The bytes are what the request keeps in memory while
// it waits; one that gets its slot at once may be of any size.
//
// The error is ErrFull, or context.Cause(ctx) where ctx ended first; then there is nothing to leave.
func (q *Queue) Acquire(ctx context.Context, key string, limit int, bytes int64) (*Slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s, err := q.join(key, max(limit, 1), max(bytes, 0))
	if err != nil || s.turn == nil {
		return s, err
	}
	select {
	case <-s.turn:
		return s, nil
	case <-ctx.Done():
		s.Release()
		return nil, context.Cause(ctx)
	}
}

// ReserveMemory counts the bytes of a request that waits for something else than its turn, until release is called, once. The
// error is ErrFull.
func (q *Queue) ReserveMemory(bytes int64) (release func(), err error) {
	bytes = max(bytes, 0)
	q.mu.Lock()
	defer q.mu.Unlock()
	if bytes > q.settings.MaxBufferedBytes-q.totals.BufferedBytes {
		q.totals.Refused++
		return nil, ErrFull
	}
	q.totals.BufferedBytes += bytes
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.totals.BufferedBytes -= bytes
	}, nil
}

// join gives out a slot, or a place in the queue, whose turn is then not nil.
func (q *Queue) join(key string, limit int, bytes int64) (*Slot, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lane(key)
	l.limit = limit
	q.admit(l)
	if l.running < l.limit { // and so nobody waits
		l.running++
		q.totals.Running++
		return &Slot{queue: q, lane: l, place: running}, nil
	}
	if bytes > q.settings.MaxBufferedBytes-q.totals.BufferedBytes {
		q.totals.Refused++
		return nil, ErrFull
	}
	s := &Slot{queue: q, lane: l, place: waiting, bytes: bytes, turn: make(chan struct{})}
	l.push(s)
	q.totals.Waiting++
	q.totals.BufferedBytes += bytes
	return s, nil
}

// lane finds a key's lane, or opens it.
func (q *Queue) lane(key string) *lane {
	l, ok := q.lanes[key]
	if !ok {
		l = q.spare.Get().(*lane) //nolint:errcheck // there is nothing else in it
		l.key = key
		q.lanes[key] = l
	}
	return l
}

// admit hands free slots to those who have waited longest.
func (q *Queue) admit(l *lane) {
	for l.running < l.limit && l.first != nil {
		s := l.first
		q.unqueue(s)
		s.place = running
		l.running++
		q.totals.Running++
		close(s.turn)
	}
}

// unqueue takes a waiting slot out of its queue.
func (q *Queue) unqueue(s *Slot) {
	s.lane.remove(s)
	q.totals.Waiting--
	q.totals.BufferedBytes -= s.bytes
}

// forget drops a lane that nobody is in.
func (q *Queue) forget(l *lane) {
	if l.running > 0 || l.first != nil {
		return
	}
	delete(q.lanes, l.key)
	*l = lane{}
	q.spare.Put(l)
}
