package storage

import (
	"fmt"
	"slices"
	"sort"
)

// segment is an object of the bucket, which never changes: the bytes that one append has written at an offset.
type segment struct {
	generation     uint64 // the order of appends: a later one has a greater number
	offset, length int64
}

// key returns the last part of the key of a segment. Keys sort by generation.
func (s segment) key() string {
	return fmt.Sprintf("%016x-%x-%x", s.generation, s.offset, s.length)
}

// parseSegment returns the segment of a key, and false for a key that is none.
func parseSegment(key string) (s segment, ok bool) {
	n, err := fmt.Sscanf(key, "%16x-%x-%x", &s.generation, &s.offset, &s.length)
	return s, err == nil && n == 3 && s.offset >= 0 && s.length >= 0 && s.key() == key
}

// span is the part of a segment that counts: a later append may have discarded its end.
type span struct {
	segment
	end int64 // of the object
}

func (s span) size() int64 { return s.end - s.offset }

// layout is which segments make up an object.
type layout struct {
	spans  []span // in the order of their bytes, without gaps
	latest uint64 // the greatest generation seen
}

// newLayout applies the segments of an object in the order of their appends.
func newLayout(all []segment) layout {
	slices.SortFunc(all, func(a, b segment) int {
		if a.generation < b.generation {
			return -1
		}
		return 1
	})
	l := layout{}
	for _, s := range all {
		l.apply(s)
	}
	return l
}

// end returns the length of the object.
func (l *layout) end() int64 {
	if len(l.spans) == 0 {
		return 0
	}
	return l.spans[len(l.spans)-1].end
}

// apply adds a segment: what lies behind its offset is discarded. It returns the segments of which nothing counts any
// more. A segment behind the end is ignored: bytes before it are lost.
func (l *layout) apply(s segment) (dropped []segment) {
	l.latest = max(l.latest, s.generation)
	if s.offset > l.end() {
		return nil
	}
	kept := slices.Clone(l.spans) // readers may hold the old slice
	for len(kept) > 0 {
		last := &kept[len(kept)-1]
		if last.offset < s.offset {
			last.end = min(last.end, s.offset)
			break
		}
		dropped = append(dropped, last.segment)
		kept = kept[:len(kept)-1]
	}
	l.spans = append(kept, span{s, s.offset + s.length})
	return dropped
}

// from returns the spans from the one on that holds a position.
func from(spans []span, position int64) []span {
	return spans[sort.Search(len(spans), func(i int) bool { return spans[i].end > position }):]
}

// Bounds of the number of segments. Results of a batch arrive line by line; small segments at the end are merged, first to
// segments of smallSize and then of mediumSize, so each byte is rewritten a few times.
const (
	smallSize  = 32 << 10 // bytes
	mediumSize = 1 << 20
	mergeCount = 32
)

// mergeable returns the segments at the end of an object that are to be merged; none if there are few.
func mergeable(spans []span) []span {
	tail := func(spans []span, limit int64) int {
		n := 0
		for n < len(spans) && spans[len(spans)-1-n].size() < limit {
			n++
		}
		return n
	}
	small, medium := tail(spans, smallSize), tail(spans, mediumSize)
	switch {
	case medium-small >= mergeCount:
		return spans[len(spans)-medium:]
	case small >= mergeCount:
		return spans[len(spans)-small:]
	}
	return nil
}
