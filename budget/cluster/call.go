package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// call holds the arguments of ledger_v1. The JSON texts are nil if there are no operations of their kind.
type call struct {
	accounts, keys                    []string
	settle, checkpoint, cancel, admit *string
	settlements                       int
	collect                           bool
	wake                              []string
}

func newCall(batch []*operation, wake []string, collect bool) (*call, error) {
	c := &call{collect: collect, wake: wake}
	var (
		settle     []*settlement
		checkpoint []*checkpoint
		cancel     []*cancellation
		admit      []*admission
	)
	accounts, keys := map[string]bool{}, map[string]bool{}
	for _, o := range batch {
		switch {
		case o.settle != nil:
			settle = append(settle, o.settle)
		case o.cancel != nil:
			cancel = append(cancel, o.cancel)
		case o.admit != nil:
			admit = append(admit, o.admit)
		case o.checkpoint != nil:
			checkpoint = append(checkpoint, o.checkpoint)
			continue // it changes no counter, so it needs no lock
		}
		accounts[o.account], keys[o.key] = true, true
	}
	c.settlements = len(settle)
	c.accounts, c.keys = slices.Sorted(maps.Keys(accounts)), slices.Sorted(maps.Keys(keys))
	for _, kind := range []struct {
		text  **string
		count int
		all   any
	}{
		{&c.settle, len(settle), settle},
		{&c.checkpoint, len(checkpoint), checkpoint},
		{&c.cancel, len(cancel), cancel},
		{&c.admit, len(admit), admit},
	} {
		if kind.count == 0 {
			continue
		}
		text, err := json.Marshal(kind.all)
		if err != nil {
			return nil, fmt.Errorf("encode operations: %w", err)
		}
		encoded := string(text)
		*kind.text = &encoded
	}
	return c, nil
}

// empty reports whether a call has no operations.
func (c *call) empty() bool {
	return c.settle == nil && c.checkpoint == nil && c.cancel == nil && c.admit == nil && !c.collect
}

// reply is what ledger_v1 returns. Admissions that are not in Admit were granted in full.
type reply struct {
	Empty   bool       `json:"empty"` // the call had no operations
	Settled int        `json:"settled"`
	Absent  []string   `json:"absent"` // settlements of requests that were not in flight
	Admit   []decision `json:"admit"`
	Decided []decision `json:"decided"` // on admissions that waited

	Now   int64            `json:"now"`   // microseconds
	Ahead map[string]int64 `json:"ahead"` // starts of the days of accounts whose day is after that of Now
}

// rowTime returns the time of the row of a request that was granted in full, as ledger_time.
func (r *reply) rowTime(a *admission) int64 {
	arrived := r.Now - a.Age
	if day, ahead := r.Ahead[a.Account]; ahead {
		return day
	}
	if arrived/microsPerDay != r.Now/microsPerDay {
		return r.Now
	}
	return arrived
}

const microsPerDay = 24 * 60 * 60 * 1_000_000

// deliver completes the operations of a call, and the waits that have ended.
func (l *lane) deliver(batch []*operation, r *reply) {
	l.epoch.metrics.operations.Add(float64(len(batch)))
	decisions := make(map[string]*decision, len(r.Admit))
	for i := range r.Admit {
		decisions[r.Admit[i].ID] = &r.Admit[i]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range r.Decided {
		d := &r.Decided[i]
		if o := l.waiting[d.ID]; o != nil {
			delete(l.waiting, d.ID)
			o.complete(*d)
		}
	}
	admitted := make(map[string]bool, len(batch))
	for _, o := range batch {
		switch {
		case o.admit != nil && admitted[o.admit.ID]:
			o.complete(decision{Kind: kindDuplicate})
		case o.admit != nil:
			admitted[o.admit.ID] = true
			d := decisions[o.admit.ID]
			if d == nil {
				d = &decision{ID: o.admit.ID, Kind: kindGranted, Max: o.admit.Max, Prompt: o.admit.Prompt, Time: r.rowTime(o.admit)}
			}
			l.deliverAdmission(o, d)
		case o.settle != nil && slices.Contains(r.Absent, o.settle.ID):
			o.complete(decision{err: ErrAbsent})
		case o.settle != nil:
			l.epoch.recent.add(o.settle)
			o.complete(decision{})
		default:
			o.complete(decision{})
		}
	}
}

// deliverAdmission completes an admission that has been decided. One that waits stays known until its
// wait ends. One that nobody waits for any longer is canceled.
func (l *lane) deliverAdmission(o *operation, d *decision) {
	a := o.admit
	a.ticket = d.Ticket
	if a.abandoned {
		if d.Kind == kindGranted || d.Kind == kindWait {
			_ = l.enqueueLocked(o.cancellation()) // if the ledger has ended, its epoch has too
		}
		return
	}
	if d.Kind == kindWait && l.waiting[a.ID] != nil {
		_ = l.enqueueLocked(o.cancellation())
		o.complete(decision{Kind: kindDuplicate})
		return
	}
	if d.Kind == kindWait {
		// The decision on the wait comes later, through a channel of its own.
		waiting := o.done
		o.done = make(chan decision, 1)
		l.waiting[a.ID] = o
		waiting <- decision{ID: a.ID, Kind: kindWait, Ticket: d.Ticket, ended: o.done}
		return
	}
	o.complete(*d)
}

// cancellation returns the operation that undoes an admission.
func (o *operation) cancellation() *operation {
	a := o.admit
	return &operation{
		account: o.account, key: o.key,
		cancel: &cancellation{ID: a.ID, Account: a.Account, Key: a.Key, Ticket: a.ticket},
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
		o.admit.abandoned = true
		select {
		case d := <-o.done: // decided at this moment
			if d.Kind == kindGranted {
				_ = l.enqueueLocked(o.cancellation())
			}
		default:
		}
	}
}
