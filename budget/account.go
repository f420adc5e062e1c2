package budget

import (
	"container/heap"
	"slices"
	"sort"
	"time"

	"basegate/budget/quota"
)

// Account is an account with its keys: their caps and slots, what is used and reserved of them, and the requests that wait. The owners
// of a request are its key, the key that has made that one, if there is one, and the account: the caps and slots of each limit it.
//
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
	Parent   *Owner // of a key: the key of the account that has made it; nil if none has
	Caps     quota.Caps
	Slots    int       // how many of its requests may run at once, without lines of batches; 0 is unbounded
	Disabled bool      // its requests are refused
	Expires  time.Time // when its requests are refused from then on; zero: never

	Running int   // requests that hold a reservation, without lines of batches; as for all counters, with those of the keys below it
	Waiting int   // requests that wait
	Queued  int   // of a key: those of them that are its own
	Blocked bool  // a request waits because of this owner's caps, so later ones wait behind it
	Ticket  int64 // of an account: the one of the latest request that has waited
	LastUse Use   // of a key

	queue  []*Waiter // of a key: in the order of their tickets
	head   int       // where Grant is in it
	life   counter
	months []*monthCounters
	alarms alarms

	evaluated, wasBlocked bool // by Grant: one of its requests, and whether it was blocked before

	writtenLastUse Use // the LastUse that is in the database
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
type Kind string

// The kinds, as they are stored for another gateway.
const (
	Granted    Kind = "granted"
	Refused    Kind = "refused"   // by a cap: too little is left of it
	Waits      Kind = "wait"      // until reservations of others end, or their slots are free
	MustCount  Kind = "count"     // the prompt: its bound does not fit, but its tokens may
	Reserved   Kind = "reserved"  // others have reserved what it needs, and it does not wait
	KeyInvalid Kind = "disabled"  // the key is disabled or has expired
	Duplicate  Kind = "duplicate" // another request with its id is in flight
)

// Decision is what has been decided on a request.
type Decision struct {
	Kind      Kind
	Exceeded  *Exceeded // of a refusal
	MaxTokens int64     // of each candidate
	Lease     Lease
	Time      time.Time // of the request's row: when it arrived, or else of the decision, so that it lies in the windows that are charged
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

// SetPayer replaces the caps and slots of the owners of a key's requests by those of a payer, and reports whether slots have
// changed: then call Grant with all, before Admit, since those that wait come first.
func (a *Account) SetPayer(p *Payer) (slotsChanged bool) {
	k := a.Key(p.Key)
	slotsChanged = k.Slots != p.Slots || a.Slots != p.AccountSlots
	k.SetCaps(p.KeyCaps)
	a.SetCaps(p.AccountCaps)
	k.Slots, k.Expires, k.Disabled, a.Slots = p.Slots, p.Expires, false, p.AccountSlots
	if of := p.Parent; of != nil {
		parent := a.Key(of.ID)
		slotsChanged = slotsChanged || parent.Slots != of.Slots
		parent.SetCaps(of.Caps)
		parent.Slots, parent.Expires, parent.Disabled, k.Parent = of.Slots, of.Expires, false, parent
	}
	return slotsChanged
}

// above returns the next one of the owners of a request; nil after the account.
func (a *Account) above(o *Owner) *Owner {
	switch {
	case o == &a.Owner:
		return nil
	case o.Parent != nil:
		return o.Parent
	default:
		return &a.Owner
	}
}

// place returns which one of the owners of a key's requests an owner is: an index of scopes.
func (a *Account) place(k, o *Owner) uint8 {
	switch o {
	case k:
		return placeKey
	case &a.Owner:
		return placeAccount
	default:
		return placeParent
	}
}

// SetCaps replaces the caps. If they change, alarms may be raised again.
func (o *Owner) SetCaps(c quota.Caps) {
	if o.Caps != c {
		o.Caps, o.alarms.caps = c, 0
	}
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
	got := a.judge(now, k, w)
	if got.Kind != Waits {
		return got
	}
	k.recordUse(w, now)
	a.Ticket++
	w.Ticket = a.Ticket
	if len(k.queue) == k.Queued { // else some that wait before it were not added
		a.Enqueue(w)
	}
	k.Queued++
	for o := k; o != nil; o = a.above(o) {
		o.Waiting++
	}
	return got
}

// judge decides on a request that is new or waits, by all caps and slots at once. Used tokens refuse it or lower its max_tokens.
// Reservations, slots that are taken, and earlier requests that the same caps block make it wait, and later ones behind it if the
// same owner's caps limit them. Lines of batches need no slot. It opens the reservation of a request that is granted.
func (a *Account) judge(now time.Time, k *Owner, w *Waiter) Decision {
	for o := k; o != nil; o = a.above(o) {
		if o.refuses(now) {
			return Decision{Kind: KeyInvalid}
		}
	}
	var d decision
	if !w.Demand.SlotOnly {
		d = decide(a.appendLimits(make([]limit, 0, maxLimits), k, DateOf(now)), &w.Demand)
		for o := k; o != nil; o = a.above(o) {
			if o.Blocked && o.Caps.Any() {
				d.blocked[a.place(k, o)] = true
			}
		}
	}
	d.blockedBySlot = w.Request.Batch == "" && a.lacksSlot(k)
	switch {
	case !w.Demand.Exact && (!d.admitted() || d.maxTokens < w.Demand.MaxTokens):
		return Decision{Kind: MustCount}
	case d.refusing != nil:
		a.raiseRefusal(DateOf(now), k, d.refusing)
		return Decision{Kind: Refused, Exceeded: d.refusing.exceeded(DateOf(now))}
	case d.admitted() && w.Taken:
		return Decision{Kind: Duplicate}
	case d.admitted():
		return a.open(now, k, w, &d)
	case w.NoWait:
		return Decision{Kind: Reserved}
	}
	for o := k; o != nil; o = a.above(o) {
		o.Blocked = o.Blocked || d.blocked[a.place(k, o)]
	}
	return Decision{Kind: Waits}
}

// Enqueue adds a request that waits, behind those of its key with lower tickets, and counts nothing: a store calls it for requests that
// Waiting and Queued count already.
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
	k, charged := a.Key(l.Key), quota.Tokens{Input: input, Output: output}
	for o := k; o != nil; o = a.above(o) {
		o.add(l.Date, charged, quota.Tokens{Input: -l.Input, Output: -l.Output})
		if !l.Line {
			o.Running--
		}
	}
	a.raiseAlarms(k, l.Date, charged)
}

// Correct changes what a settled request was charged.
func (a *Account) Correct(l *Lease, input, output int64) {
	for o := a.Key(l.Key); o != nil; o = a.above(o) {
		o.add(l.Date, quota.Tokens{Input: input, Output: output}, quota.Tokens{})
	}
}

// Before returns how many requests wait in front of one that waits for a slot: those of its key and, if all slots of the
// account or of the key's parent are taken, those that arrived earlier of other keys that wait for these alone. It is false if
// the request has a slot, or waits for tokens alone.
func (a *Account) Before(w *Waiter) (requests int, forSlot bool) {
	k := a.Key(w.Request.KeyID)
	before, waits := k.find(w.Ticket)
	if !waits || !a.lacksSlot(k) {
		return 0, false
	}
	shared := k.family() // whose slots are taken, with those of other keys
	if a.full() {
		shared = &a.Owner
	} else if !shared.full() {
		return before, true
	}
	for _, other := range a.waiting {
		if other != k && a.lacksOnly(other, shared, k.family()) {
			n, _ := other.find(w.Ticket)
			before += n
		}
	}
	return before, true
}

// family returns the parent of a key, or the key itself if it has none.
func (o *Owner) family() *Owner {
	if o.Parent != nil {
		return o.Parent
	}
	return o
}

// lacksOnly reports whether the requests of a key need a slot of an owner, and have one of those below, but that of a family.
func (a *Account) lacksOnly(k, shared, but *Owner) bool {
	o := k
	for ; o != nil && o != shared; o = a.above(o) {
		if o.full() && o != but {
			return false
		}
	}
	return o == shared
}

// Queued returns how many requests wait for a slot. The others that wait do so for tokens alone.
func (a *Account) Queued() (n int) {
	for _, k := range a.waiting {
		if a.lacksSlot(k) {
			n += k.Queued
		}
	}
	return n
}

// appendLimits appends the caps that are set of the owners of a key's requests, as they are on a day.
func (a *Account) appendLimits(to []limit, k *Owner, today Date) []limit {
	for o := k; o != nil; o = a.above(o) {
		if o.Caps.Any() {
			c := o.Counters(today)
			to = appendLimits(to, a.place(k, o), &o.Caps, &c)
		}
	}
	return to
}

// lacksSlot reports whether a request of a key would have to wait for a slot.
func (a *Account) lacksSlot(k *Owner) bool {
	for o := k; o != nil; o = a.above(o) {
		if o.full() {
			return true
		}
	}
	return false
}

// full reports whether as many requests run as may.
func (o *Owner) full() bool { return o.Slots > 0 && o.Running >= o.Slots }

// refuses reports whether the owner may not be used.
func (o *Owner) refuses(now time.Time) bool {
	return o.Disabled || !o.Expires.IsZero() && !o.Expires.After(now)
}

// arrival returns when the request has arrived: now if that is not known, or was on another date.
func (w *Waiter) arrival(now time.Time) time.Time {
	if t := w.Request.Time; !t.IsZero() && DateOf(t) == DateOf(now) {
		return t.UTC()
	}
	return now.UTC()
}

// open reserves what a request may use.
func (a *Account) open(now time.Time, k *Owner, w *Waiter, d *decision) Decision {
	r, today := &w.Request, DateOf(now)
	got := Decision{Kind: Granted, MaxTokens: d.maxTokens, Time: w.arrival(now), Lease: Lease{
		Request: r.ID, Key: k.ID, Line: r.Batch != "", Date: today, Input: d.promptTokens, Output: w.Demand.Output(d.maxTokens),
	}}
	k.recordUse(w, now)
	for o := k; o != nil; o = a.above(o) {
		o.add(today, quota.Tokens{}, quota.Tokens{Input: got.Lease.Input, Output: got.Lease.Output})
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

// dequeue takes a request out of its key's queue. If it was the last one, nothing blocks the later requests of its owners.
func (a *Account) dequeue(k *Owner, at int) {
	k.queue = slices.Delete(k.queue, at, at+1)
	if len(k.queue) == 0 {
		a.waiting = slices.DeleteFunc(a.waiting, func(other *Owner) bool { return other == k })
	}
	k.Queued--
	for o := k; o != nil; o = a.above(o) {
		o.Waiting--
		o.Blocked = o.Blocked && o.Waiting > 0
	}
	a.Incomplete = a.Incomplete || len(k.queue) == 0 && k.Queued > 0
}

// hasHead reports whether it is known which request of a key Grant evaluates next.
func (o *Owner) hasHead() bool { return o.head < len(o.queue) && !o.queue[o.head].Behind }

// heads is a heap of keys, in the order of the tickets of the requests that Grant evaluates next.
type heads []*Owner

func (h heads) Len() int { return len(h) }

func (h heads) Less(i, j int) bool {
	one, other := h[i], h[j]
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
// account blocks ends the evaluation: what follows could only be refused, which can wait. An owner some of whose requests
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
		k.head, k.evaluated, k.family().evaluated = 0, false, false
		if k.hasHead() {
			a.heads = append(a.heads, k)
		} else {
			a.Incomplete = true
		}
	}
	heap.Init(&a.heads)
	ended := a.grantHeads(now, all)
	if all {
		return
	}
	if ended && a.full() { // all that wait need a slot
		a.Blocked = a.Blocked || wasBlocked
	}
	for _, k := range a.waiting {
		if p := k.Parent; p != nil && p.evaluated && (ended || p.full()) {
			p.Blocked = p.Blocked || p.wasBlocked
		}
	}
}

// grantHeads evaluates requests until none is left, or what the account lacks ends the evaluation.
func (a *Account) grantHeads(now time.Time, all bool) (ended bool) {
	for len(a.heads) > 0 {
		k := a.heads[0]
		for o := k; o != &a.Owner; o = a.above(o) {
			if !o.evaluated {
				o.evaluated, o.wasBlocked, o.Blocked = true, o.Blocked, false
			}
		}
		if a.decide(now, k) {
			a.dequeue(k, k.head)
		} else if all {
			k.head++
		} else {
			k.Blocked = k.Blocked || k.wasBlocked && k.Queued > 1
			if a.full() || a.Blocked {
				return true
			}
			heap.Pop(&a.heads)
			continue
		}
		if k.hasHead() {
			heap.Fix(&a.heads, 0)
		} else {
			a.Incomplete = a.Incomplete || k.Queued > k.head
			heap.Pop(&a.heads)
		}
	}
	return false
}

// decide evaluates the request that is next of a key, and reports whether its wait is over.
func (a *Account) decide(now time.Time, k *Owner) (over bool) {
	w := k.queue[k.head]
	got := a.judge(now, k, w)
	if got.Kind == Waits {
		return false
	}
	w.Result = got
	a.Changes.Decided = append(a.Changes.Decided, w)
	return true
}
