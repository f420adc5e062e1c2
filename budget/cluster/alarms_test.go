package cluster_test

import (
	"errors"
	"sync"
	"testing"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/internal/poll"
)

// alarms are those that all gateways of a test have raised.
type alarms struct {
	mu  sync.Mutex
	all []budget.Alarm
}

func (a *alarms) add(alarm budget.Alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, alarm)
}

func (a *alarms) list() []budget.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]budget.Alarm{}, a.all...)
}

func TestAlarmIsRaisedOnceInTheCluster(t *testing.T) {
	db := newDatabase(t)
	var raised alarms
	first := start(t, db, cluster.Settings{Name: "first", Alarm: raised.add})
	second := start(t, db, cluster.Settings{Name: "second", Alarm: raised.add})
	setOwners(t, first, 0, quota.Caps{quota.MonthTotal: quota.Limit(1000)})
	settle(t, reserve(t, first, demand(100, 700)), 100, 699) // below 80 %
	settle(t, reserve(t, second, demand(1, 1)), 1, 0)        // 80 %
	settle(t, reserve(t, first, demand(10, 140)), 10, 140)   // 95 %
	for range 2 {                                            // refused twice, raised once
		for _, l := range []*cluster.Ledger{first, second} {
			_, err := l.Reserve(t.Context(), payer, newRequest(), demand(100, 1), nil)
			if _, ok := errors.AsType[*budget.Exceeded](err); !ok {
				t.Fatalf("got %v, want Exceeded", err)
			}
		}
	}
	settle(t, reserve(t, first, demand(10, 40)), 10, 40) // 100 %
	poll.Until(t, "three alarms are raised", func() bool { return len(raised.list()) >= 3 })
	all := raised.list()
	if len(all) != 3 {
		t.Fatalf("got %+v, want 3", all)
	}
	for i, want := range []struct {
		percent int
		used    int64
	}{{budget.NearlyUsed, 800}, {budget.UsedUp, 950}, {budget.UsedUp, 1000}} {
		a := all[i]
		if a.Percent != want.percent || a.Cap.Used != want.used || a.Key != "key" || a.Account != "acc" || a.Cap.Scope != budget.ScopeKey ||
			a.Cap.Window != quota.Month || a.Cap.Meter != quota.Total || a.Cap.Limit != 1000 || a.Cap.ResetsAt.IsZero() {
			t.Errorf("alarm %d: got %+v, want %d %% with %d used", i, a, want.percent, want.used)
		}
	}
}
