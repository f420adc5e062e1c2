package admission_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"basegate/budget/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newAllocation(m *admission.Memory, key string) *admission.Allocation {
	a := m.Allocate(key)
	return &a
}

func wantStats(tb testing.TB, m *admission.Memory, want admission.MemoryStats) {
	tb.Helper()
	if got := m.Stats(); got != want {
		tb.Errorf("stats: got %+v, want %+v", got, want)
	}
}

func TestGrowAndReleaseAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items at random under the race detector")
	}
	a := newAllocation(admission.NewMemory(1<<30), "a")
	n := testing.AllocsPerRun(1000, func() {
		_ = a.Grow(100)
		a.Release()
	})
	if n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestCollectorExportsTheTotals(t *testing.T) {
	m := admission.NewMemory(1000)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.Collectors()...)
	a := newAllocation(m, "a")
	grow(t, a, 100)
	wantFull(t, a, 1000)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		m := f.GetMetric()[0]
		value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
		got = append(got, strings.TrimPrefix(f.GetName(), "basegate_admission_")+" "+strconv.Itoa(int(value)))
	}
	if want := []string{"buffered_bytes 100", "refused_total 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
