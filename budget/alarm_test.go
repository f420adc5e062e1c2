package budget_test

import (
	"cmp"
	"sync"
	"testing"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
)

// alarms collects the alarms of a ledger.
type alarms struct {
	mu  sync.Mutex
	all []budget.Alarm
}

func (a *alarms) add(alarm budget.Alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, alarm)
}

// take returns the alarms since the last call.
func (a *alarms) take() []budget.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

// want fails the test unless the alarms since the last call are of these percentages.
func (a *alarms) want(t *testing.T, when string, percent ...int) []budget.Alarm {
	t.Helper()
	got := a.take()
	if len(got) != len(percent) {
		t.Fatalf("%s: got alarms %+v, want %v percent", when, got, percent)
	}
	for i := range got {
		if got[i].Percent != percent[i] {
			t.Errorf("%s: got an alarm at %d %%, want %d %%", when, got[i].Percent, percent[i])
		}
	}
	return got
}

// newAlarmingLedger returns a ledger that takes the caps from *p.
func newAlarmingLedger(t *testing.T, p *budget.Payer) (*budget.Ledger, *alarms) {
	t.Helper()
	raised := new(alarms)
	l := budget.New(openDatabase(t, newPath(t)), zap.NewNop(), budget.Settings{
		Payer: func(string) (budget.Payer, error) { return *p, nil }, Alarm: raised.add,
	})
	must(t, l.Start(t.Context()))
	t.Cleanup(l.Close)
	return l, raised
}

func TestEachCapRaisesAnAlarmAt80And100Percent(t *testing.T) {
	for _, c := range capCases() {
		p := payerWithCap(c.scope, c.window, c.meter, 1000)
		l, raised := newAlarmingLedger(t, &p)
		input, output := int64(100), int64(0)
		switch c.meter {
		case quota.Output:
			input, output = 0, 100
		case quota.Total:
			input, output = 90, 10
		case quota.Input:
		}
		for used := int64(100); used <= 1000; used += 100 {
			spend(t, l, "key", "acc", input, output)
			switch used {
			case 800, 1000:
				a := raised.want(t, "at a threshold", int(used/10))[0]
				key := map[budget.Scope]string{budget.ScopeParent: "parent"}[c.scope]
				if a.Cap.Scope != c.scope || a.Cap.Window != c.window || a.Cap.Meter != c.meter || a.Cap.Used != used ||
					a.Cap.Limit != 1000 || a.Key != cmp.Or(key, "key") || a.Account != "acc" {
					t.Errorf("%v: got %+v", c, a)
				}
			default:
				raised.want(t, "between thresholds")
			}
		}
	}
}

func TestChargeBeyondBothThresholdsRaisesOneAlarm(t *testing.T) {
	p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
	l, raised := newAlarmingLedger(t, &p)
	spend(t, l, "key", "acc", 900, 100)
	raised.want(t, "everything used at once", budget.UsedUp)
}

// The last tokens of a cap may be too few for any request.
func TestRefusalByANearlyUsedCapRaisesOneAlarm(t *testing.T) {
	p := payerWithCap(budget.ScopeKey, quota.Month, quota.Total, 1000)
	l, raised := newAlarmingLedger(t, &p)
	refuse := func() {
		t.Helper()
		if _, err := l.Reserve(t.Context(), p, newRequest(), demand(500, 1), nil); err == nil {
			t.Fatal("a request of 501 tokens is admitted")
		}
	}
	spend(t, l, "key", "acc", 600, 0)
	refuse()
	raised.want(t, "a refusal at 60 %")
	spend(t, l, "key", "acc", 360, 0)
	raised.want(t, "at 96 %", budget.NearlyUsed)
	refuse()
	refuse()
	raised.want(t, "two refusals at 96 %", budget.UsedUp)
	p.KeyCaps[quota.MonthTotal] = quota.Limit(1200)
	spend(t, l, "key", "acc", 230, 10)
	raised.want(t, "a higher cap that is used up too", budget.UsedUp)
}

func TestCapOfZeroRaisesNoAlarm(t *testing.T) {
	p := payerWithCap(budget.ScopeAccount, quota.Day, quota.Total, 0)
	l, raised := newAlarmingLedger(t, &p)
	if _, err := l.Reserve(t.Context(), p, newRequest(), demand(1, 1), nil); err == nil {
		t.Fatal("a request is admitted")
	}
	raised.want(t, "a refusal by a cap of 0")
}
