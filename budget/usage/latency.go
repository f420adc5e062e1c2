package usage

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Histogram counts durations in buckets whose width grows with the duration: eight for each power of two of
// microseconds, so a bucket is at most an eighth as wide as the durations in it. The zero value is empty.
type Histogram struct {
	counts []int64 // by bucket, up to the last one that is not empty
}

// Buckets below linearBuckets have one duration each; the last one has everything that is longer.
const (
	linearBuckets = 16
	perOctave     = 8
	octaves       = 36
	maxBucket     = linearBuckets + octaves*perOctave // about 12 days
)

// bucketExpression returns the expression for the bucket that counts a duration in microseconds.
func bucketExpression(column string) string {
	return fmt.Sprintf(`CASE WHEN %[1]s < 0 THEN 0 WHEN %[1]s < %[2]d THEN %[1]s ELSE %[3]s END`,
		column, linearBuckets, octaveExpression(column, 0, octaves))
}

// octaveExpression is bucketExpression for durations of a range of octaves, and longer ones. It searches by halves.
func octaveExpression(column string, from, to int) string {
	if from == octaves {
		return strconv.Itoa(maxBucket)
	}
	if from == to {
		return fmt.Sprintf(`%d + %s / %d`, linearBuckets+(from-1)*perOctave, column, linearBuckets/perOctave<<from)
	}
	middle := (from + to + 1) / 2
	return fmt.Sprintf(`CASE WHEN %s < %d THEN %s ELSE %s END`, column, linearBuckets<<middle,
		octaveExpression(column, from, middle-1), octaveExpression(column, middle, to))
}

// bucketStart returns the shortest duration of a bucket, in microseconds.
func bucketStart(bucket int) int64 {
	if bucket < linearBuckets {
		return int64(bucket)
	}
	octave, within := (bucket-linearBuckets)/perOctave, (bucket-linearBuckets)%perOctave
	return int64(perOctave+within) << (octave + 1)
}

// Count returns the number of durations.
func (h *Histogram) Count() (n int64) {
	for _, of := range h.counts {
		n += of
	}
	return n
}

// Quantile returns the duration that the given part of the durations does not exceed, such as 0.95. It is interpolated
// within its bucket, so it is off by less than an eighth. It is 0 if the histogram is empty.
func (h *Histogram) Quantile(part float64) time.Duration {
	rank := part * float64(h.Count())
	for bucket, n := range h.counts {
		if n == 0 || rank > float64(n) {
			rank -= float64(n)
			continue
		}
		start, end := bucketStart(bucket), bucketStart(bucket+1)
		us := float64(start) + float64(end-1-start)*rank/float64(n)
		return time.Duration(math.Round(us)) * time.Microsecond
	}
	return 0
}

// Merge adds the durations of another Histogram.
func (h *Histogram) Merge(other *Histogram) {
	for bucket, n := range other.counts {
		h.add(bucket, n)
	}
}

func (h *Histogram) add(bucket int, n int64) {
	if missing := bucket + 1 - len(h.counts); missing > 0 {
		h.counts = append(slices.Grow(h.counts, missing), make([]int64, missing)...)
	}
	h.counts[bucket] += n
}

// Latency has the durations of the requests that succeeded.
type Latency struct {
	FirstToken Histogram // from arrival to the first event, of streams only
	Total      Histogram // from arrival to the end
}

// A symbol stands for a histogram of a Latency and a bucket of it. A list of latencies, as the table usage_latencies has it,
// is of integers: the count of a symbol, times symbols, plus the symbol.
const (
	symbols     = 1024
	totalSymbol = symbols / 2 // the symbols of Total begin here
)

// selectSymbols returns the query for the symbols of rows and how often they occur, multiplied by a weight, in groups by a
// number of columns. from has the tables and conditions.
func selectSymbols(columns string, number int, weight, from string) string {
	all := make([]string, 0, 2)
	for _, h := range []struct {
		column string
		first  int
		only   string
	}{{"first_token_us", 0, ` AND first_token_us > 0`}, {"total_us", totalSymbol, ``}} {
		all = append(all, fmt.Sprintf(`SELECT %s, %d + %s AS symbol, %s * count(*) AS n %s AND NOT %s%s GROUP BY %s`,
			columns, h.first, bucketExpression(h.column), weight, from, failedCondition, h.only, positions(number+1)))
	}
	return strings.Join(all, ` UNION ALL `)
}

// positions returns the list of the first columns of a query.
func positions(number int) string {
	all := make([]string, number)
	for i := range all {
		all[i] = strconv.Itoa(i + 1)
	}
	return strings.Join(all, ", ")
}

// add counts n durations of a symbol.
func (l *Latency) add(symbol int, n int64) {
	if symbol >= totalSymbol {
		l.Total.add(symbol-totalSymbol, n)
	} else {
		l.FirstToken.add(symbol, n)
	}
}

var errLatency = errors.New("the latencies of a rollup are damaged; rebuild the rollups with: basegate database check --repair")

// addList counts the durations of a list.
func (l *Latency) addList(list []byte) error {
	value := int64(0)
	for i := range len(list) + 1 {
		c := byte(',')
		if i < len(list) {
			c = list[i]
		}
		switch {
		case c >= '0' && c <= '9' && value < math.MaxInt64/100:
			value = value*10 + int64(c-'0')
		case c == ',':
			if symbol := int(value % symbols); symbol%totalSymbol <= maxBucket && value >= symbols {
				l.add(symbol, value/symbols)
			} else if value > 0 {
				return errLatency
			}
			value = 0
		default:
			return errLatency
		}
	}
	return nil
}

// Merge adds the durations of another Latency.
func (l *Latency) Merge(other *Latency) {
	l.FirstToken.Merge(&other.FirstToken)
	l.Total.Merge(&other.Total)
}
