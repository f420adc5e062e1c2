package usage_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"basegate/budget/usage"
)

func TestQuantilesAreOffByLessThanAnEighth(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, largest := range []int64{10, 1000, 1e6, 1e9, 1e11} {
		var (
			l   usage.Latency
			all []int64
		)
		for range 1000 {
			us := random.Int64N(largest)
			l.Record(0, us, 1)
			all = append(all, us)
		}
		slices.Sort(all)
		for _, part := range []float64{0.01, 0.5, 0.95, 0.99, 1} {
			exact := all[max(int(part*1000)-1, 0)]
			got := l.Total.Quantile(part).Microseconds()
			if difference := max(got-exact, exact-got); difference > exact/8+1 {
				t.Errorf("quantile %v up to %d is %d, want %d", part, largest, got, exact)
			}
		}
		if l.Total.Count() != 1000 || l.FirstToken.Count() != 0 {
			t.Errorf("%d totals and %d first tokens are counted, want 1000 and 0", l.Total.Count(), l.FirstToken.Count())
		}
	}
	var empty usage.Latency
	if got := empty.Total.Quantile(0.5); got != 0 {
		t.Errorf("the quantile of nothing is %v, want 0", got)
	}
	empty.Record(0, int64(1000*24*time.Hour/time.Microsecond), 1)
	if got := empty.Total.Quantile(1); got < 12*24*time.Hour {
		t.Errorf("1,000 days are counted as %v", got)
	}
}

func FuzzLatencyList(f *testing.F) {
	for _, list := range []string{"", "1024,1536", "1329,3000", ",1024,", "99999999999999999999", "-1024", "1", "2047"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		var once, twice usage.Latency
		if once.AddList(list) != nil {
			return
		}
		if err := twice.AddList(list + "," + list); err != nil {
			t.Fatalf("%q is read, but not twice: %v", list, err)
		}
		once.Merge(&once)
		if once.String() != twice.String() {
			t.Errorf("%q twice is %v, want %v", list, &twice, &once)
		}
	})
}
