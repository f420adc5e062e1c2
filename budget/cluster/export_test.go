package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget"
)

// NumbersPerOwner is how many numbers ledger_write_v1 takes for each row of owner.
const NumbersPerOwner = numbersPerOwner

// Values returns the values of the metrics by their names, without the common prefix.
func (l *Ledger) Values(tb testing.TB) map[string]float64 {
	tb.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(l.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		all[strings.TrimPrefix(f.GetName(), "basegate_ledger_")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return all
}

// Admission is a request that has been submitted to the ledger. It is for tests that look at each decision.
type Admission struct {
	ledger *Ledger
	lane   *lane
	o      *operation
	d      budget.Demand
	ended  <-chan decision // nil unless the request waits
}

// Submit submits a request and returns its first decision, and its reservation if that is a grant. A line of a batch does not wait.
func (l *Ledger) Submit(tb testing.TB, p budget.Payer, r budget.Request, d budget.Demand) (*Admission, string, budget.Reservation, error) {
	tb.Helper()
	a := &Admission{ledger: l, lane: l.epoch.Load().lane(p.Account), d: d.Normalized()}
	o, got, err := l.admit(tb.Context(), a.lane, p, r, a.d, r.Batch != "")
	if err != nil {
		tb.Fatal(err)
	}
	a.o = o
	switch got.Kind {
	case budget.Granted:
		return a, string(got.Kind), a.lane.addOpen(o, &a.d, got), nil
	case budget.Waits:
		a.ended = got.ended
		return a, string(got.Kind), nil, nil
	case budget.MustCount:
		return a, string(got.Kind), nil, nil
	default:
		return a, string(got.Kind), nil, got.failure()
	}
}

// Decided returns the decision on a request that waits, and false if there is none yet.
func (a *Admission) Decided() (kind string, r budget.Reservation, err error, decided bool) {
	select {
	case got := <-a.ended:
		if got.Kind == budget.Granted {
			return string(got.Kind), a.lane.addOpen(a.o, &a.d, got), nil, true
		}
		if got.err != nil {
			return "", nil, got.err, true
		}
		return string(got.Kind), nil, got.failure(), true
	default:
		return "", nil, nil, false
	}
}

// Ticket returns the ticket of a request that waits.
func (a *Admission) Ticket() int64 { return a.o.ticket }

// Cancel ends the wait.
func (a *Admission) Cancel() { a.lane.abandon(a.o) }

// Sync waits until every operation of an account that was submitted before has been executed, evaluates the requests that wait if
// caps have changed or a day has begun, and fetches the decisions on them.
func (l *Ledger) Sync(tb testing.TB, account string) {
	tb.Helper()
	lane := l.epoch.Load().lane(account)
	isOf := func(o *operation) bool { return o.account == account }
	// What has to be evaluated is known after the first round, and is put off while another session holds the account.
	for n, putOff := 0, false; n < 2 || putOff && n < 1000; n++ {
		o := &operation{checkpoint: &checkpoint{ID: "none"}, done: make(chan decision, 1)}
		lane.mu.Lock()
		lane.collect = lane.collect || n == 0
		if err := lane.enqueueLocked(o); err != nil {
			tb.Error(err)
		}
		lane.mu.Unlock()
		if got := <-o.done; got.err != nil {
			tb.Fatal(got.err)
		}
		lane.mu.Lock()
		putOff = lane.putOff[account] != nil || slices.ContainsFunc(lane.queue, isOf)
		lane.mu.Unlock()
	}
}

// Checkpoint writes the progress of a reservation.
func (l *Ledger) Checkpoint(tb testing.TB, of budget.Reservation) {
	tb.Helper()
	r := of.(*reservation)
	o := r.checkpoint(r.Progress())
	if err := r.lane.enqueue(o); err != nil {
		tb.Fatal(err)
	}
	if got := <-o.done; got.err != nil {
		tb.Error(got.err)
	}
}

// Identity returns the gateway's number and epoch.
func (l *Ledger) Identity() (gateway int32, epoch int64) {
	e := l.epoch.Load()
	return e.gateway, e.number
}

// Fenced returns a channel that is closed when the current epoch has ended.
func (l *Ledger) Fenced() <-chan struct{} { return l.epoch.Load().fenced }

// Rejoined reports whether the ledger has begun an epoch after one.
func (l *Ledger) Rejoined(epoch int64) bool {
	e := l.epoch.Load()
	return e.number > epoch
}
