package usage

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Histogram counts durations in buckets whose width grows with the duration: eight for each power of two of
// microseconds, so a bucket is at most an eighth as wide as the durations in it. The zero value is empty.
type Histogram struct {
	buckets []bucketCount // those that are not empty, in order
}

type bucketCount struct {
	bucket int
	n      int64
}

// Buckets below linearBuckets have one duration each; the last one has everything that is longer.
const (
	linearBuckets = 16
	perOctave     = 8
	maxBucket     = linearBuckets + 36*perOctave // about 12 days
)

// bucketOf returns the number of the bucket that counts a duration in microseconds.
func bucketOf(us int64) int {
	if us < linearBuckets {
		return int(max(us, 0))
	}
	octave := bits.Len64(uint64(us)) - 1 // at least 4
	within := int(us>>(octave-3)) & (perOctave - 1)
	return min(linearBuckets+(octave-4)*perOctave+within, maxBucket)
}

// bucketStart returns the shortest duration of a bucket, in microseconds.
func bucketStart(bucket int) int64 {
	if bucket < linearBuckets {
		return int64(bucket)
	}
	octave, within := (bucket-linearBuckets)/perOctave+4, (bucket-linearBuckets)%perOctave
	return int64(perOctave+within) << (octave - 3)
}

// Count returns the number of durations.
func (h *Histogram) Count() (n int64) {
	for _, b := range h.buckets {
		n += b.n
	}
	return n
}

// Quantile returns the duration that the given part of the durations does not exceed, such as 0.95. It is interpolated
// within its bucket, so it is off by less than an eighth. It is 0 if the histogram is empty.
func (h *Histogram) Quantile(part float64) time.Duration {
	rank := part * float64(h.Count())
	for _, b := range h.buckets {
		if rank > float64(b.n) {
			rank -= float64(b.n)
			continue
		}
		start, end := bucketStart(b.bucket), bucketStart(b.bucket+1)
		us := float64(start) + float64(end-1-start)*rank/float64(b.n)
		return time.Duration(math.Round(us)) * time.Microsecond
	}
	return 0
}

// add counts n durations in a bucket; n may be negative.
func (h *Histogram) add(bucket int, n int64) {
	at, found := slices.BinarySearchFunc(h.buckets, bucket, func(b bucketCount, to int) int { return b.bucket - to })
	if !found {
		h.buckets = slices.Insert(h.buckets, at, bucketCount{bucket, n})
		return
	}
	h.buckets[at].n += n
	if h.buckets[at].n == 0 {
		h.buckets = slices.Delete(h.buckets, at, at+1)
	}
}

// addAll counts the durations of all buckets.
func (h *Histogram) addAll(all *[maxBucket + 1]int64) {
	for _, b := range h.buckets {
		all[b.bucket] += b.n
	}
	h.buckets = h.buckets[:0]
	for bucket, n := range all {
		if n != 0 {
			h.buckets = append(h.buckets, bucketCount{bucket, n})
		}
	}
}

// Latency has the durations of the requests that succeeded.
type Latency struct {
	Queue      Histogram // waiting for a slot and for reservations
	FirstToken Histogram // from arrival to the first event, of streams only
	Total      Histogram // from arrival to the end
}

func (l *Latency) all() [3]*Histogram { return [...]*Histogram{&l.Queue, &l.FirstToken, &l.Total} }

// record counts the durations of n requests, in microseconds; n may be negative.
func (l *Latency) record(queue, firstToken, total, n int64) {
	l.Queue.add(bucketOf(queue), n)
	if firstToken > 0 {
		l.FirstToken.add(bucketOf(firstToken), n)
	}
	l.Total.add(bucketOf(total), n)
}

// encode returns the form in which rollups store latencies: for each histogram the number of buckets and, for each
// bucket, the distance from the previous one and the count, all as varints.
func (l *Latency) encode() []byte {
	text := make([]byte, 0, 64)
	for _, h := range l.all() {
		text = binary.AppendUvarint(text, uint64(len(h.buckets)))
		last := 0
		for _, b := range h.buckets {
			text = binary.AppendUvarint(text, uint64(b.bucket-last)) //nolint:gosec // buckets are in order
			text = binary.AppendVarint(text, b.n)
			last = b.bucket
		}
	}
	return text
}

var errLatency = errors.New("the latencies of a rollup are damaged; rebuild the rollups with: basegate database check --repair")

// decodeLatency calls add with each bucket of the encoded latencies with which a text begins, and returns the rest of the text.
func decodeLatency(text []byte, add func(histogram, bucket int, n int64)) (rest []byte, err error) {
	for histogram := range 3 {
		buckets, size := binary.Uvarint(text)
		if size <= 0 || buckets > maxBucket+1 {
			return nil, errLatency
		}
		text = text[size:]
		bucket := 0
		for range buckets {
			distance, first := binary.Uvarint(text)
			if first <= 0 || distance > maxBucket {
				return nil, errLatency
			}
			n, second := binary.Varint(text[first:])
			if second <= 0 {
				return nil, errLatency
			}
			text = text[first+second:]
			if bucket += int(distance); bucket > maxBucket {
				return nil, errLatency
			}
			add(histogram, bucket, n)
		}
	}
	return text, nil
}

// mergeEncoded adds the encoded latencies of one rollup.
func (l *Latency) mergeEncoded(text []byte) error {
	to := l.all()
	rest, err := decodeLatency(text, func(histogram, bucket int, n int64) { to[histogram].add(bucket, n) })
	if err == nil && len(rest) > 0 {
		err = errLatency
	}
	return err
}

// latencyBuckets adds up the latencies of many rollups faster than a Latency, with a count for every bucket.
type latencyBuckets [3][maxBucket + 1]int64

// merge adds the encoded latencies of a number of rollups, one after the other, to l. b is empty before and afterwards, unless
// there is an error.
func (b *latencyBuckets) merge(l *Latency, text []byte, rollups int64) (err error) {
	add := func(histogram, bucket int, n int64) { b[histogram][bucket] += n }
	for range rollups {
		if text, err = decodeLatency(text, add); err != nil {
			return err
		}
	}
	if len(text) > 0 {
		return errLatency
	}
	for i, h := range l.all() {
		h.addAll(&b[i])
	}
	*b = latencyBuckets{}
	return nil
}

// Merge adds the durations of another Latency.
func (l *Latency) Merge(other *Latency) {
	from := other.all()
	for i, h := range l.all() {
		for _, b := range from[i].buckets {
			h.add(b.bucket, b.n)
		}
	}
}
