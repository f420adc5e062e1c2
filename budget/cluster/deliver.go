package cluster

import (
	"slices"

	"basegate/budget"
)

// deliver completes the operations of a transaction, and the waits that have ended.
func (l *lane) deliver(t *transaction, r *reply, batch []*operation) {
	l.epoch.metrics.operations.Add(float64(len(batch) - len(t.putOff)))
	t.counters()
	l.epoch.raise(t.alarms)
	l.returnHeld(t.putOff, t.accounts, false)
	for _, account := range r.Due {
		l.requestGrant(account)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range r.Decided {
		l.deliverWait(&r.Decided[i])
	}
	for i := range t.results { // those that have waited before the operation that has ended their waits
		if r := &t.results[i]; r.operation == nil {
			l.deliverWait(&r.decision)
		}
	}
	for i := range t.results {
		d := &t.results[i].decision
		switch o := t.results[i].operation; {
		case o == nil:
		case o.admit != nil:
			l.deliverAdmission(o, d)
		default:
			if o.settle != nil && d.err == nil {
				l.epoch.recent.add(o.settle)
			}
			o.complete(*d)
		}
	}
}

// deliverWait completes an admission that has waited.
func (l *lane) deliverWait(d *decision) {
	if o := l.waiting[d.ID]; o != nil {
		delete(l.waiting, d.ID)
		o.complete(*d)
	}
}

// deliverAdmission completes an admission that has been decided. One that waits stays known until its
// wait ends. One that nobody waits for any longer is canceled.
func (l *lane) deliverAdmission(o *operation, d *decision) {
	a := o.admit
	o.ticket = d.Ticket
	if o.abandoned {
		if d.Kind == budget.Granted || d.Kind == budget.Waits {
			_ = l.enqueueLocked(o.cancellation()) // if the ledger has ended, its epoch has too
		}
		return
	}
	if d.Kind == budget.Waits && l.waiting[a.ID] != nil {
		_ = l.enqueueLocked(o.cancellation())
		o.complete(decision{Kind: budget.Duplicate})
		return
	}
	if d.Kind == budget.Waits {
		// The decision on the wait comes later, through a channel of its own.
		waiting := o.done
		o.done = make(chan decision, 1)
		l.waiting[a.ID] = o
		waiting <- decision{ID: a.ID, Kind: budget.Waits, Ticket: d.Ticket, ended: o.done}
		return
	}
	o.complete(*d)
}

// cancellation returns the operation that undoes an admission.
func (o *operation) cancellation() *operation {
	a := o.admit
	return &operation{
		account: o.account, key: o.key,
		cancel: &cancellation{ID: a.ID, Account: a.Account, Key: a.Key, Ticket: o.ticket},
	}
}

// abandon ends an admission that nobody waits for any longer, wherever it is.
func (l *lane) abandon(o *operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch at := slices.Index(l.queue, o); {
	case at >= 0:
		l.queue = slices.Delete(l.queue, at, at+1)
	case l.waiting[o.admit.ID] == o:
		delete(l.waiting, o.admit.ID)
		_ = l.enqueueLocked(o.cancellation())
	default:
		o.abandoned = true
		select {
		case d := <-o.done: // decided at this moment
			if d.Kind == budget.Granted {
				_ = l.enqueueLocked(o.cancellation())
			}
		default:
		}
	}
}
