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
			l.Record(0, 0, us, 1)
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
	empty.Record(0, 0, int64(1000*24*time.Hour/time.Microsecond), 1)
	if got := empty.Total.Quantile(1); got < 12*24*time.Hour {
		t.Errorf("1,000 days are counted as %v", got)
	}
}

func FuzzLatency(f *testing.F) {
	var l usage.Latency
	l.Record(1, 20_000, 1_000_000, 1)
	l.Record(100, 0, 5, 3)
	f.Add(l.Encode())
	f.Add((&usage.Latency{}).Encode())
	f.Fuzz(func(t *testing.T, text []byte) {
		var decoded, again usage.Latency
		if decoded.MergeEncoded(text) != nil {
			return
		}
		canonical := decoded.Encode()
		if err := again.MergeEncoded(canonical); err != nil || string(again.Encode()) != string(canonical) {
			t.Errorf("%x is decoded to what encodes as %x, which does not survive another round: %v", text, canonical, err)
		}
	})
}
