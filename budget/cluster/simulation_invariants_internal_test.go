package cluster

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
)

// check looks at what a transaction has left. before are the requests that waited before it.
func (db *simDB) check(tx *simTx, before map[string]*simWaiter) {
	if writes := len(tx.inflight) + len(tx.rows) + len(tx.writes); tx.epoch != 0 && writes > 0 && !db.current(simEpoch{tx.gateway, tx.epoch}) {
		db.fail("epoch %d of gateway %d has ended and changes the ledger", tx.epoch, tx.gateway)
	}
	for _, row := range tx.rows {
		rows := 0
		for _, other := range db.requests {
			if other.id == row.id {
				rows++
			}
		}
		if rows > db.opened[row.id] {
			db.fail("request %s is settled %d times", row.id, rows)
		}
	}
	for _, l := range tx.granted {
		if db.opened[l.ID]++; db.opened[l.ID] > 1 {
			db.fail("request %s is granted again", l.ID)
		}
		db.checkGrant(l)
	}
	waited := slices.Sorted(maps.Keys(before))
	for _, w := range tx.passed { // one that needs a slot only may pass what waits for tokens
		for _, name := range waited {
			if other := before[name]; db.waiters[name] == other && other.Account == w.Account && other.Key == w.Key && other.Ticket < w.Ticket && w.Max > 0 {
				db.fail("request %s is granted before %s, which waits in front of it", w.ID, other.ID)
			}
		}
	}
	for _, l := range tx.granted {
		passed := slices.ContainsFunc(tx.passed, func(w *simWaiter) bool { return w.ID == l.ID })
		for _, name := range waited {
			if other := before[name]; db.waiters[name] == other && other.Key == l.Key && l.Batch == "" && l.In+l.Out > 0 && !passed {
				db.fail("request %s is granted at once, although %s of its key waits", l.ID, other.ID)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(db.owners)) {
		db.checkSums(db.owners[id])
	}
	for _, id := range tx.freed {
		if !slices.Contains(tx.waited, id) {
			db.checkWaiters(db.owners[id])
		}
	}
}

// checkWaiters looks for requests that wait in an account and could be granted. If caps or the day have changed, that is found out
// later. A request that arrives may wait although it would not have waited in front of those that block its account.
func (db *simDB) checkWaiters(o *simOwner) {
	if n := o.get(); n.Waiting == 0 || o.Regrant || n.Day != db.today() {
		return
	}
	a := newAccount(&o.ownerRow)
	for _, id := range simOwners {
		if simAccounts[id] == o.ID {
			row := db.owners[id].ownerRow
			row.Numbers = db.owners[id].numbers
			a.add(&row)
		}
	}
	a.link()
	for _, name := range slices.Sorted(maps.Keys(db.waiters)) {
		if w := db.waiters[name]; w.Account == o.ID {
			a.addWaiter(w.row(), false)
		}
	}
	a.Grant(db.now(), false)
	for _, w := range a.Changes.Decided {
		if w.Result.Kind == budget.Granted {
			db.fail("request %s waits, and could be granted", w.Request.ID)
		}
	}
}

// owns reports whether the requests of a key count for an owner.
func (db *simDB) owns(id, key, account string) bool {
	return id == key || id == account || id == db.owners[key].Parent
}

// includes reports whether a window of a day includes another day. What is reserved in a later month is in the month's row already.
func includes(w quota.Window, day, other int64, later bool) bool {
	month := func(day int64) int {
		t := budget.DateOfDay(day).Start()
		return t.Year()*12 + int(t.Month())
	}
	switch w {
	case quota.Day:
		return other == day
	case quota.Month:
		return month(other) == month(day) || later && month(other) > month(day)
	default:
		return true
	}
}

// sums returns what the rows of an owner add up to in the windows of a day.
func (db *simDB) sums(id string, day int64) (n budget.Numbers) {
	for _, q := range db.requests {
		for w := range quota.Windows {
			if db.owns(id, q.key, q.account) && includes(w, day, budget.DateOf(time.UnixMicro(q.time)).Days(), false) {
				n.Used[w] = n.Used[w].Plus(quota.Tokens{Input: q.prompt, Output: q.completion})
			}
		}
	}
	for _, l := range db.inflight {
		if !db.owns(id, l.Key, l.Account) {
			continue
		}
		if l.Batch == "" {
			n.Running++
		}
		for w := range quota.Windows {
			if includes(w, day, l.Day, true) {
				n.Reserved[w] = n.Reserved[w].Plus(quota.Tokens{Input: l.In, Output: l.Out})
			}
		}
	}
	for _, w := range db.waiters {
		if db.owns(id, w.Key, w.Account) {
			n.Waiting++
		}
		if w.Key == id {
			n.Queued++
		}
	}
	return n
}

// checkSums compares the counters of an owner with its rows.
func (db *simDB) checkSums(o *simOwner) {
	got := o.get()
	want := db.sums(o.ID, got.Day)
	want.Day, want.Blocked, want.Raised, want.Ticket, want.LastUse = got.Day, got.Blocked, got.Raised, got.Ticket, got.LastUse
	if got != want {
		db.fail("the counters of %s are %+v, and its rows add up to %+v", o.ID, got, want)
	}
}

// checkGrant compares what a grant has left with the caps and slots.
func (db *simDB) checkGrant(l *simLease) {
	for _, id := range []string{l.Key, db.owners[l.Key].Parent, l.Account} {
		o := db.owners[id]
		if o == nil { // the key has no parent
			continue
		}
		s := db.sums(id, l.Day)
		for i, c := range o.Caps {
			kind := &quota.Table[i]
			tokens := kind.Meter.Of(s.Used[kind.Window].Plus(s.Reserved[kind.Window]))
			if limit, bounded := c.Tokens(); bounded && tokens > limit && l.In+l.Out > 0 {
				db.fail("a grant to %s leaves %d tokens in the %s of %s, of which %d are allowed", l.ID, tokens, kind.Name, id, limit)
			}
		}
		if l.Batch == "" && o.Slots > 0 && s.Running > int64(o.Slots) {
			db.fail("with %s, %d requests of %s run, which has %d slots", l.ID, s.Running, id, o.Slots)
		}
	}
}

// checkClients compares what the clients know with the rows.
func (s *simulation) checkClients() {
	db := s.db
	for _, c := range s.clients {
		if r, ok := c.r.(*reservation); ok && c.state == clientRuns && !c.process.dead {
			e := simEpoch{r.lane.epoch.gateway, r.lane.epoch.number}
			l := db.inflight[c.id]
			if db.current(e) && (l == nil || l.gateway != e.gateway || l.epoch != e.epoch || l.In != r.Input || l.Out != r.Output) {
				db.fail("request %s runs, and is not in flight", c.id)
			}
		}
		if c.state != clientOver || !c.charged {
			continue
		}
		rows := 0
		for _, q := range db.requests {
			if q.id == c.id {
				rows++
				if q.prompt != c.outcome.Prompt || q.completion != c.outcome.Completion || q.state != "settled" {
					db.fail("request %s is settled with %d and %d tokens, and its row is %+v", c.id, c.outcome.Prompt, c.outcome.Completion, *q)
				}
			}
		}
		if rows != 1 {
			db.fail("request %s is settled, and has %d rows", c.id, rows)
		}
	}
}

// checkEnd looks at what is left after all clients and gateways have ended.
func (s *simulation) checkEnd() {
	db := s.db
	for _, c := range s.clients {
		if c.state != clientOver {
			db.fail("request %s never ends: %s", c.id, c.state)
		}
	}
	left := fmt.Sprintf("%d leases, %d waiters and %d decisions", len(db.inflight), len(db.waiters), len(db.decided))
	if left != "0 leases, 0 waiters and 0 decisions" {
		db.fail("%s are left", left)
	}
}
