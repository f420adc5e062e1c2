package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database/postgres"
)

// transaction is one transaction of the ledger: the rows of accounts as they were read, what operations by the rules of
// budget.Account have decided on them, and what is to be written.
//
// If the rows are held from the transaction before, it is one round trip, which fails if somebody else has changed them meanwhile. If
// not, it is two: one locks and reads the accounts, the other one writes.
type transaction struct {
	ledger  *Ledger
	gateway int32
	epoch   int64
	lane    int // noLane: decisions on requests of this gateway are left for their lanes too
	now     time.Time

	accounts map[string]*account
	leases   map[string]lease // requests in flight, of those that were asked for; nil before the accounts are read
	ended    []lease          // requests in flight of ended epochs
	missing  []string         // accounts that are not on the ledger
	rows     []string         // requests that have ended already, of those that were asked for

	concerned []*ownerRow // the rows that are evaluated

	write   writes
	alarms  []budget.Alarm
	results []result
	changed []*ownerRow  // that were written
	putOff  []*operation // on accounts that others hold
}

// noLane is the lane of a transaction that is made beside the lanes.
const noLane = -1

// account is an account as it was read, with the keys that are needed.
type account struct {
	*budget.Account

	owners  map[string]*ownerRow // the account and its keys, by id
	keys    map[string]*budget.Owner
	waiters map[int64]*waiterRow // by ticket
	regrant bool                 // caps, slots or keys have changed since the requests that wait were evaluated
	touched bool                 // its row is written even if its numbers are the same
}

// ownerRow is the row of a key or an account.
type ownerRow struct {
	ID      string                 `json:"id"`
	Account string                 `json:"account"`
	Parent  string                 `json:"parent"` // of a key; empty if it has none
	Version uint32                 `json:"version"`
	Enabled bool                   `json:"enabled"`
	Caps    quota.Caps             `json:"caps"`
	Slots   int                    `json:"slots"`
	Expires int64                  `json:"expires"`
	Regrant bool                   `json:"regrant"`
	Numbers [numbersPerOwner]int64 `json:"numbers"`
	Address string                 `json:"address"`

	owner  *budget.Owner
	day    int64           // that the row is in
	before *budget.Numbers // when the transaction began; nil if it does not concern the row
}

// waiterRow is the row of a request that waits.
type waiterRow struct {
	Account    string  `json:"account"`
	Key        string  `json:"key"`
	Ticket     int64   `json:"ticket"`
	ID         string  `json:"id"`
	Gateway    int32   `json:"gateway"`
	Lane       int     `json:"lane"`
	Ended      bool    `json:"ended"` // the epoch of its gateway
	Arrived    int64   `json:"arrived"`
	Prompt     int64   `json:"prompt"`
	Candidates int64   `json:"candidates"`
	Max        int64   `json:"max"`
	Min        int64   `json:"min"`
	Prompts    []int64 `json:"prompts"`
	Times      []int64 `json:"times"`
	Context    int64   `json:"context"`
	Batch      string  `json:"batch"`
	Duplicate  bool    `json:"duplicate"`

	waiter *budget.Waiter
}

// lease is the row of a request in flight.
type lease struct {
	ID         string `json:"id"`
	Gateway    int32  `json:"gateway"`
	Epoch      int64  `json:"epoch"`
	Account    string `json:"account"`
	Key        string `json:"key"`
	Day        int64  `json:"day"`
	In         int64  `json:"in"`
	Out        int64  `json:"out"`
	Line       bool   `json:"line"`
	Prompt     int64  `json:"prompt"`
	Completion int64  `json:"completion"`
}

func (l *lease) lease() *budget.Lease {
	return &budget.Lease{Request: l.ID, Key: l.Key, Line: l.Line, Date: budget.DateOfDay(l.Day), Input: l.In, Output: l.Out}
}

// writes are the arguments of ledger_write_v1.
type writes struct {
	open       []*admission
	settle     []*settlement
	checkpoint []*checkpoint
	wait       []*admission
	gone       []goneWaiter
	decided    []decision
}

// goneWaiter is a request that waits no longer; with a day it is in flight.
type goneWaiter struct {
	Account string `json:"account"`
	Key     string `json:"key"`
	Ticket  int64  `json:"ticket"`
	Day     *int64 `json:"day,omitempty"`
	Time    int64  `json:"time,omitempty"`
	In      int64  `json:"in,omitempty"`
	Out     int64  `json:"out,omitempty"`
}

// result is the decision on an operation, or on one that has waited.
type result struct {
	operation *operation // nil: the one that waits with the decision's id
	waiter    *budget.Waiter
	decision  decision
}

// read is what ledger_read_v1 returns.
type read struct {
	Now     int64        `json:"now"`
	Locked  []string     `json:"locked"`
	Owners  []*ownerRow  `json:"owners"`
	Missing []string     `json:"missing"` // accounts that are not on the ledger
	Waiters []*waiterRow `json:"waiters"`
	Leases  []lease      `json:"leases"`
	Ended   []lease      `json:"ended"`
	Rows    []string     `json:"rows"`
}

func newTransaction(l *Ledger, gateway int32, epoch int64, lane int) *transaction {
	return &transaction{
		ledger: l, gateway: gateway, epoch: epoch, lane: lane, now: l.balances.now(), accounts: map[string]*account{},
	}
}

// load takes over what was read.
func (t *transaction) load(r *read, heads int) {
	t.now = time.UnixMicro(r.Now).UTC()
	t.accounts = map[string]*account{}
	for _, row := range r.Owners {
		if row.ID == row.Account && slices.Contains(r.Locked, row.ID) {
			t.accounts[row.ID] = newAccount(row)
		}
	}
	for _, row := range r.Owners {
		a := t.accounts[row.Account]
		if a == nil {
			continue
		}
		a.add(row)
		t.concerns(a, row)
	}
	for _, a := range t.accounts {
		a.link()
	}
	for i, w := range r.Waiters {
		behind := i >= heads && r.Waiters[i-heads].Key == w.Key // it was asked for by its ticket
		t.accounts[w.Account].addWaiter(w, behind)
	}
	t.leases = map[string]lease{}
	for _, l := range r.Leases {
		t.leases[l.ID] = l
	}
	t.ended, t.missing, t.rows = r.Ended, r.Missing, r.Rows
}

func newAccount(row *ownerRow) *account {
	keys := map[string]*budget.Owner{}
	return &account{
		Account: budget.NewAccount(row.ID, keys), regrant: row.Regrant, keys: keys,
		owners: map[string]*ownerRow{}, waiters: map[int64]*waiterRow{},
	}
}

// add adds the row of the account or of a key.
func (a *account) add(row *ownerRow) {
	row.owner = &a.Owner
	if row.ID != a.ID {
		row.owner = a.Key(row.ID)
	}
	o := row.owner
	var n budget.Numbers
	for i, to := range numbersOf(&n) {
		*to = row.Numbers[i]
	}
	n.LastAddress = row.Address
	row.day = n.Day
	o.Load(&n)
	if row.ID == a.ID {
		a.Granted = budget.DateOfDay(n.Day)
	}
	o.Caps, o.Slots, o.Disabled = row.Caps, row.Slots, !row.Enabled
	if row.Expires > 0 {
		o.Expires = time.UnixMicro(row.Expires)
	}
	a.owners[row.ID] = row
}

// link sets the parents of the keys.
func (a *account) link() {
	for _, row := range a.owners {
		if row.Parent != "" {
			row.owner.Parent = a.keys[row.Parent]
		}
	}
}

// adopt takes over the keys that were held of an earlier read. If one has been changed since, the transaction that uses it fails.
func (a *account) adopt(before *account) {
	for id, row := range before.owners {
		if a.owners[id] == nil {
			a.owners[id], a.keys[id] = row, row.owner
		}
	}
	a.link()
}

const (
	// countersPerOwner is how many of the numbers are counters of windows.
	countersPerOwner = 4 * int(quota.Windows)
	// numbersPerOwner is how many numbers ledger_write_v1 takes for each row of owner.
	numbersPerOwner = countersPerOwner + 8
)

// countersOf returns counters in the order of the ledger's functions.
func countersOf(c *budget.Counters) (all [countersPerOwner]*int64) {
	for w := range quota.Windows {
		used, reserved := &c.Used[w], &c.Reserved[w]
		copy(all[4*w:], []*int64{&used.Input, &used.Output, &reserved.Input, &reserved.Output})
	}
	return all
}

// numbersOf returns numbers in the order of the ledger's functions.
func numbersOf(n *budget.Numbers) (all [numbersPerOwner]*int64) {
	counters := countersOf(&n.Counters)
	copy(all[:], counters[:])
	copy(all[countersPerOwner:], []*int64{&n.Day, &n.Running, &n.Waiting, &n.Queued, &n.Blocked, &n.Raised, &n.Ticket, &n.LastUse})
	return all
}

func appendNumbers(to []int64, n budget.Numbers) []int64 {
	for _, from := range numbersOf(&n) {
		to = append(to, *from)
	}
	return to
}

// addWaiter adds the row of a request that waits.
func (a *account) addWaiter(row *waiterRow, behind bool) {
	w := &budget.Waiter{
		Request: budget.Request{ID: row.ID, KeyID: row.Key, AccountID: a.ID, Batch: row.Batch, Time: time.UnixMicro(row.Arrived)},
		Demand: budget.Demand{
			PromptTokens: row.Prompt, Exact: true, Candidates: row.Candidates, MaxTokens: row.Max, MinTokens: row.Min, Context: row.Context,
			SlotOnly: row.Max == 0, // see budget.Demand.Normalized
		},
		Ticket: row.Ticket, Taken: row.Duplicate, Behind: behind,
	}
	for i, length := range row.Prompts {
		w.Demand.Prompts = append(w.Demand.Prompts, slices.Repeat([]int64{length}, int(row.Times[i]))...)
	}
	row.waiter = w
	a.waiters[row.Ticket] = row
	a.Enqueue(w)
}

// concerns records the numbers that a row has before the transaction, unless that is done.
func (t *transaction) concerns(a *account, row *ownerRow) {
	if row.before == nil {
		n := row.owner.Numbers(budget.DateOf(t.time(a)))
		row.before = &n
		t.concerned = append(t.concerned, row)
	}
}

// time returns the time by which operations on an account are decided: its day never goes back.
func (t *transaction) time(a *account) time.Time {
	if day := a.Granted; day.Days() > budget.DateOf(t.now).Days() {
		return day.Start()
	}
	return t.now
}

// apply decides on the operations of accounts that were read, and collects what is to be written.
func (t *transaction) apply(batch []*operation) {
	for _, a := range t.accounts {
		now := t.time(a)
		if newDay := a.Waiting > 0 && a.Granted != budget.DateOf(now); a.regrant || newDay {
			a.Grant(now, a.regrant)
			a.regrant, a.touched = false, true
			t.collect(a)
		}
	}
	for _, o := range batch {
		if o.checkpoint != nil {
			t.write.checkpoint = append(t.write.checkpoint, o.checkpoint)
			t.results = append(t.results, result{operation: o})
			continue
		}
		a := t.accounts[o.account]
		var key *ownerRow
		if a != nil {
			key = a.owners[o.key]
		}
		switch {
		case o.admit != nil && key == nil:
			t.results = append(t.results, result{operation: o, decision: decision{Kind: unknownOwner}})
		case o.admit != nil:
			t.admit(a, o)
		case o.settle != nil:
			t.settle(a, o)
		case o.cancel != nil:
			t.cancel(a, o.cancel)
			t.results = append(t.results, result{operation: o})
		default: // what waits has been evaluated above
			t.results = append(t.results, result{operation: o})
		}
		if a != nil {
			t.collect(a)
		}
	}
}

// admit decides on a new request.
func (t *transaction) admit(a *account, o *operation) {
	n := o.admit
	taken := slices.ContainsFunc(t.write.open, func(opened *admission) bool { return opened.ID == n.ID })
	_, inFlight := t.leases[n.ID]
	w := &budget.Waiter{
		Request: budget.Request{
			ID: n.ID, KeyID: n.Key, AccountID: n.Account, Batch: n.Batch, Time: t.arrival(n.arrived), Address: n.address,
		},
		Demand: n.demand, NoWait: n.noWait, Taken: taken || inFlight,
	}
	d := a.Admit(t.time(a), w)
	decided := newDecision(n.ID, &d)
	if d.Kind == budget.Granted {
		t.open(n, &d)
	}
	if d.Kind == budget.Waits {
		waits := *n
		waits.Ticket, waits.Arrived = w.Ticket, w.Request.Time.UnixMicro()
		t.write.wait = append(t.write.wait, &waits)
		decided.Ticket = w.Ticket
	}
	t.results = append(t.results, result{operation: o, waiter: w, decision: decided})
}

// arrival returns when a request arrived, by the database's clock.
func (t *transaction) arrival(here time.Time) time.Time {
	if here.IsZero() {
		return t.now
	}
	return t.now.Add(-max(time.Since(here), 0))
}

// open has a request inserted that is in flight.
func (t *transaction) open(n *admission, d *budget.Decision) {
	opened := *n
	opened.Day, opened.Time, opened.In, opened.Out = d.Lease.Date.Days(), d.Time.UnixMicro(), d.Lease.Input, d.Lease.Output
	t.write.open = append(t.write.open, &opened)
}

// settle ends a request, unless it is known not to be in flight.
func (t *transaction) settle(a *account, o *operation) {
	s := o.settle
	if slices.Contains(t.rows, s.ID) {
		t.results = append(t.results, result{operation: o})
		return
	}
	if l, found := t.leases[s.ID]; a == nil || t.leases != nil && (!found || l.Gateway != t.gateway || l.Epoch != t.epoch) {
		t.results = append(t.results, result{operation: o, decision: decision{err: ErrAbsent}})
		return
	}
	a.Settle(&s.lease, s.Prompt, s.Completion)
	a.Grant(t.time(a), false)
	t.write.settle = append(t.write.settle, s)
	t.results = append(t.results, result{operation: o})
}

// cancel ends a wait, or drops the reservation with which it has ended.
func (t *transaction) cancel(a *account, c *cancellation) {
	if a == nil {
		return
	}
	if row := a.waiters[c.Ticket]; row != nil && row.ID == c.ID {
		switch {
		case a.Cancel(row.waiter):
			t.write.gone = append(t.write.gone, goneWaiter{Account: c.Account, Key: c.Key, Ticket: c.Ticket})
		case row.waiter.Result.Kind == budget.Granted: // in this transaction
			a.Settle(&row.waiter.Result.Lease, 0, 0)
			for i := range t.write.gone {
				if g := &t.write.gone[i]; g.Account == c.Account && g.Ticket == c.Ticket {
					g.Day = nil
				}
			}
		}
	} else if l, found := t.leases[c.ID]; found && l.Gateway == t.gateway && l.Epoch == t.epoch {
		a.Settle(l.lease(), 0, 0)
		t.write.settle = append(t.write.settle, &settlement{ID: c.ID, State: stateDropped})
	}
	a.Grant(t.time(a), false)
}

// stateDropped is the state of a request that leaves no row.
const stateDropped usage.State = "dropped"

// collect takes over the decisions on requests that have waited, and alarms.
func (t *transaction) collect(a *account) {
	for _, w := range a.Changes.Decided {
		d := newDecision(w.Request.ID, &w.Result)
		row := a.waiters[w.Ticket]
		if row == nil { // it has waited in this transaction only
			t.endWait(w, d)
			continue
		}
		gone := goneWaiter{Account: a.ID, Key: row.Key, Ticket: row.Ticket}
		if w.Result.Kind == budget.Granted {
			day := w.Result.Lease.Date.Days()
			gone.Day, gone.Time, gone.In, gone.Out = &day, w.Result.Time.UnixMicro(), w.Result.Lease.Input, w.Result.Lease.Output
		}
		t.write.gone = append(t.write.gone, gone)
		if row.Gateway == t.gateway && row.Lane == t.lane {
			t.results = append(t.results, result{decision: d})
		} else if !row.Ended {
			d.Gateway, d.Lane = row.Gateway, row.Lane
			t.write.decided = append(t.write.decided, d)
		}
	}
	t.alarms = append(t.alarms, a.Changes.Alarms...)
	a.Changes = budget.Changes{}
}

// endWait replaces the decision that a request of this transaction waits by the one with which the wait has ended.
func (t *transaction) endWait(w *budget.Waiter, d decision) {
	t.write.wait = slices.DeleteFunc(t.write.wait, func(n *admission) bool { return n.Ticket == w.Ticket && n.ID == w.Request.ID })
	for i := range t.results {
		if r := &t.results[i]; r.waiter == w {
			r.decision = d
			if w.Result.Kind == budget.Granted {
				t.open(r.operation.admit, &w.Result)
			}
		}
	}
}

// expire ends what ended epochs have left in an account, and returns the number of requests that were in flight.
func (t *transaction) expire(a *account) (interrupted int64) {
	for _, row := range a.waiters {
		if row.Ended && a.Cancel(row.waiter) {
			t.write.gone = append(t.write.gone, goneWaiter{Account: a.ID, Key: row.Key, Ticket: row.Ticket})
		}
	}
	for _, l := range t.ended {
		a.Settle(l.lease(), l.Prompt, l.Completion)
		state := usage.Interrupted
		if l.In+l.Out == 0 { // it had a slot only
			state = stateDropped
		}
		t.write.settle = append(t.write.settle, &settlement{
			ID: l.ID, State: state, Prompt: l.Prompt, Completion: l.Completion, Gateway: l.Gateway, Epoch: l.Epoch,
		})
	}
	a.Grant(t.time(a), false)
	t.collect(a)
	return int64(len(t.ended))
}

// keysOfEnded returns the keys of requests in flight of ended epochs that were not asked for. What has ended is known only by a read,
// and more epochs may end before the next one.
func (t *transaction) keysOfEnded(asked []string) (keys []string) {
	for _, l := range t.ended {
		if !slices.Contains(asked, l.Key) {
			keys = append(keys, l.Key)
		}
	}
	return keys
}

// incomplete reports whether requests that wait and were not read have to be evaluated, and has more of them read.
func (t *transaction) incomplete(s *selection) bool {
	for _, a := range t.accounts {
		if a.Incomplete && s.heads < maxHeads {
			s.heads *= moreHeads
			t.reset()
			return true
		}
	}
	return false
}

// owners returns the rows that the transaction concerns, accounts first and in the order of their ids: those that change, with their
// numbers and addresses, and then those that were only evaluated.
func (t *transaction) owners() (ids []string, versions []uint32, numbers []int64, addresses []string) {
	slices.SortFunc(t.concerned, func(x, y *ownerRow) int {
		if isAccount := x.ID == x.Account; isAccount != (y.ID == y.Account) {
			if isAccount {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.ID, y.ID)
	})
	var same []*ownerRow
	for _, row := range t.concerned {
		a := t.accounts[row.Account]
		// A row of an earlier day is written too, since a request of that day may have ended.
		after := row.owner.Numbers(budget.DateOf(t.time(a)))
		if after != *row.before || after.Day != row.day || a.touched && row.ID == a.ID {
			row.day = after.Day
			t.changed, numbers, addresses = append(t.changed, row), appendNumbers(numbers, after), append(addresses, after.LastAddress)
		} else {
			same = append(same, row)
		}
	}
	for _, row := range slices.Concat(t.changed, same) {
		ids, versions = append(ids, row.ID), append(versions, row.Version)
	}
	return ids, versions, numbers, addresses
}

// query runs a statement that returns one row.
type query func(ctx context.Context, text string, args []any, into ...any) error

// selection says what ledger_read_v1 locks and returns.
type selection struct {
	accounts, keys, ids []string
	tickets, times      []int64
	heads               int
	wait, ended         bool
}

// selectionOf returns what a batch of operations needs.
func selectionOf(batch []*operation) *selection {
	accounts, keys := map[string]struct{}{}, map[string]struct{}{}
	s := &selection{heads: defaultHeads}
	for _, o := range batch {
		if o.checkpoint != nil {
			continue
		}
		accounts[o.account] = struct{}{}
		if o.key != "" {
			keys[o.key] = struct{}{}
		}
		switch {
		case o.admit != nil:
			s.ids = append(s.ids, o.admit.ID)
		case o.settle != nil:
			s.ids = append(s.ids, o.settle.ID)
		case o.cancel != nil:
			s.ids, s.tickets = append(s.ids, o.cancel.ID), append(s.tickets, o.cancel.Ticket)
		}
	}
	s.accounts, s.keys = slices.Sorted(maps.Keys(accounts)), slices.Sorted(maps.Keys(keys))
	return s
}

// defaultHeads is how many requests of each key that wait are read at first. A test reads fewer.
var defaultHeads = 16

// moreHeads is how many times as many are read if they do not suffice, up to maxHeads.
const moreHeads, maxHeads = 16, 1 << 20

// call is what the arguments of ledger_write_v1 have beside the changes.
type call struct {
	seq     int64 // of the lane
	attempt int
	due     []string
	collect bool
}

// reply is what ledger_write_v1 returns.
type reply struct {
	Attempt int        `json:"attempt"`
	Version uint32     `json:"version"` // of the rows that were written
	Decided []decision `json:"decided"` // by others, on admissions that waited
	Due     []string   `json:"due"`     // accounts on which the requests that wait have to be evaluated
}

// lock locks and reads accounts. If the transaction has been executed already, it returns its reply.
func (t *transaction) lock(ctx context.Context, q query, c *call, s *selection) (*reply, error) {
	var (
		status string
		body   []byte
	)
	const text = `SELECT status, reply FROM ledger_read_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	args := append(t.caller(c), s.accounts, s.keys, s.ids, s.tickets, s.heads, s.wait, s.ended, s.times)
	if err := q(ctx, text, args, &status, &body); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	if status != statusOK {
		return decodeReply(status, body)
	}
	found := &read{}
	if err := json.Unmarshal(body, found); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	t.load(found, s.heads)
	return nil, nil
}

// split returns the operations on accounts that are locked, or are not on the ledger, and puts off the others.
func (t *transaction) split(batch []*operation) (free []*operation) {
	t.putOff = nil
	for _, o := range batch {
		if o.checkpoint == nil && t.accounts[o.account] == nil && !slices.Contains(t.missing, o.account) {
			t.putOff = append(t.putOff, o)
			continue
		}
		free = append(free, o)
	}
	return free
}

// reset forgets what was decided, to decide again on rows that are read again.
func (t *transaction) reset() {
	t.concerned, t.write, t.alarms, t.results = nil, writes{}, nil, nil
}

// The status of a call, as ledger_fence names it.
const (
	statusOK       = "ok"
	statusDone     = "done"
	statusFenced   = "fenced"
	statusConflict = "conflict"
)

// decodeReply returns the reply of a call that was executed, or the error of one that was not.
func decodeReply(status string, body []byte) (*reply, error) {
	switch status {
	case statusOK, statusDone:
		r := &reply{}
		if err := json.Unmarshal(body, r); err != nil {
			return nil, fmt.Errorf("%w: read the ledger's reply: %w", ErrLostCommits, err)
		}
		return r, nil
	case statusFenced:
		return nil, ErrFenced
	case statusConflict:
		return nil, errConflict
	}
	return nil, ErrLostCommits
}

// commit writes what has been decided.
func (t *transaction) commit(ctx context.Context, q query, c *call) (*reply, error) {
	var accounts []string
	ids, versions, numbers, addresses := t.owners()
	if t.leases == nil { // they are not locked yet
		accounts = slices.Sorted(maps.Keys(t.accounts))
	}
	args := append(t.caller(c), c.attempt, budget.DateOf(t.now).Days(), accounts, ids, versions, numbers)
	for _, list := range []any{t.write.open, t.write.settle, t.write.checkpoint, t.write.wait, t.write.gone, t.write.decided} {
		text, err := encodeList(list)
		if err != nil {
			return nil, err
		}
		args = append(args, text)
	}
	var (
		status string
		body   []byte
	)
	const text = `SELECT status, reply FROM ledger_write_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)`
	err := q(ctx, text, append(args, c.collect, c.due, addresses), &status, &body)
	for _, row := range t.concerned {
		row.before = nil
	}
	if postgres.Code(err) == codeInFlight {
		return nil, fmt.Errorf("%w: %w", errConflict, err)
	}
	if err != nil {
		return nil, fmt.Errorf("call the ledger: %w", err)
	}
	return decodeReply(status, body)
}

// codeInFlight is the SQLSTATE of ledger_write_v1 for a request that is in flight already, or not any longer.
const codeInFlight = "BG001"

// caller returns the first arguments of both functions: the gateway and its epoch, the lane and the number of its call. What is
// not set is NULL.
func (t *transaction) caller(c *call) []any {
	var (
		epoch, seq *int64
		lane       *int
	)
	if t.epoch != 0 {
		epoch = &t.epoch
	}
	if t.lane != noLane {
		lane, seq = &t.lane, &c.seq
	}
	return []any{t.gateway, epoch, lane, seq}
}

// encodeList returns a list as JSON, or nil if it is empty.
func encodeList(list any) (*string, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode operations: %w", err)
	}
	if string(text) == "null" || string(text) == "[]" {
		return nil, nil
	}
	encoded := string(text)
	return &encoded, nil
}

// counters records the counters of the rows that the transaction concerns.
func (t *transaction) counters() {
	now := time.Now()
	for _, row := range t.concerned {
		t.ledger.balances.store(row.ID, row.owner, budget.DateOf(t.time(t.accounts[row.Account])), now)
	}
}
