package usage

import (
	"context"
	"fmt"
	"strings"
)

// SetMaxNamedTags changes maxNamedTags until the returned function is called.
func SetMaxNamedTags(n int64) (restore func()) {
	before := maxNamedTags
	maxNamedTags = n
	return func() { maxNamedTags = before }
}

// SetMaxSeries changes maxSeries until the returned function is called.
func SetMaxSeries(n int64) (restore func()) {
	before := maxSeries
	maxSeries = n
	return func() { maxSeries = before }
}

// String returns the numbers of durations by bucket.
func (l *Latency) String() string {
	var s strings.Builder
	for _, h := range []*Histogram{&l.FirstToken, &l.Total} {
		for bucket, n := range h.counts {
			if n != 0 {
				fmt.Fprintf(&s, "%d:%d ", bucket, n)
			}
		}
		s.WriteString("; ")
	}
	return s.String()
}

// AddList counts the durations of a list.
func (l *Latency) AddList(list string) error { return l.addList([]byte(list)) }

// Record counts the durations of n requests, in microseconds.
func (l *Latency) Record(firstToken, total, n int64) {
	if firstToken > 0 {
		l.FirstToken.add(bucketOf(firstToken), n)
	}
	l.Total.add(bucketOf(total), n)
}

// bucketOf is bucketExpression in Go.
func bucketOf(us int64) int {
	bucket := 0
	for bucket < maxBucket && bucketStart(bucket+1) <= us {
		bucket++
	}
	return bucket
}

// AddBatch adds up to rows new rows to the rollups.
func (s *Store) AddBatch(ctx context.Context, rows int) error {
	s.rollups.rows = rows
	_, _, err := s.addBatch(ctx)
	return err
}

// SetMaxSearched changes maxSearched until the returned function is called.
func SetMaxSearched(n int) (restore func()) {
	before := maxSearched
	maxSearched = n
	return func() { maxSearched = before }
}
