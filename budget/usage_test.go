package budget_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/budget"
)

// makeRequests makes six requests, of two keys of one account and one of another, on three days.
func makeRequests(t *testing.T, l *budget.Ledger) {
	t.Helper()
	payers := []budget.Payer{{Key: "k1", Account: "a1"}, {Key: "k2", Account: "a1"}, {Key: "k3", Account: "a2"}}
	for i := range 2 * len(payers) {
		p := payers[i%len(payers)]
		q := budget.Request{
			ID: fmt.Sprint("r", i), Model: fmt.Sprint("m", i%2), Workload: fmt.Sprint("w", i%2), User: fmt.Sprint("u%", i/3),
			Time: time.Now(),
		}
		r, err := l.Reserve(t.Context(), p, q, demand(100, 100), nil)
		must(t, err)
		settle(t, r, 10, int64(i))
		time.Sleep(12 * time.Hour)
	}
}

// summary formats the fields that a grouping sets.
func summary(by budget.Grouping, r budget.Row) string {
	switch by {
	case budget.ByRequest:
		return r.RequestID
	case budget.ByKey:
		return fmt.Sprint(r.KeyID, " ", r.AccountID, " ", r.Requests, " ", r.PromptTokens, "+", r.CompletionTokens)
	case budget.ByAccount:
		return fmt.Sprint(r.AccountID, " ", r.Requests, " ", r.PromptTokens, "+", r.CompletionTokens)
	case budget.ByModel:
		return fmt.Sprint(r.Model, " ", r.Requests, " ", r.PromptTokens, "+", r.CompletionTokens)
	case budget.ByDay:
		return fmt.Sprint(r.Time.Format("01-02"), " ", r.Requests, " ", r.PromptTokens, "+", r.CompletionTokens)
	case budget.ByDayModel:
		return fmt.Sprint(r.Time.Format("01-02"), " ", r.Model, " ", r.Requests, " ", r.PromptTokens, "+", r.CompletionTokens)
	case budget.ByWorkload:
		return fmt.Sprint(r.Workload, " ", r.Requests, " ", r.PromptTokens, "+", r.CompletionTokens)
	case budget.ByUser:
		return fmt.Sprint(r.User, " ", r.Requests, " ", r.PromptTokens, "+", r.CompletionTokens)
	}
	return "?"
}

func TestUsageIsFilteredAndGrouped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t)
		began := time.Now()
		makeRequests(t, l)
		for _, c := range []struct {
			filter budget.Filter
			by     budget.Grouping
			want   []string
		}{
			{budget.Filter{}, budget.ByRequest, []string{"r5", "r4", "r3", "r2", "r1", "r0"}},
			{budget.Filter{Limit: 2}, budget.ByRequest, []string{"r5", "r4"}},
			{budget.Filter{Account: "a1"}, budget.ByRequest, []string{"r4", "r3", "r1", "r0"}},
			{budget.Filter{Account: "a1", Key: "k2"}, budget.ByRequest, []string{"r4", "r1"}},
			{budget.Filter{Account: "a2", Key: "k2"}, budget.ByRequest, nil},
			{budget.Filter{Since: began.Add(24 * time.Hour), Until: began.Add(48 * time.Hour)}, budget.ByRequest, []string{"r3", "r2"}},
			{budget.Filter{}, budget.ByKey, []string{"k3 a2 2 20+7", "k2 a1 2 20+5", "k1 a1 2 20+3"}},
			{budget.Filter{}, budget.ByAccount, []string{"a1 4 40+8", "a2 2 20+7"}},
			{budget.Filter{}, budget.ByModel, []string{"m1 3 30+9", "m0 3 30+6"}},
			{budget.Filter{}, budget.ByDay, []string{"01-03 2 20+9", "01-02 2 20+5", "01-01 2 20+1"}},
			{budget.Filter{Key: "k1", Limit: 1}, budget.ByDay, []string{"01-02 1 10+3"}},
			{budget.Filter{Account: "a1"}, budget.ByDayModel, []string{"01-03 m0 1 10+4", "01-02 m1 1 10+3", "01-01 m0 1 10+0", "01-01 m1 1 10+1"}},
			{budget.Filter{}, budget.ByWorkload, []string{"w1 3 30+9", "w0 3 30+6"}},
			{budget.Filter{}, budget.ByUser, []string{"u%1 3 30+12", "u%0 3 30+3"}},
			{budget.Filter{Model: "m1"}, budget.ByRequest, []string{"r5", "r3", "r1"}},
			{budget.Filter{Failed: true}, budget.ByRequest, nil},
			{budget.Filter{Search: "r3"}, budget.ByRequest, []string{"r3"}},
			{budget.Filter{Search: "3"}, budget.ByRequest, nil},
			{budget.Filter{Search: "%1"}, budget.ByRequest, []string{"r5", "r4", "r3"}},
			{budget.Filter{Search: "w_"}, budget.ByRequest, nil},
			{budget.Filter{Search: "u%1", Model: "m1"}, budget.ByRequest, []string{"r5", "r3"}},
		} {
			all, err := l.Usage(t.Context(), c.filter, c.by)
			must(t, err)
			var got []string
			for _, r := range all {
				got = append(got, summary(c.by, r))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%+v by %s (-want +got)\n%s", c.filter, c.by, diff)
			}
		}
		if _, err := l.Usage(t.Context(), budget.Filter{}, "colour"); err == nil || !strings.Contains(err.Error(), "colour") {
			t.Errorf("by colour: got error %v, want one that names the unknown grouping", err)
		}
		for r, err := range l.Rows(t.Context(), budget.Filter{}, budget.ByRequest) {
			must(t, err)
			if r.RequestID != "r5" {
				t.Errorf("the iteration continues after break with %s", r.RequestID)
			}
			break
		}
	})
}

func TestUsageWorksBeforeStart(t *testing.T) {
	db := openDatabase(t, newPath(t))
	insertRows(t, db, 100, time.Now().Add(-30*24*time.Hour))
	l := budget.New(db, zap.NewNop(), budget.Settings{})
	all, err := l.Usage(t.Context(), budget.Filter{}, budget.ByRequest)
	must(t, err)
	if len(all) != 100 {
		t.Errorf("%d rows, want 100", len(all))
	}
	l.Close()
}

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
		must(t, registry.Register(budget.NewCollector(l)))
		p := payerWithCap(budget.Key, budget.Month, budget.Total, 100)
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
