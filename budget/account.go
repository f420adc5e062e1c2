package budget

import (
	"container/heap"
	"slices"
	"sort"
	"time"

	"basegate/budget/quota"
)

// Account is an account with its keys: their caps and slots, what is used and reserved of them, and the requests that wait.
// Its methods are the rules of the ledger, on every engine. It has no lock and no clock, and knows of no database: the caller
// passes the time in, and takes out what has changed.
type Account struct {
	Owner

	Granted Date    // when the requests that wait were last evaluated
	Changes Changes // since the caller has last taken them

	// Incomplete is set if requests that wait were not added by Enqueue, and had to be evaluated.
	Incomplete bool

	keys    map[string]*Owner // by id
	waiting []*Owner          // keys some of whose requests wait
	heads   heads             // of Grant
}

// NewAccount returns an account with nothing used. Its keys are in a map, which may have those of other accounts too: Key adds
// what is missing.
func NewAccount(id string, keys map[string]*Owner) *Account {
	return &Account{Owner: Owner{ID: id}, keys: keys}
}

// Owner is a key or an account, with its caps and slots.
type Owner struct {
	ID       string
	Caps     quota.Caps
	Slots    int       // how many of its requests may run at once, without lines of batches; 0 is unbounded
	Exempt   bool      // of a key: the account's slots do not limit it
	Disabled bool      // its requests are refused
	Expires  time.Time // when its requests are refused from then on; zero: never

	Running int       // requests that hold a reservation, without lines of batches
	Waiting int       // requests that wait, of an account those of all its keys
	Blocked bool      // a request waits because of this owner's caps, so later ones wait behind it
	Ticket  int64     // of an account: the one of the latest request that has waited
	LastUse time.Time // of a key: when its latest request arrived

	queue  []*Waiter // of a key: in the order of their tickets
	head   int       // where Grant is in it
	months []*monthCounters
	alarms alarms

	evaluated, wasBlocked bool // by Grant: one of the key's requests, and whether the key was blocked before

	writtenLastUse time.Time // the LastUse that is in the database
}

// Waiter is a request that asks for a reservation, and waits if it must.
type Waiter struct {
	Request Request
	Demand  Demand
	NoWait  bool  // it is told that others stand in the way, and does not wait
	Taken   bool  // another request with its id is in flight
	Ticket  int64 // of its wait; 0 if it does not wait
	Behind  bool  // requests of its key that wait in front of it were not added by Enqueue

	Result Decision // on the request, once its wait is over

	decided chan struct{} // closed by the ledger when Result is set; nil unless the request waits
}

// Lease is what a request holds until it ends.
type Lease struct {
	Request       string // id
	Key           string
	Line          bool // of a batch, which needs no slot
	Date          Date // of admission: its windows are charged
	Input, Output int64
}

// Kind is the kind of a decision.
type Kind uint8

// The kinds.
const (
	Granted    Kind = iota + 1
	Refused         // by a cap: too little is left of it
	Waits           // until reservations of others end, or their slots are free
	MustCount       // the prompt: its bound does not fit, but its tokens may
	Reserved        // others have reserved what it needs, and it does not wait
	KeyInvalid      // the key is disabled or has expired
	Duplicate       // another request with its id is in flight
)

// Decision is what has been decided on a request.
type Decision struct {
	Kind      Kind
	Exceeded  *Exceeded // of a refusal
	MaxTokens int64     // of each candidate
	Lease     Lease
	Time      time.Time // of the request's row: when it arrived, or else of the decision, so that it lies in the windows that are charged
}

// Err returns the error of a decision against a request.
func (d *Decision) Err() error {
	switch d.Kind {
	case Refused:
		return d.Exceeded
	case Reserved:
		return ErrReserved
	case KeyInvalid:
		return ErrKeyDisabled
	case Duplicate:
		return ErrDuplicate
	case Granted, Waits, MustCount:
	}
	return nil
}

// Changes are what the operations on an account have changed.
type Changes struct {
	Decided []*Waiter // whose wait is over, with a Result
	Alarms  []Alarm
}

// Key returns a key of the account, and adds it if there is none.
func (a *Account) Key(id string) *Owner {
	k := a.keys[id]
	if k == nil {
		k = &Owner{ID: id}
		a.keys[id] = k
	}
	return k
}

// SetPayer replaces the caps and slots of a key and of the account by those of a payer, and reports whether the slots have
// changed: then call Grant with all, before Admit, since those that wait come first.
func (a *Account) SetPayer(p *Payer) (slotsChanged bool) {
	k, ofAccount := a.Key(p.Key), p.AccountSlots
	exempt := ofAccount == 0
	if exempt {
		ofAccount = a.Slots
	}
	slotsChanged = k.Slots != p.Slots || k.Exempt != exempt || a.Slots != ofAccount
	k.SetCaps(p.KeyCaps)
	a.SetCaps(p.AccountCaps)
	k.Slots, k.Exempt, k.Expires, k.Disabled, a.Slots = p.Slots, exempt, p.Expires, false, ofAccount
	return slotsChanged
}

// SetCaps replaces the caps. Alarms of those that are changed may be raised again.
func (o *Owner) SetCaps(c quota.Caps) {
	if o.Caps == c {
		return
	}
	for i, changed := range [...]bool{
		o.Caps.MonthTotal != c.MonthTotal, o.Caps.DayTotal != c.DayTotal, o.Caps.MonthInput != c.MonthInput, o.Caps.MonthOutput != c.MonthOutput,
	} {
		if changed {
			o.alarms.caps &^= 1 << i
		}
	}
	o.Caps = c
}

// Admit decides on a new request. If it waits, the decision is among the Changes of a later operation.
//
// A demand that is not exact is granted in full or not at all, so that no refusal, lower max_tokens or wait rests on a bound alone.
func (a *Account) Admit(now time.Time, w *Waiter) Decision {
	today := DateOf(now)
	if a.Waiting > 0 && a.Granted != today {
		a.Grant(now, false)
	}
	a.Granted = today
	k := a.Key(w.Request.KeyID)
	d := a.evaluate(now, k, w)
	switch {
	case a.refuses(now) || k.refuses(now):
		return Decision{Kind: KeyInvalid}
	case !w.Demand.Exact && (!d.admitted() || d.maxTokens < w.Demand.MaxTokens):
		return Decision{Kind: MustCount}
	case d.exceeded != nil:
		a.raiseRefusal(now, k, d.exceeded)
		return Decision{Kind: Refused, Exceeded: d.exceeded}
	case d.admitted() && w.Taken:
		return Decision{Kind: Duplicate}
	case d.admitted():
		return a.open(now, k, w, &d)
	case w.NoWait:
		return Decision{Kind: Reserved}
	}
	a.Ticket++
	w.Ticket = a.Ticket
	if len(k.queue) == k.Waiting { // else some that wait before it were not added
		a.Enqueue(w)
	}
	a.Waiting, k.Waiting = a.Waiting+1, k.Waiting+1
	a.block(k, &d)
	return Decision{Kind: Waits}
}

// Enqueue adds a request that waits, behind those of its key with lower tickets, and counts nothing: a store calls it for requests that
// Waiting counts already.
func (a *Account) Enqueue(w *Waiter) {
	k := a.Key(w.Request.KeyID)
	if len(k.queue) == 0 {
		a.waiting = append(a.waiting, k)
	}
	k.queue = append(k.queue, w)
}

// Cancel ends the wait of a request without a decision, and reports whether it waited. Call Grant afterwards.
func (a *Account) Cancel(w *Waiter) bool {
	k := a.Key(w.Request.KeyID)
	at, found := k.find(w.Ticket)
	if !found {
		return false
	}
	a.dequeue(k, at)
	return true
}

// Settle replaces a reservation by the tokens used. Call Grant afterwards: others may fit now.
func (a *Account) Settle(l *Lease, input, output int64) {
	k := a.Key(l.Key)
	for _, o := range [...]*Owner{k, &a.Owner} {
		m := o.month(l.Date.month)
		m.reserve(l.Date.day, -l.Input, -l.Output)
		m.charge(l.Date.day, input, output)
		if !l.Line {
			o.Running--
		}
	}
	a.raiseAlarms(k, l.Date, input, output)
}

// Correct changes what a settled request was charged.
func (a *Account) Correct(l *Lease, input, output int64) {
	for _, o := range [...]*Owner{a.Key(l.Key), &a.Owner} {
		o.month(l.Date.month).charge(l.Date.day, input, output)
	}
}

// Before returns how many requests wait in front of one that waits for a slot: those of its key and, if all slots of the
// account are taken, those that arrived earlier of other keys that have a free slot. It is false if the request has a slot,
// or waits for tokens alone.
func (a *Account) Before(w *Waiter) (requests int, forSlot bool) {
	k := a.Key(w.Request.KeyID)
	before, waits := k.find(w.Ticket)
	if !waits || !a.lacksSlot(k) {
		return 0, false
	}
	if k.Exempt || !a.full() {
		return before, true
	}
	for _, other := range a.waiting {
		if other != k && !other.full() {
			n, _ := other.find(w.Ticket)
			before += n
		}
	}
	return before, true
}

// Queued returns how many requests wait for a slot. The others that wait do so for tokens alone.
func (a *Account) Queued() (n int) {
	for _, k := range a.waiting {
		if a.lacksSlot(k) {
			n += k.Waiting
		}
	}
	return n
}

// balance returns what the caps are evaluated on, for a key.
func (a *Account) balance(now time.Time, k *Owner) Balance {
	today := DateOf(now)
	return Balance{
		Payer: Payer{Key: k.ID, Account: a.ID, KeyCaps: k.Caps, AccountCaps: a.Caps}, Time: now,
		Key: k.Counters(today), Account: a.Counters(today),
	}
}

// evaluate decides on a request by all caps and slots at once. Used tokens refuse the request or lower its max_tokens. Reservations,
// slots that are taken, and earlier requests that the same caps block make it wait. Lines of batches need no slot.
func (a *Account) evaluate(now time.Time, k *Owner, w *Waiter) decision {
	if w.Demand.SlotOnly {
		return decision{blockedBySlot: a.lacksSlot(k)}
	}
	balance := a.balance(now, k)
	d := balance.decide(&w.Demand)
	if d.exceeded != nil {
		return d
	}
	d.blockedBySlot = w.Request.Batch == "" && a.lacksSlot(k)
	d.blockedByKey = d.blockedByKey || k.Blocked && k.Caps.Any()
	d.blockedByAccount = d.blockedByAccount || a.Blocked && a.Caps.Any()
	return d
}

// lacksSlot reports whether a request of a key would have to wait for a slot.
func (a *Account) lacksSlot(k *Owner) bool { return k.full() || a.full() && !k.Exempt }

// full reports whether as many requests run as may.
func (o *Owner) full() bool { return o.Slots > 0 && o.Running >= o.Slots }

// refuses reports whether the owner may not be used.
func (o *Owner) refuses(now time.Time) bool {
	return o.Disabled || !o.Expires.IsZero() && !o.Expires.After(now)
}

// block makes later requests wait behind one if the same owner's caps limit them.
func (a *Account) block(k *Owner, d *decision) {
	k.Blocked = k.Blocked || d.blockedByKey
	a.Blocked = a.Blocked || d.blockedByAccount
}

// open reserves what a request may use.
func (a *Account) open(now time.Time, k *Owner, w *Waiter, d *decision) Decision {
	r, today := &w.Request, DateOf(now)
	got := Decision{Kind: Granted, MaxTokens: d.maxTokens, Time: r.Time, Lease: Lease{
		Request: r.ID, Key: k.ID, Line: r.Batch != "", Date: today, Input: d.promptTokens, Output: w.Demand.Output(d.maxTokens),
	}}
	if got.Time.IsZero() || DateOf(got.Time) != today {
		got.Time = now
	}
	got.Time = got.Time.UTC()
	if !w.Demand.SlotOnly {
		k.recordUse(got.Time, now)
	}
	for _, o := range [...]*Owner{k, &a.Owner} {
		o.month(today.month).reserve(today.day, got.Lease.Input, got.Lease.Output)
		if !got.Lease.Line {
			o.Running++
		}
	}
	return got
}

// find returns where the request with a ticket is in a key's queue, or would be.
func (o *Owner) find(ticket int64) (at int, found bool) {
	return sort.Find(len(o.queue), func(i int) int { return int(ticket - o.queue[i].Ticket) })
}

// dequeue takes a request out of its key's queue. If it was the last one, nothing blocks the later requests of its owner.
func (a *Account) dequeue(k *Owner, at int) {
	k.queue = slices.Delete(k.queue, at, at+1)
	if len(k.queue) == 0 {
		a.waiting = slices.DeleteFunc(a.waiting, func(other *Owner) bool { return other == k })
	}
	for _, o := range [...]*Owner{k, &a.Owner} {
		o.Waiting--
		o.Blocked = o.Blocked && o.Waiting > 0
	}
	a.Incomplete = a.Incomplete || len(k.queue) == 0 && k.Waiting > 0
}

// hasHead reports whether it is known which request of a key Grant evaluates next.
func (o *Owner) hasHead() bool { return o.head < len(o.queue) && !o.queue[o.head].Behind }

// heads is a heap of keys, in the order in which the requests that Grant evaluates next get what is free: those that the
// account's slots do not limit come first.
type heads []*Owner

func (h heads) Len() int { return len(h) }

func (h heads) Less(i, j int) bool {
	one, other := h[i], h[j]
	if one.Exempt != other.Exempt {
		return one.Exempt
	}
	return one.queue[one.head].Ticket < other.queue[other.head].Ticket
}

func (h heads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *heads) Push(x any) { *h = append(*h, x.(*Owner)) }

func (h *heads) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// Grant evaluates requests that wait, after something has ended or has been changed: the head of each key's queue, in the order
// of their tickets, and the next one of its key after each whose wait ends. A head that is blocked blocks its key; one that the
// account blocks ends the evaluation: what follows could only be refused, which can wait. A key or account some of whose requests
// are not evaluated for lack of a slot stays as blocked as it was, or a line of a batch, which needs no slot, would take the
// tokens that they wait for. With all, every request is evaluated: caps, slots or the state of keys have changed.
func (a *Account) Grant(now time.Time, all bool) {
	if a.Waiting == 0 {
		return
	}
	a.Granted = DateOf(now)
	wasBlocked := a.Blocked
	a.Blocked = false
	a.heads = a.heads[:0]
	for _, k := range a.waiting {
		k.head, k.evaluated = 0, false
		if k.hasHead() {
			a.heads = append(a.heads, k)
		} else {
			a.Incomplete = true
		}
	}
	heap.Init(&a.heads)
	for len(a.heads) > 0 {
		k := a.heads[0]
		if !k.evaluated {
			k.evaluated, k.wasBlocked, k.Blocked = true, k.Blocked, false
		}
		if a.decide(now, k) {
			a.dequeue(k, k.head)
		} else if all {
			k.head++
		} else {
			k.Blocked = k.Blocked || k.wasBlocked && k.Waiting > 1
			if a.full() && !k.Exempt { // all that wait need a slot
				a.Blocked = a.Blocked || wasBlocked
				return
			}
			if a.Blocked {
				return
			}
			heap.Pop(&a.heads)
			continue
		}
		if k.hasHead() {
			heap.Fix(&a.heads, 0)
		} else {
			a.Incomplete = a.Incomplete || k.Waiting > k.head
			heap.Pop(&a.heads)
		}
	}
}

// decide evaluates the request that is next of a key, and reports whether its wait is over.
func (a *Account) decide(now time.Time, k *Owner) (over bool) {
	w := k.queue[k.head]
	d := a.evaluate(now, k, w)
	switch {
	case a.refuses(now) || k.refuses(now):
		w.Result = Decision{Kind: KeyInvalid}
	case d.exceeded != nil:
		a.raiseRefusal(now, k, d.exceeded)
		w.Result = Decision{Kind: Refused, Exceeded: d.exceeded}
	case d.admitted() && w.Taken:
		w.Result = Decision{Kind: Duplicate}
	case d.admitted():
		w.Result = a.open(now, k, w, &d)
	default:
		a.block(k, &d)
		return false
	}
	a.Changes.Decided = append(a.Changes.Decided, w)
	return true
}
