package cluster_test

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/poll"
)

// capped is payer with a cap.
func capped(limit int64) budget.Payer {
	p := payer
	p.KeyCaps = quota.Caps{quota.MonthTotal: quota.Limit(limit)}
	return p
}

func TestCapsAreShownByTheCountersOfTheLatestReplies(t *testing.T) {
	db := newDatabase(t)
	first, second := start(t, db, cluster.Settings{Name: "first"}), start(t, db, cluster.Settings{Name: "second"})
	p := capped(100)
	setOwners(t, first, 0, p.KeyCaps)
	if h, ok := first.Balance(p).TightestTotal(); !ok || h.Remaining() != 100 || h.Limit != 100 || h.ResetsAt.IsZero() {
		t.Errorf("headroom of a new key: got %+v, %v, want 100", h, ok)
	}
	before := time.Now().Add(-time.Second)
	settle(t, reserve(t, first, demand(30, 40)), 30, 40)
	calls := first.Values(t)["calls_total"]
	for range 100 {
		if h, _ := first.Balance(p).TightestTotal(); h.Remaining() != 30 {
			t.Errorf("headroom after a settlement: got %d, want 30", h.Remaining())
		}
		if e := first.Balance(p).Exhausted(); e != nil {
			t.Errorf("got %v, want no exhausted cap", e)
		}
	}
	if n := first.Values(t)["calls_total"] - calls; n >= 100 { // the listener may have made one
		t.Errorf("reading counters 200 times has called the ledger %v times", n)
	}
	settle(t, reserve(t, second, demand(10, 20)), 10, 20)
	poll.Until(t, "the first gateway learns what the second has used", func() bool { return first.Balance(p).Exhausted() != nil })
	if e := first.Balance(p).Exhausted(); e.Used != 100 || e.Limit != 100 || e.Scope != budget.ScopeKey {
		t.Errorf("got %+v, want 100 of 100 tokens", e)
	}
	var want budget.Counters
	for w := range want.Used {
		want.Used[w] = quota.Tokens{Input: 40, Output: 60}
	}
	for _, l := range []*cluster.Ledger{first, second} {
		poll.Until(t, "a gateway shows the totals of both", func() bool {
			b := l.Recent(t.Context(), p)
			return b.Key == want && b.Account == want
		})
	}
	if c := readBalance(t, second, p).Caps(); len(c) != 1 || c[0].Used != 100 {
		t.Errorf("got the caps %+v", c)
	}
	account := budget.Payer{Account: "acc", AccountCaps: quota.Caps{quota.DayTotal: quota.Limit(500)}}
	if c := second.Recent(t.Context(), account).Caps(); len(c) != 1 || c[0].Used != 100 || c[0].Window != quota.Day {
		t.Errorf("got the caps of the account %+v", c)
	}
	third := start(t, db, cluster.Settings{Name: "third"}) // has read nothing
	if all := third.RecentOf(t.Context(), []budget.Payer{p, {Key: "unknown"}, account}); len(all) != 3 || all[0].Key != want ||
		all[1].Key != (budget.Counters{}) || all[2].Account != want {
		t.Errorf("got the balances %+v", all)
	}
	if used, err := second.LastUse(t.Context(), "key"); err != nil || used.Time.Before(before) {
		t.Errorf("got the last use %v, %v", used, err)
	}
	if used, err := second.LastUse(t.Context(), "acc2"); err != nil || used != (budget.Use{}) {
		t.Errorf("got the last use %v, %v, want none", used, err)
	}
}

func readBalance(t *testing.T, l *cluster.Ledger, p budget.Payer) budget.Balance {
	t.Helper()
	b, err := l.ReadBalance(t.Context(), p)
	must(t, err)
	return b
}

func TestReadBalanceHasWhatAnotherGatewayHasJustSettled(t *testing.T) {
	db := newDatabase(t)
	first, second := start(t, db, cluster.Settings{Name: "first"}), start(t, db, cluster.Settings{Name: "second"})
	p := capped(1000)
	setOwners(t, first, 0, p.KeyCaps)
	for n := range int64(20) {
		settle(t, reserve(t, first, demand(10, 10)), 10, 10)
		r := reserve(t, first, demand(1, 2))
		b := readBalance(t, second, p)
		if c := b.Caps(); len(c) != 1 || c[0].Used != (n+1)*20 || c[0].Reserved != 3 {
			t.Fatalf("got the caps %+v, want %d tokens used and 3 reserved", c, (n+1)*20)
		}
		if c, _ := second.Counters("key"); c.Running != 1 {
			t.Fatalf("got %d running requests, want 1", c.Running)
		}
		if e := b.Estimate(demand(1, 1)); e.MaxTokens != 1 {
			t.Fatalf("got the estimate %+v", e)
		}
		r.Release()
	}
}

func TestEstimateIsWhatReserveWouldDecide(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Payer: func(key string) (budget.Payer, error) {
		if key != "key" {
			return budget.Payer{}, errors.New("paused")
		}
		return capped(100), nil
	}})
	setOwners(t, l, 0, capped(100).KeyCaps)
	settle(t, reserve(t, l, demand(30, 30)), 30, 30)
	for _, c := range []struct {
		demand  budget.Demand
		want    int64
		refused bool
		limited bool
	}{
		{demand(10, 20), 20, false, false}, {demand(10, 50), 30, false, true}, {demand(40, 1), 0, true, true},
	} {
		e := readBalance(t, l, payer).Estimate(c.demand)
		if e.MaxTokens != c.want || (e.Refused != nil) != c.refused || (e.LimitedBy != nil) != c.limited {
			t.Errorf("%+v: got %+v", c.demand, e)
		}
	}
	if _, err := l.ReadBalance(t.Context(), budget.Payer{Key: "other"}); !errors.Is(err, budget.ErrKeyDisabled) {
		t.Errorf("got %v, want ErrKeyDisabled", err)
	}
	unused := budget.Balance{Payer: capped(100)}
	if unused.Estimate(demand(50, 50)).LimitedBy != nil || unused.Estimate(demand(50, 51)).LimitedBy == nil {
		t.Error("a demand does not fit exactly the whole cap")
	}
}

func TestClosedLedgerRefusesWaitersAndRequests(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 1, quota.Caps{})
	running := reserve(t, l, demand(1, 1))
	waiter, kind, _, _ := l.Submit(t, payer, newRequest(), demand(1, 1))
	if kind != "wait" || l.Load().Waiting != 1 {
		t.Fatalf("got %s, and %d waiting, want wait and 1", kind, l.Load().Waiting)
	}
	running.Release()
	l.Close()
	if _, _, err, ok := waiter.Decided(); !ok || err != nil && !errors.Is(err, budget.ErrClosed) {
		t.Errorf("the waiter: got %v, %v, want ErrClosed, or a grant", err, ok)
	}
	if _, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); !errors.Is(err, budget.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestRequestsOfALongOutageEndAndNewOnesAreUnavailable(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", CutOff: time.Second, AdmitTimeout: 2 * time.Second})
	setOwners(t, l, 0, quota.Caps{})
	running := reserve(t, l, demand(1, 1))
	db.exec(t, `ALTER FUNCTION ledger_now() RENAME TO ledger_now_away`) // every call fails
	_, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil)
	if !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("got %v, want database.ErrUnavailable", err)
	}
	<-running.Lost().Done()
	db.exec(t, `ALTER FUNCTION ledger_now_away() RENAME TO ledger_now`)
	running.Release()
	l.Sync(t, "acc") // the calls succeed again
	var later budget.Reservation
	poll.Until(t, "a request is admitted", func() bool {
		later, err = l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil)
		return err == nil
	})
	select {
	case <-later.Lost().Done():
		t.Error("a request that was admitted after the outage has to end")
	default:
	}
}

func TestCollectorHasTheMetricsOfTheOtherLedger(t *testing.T) {
	names := func(all []prometheus.Collector) map[string]bool {
		names := map[string]bool{}
		for _, c := range all {
			descs := make(chan *prometheus.Desc, 1)
			c.Describe(descs)
			names[(<-descs).String()] = true
		}
		return names
	}
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	own := names(l.Collectors())
	for desc := range names(budget.New(nil, nil, budget.Settings{}).Collectors()) {
		if !own[desc] {
			t.Errorf("%s is missing", desc)
		}
	}
	setOwners(t, l, 0, quota.Caps{})
	reserve(t, l, demand(10, 20))
	values := l.Values(t)
	if values["reserved_tokens"] != 30 || values["open_reservations"] != 1 || values["calls_total"] < 1 {
		t.Errorf("got %v", values)
	}
}

func TestLastAddressIsThatOfTheLatestRequestAtAnyGateway(t *testing.T) {
	db := newDatabase(t)
	first, second := start(t, db, cluster.Settings{Name: "first"}), start(t, db, cluster.Settings{Name: "second"})
	setOwners(t, first, 1, quota.Caps{})
	from := func(address string) budget.Request {
		q := newRequest()
		q.Address = address
		return q
	}
	check := func(when, want string) {
		t.Helper()
		if used, err := first.LastUse(t.Context(), "key"); err != nil || used.Time.IsZero() || used.Address != want {
			t.Errorf("%s: got the last use %+v, %v, want one from %q", when, used, err, want)
		}
	}
	running, err := first.Reserve(t.Context(), payer, from("192.0.2.1"), demand(1, 1), nil)
	must(t, err)
	check("a request", "192.0.2.1")
	waiter, kind, _, _ := second.Submit(t, payer, from("2001:db8::7"), demand(1, 1))
	if kind != "wait" {
		t.Fatalf("got %s, want wait", kind)
	}
	check("one that waits at another gateway", "2001:db8::7")
	settle(t, running, 1, 1) // the first gateway grants, which has not seen the address
	granted := await(t, "the other gateway's", waiter)
	check("one that has waited", "2001:db8::7")
	settle(t, granted, 1, 1)
	settle(t, reserve(t, first, demand(1, 1)), 1, 1)
	check("a line of a batch", "2001:db8::7")
}
