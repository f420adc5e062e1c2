package usage

import "context"

// SetMaxNamedTags changes maxNamedTags until the returned function is called.
func SetMaxNamedTags(n int64) (restore func()) {
	before := maxNamedTags
	maxNamedTags = n
	return func() { maxNamedTags = before }
}

// Encode returns the latency as rollups store it.
func (l *Latency) Encode() []byte { return l.encode() }

// MergeEncoded adds encoded latencies.
func (l *Latency) MergeEncoded(text []byte) error { return l.mergeEncoded(text) }

// Record counts the durations of n requests, in microseconds.
func (l *Latency) Record(queue, firstToken, total, n int64) { l.record(queue, firstToken, total, n) }

// AddBatch adds up to rows new rows to the rollups.
func (s *Store) AddBatch(ctx context.Context, rows int) error {
	s.rollups.rows = rows
	_, _, err := s.addBatch(ctx, s.reads())
	return err
}

// SetMaxSearched changes maxSearched until the returned function is called.
func SetMaxSearched(n int) (restore func()) {
	before := maxSearched
	maxSearched = n
	return func() { maxSearched = before }
}
