package ledgercases

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Order is where a request gets its place among those of its account that wait for tokens.
type Order int

const (
	// ByArrival orders requests by their arrival: slots and tokens are decided together.
	ByArrival Order = iota
	// BySlot orders them by when they got a slot of their key and account: slots are handed out first, in order of arrival. Requests that get theirs by the same
	// operation may come in any order.
	BySlot
)

// rules is the specification of the ledger: the state of one case, and which replies it allows. It favours plain sums over
// requests to counters, and search to calculation.
//
// It leaves three things to the engine:
//   - the order of requests of different keys of one account, as its Order says. Requests of one key are first come, first
//     served;
//   - whether a request that lacks tokens of the account blocks later requests of other keys, if it could not run with these tokens
//     either: an earlier one of its key waits, or it lacks a slot or tokens of its key;
//   - when used tokens refuse a request whose turn has not come: at once, or in its turn, if they still do. An engine need not
//     evaluate every request that waits whenever one ends.
type rules struct {
	order    Order
	now      time.Time
	step     int
	owners   map[string]*owner // keys and accounts
	requests []request         // in order of arrival
	exercised
}

// exercised counts how often a reply was one that the rules leave to the engine.
type exercised struct {
	passedWithoutSlot, mayBlock, refusedLater int
}

// owner is a key or an account.
type owner struct {
	id, account string // account is the id itself of an account
	caps        Caps
	slots       int // 0: unbounded
	disabled    bool
}

// admits reports whether the owner has a slot beside the requests that hold one.
func (o *owner) admits(holders int) bool { return o.slots == 0 || holders < o.slots }

func (o *owner) scope() string {
	if o.id == o.account {
		return "account"
	}
	return "key"
}

// state is the state of a request.
type state int

const (
	waiting state = iota
	running
	ended
	gone // without a row: refused, canceled or to be counted
)

// request is a request of a case.
type request struct {
	id         string
	arrival    int
	key        *owner
	demand     *Demand
	state      state
	place      int // the step at which it got its place; noPlace if it has none
	admitted   time.Time
	tokens     tokens // reserved, then used
	checkpoint tokens
	how        string // settled or interrupted
}

const noPlace = -1

func newRules(c *Case, order Order) *rules {
	r := &rules{order: order, now: c.Start, owners: map[string]*owner{}}
	for _, a := range c.Accounts {
		r.owners[a.ID] = &owner{id: a.ID, account: a.ID, caps: a.Caps, slots: a.Slots}
	}
	for _, k := range c.Keys {
		r.owners[k.ID] = &owner{id: k.ID, account: k.Account, caps: k.Caps, slots: k.Slots}
	}
	return r
}

// find returns the latest request with an id, or nil.
func (r *rules) find(id string) *request {
	for i := len(r.requests) - 1; i >= 0; i-- {
		if r.requests[i].id == id {
			return &r.requests[i]
		}
	}
	return nil
}

// ids returns the requests in a state, in order of arrival.
func (r *rules) ids(s state) (all []string) {
	for i := range r.requests {
		if r.requests[i].state == s {
			all = append(all, r.requests[i].id)
		}
	}
	return all
}

// possible reports whether an operation makes sense in this state.
func (r *rules) possible(s *Step) bool {
	q := r.find(s.Request)
	switch s.Op {
	case Admit:
		return q == nil || q.state == gone
	case Settle:
		return q != nil && (q.state == running || q.state == ended)
	case Checkpoint, Interrupt:
		return q != nil && q.state == running
	case Cancel:
		return q != nil && q.state == waiting
	case Clock:
		return s.Time.After(r.now)
	case SetCaps:
	}
	return true
}

// check does an operation and returns an error if the reply is none of those that the rules allow.
func (r *rules) check(s *Step, reply Reply) error {
	r.step++
	decided := reply.Decided
	if s.Op == Admit {
		if reply.Decision == nil {
			return fmt.Errorf("no decision on %s", s.Request)
		}
		if _, both := decided[s.Request]; both {
			return fmt.Errorf("%s is decided twice", s.Request)
		}
		if reply.Decision.Kind != Wait {
			decided = maps.Clone(decided)
			if decided == nil {
				decided = map[string]Decision{}
			}
			decided[s.Request] = *reply.Decision
		}
	}
	r.do(s)
	for id := range decided {
		if q := r.find(id); q == nil || q.state != waiting {
			return fmt.Errorf("%s is decided, and does not wait", id)
		}
	}
	if _, err := r.explain(decided); err != nil {
		return err
	}
	key := r.owners[s.Key]
	want := Totals{r.totals(key), r.totals(r.owners[key.account])}
	if diff := cmp.Diff(want, reply.Totals); diff != "" {
		return fmt.Errorf("totals (-want +got):\n%s", diff)
	}
	return nil
}

// do changes the state by an operation, before decisions.
func (r *rules) do(s *Step) {
	q := r.find(s.Request)
	switch s.Op {
	case Admit:
		place := r.step
		if r.order == BySlot {
			place = noPlace
		}
		r.requests = append(r.requests, request{
			id: s.Request, arrival: len(r.requests), key: r.owners[s.Key], demand: s.Demand, place: place,
		})
	case Settle:
		if q.state == running {
			q.state, q.tokens, q.how = ended, q.used(s), "settled"
		}
	case Checkpoint:
		q.checkpoint = q.used(s)
	case Interrupt:
		q.state, q.tokens, q.how = ended, q.checkpoint, "interrupted"
	case Cancel:
		q.state = gone
	case Clock:
		r.now = *s.Time
	case SetCaps:
		o := r.owners[s.Owner]
		o.caps, o.slots, o.disabled = *s.Caps, s.Slots, s.Disabled
	}
}

// used returns what an operation charges: no more than is reserved.
func (q *request) used(s *Step) tokens {
	return tokens{min(s.Prompt, q.tokens.input), min(s.Completion, q.tokens.output)}
}

// explain applies the decisions in an order in which the rules allow each. If there is none, or a request waits afterwards that
// must not, it returns the error of the attempt that has come furthest, and how many decisions that has applied.
func (r *rules) explain(decided map[string]Decision) (applied int, err error) {
	r.handOutSlots()
	if len(decided) == 0 {
		return 0, r.checkWaiting()
	}
	applied = -1
	before := slices.Clone(r.requests)
	for i := range before {
		d, ok := decided[before[i].id]
		if !ok || before[i].state != waiting {
			continue
		}
		further, failed := 0, r.decide(&r.requests[i], &d)
		if failed == nil {
			rest := maps.Clone(decided)
			delete(rest, before[i].id)
			further, failed = r.explain(rest)
			further++
		}
		if failed == nil {
			return further, nil
		}
		if further > applied {
			applied, err = further, failed
		}
		r.requests = slices.Clone(before)
	}
	return applied, err
}

// handOutSlots gives places to requests that get a slot, if slots come first. A request keeps its slot while it waits
// for tokens. A disabled key has no limit: its requests are to be refused.
func (r *rules) handOutSlots() {
	for i := range r.requests {
		q := &r.requests[i]
		if q.state != waiting || q.place != noPlace {
			continue
		}
		ofKey, ofAccount := 0, 0
		for j := range r.requests {
			o := &r.requests[j]
			if o.key.account != q.key.account || o.state != running && (o.state != waiting || o.place == noPlace) {
				continue
			}
			ofAccount++
			if o.key == q.key {
				ofKey++
			}
		}
		if q.key.disabled || q.key.admits(ofKey) && r.owners[q.key.account].admits(ofAccount) {
			q.place = r.step
		}
	}
}

// decide applies a decision, or returns why it is wrong.
func (r *rules) decide(q *request, d *Decision) error {
	e := r.evaluate(q)
	full := e.refusal == nil && e.maxTokens == q.demand.MaxTokens
	var want string
	switch reason := r.obstacle(q, &e); {
	case q.key.disabled:
		want = "disabled"
	case !q.demand.Exact && d.Kind == Count && (!full || reason != "" || r.mayBeBlocked(q)):
		want = "count"
	case !q.demand.Exact && (!full || reason != ""):
		want = "count, since " + reason
	case e.refusal != nil:
		want = "refused: " + encode(e.refusal)
	case reason != "":
		want = "wait: " + reason
	default:
		want = fmt.Sprint("granted ", e.maxTokens)
	}
	if got := d.describe(); got != want {
		return fmt.Errorf("%s: got %s, want %s", q.id, got, want)
	}
	if d.Kind != Granted {
		q.state = gone
		return nil
	}
	for i := range r.requests[:q.arrival] {
		o := &r.requests[i]
		if o.state == waiting && o.place == noPlace && o.key != q.key && o.key.account == q.key.account && r.owners[o.key.account].caps.any() {
			r.passedWithoutSlot++
		}
	}
	q.state, q.admitted, q.tokens = running, r.now, e.tokens
	return nil
}

// describe returns the decision in words.
func (d *Decision) describe() string {
	switch d.Kind {
	case Granted:
		return fmt.Sprint("granted ", d.MaxTokens)
	case Refused:
		return "refused: " + encode(d.Refusal)
	case Count, Wait, Disabled:
	}
	return string(d.Kind)
}

// obstacle returns why a request that used tokens do not refuse must not run yet; "" if it may.
func (r *rules) obstacle(q *request, e *evaluation) string {
	if reason := r.turn(q); reason != "" {
		return reason
	}
	if c := r.lacking(q, e, ""); c != nil {
		return "reservations leave too little of " + encode(c.Refusal)
	}
	return ""
}

// turn returns why the turn of a request has not come: it has no slot, or an earlier request comes first. It is "" if
// it has come.
func (r *rules) turn(q *request) string {
	if reason := r.turnInKey(q); reason != "" {
		return reason
	}
	if taken := r.taken(q.key.account); !r.owners[q.key.account].admits(taken) {
		return fmt.Sprint("all slots of the account are taken: ", taken)
	}
	for i := range r.requests {
		o := &r.requests[i]
		if !r.competes(o, q) || r.turnInKey(o) != "" {
			continue
		}
		e := r.evaluate(o)
		switch {
		case e.refusal != nil, r.lacking(o, &e, "key") != nil:
		case r.lacking(o, &e, "account") != nil:
			return o.id + " waits before it for tokens of the account"
		case r.turn(o) == "":
			return o.id + " can run before it"
		}
	}
	return ""
}

// turnInKey is turn among the requests of its key.
func (r *rules) turnInKey(q *request) string {
	if q.place == noPlace {
		return "it has no slot"
	}
	taken := 0
	for i := range r.requests {
		switch o := &r.requests[i]; {
		case o.key != q.key:
		case o.state == running:
			taken++
		case o.state == waiting && o.arrival < q.arrival:
			return o.id + " of its key waits before it"
		}
	}
	if !q.key.admits(taken) {
		return fmt.Sprint("all slots are taken: ", taken)
	}
	return ""
}

// taken returns the number of requests of an account that run.
func (r *rules) taken(account string) (n int) {
	for i := range r.requests {
		if o := &r.requests[i]; o.state == running && o.key.account == account {
			n++
		}
	}
	return n
}

// competes reports whether o waits for the account's tokens or slots before q, as a request of another key.
func (r *rules) competes(o, q *request) bool { return o.place < q.place && r.mayCompete(o, q) }

// mayCompete is competes, but if both got their places by the same operation, either may come first.
func (r *rules) mayCompete(o, q *request) bool {
	account := r.owners[q.key.account]
	return o.state == waiting && o.key != q.key && o.key.account == q.key.account && o.place != noPlace && o.place <= q.place &&
		!o.key.disabled && o.demand.Exact && (account.caps.any() || account.slots > 0)
}

// mayBeBlocked reports whether an engine may let a request wait for one before it that lacks tokens of the account.
func (r *rules) mayBeBlocked(q *request) bool {
	for i := range r.requests {
		o := &r.requests[i]
		if !r.mayCompete(o, q) {
			continue
		}
		if e := r.evaluate(o); e.refusal == nil && r.lacking(o, &e, "account") != nil {
			return true
		}
	}
	return false
}

// checkWaiting returns an error if a request waits that must not.
func (r *rules) checkWaiting() error {
	var counted exercised
	for i := range r.requests {
		q := &r.requests[i]
		if q.state != waiting {
			continue
		}
		e := r.evaluate(q)
		reason := r.turn(q)
		if reason == "" && r.mayBeBlocked(q) {
			reason = "an engine may let another one block it"
			counted.mayBlock++
		}
		switch {
		case q.key.disabled:
			return fmt.Errorf("%s waits, and its key is disabled", q.id)
		case !q.demand.Exact && q.place != noPlace:
			return fmt.Errorf("%s waits, and its prompt is to be counted", q.id)
		case e.refusal != nil && reason == "":
			return fmt.Errorf("%s waits, and has to be refused: %s", q.id, encode(e.refusal))
		case e.refusal != nil:
			counted.refusedLater++
		case reason == "" && r.lacking(q, &e, "") == nil:
			return fmt.Errorf("%s waits, and could run with %d tokens", q.id, e.maxTokens)
		}
	}
	r.mayBlock += counted.mayBlock
	r.refusedLater += counted.refusedLater
	return nil
}

func (r *rules) totals(o *owner) Counters {
	month, reserved := r.sums(o, "month")
	day, _ := r.sums(o, "day")
	return Counters{MonthInput: month.input, MonthOutput: month.output, Day: day.of("total"), Reserved: reserved.of("total")}
}

// rows returns the rows of all requests that have ended, by request.
func (r *rules) rows() (all []Row) {
	for i := range r.requests {
		if q := &r.requests[i]; q.state == ended {
			all = append(all, Row{
				Request: q.id, Key: q.key.id, State: q.how, Date: q.admitted.Format(time.DateOnly),
				Prompt: q.tokens.input, Completion: q.tokens.output,
			})
		}
	}
	slices.SortFunc(all, func(a, b Row) int { return strings.Compare(a.Request, b.Request) })
	return all
}
