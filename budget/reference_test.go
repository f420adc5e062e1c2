package budget_test

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/internal/ledgertest"
)

// reference is a second implementation of the rules, which shares no code with budget.Account. It is slow and obvious: it keeps
// every request, adds them up at each decision, tries every max_tokens, and goes through all that wait in the order of arrival.
type reference struct {
	now      time.Time
	owners   map[string]*refOwner // keys and accounts
	requests []*refRequest        // in order of arrival, which is that of tickets
}

// refOwner is a key or an account.
type refOwner struct {
	ledgertest.Owner
	isAccount bool

	// blocked is set while the owner's caps keep a request waiting. It is the one thing that cannot be added up, since not every
	// request that waits is evaluated whenever one ends: one further back may need tokens without anybody looking. See pass.
	blocked bool
}

// refState is the state of a request.
type refState int

const (
	refWaiting refState = iota
	refRunning
	refEnded
	refGone // without a row: refused, canceled or to be counted
)

// refRequest is a request of a case.
type refRequest struct {
	id           string
	key, account *refOwner
	parent       *refOwner // of the key; nil if it has none
	demand       *ledgertest.Demand
	line         bool // of a batch: it needs no slot and does not wait
	state        refState
	admitted     time.Time
	tokens       refTokens // reserved, then used
	checkpoint   refTokens
	how          string // settled or interrupted
}

// refShare is one of the owners of a request.
type refShare struct {
	scope budget.Scope
	*refOwner
}

// owners returns those whose caps and slots limit the request.
func (q *refRequest) owners() []refShare {
	all := []refShare{{budget.ScopeKey, q.key}}
	if q.parent != nil {
		all = append(all, refShare{budget.ScopeParent, q.parent})
	}
	return append(all, refShare{budget.ScopeAccount, q.account})
}

// of reports whether the request counts against a key or an account.
func (q *refRequest) of(o *refOwner) bool { return q.key == o || q.parent == o || q.account == o }

// disabled reports whether a key of the request may not be used.
func (q *refRequest) disabled() bool { return q.key.Disabled || q.parent != nil && q.parent.Disabled }

// refTokens are input and output tokens.
type refTokens struct{ input, output int64 }

func (t refTokens) of(meter quota.Meter) int64 {
	switch meter {
	case quota.Input:
		return t.input
	case quota.Output:
		return t.output
	default:
		return t.input + t.output
	}
}

func newReference(c *ledgertest.Case) *reference {
	r := &reference{now: c.Start, owners: map[string]*refOwner{}}
	for _, a := range c.Accounts {
		r.owners[a.ID] = &refOwner{Owner: a, isAccount: true}
	}
	for _, k := range c.Keys {
		r.owners[k.ID] = &refOwner{Owner: k}
	}
	return r
}

// find returns the latest request with an id, or nil.
func (r *reference) find(id string) *refRequest {
	for _, q := range slices.Backward(r.requests) {
		if q.id == id {
			return q
		}
	}
	return nil
}

// in returns the requests that are in a state, of an owner or of all (nil), in order of arrival.
func (r *reference) in(s refState, o *refOwner) (all []*refRequest) {
	for _, q := range r.requests {
		if q.state == s && (o == nil || q.of(o)) {
			all = append(all, q)
		}
	}
	return all
}

// Apply does an operation.
func (r *reference) Apply(s *ledgertest.Step) (reply ledgertest.Reply) {
	q := r.find(s.Request)
	decided := map[string]ledgertest.Decision{}
	switch s.Op {
	case ledgertest.Admit:
		q = &refRequest{id: s.Request, key: r.owners[s.Key], demand: s.Demand, line: s.Line}
		q.parent, q.account = r.owners[q.key.Parent], r.owners[q.key.Account]
		d := r.admit(q)
		reply.Decision = &d
		r.requests = append(r.requests, q)
	case ledgertest.Settle:
		if q.state == refRunning { // it may come again
			q.state, q.tokens, q.how = refEnded, q.used(s), "settled"
			r.pass(q.account, false, decided)
		}
	case ledgertest.Checkpoint:
		q.checkpoint = q.used(s)
	case ledgertest.Interrupt:
		q.state, q.tokens, q.how = refEnded, q.checkpoint, "interrupted"
		r.pass(q.account, false, decided)
	case ledgertest.Cancel:
		q.state = refGone
		r.pass(q.account, false, decided)
	case ledgertest.Clock:
		before := r.now
		r.now = *s.Time
		if !sameDay(before, r.now) {
			r.passAll(false, decided)
		}
	case ledgertest.Change:
		o := r.owners[s.Owner.ID]
		o.Caps, o.Slots, o.Disabled = s.Owner.Caps, s.Owner.Slots, s.Owner.Disabled
		r.passAll(true, decided)
	}
	if len(decided) > 0 {
		reply.Decided = decided
	}
	for _, o := range r.owners {
		o.blocked = o.blocked && len(r.in(refWaiting, o)) > 0
	}
	key := r.owners[s.Key]
	reply.Key, reply.Account = r.totals(key), r.totals(r.owners[key.Account])
	if key.Parent != "" {
		of := r.totals(r.owners[key.Parent])
		reply.Parent = &of
	}
	return reply
}

// used returns what an operation charges: no more than is reserved.
func (q *refRequest) used(s *ledgertest.Step) refTokens {
	return refTokens{min(s.Prompt, q.tokens.input), min(s.Completion, q.tokens.output)}
}

// possible reports whether an operation makes sense in this state.
func (r *reference) possible(s *ledgertest.Step) bool {
	q := r.find(s.Request)
	switch s.Op {
	case ledgertest.Admit:
		return q == nil || q.state == refGone
	case ledgertest.Settle:
		return q != nil && (q.state == refRunning || q.state == refEnded)
	case ledgertest.Checkpoint, ledgertest.Interrupt:
		return q != nil && q.state == refRunning
	case ledgertest.Cancel:
		return q != nil && q.state == refWaiting
	default:
		return true
	}
}

// admit decides on a new request.
func (r *reference) admit(q *refRequest) ledgertest.Decision {
	v := r.judge(q)
	q.state = refGone
	switch {
	case q.disabled():
		return ledgertest.Decision{Kind: ledgertest.Disabled}
	case !q.demand.Exact && (v.refusal != nil || v.waits() || v.maxTokens < q.demand.MaxTokens):
		return ledgertest.Decision{Kind: ledgertest.Count} // nothing but a grant in full may rest on a bound
	case v.refusal != nil:
		return ledgertest.Decision{Kind: ledgertest.Refused, Refusal: v.refusal}
	case !v.waits():
		return r.grant(q, &v)
	case q.line:
		return ledgertest.Decision{Kind: ledgertest.Reserved}
	}
	q.state = refWaiting
	q.block(&v)
	return ledgertest.Decision{Kind: ledgertest.Wait}
}

func (r *reference) grant(q *refRequest, v *verdict) ledgertest.Decision {
	q.state, q.admitted, q.tokens = refRunning, r.now, v.tokens
	return ledgertest.Decision{Kind: ledgertest.Granted, MaxTokens: v.maxTokens}
}

func (r *reference) passAll(all bool, decided map[string]ledgertest.Decision) {
	for _, o := range r.owners {
		if o.isAccount {
			r.pass(o, all, decided)
		}
	}
}

// pass evaluates requests of an account that wait, in order of arrival, when something has ended or changed:
//
//   - Requests of a key are first come, first served: those behind one that waits on are not evaluated.
//   - So are all keys that wait for their parent's tokens: one that waits on for these blocks the later ones.
//   - So are all that wait for the account's tokens: one that waits on for these ends the pass. And so are all that wait for the
//     account's slots: while they are taken, one that waits on ends the pass, since the others need a slot too. Used tokens refuse
//     those behind in their turn, if they still do.
//   - After a change of caps, slots or the state of a key (all), every request is evaluated, so that those that the change refuses
//     leave at once.
//
// A request blocks an owner if the owner's caps keep it waiting: later ones, which could take the tokens that it needs, wait behind
// it. A pass finds anew what blocks the account, and the keys and parents that it reaches. But it does not see what those need that it
// leaves out behind one of their key, or when all slots of the account or of their parent are taken. So their owner stays blocked if
// it was. Lines of batches alone can tell the difference: all others need such a slot, or come behind one of their key.
func (r *reference) pass(a *refOwner, all bool, decided map[string]ledgertest.Decision) {
	blockedBefore := map[*refOwner]bool{a: a.blocked}
	a.blocked = false
	ended := r.passOver(a, all, blockedBefore, decided)
	if all {
		return
	}
	if ended && r.full(a) {
		a.blocked = a.blocked || blockedBefore[a]
	}
	for _, q := range r.in(refWaiting, a) {
		if q.parent != nil && (ended || r.full(q.parent)) {
			q.parent.blocked = q.parent.blocked || blockedBefore[q.parent]
		}
	}
}

// passOver evaluates the requests of a pass, and reports whether the account has ended it. blockedBefore are the owners that it has
// reached, and whether they were blocked.
func (r *reference) passOver(a *refOwner, all bool, blockedBefore map[*refOwner]bool, decided map[string]ledgertest.Decision) (ended bool) {
	waitsOn := map[*refOwner]bool{} // keys
	for _, q := range r.in(refWaiting, a) {
		if waitsOn[q.key] && !all {
			continue
		}
		for _, o := range q.owners() {
			if _, visited := blockedBefore[o.refOwner]; !visited {
				blockedBefore[o.refOwner] = o.blocked
				o.blocked = false
			}
		}
		v := r.judge(q)
		if d, over := r.decide(q, &v); over {
			decided[q.id] = d
			continue
		}
		q.block(&v)
		waitsOn[q.key] = true
		if all {
			continue
		}
		queue := 0
		for _, other := range r.in(refWaiting, a) {
			if other.key == q.key {
				queue++
			}
		}
		q.key.blocked = q.key.blocked || blockedBefore[q.key] && queue > 1
		if r.full(a) || a.blocked {
			return true
		}
	}
	return false
}

// decide applies the decision on a request that waits, if its wait is over.
func (r *reference) decide(q *refRequest, v *verdict) (d ledgertest.Decision, over bool) {
	switch {
	case q.disabled():
		q.state = refGone
		return ledgertest.Decision{Kind: ledgertest.Disabled}, true
	case v.refusal != nil:
		q.state = refGone
		return ledgertest.Decision{Kind: ledgertest.Refused, Refusal: v.refusal}, true
	case v.waits():
		return d, false
	}
	return r.grant(q, v), true
}

// block makes later requests wait behind one whose owners' caps keep it waiting.
func (q *refRequest) block(v *verdict) {
	for _, o := range q.owners() {
		o.blocked = o.blocked || v.lacks[o.scope]
	}
}

// full reports whether as many requests of an owner run as may.
func (r *reference) full(o *refOwner) bool {
	running := 0
	for _, q := range r.in(refRunning, o) {
		if !q.line {
			running++
		}
	}
	return o.Slots > 0 && running >= o.Slots
}

// verdict is what is found about a request.
type verdict struct {
	refusal   *ledgertest.Refusal // by used tokens alone
	maxTokens int64               // of each candidate: the most that used tokens leave
	tokens    refTokens           // the worst case, at that maxTokens
	lacksSlot bool
	lacks     map[budget.Scope]bool // tokens that others have reserved, or wait for
}

func (v *verdict) waits() bool {
	return v.lacksSlot || v.lacks[budget.ScopeKey] || v.lacks[budget.ScopeParent] || v.lacks[budget.ScopeAccount]
}

// judge finds what a request lacks.
func (r *reference) judge(q *refRequest) verdict {
	d := q.demand
	v := verdict{maxTokens: d.MaxTokens, lacks: map[budget.Scope]bool{}}
	all := r.caps(q)
	least := max(1, min(d.MinTokens, d.MaxTokens))
	var refusing []refCap
	for _, c := range all {
		allowed := c.allowed(d)
		if allowed < least {
			refusing = append(refusing, c)
		}
		v.maxTokens = min(v.maxTokens, allowed)
	}
	v.tokens = refTokens{promptAt(d, v.maxTokens), d.Candidates * v.maxTokens}
	for _, c := range all { // a prompt that is truncated is longer beside a lower max_tokens
		if c.Meter == quota.Input && v.tokens.input > c.left() {
			refusing = append(refusing, c)
		}
	}
	if len(refusing) > 0 {
		v.refusal = named(refusing)
		return v
	}
	for _, o := range q.owners() {
		v.lacksSlot = v.lacksSlot || !q.line && r.full(o.refOwner)
		v.lacks[o.scope] = o.blocked
	}
	for _, c := range all {
		if v.tokens.of(c.Meter) > c.left()-c.Reserved {
			v.lacks[c.Scope] = true
		}
	}
	return v
}

// promptAt returns the tokens of all prompts beside a max_tokens, to which they may be truncated.
func promptAt(d *ledgertest.Demand, maxTokens int64) int64 {
	if d.Prompts == nil || maxTokens == d.MaxTokens {
		return d.PromptTokens
	}
	var sum int64
	for _, n := range d.Prompts {
		sum += min(n, max(d.Context-maxTokens, 0))
	}
	return sum
}

// refCap is a cap that is set, with what is used and reserved of it.
type refCap struct{ ledgertest.Refusal }

func (c *refCap) left() int64 { return c.Limit - c.Used }

// allowed returns the most tokens that each candidate may have under a cap; 0 if the cap refuses the request.
func (c *refCap) allowed(d *ledgertest.Demand) int64 {
	for m := d.MaxTokens; m > 0; m-- {
		prompt := promptAt(d, m)
		if c.Meter == quota.Input {
			prompt = d.PromptTokens // a lower max_tokens saves none
		}
		if need := (refTokens{prompt, d.Candidates * m}).of(c.Meter); need <= c.left() && c.left() > 0 {
			return m
		}
	}
	return 0
}

// named returns the cap that a refusal names: one for life before a monthly one before a daily one, then the one with the fewest tokens left, then
// the first.
func named(refusing []refCap) *ledgertest.Refusal {
	first := slices.MinFunc(refusing, func(a, b refCap) int {
		if a.Window != b.Window {
			order := map[quota.Window]int{quota.Life: 1, quota.Month: 2, quota.Day: 3}
			return order[a.Window] - order[b.Window]
		}
		return cmp.Compare(a.left(), b.left())
	})
	return &first.Refusal
}

// caps returns the caps that are set of the owners of a request.
func (r *reference) caps(q *refRequest) (all []refCap) {
	for _, o := range q.owners() {
		all = append(all, r.capsOf(o)...)
	}
	return all
}

func (r *reference) capsOf(o refShare) (all []refCap) {
	for _, c := range []struct {
		limit  quota.Cap
		window quota.Window
		meter  quota.Meter
	}{
		{o.Caps[quota.MonthTotal], quota.Month, quota.Total},
		{o.Caps[quota.DayTotal], quota.Day, quota.Total},
		{o.Caps[quota.MonthInput], quota.Month, quota.Input},
		{o.Caps[quota.MonthOutput], quota.Month, quota.Output},
		{o.Caps[quota.LifeTotal], quota.Life, quota.Total},
		{o.Caps[quota.LifeInput], quota.Life, quota.Input},
		{o.Caps[quota.LifeOutput], quota.Life, quota.Output},
	} {
		limit, bounded := c.limit.Tokens()
		if !bounded {
			continue
		}
		used, reserved := r.sums(o.refOwner, c.window)
		all = append(all, refCap{ledgertest.Refusal{
			Scope: o.scope, Window: c.window, Meter: c.meter, Limit: limit,
			Used: used.of(c.meter), Reserved: reserved.of(c.meter), ResetsAt: r.windowEnd(c.window),
		}})
	}
	return all
}

func (r *reference) windowEnd(window quota.Window) time.Time {
	year, month, day := r.now.Date()
	switch window {
	case quota.Day:
		return time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
	case quota.Month:
		return time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
	default:
		return time.Time{}
	}
}

// sums returns the tokens of an owner's requests that were admitted in the current day or month, or ever: used by those that have
// ended, and reserved by those that run.
func (r *reference) sums(o *refOwner, window quota.Window) (used, reserved refTokens) {
	within := map[quota.Window]func(a, b time.Time) bool{
		quota.Life: func(_, _ time.Time) bool { return true }, quota.Month: sameMonth, quota.Day: sameDay,
	}[window]
	add := func(state refState) (sum refTokens) {
		for _, q := range r.in(state, o) {
			if within(q.admitted, r.now) {
				sum.input, sum.output = sum.input+q.tokens.input, sum.output+q.tokens.output
			}
		}
		return sum
	}
	return add(refEnded), add(refRunning)
}

func sameMonth(a, b time.Time) bool { return a.Year() == b.Year() && a.Month() == b.Month() }

func sameDay(a, b time.Time) bool { return a.Year() == b.Year() && a.YearDay() == b.YearDay() }

func (r *reference) totals(o *refOwner) ledgertest.Totals {
	month, reserved := r.sums(o, quota.Month)
	day, _ := r.sums(o, quota.Day)
	life, ever := r.sums(o, quota.Life)
	return ledgertest.Totals{
		LifeInput: life.input, LifeOutput: life.output, ReservedEver: ever.of(quota.Total),
		MonthInput: month.input, MonthOutput: month.output, Day: day.of(quota.Total), Reserved: reserved.of(quota.Total),
	}
}

// overdrawn returns an error if a request was granted that takes a cap's used and reserved tokens together above its limit.
func (r *reference) overdrawn(granted string) error {
	q := r.find(granted)
	for _, c := range r.caps(q) {
		if c.Used+c.Reserved > c.Limit {
			return fmt.Errorf("%s overdraws %s", granted, ledgertest.Text(c.Refusal))
		}
	}
	return nil
}

// Rows returns the rows of all requests that have ended.
func (r *reference) Rows() (all []ledgertest.Row) {
	for _, q := range r.in(refEnded, nil) {
		all = append(all, ledgertest.Row{
			Request: q.id, Key: q.key.ID, State: q.how, Date: q.admitted.Format(time.DateOnly),
			Prompt: q.tokens.input, Completion: q.tokens.output,
		})
	}
	slices.SortFunc(all, func(a, b ledgertest.Row) int { return cmp.Compare(a.Request, b.Request) })
	return all
}
