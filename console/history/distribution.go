package history

import (
	"math"
	"time"
)

// distribution counts durations in buckets whose bounds grow by the square root of two, from a millisecond to most of an
// hour, so that a quantile is at most a fifth off.
type distribution [buckets]uint16

const (
	buckets     = 44
	firstBucket = time.Millisecond // upper bound of the first bucket
)

// upperBound returns the upper bound of a bucket in seconds.
func upperBound(bucket int) float64 {
	return firstBucket.Seconds() * math.Pow(2, float64(bucket)/2)
}

func (d *distribution) observe(t time.Duration) {
	bucket := 0
	if t > firstBucket {
		bucket = min(int(math.Ceil(2*math.Log2(t.Seconds()/firstBucket.Seconds()))), buckets-1)
	}
	if d[bucket] < math.MaxUint16 {
		d[bucket]++
	}
}

func (d *distribution) merge(other *distribution) {
	for i, n := range other {
		d[i] = uint16(min(uint32(d[i])+uint32(n), math.MaxUint16))
	}
}

// total sums up distributions of several points.
type total [buckets]int64

func (t *total) add(d *distribution) {
	for i, n := range d {
		t[i] += int64(n)
	}
}

// quantile returns the duration in seconds below which the share q of all lies, interpolated within its bucket. It is nil
// if nothing was counted.
func (t *total) quantile(q float64) *float64 {
	var count int64
	for _, n := range t {
		count += n
	}
	if count == 0 {
		return nil
	}
	rank := q * float64(count)
	var below int64
	for i, n := range t {
		if n > 0 && float64(below+n) >= rank {
			share := (rank - float64(below)) / float64(n)
			value := upperBound(i) * math.Pow(2, (share-1)/2)
			return &value
		}
		below += n
	}
	return nil
}
