package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"basegate/budget"
	"basegate/budget/usage"
)

// reservation is the budget.Reservation of a Ledger. It holds a slot of the key besides, unless it is a line of a batch.
type reservation struct {
	budget.Grant

	lane         *lane
	id           string
	account, key string
	admitted     time.Time
	lost         context.Context
	row          requestRow

	// Guarded by the lane's lock.
	written   time.Time       // when the latest checkpoint was submitted; zero before the first
	submitted budget.Progress // the latest checkpoint
	writing   *operation      // the checkpoint that is not done yet, or nil
	durable   int64           // tokens of the latest checkpoint that is in the database

	once   sync.Once
	ending *operation // set by once
}

// addOpen returns the Reservation of a request that was admitted.
func (l *lane) addOpen(o *operation, d *budget.Demand, got decision) *reservation {
	r := &reservation{
		Grant: budget.Grant{Input: got.Prompt, Output: d.Output(got.Max), Max: got.Max, Lowered: got.Max < d.MaxTokens},
		lane:  l, id: o.admit.ID, account: o.account, key: o.key, admitted: time.Now(), row: requestRow{o.admit, got.Time},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.lost = l.lost
	l.open[r] = struct{}{}
	return r
}

// WriteError implements budget.Reservation. The error is database.ErrUnavailable, which ErrFenced is too, or
// budget.ErrClosed.
func (r *reservation) WriteError() error { return r.lane.ready() }

// Lost implements budget.Reservation.
func (r *reservation) Lost() context.Context { return r.lost }

// checkpoint returns the operation that records the progress.
func (r *reservation) checkpoint(p budget.Progress) *operation {
	p.Backend = escape(p.Backend)
	return &operation{account: r.account, key: r.key, checkpoint: &checkpoint{r.id, p}, done: make(chan decision, 1)}
}

// Settle implements budget.Reservation. After database.ErrUnavailable or the end of ctx, the settlement is sent when the
// database is available again: with the outcome's Fallback, unless it has been sent before and may have been executed.
// After ErrFenced, nothing is charged but the last checkpoint.
func (r *reservation) Settle(ctx context.Context, o budget.Outcome) error {
	began := time.Now()
	r.end(usage.Settled, &o)
	limit := time.NewTimer(r.lane.epoch.settings.CutOff)
	defer limit.Stop()
	var err error
	select {
	case got := <-r.ending.done:
		r.ending.done <- got // for a second call
		err = got.err
	case <-ctx.Done():
		r.replace(o.Fallback)
		err = context.Cause(ctx)
	case <-r.lost.Done():
		err = r.giveUp(o.Fallback)
	case <-limit.C:
		r.replace(o.Fallback)
		err = errTimeout
	}
	if errors.Is(err, ErrFenced) {
		r.countUncharged()
	}
	if err != nil {
		return fmt.Errorf("settle the request: %w", err)
	}
	r.lane.epoch.metrics.ObserveCommit(time.Since(began))
	return nil
}

// giveUp returns the result of a settlement whose request has to end, or why there is none yet.
func (r *reservation) giveUp(fallback *budget.Outcome) error {
	r.replace(fallback)
	select {
	case got := <-r.ending.done:
		r.ending.done <- got
		return got.err
	default:
	}
	r.lane.mu.Lock()
	defer r.lane.mu.Unlock()
	return cmp.Or(r.lane.failed, errTimeout)
}

// replace charges another outcome, if the settlement has not been sent.
func (r *reservation) replace(fallback *budget.Outcome) {
	r.lane.mu.Lock()
	defer r.lane.mu.Unlock()
	if fallback != nil && !r.ending.sent {
		r.ending.settle = r.newSettlement(usage.Settled, fallback)
	}
}

// newSettlement returns the settlement of an outcome.
func (r *reservation) newSettlement(state usage.State, outcome *budget.Outcome) *settlement {
	o := r.Limit(*outcome)
	return &settlement{
		ID: r.id, State: state, Prompt: o.Prompt, Completion: o.Completion,
		Status: o.Status, Code: escape(o.Code), Backend: escape(o.Backend), Queue: o.Queue.Microseconds(), First: o.FirstToken.Microseconds(),
		Total: o.Total.Microseconds(), Boot: o.Boot.Microseconds(), Attempts: escape(usage.EncodeDetails(o.Attempts, r.row.admission.chain)),
		Reported: o.Reported, Receipt: o.Receipt, row: r.row, lease: budget.Lease{
			Request: r.id, Key: r.key, Line: r.row.admission.Batch != "", Date: budget.DateOf(time.UnixMicro(r.row.time)),
			Input: r.Input, Output: r.Output,
		},
	}
}

// countUncharged counts, once, the tokens that were sent to the client and are not charged since the epoch has ended.
func (r *reservation) countUncharged() {
	o, p := r.Interrupted(), r.Progress()
	r.lane.mu.Lock()
	defer r.lane.mu.Unlock()
	r.lane.epoch.metrics.uncharged.Add(float64(max(o.Prompt+o.Completion-r.durable, 0)))
	r.durable = p.Prompt + p.Completion
}

// Release implements budget.Reservation.
func (r *reservation) Release() {
	o := r.Interrupted()
	r.end(usage.Interrupted, &o)
}

// Drop implements budget.Reservation.
func (r *reservation) Drop() {
	r.once.Do(func() {
		dropped := r.newSettlement(stateDropped, &budget.Outcome{})
		dropped.row = requestRow{} // it is not to be written again after a failover
		r.ending = &operation{account: r.account, key: r.key, settle: dropped}
		r.lane.close(r)
		_ = r.lane.enqueue(r.ending) // if the epoch has ended, so has the reservation
	})
}

// end submits the settlement, once.
func (r *reservation) end(state usage.State, o *budget.Outcome) {
	r.once.Do(func() {
		r.ending = &operation{account: r.account, key: r.key, settle: r.newSettlement(state, o), done: make(chan decision, 1)}
		r.lane.close(r)
		r.lane.epoch.metrics.CountEnded(state)
		if err := r.lane.enqueue(r.ending); err != nil {
			r.ending.complete(decision{err: err})
			r.countUncharged()
		}
	})
}

// close removes a reservation from the open ones.
func (l *lane) close(r *reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, r)
}
