package budget_test

import (
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget"
	"basegate/budget/quota"
)

// metric returns the value of one metric, or the count of a histogram.
func metric(tb testing.TB, from prometheus.Gatherer, name, label string) float64 {
	tb.Helper()
	families, err := from.Gather()
	must(tb, err)
	for _, f := range families {
		if f.GetName() != "basegate_ledger_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label != "" && m.GetLabel()[0].GetValue() != label {
				continue
			}
			// Only one of the three is set.
			return float64(m.GetHistogram().GetSampleCount()) + m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	tb.Errorf("metric %s %s does not exist", name, label)
	return 0
}

func TestCollectorExportsTheLedgersState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(l.Collectors()...)
		p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 100)
		settle(t, reserve(t, l, p, demand(1, 1)), 1, 1)
		reserve(t, l, p, demand(1, 1)).Release()
		held := reserve(t, l, p, demand(10, 20))
		waiting := goReserve(t, l, p, demand(10, 80))
		for _, c := range []struct {
			name, label string
			want        float64
		}{
			{"reserved_tokens", "", 30},
			{"open_reservations", "", 1},
			{"waiting_reservations", "", 1},
			{"settlements_total", "settled", 1},
			{"settlements_total", "interrupted", 1},
			{"commit_seconds", "", 1},
			{"lost_rows_total", "", 0},
		} {
			if got := metric(t, registry, c.name, c.label); got != c.want {
				t.Errorf("%s %s is %v, want %v", c.name, c.label, got, c.want)
			}
		}
		waiting.cancel()
		waiting.returned()
		settle(t, held, 1, 1)
		synctest.Wait()
	})
}
