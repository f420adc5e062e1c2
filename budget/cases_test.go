package budget_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/ledgercases"
)

func TestLedgerObeysTheRules(t *testing.T) {
	suite := caseSuite(func(t *testing.T, c *ledgercases.Case) ledgercases.Engine { t.Helper(); return newCaseEngine(t, c) })
	suite.Test(t)
}

// caseSuite runs cases on the engines that create returns.
func caseSuite(create func(*testing.T, *ledgercases.Case) ledgercases.Engine) *ledgercases.Suite {
	return &ledgercases.Suite{Order: ledgercases.BySlot, Run: func(t *testing.T, c *ledgercases.Case, use func(ledgercases.Engine)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { use(create(t, c)) })
	}}
}

// wrongEngine is an engine whose replies are changed.
type wrongEngine struct {
	ledgercases.Engine
	change func(*ledgercases.Reply)
}

func (e wrongEngine) Apply(s ledgercases.Step) ledgercases.Reply {
	reply := e.Engine.Apply(s)
	e.change(&reply)
	return reply
}

// changeDecision returns a change of all decisions of a kind: of their fields, or into no decision.
func changeDecision(kind ledgercases.Kind, change func(*ledgercases.Decision)) func(*ledgercases.Reply) {
	return func(r *ledgercases.Reply) {
		if d := r.Decision; d != nil && d.Kind == kind {
			change(d)
		}
		for id, d := range r.Decided {
			if d.Kind != kind {
				continue
			}
			if change(&d); d.Kind == ledgercases.Wait {
				delete(r.Decided, id)
			} else {
				r.Decided[id] = d
			}
		}
	}
}

func TestRulesRejectWrongReplies(t *testing.T) {
	for name, change := range map[string]func(*ledgercases.Reply){
		"a grant of more tokens":   changeDecision(ledgercases.Granted, func(d *ledgercases.Decision) { d.MaxTokens++ }),
		"a grant of fewer tokens":  changeDecision(ledgercases.Granted, func(d *ledgercases.Decision) { d.MaxTokens-- }),
		"a grant that is withheld": changeDecision(ledgercases.Granted, func(d *ledgercases.Decision) { d.Kind = ledgercases.Wait }),
		"a refusal for a grant":    changeDecision(ledgercases.Granted, func(d *ledgercases.Decision) { d.Kind = ledgercases.Disabled }),
		"a count for a grant":      changeDecision(ledgercases.Granted, func(d *ledgercases.Decision) { d.Kind = ledgercases.Count }),
		"a wait for a refusal":     changeDecision(ledgercases.Refused, func(d *ledgercases.Decision) { d.Kind = ledgercases.Wait }),
		"a grant for a refusal": changeDecision(ledgercases.Refused, func(d *ledgercases.Decision) {
			d.Kind, d.MaxTokens = ledgercases.Granted, 1
		}),
		"another cap's scope":   changeDecision(ledgercases.Refused, func(d *ledgercases.Decision) { d.Refusal.Scope += "x" }),
		"other used tokens":     changeDecision(ledgercases.Refused, func(d *ledgercases.Decision) { d.Refusal.Used++ }),
		"other reserved tokens": changeDecision(ledgercases.Refused, func(d *ledgercases.Decision) { d.Refusal.Reserved++ }),
		"another reset": changeDecision(ledgercases.Refused, func(d *ledgercases.Decision) {
			d.Refusal.ResetsAt = d.Refusal.ResetsAt.Add(time.Hour)
		}),
		"a grant for a wait": changeDecision(ledgercases.Wait, func(d *ledgercases.Decision) {
			d.Kind, d.MaxTokens = ledgercases.Granted, 1
		}),
		"a grant to a disabled key": changeDecision(ledgercases.Disabled, func(d *ledgercases.Decision) {
			d.Kind, d.MaxTokens = ledgercases.Granted, 1
		}),
		"a wait for a disabled key":   changeDecision(ledgercases.Disabled, func(d *ledgercases.Decision) { d.Kind = ledgercases.Wait }),
		"another sum of used tokens":  func(r *ledgercases.Reply) { r.Totals.Account.Day++ },
		"another sum of reservations": func(r *ledgercases.Reply) { r.Totals.Key.Reserved++ },
	} {
		suite := caseSuite(func(t *testing.T, c *ledgercases.Case) ledgercases.Engine {
			t.Helper()
			return wrongEngine{newCaseEngine(t, c), change}
		})
		if suite.Violation(t) == nil {
			t.Errorf("%s: the rules allow it", name)
		}
	}
}

// caseEngine runs a case on a Queue for the slots and a Ledger for the caps, as package proxy combines them. It must run in
// a synctest bubble.
type caseEngine struct {
	t        *testing.T
	clock    testClock
	db       *database.DB
	queue    *admission.Queue
	ledger   *budget.Ledger
	keys     map[string]ledgercases.Key
	accounts map[string]ledgercases.Account
	disabled map[string]bool
	requests map[string]*caseRequest
	waiting  []*caseRequest // in order of arrival
}

// caseRequest is a request of a case.
type caseRequest struct {
	id, key string
	demand  budget.Demand
	cancel  context.CancelFunc
	ctx     context.Context
	slot    *admission.Slot
	hasSlot chan error // of Slot.Wait
	call    *call      // of Reserve; nil before it has its slot
}

var (
	errMustCount   = errors.New("the prompt must be counted")
	errCaseDisable = errors.New("disabled")
)

func newCaseEngine(t *testing.T, c *ledgercases.Case) *caseEngine {
	t.Helper()
	e := &caseEngine{
		t: t, db: openDatabase(t, newPath(t)), queue: admission.New(admission.Settings{MaxBufferedBytes: 1 << 30}),
		keys: map[string]ledgercases.Key{}, accounts: map[string]ledgercases.Account{}, disabled: map[string]bool{},
		requests: map[string]*caseRequest{},
	}
	for _, k := range c.Keys {
		e.keys[k.ID] = k
	}
	for _, a := range c.Accounts {
		e.accounts[a.ID] = a
	}
	e.clock.set(c.Start)
	e.ledger = budget.New(e.db, zap.NewNop(), budget.Settings{Payer: e.payer})
	e.ledger.SetClock(e.clock.now)
	must(t, e.ledger.Start(t.Context()))
	t.Cleanup(e.ledger.Close)
	t.Cleanup(func() {
		for _, r := range e.requests {
			r.cancel()
		}
		synctest.Wait()
	})
	return e
}

func (e *caseEngine) payer(key string) (budget.Payer, error) {
	if e.disabled[key] {
		return budget.Payer{}, errCaseDisable
	}
	account := e.accounts[e.keys[key].Account]
	return budget.Payer{
		Key: key, Account: account.ID, KeyCaps: quotaCaps(e.keys[key].Caps), AccountCaps: quotaCaps(account.Caps),
		Slots: e.keys[key].Slots, AccountSlots: account.Slots,
	}, nil
}

func quotaCaps(c ledgercases.Caps) quota.Caps {
	limit := func(tokens *int64) quota.Cap {
		if tokens == nil {
			return quota.Unbounded()
		}
		return quota.Limit(*tokens)
	}
	return quota.Caps{
		MonthTotal: limit(c.MonthTotal), DayTotal: limit(c.DayTotal), MonthInput: limit(c.MonthInput), MonthOutput: limit(c.MonthOutput),
	}
}

// slots returns the slots of a key and its account. A disabled one has no limit, so that its requests are refused.
func (e *caseEngine) slots(key string) admission.Limits {
	const unbounded = 1 << 20
	if e.disabled[key] {
		return admission.Limits{Key: unbounded}
	}
	k := e.keys[key]
	return admission.Limits{Key: cmp.Or(k.Slots, unbounded), Account: cmp.Or(e.accounts[k.Account].Slots, unbounded)}
}

// Apply does one operation on the queue and the ledger.
func (e *caseEngine) Apply(s ledgercases.Step) (reply ledgercases.Reply) {
	e.t.Helper()
	switch s.Op {
	case ledgercases.Admit:
		e.enqueue(s)
	case ledgercases.Settle, ledgercases.Interrupt:
		e.end(s)
	case ledgercases.Checkpoint:
		r := e.requests[s.Request].call.r
		r.SetPromptTokens(s.Prompt)
		r.SetProgress(s.Completion)
	case ledgercases.Cancel:
		e.leave(e.requests[s.Request])
	case ledgercases.Clock:
		e.clock.set(*s.Time)
		must(e.t, e.ledger.LoadMonth(e.t.Context()))
		e.ledger.RefreshCaps()
	case ledgercases.SetCaps:
		e.setCaps(s)
	default:
		e.t.Fatalf("unknown operation %q", s.Op)
	}
	decided := e.decisions()
	if s.Op == ledgercases.Admit {
		d, ok := decided[s.Request]
		if !ok {
			d.Kind = ledgercases.Wait
		}
		delete(decided, s.Request)
		reply.Decision = &d
	}
	if len(decided) > 0 {
		reply.Decided = decided
	}
	b := e.ledger.Balance(budget.Payer{Key: s.Key, Account: e.keys[s.Key].Account})
	reply.Totals.Key, reply.Totals.Account = counterTotals(b.Key), counterTotals(b.Account)
	return reply
}

func counterTotals(c budget.Counters) ledgercases.Counters {
	return ledgercases.Counters{MonthInput: c.MonthInput, MonthOutput: c.MonthOutput, Day: c.Day, Reserved: c.Reserved()}
}

// enqueue puts a request into the queue of its key.
func (e *caseEngine) enqueue(s ledgercases.Step) {
	d := s.Demand
	r := &caseRequest{id: s.Request, key: s.Key, hasSlot: make(chan error, 1), demand: budget.Demand{
		PromptTokens: d.PromptTokens, Exact: d.Exact, Candidates: d.Candidates, MaxTokens: d.MaxTokens, MinTokens: d.MinTokens,
		Prompts: d.Prompts, Context: d.Context,
	}}
	r.ctx, r.cancel = context.WithCancel(e.t.Context())
	memory := e.queue.Allocate(s.Key)
	slot, err := e.queue.Enqueue(admission.Requester{Key: s.Key, Account: e.keys[s.Key].Account, Limits: e.slots(s.Key)}, &memory)
	must(e.t, err)
	r.slot = slot
	go func() { r.hasSlot <- slot.Wait(r.ctx) }()
	e.requests[r.id] = r
	e.waiting = append(e.waiting, r)
}

func (e *caseEngine) end(s ledgercases.Step) {
	r := e.requests[s.Request]
	if s.Op == ledgercases.Interrupt {
		r.call.r.Release()
	} else {
		settle(e.t, r.call.r, s.Prompt, s.Completion)
	}
	r.slot.Release()
}

// leave cancels a request that waits.
func (e *caseEngine) leave(r *caseRequest) {
	r.cancel()
	synctest.Wait()
	r.slot.Release()
	for i, w := range e.waiting {
		if w == r {
			e.waiting = append(e.waiting[:i:i], e.waiting[i+1:]...)
			break
		}
	}
}

func (e *caseEngine) setCaps(s ledgercases.Step) {
	if account, ok := e.accounts[s.Owner]; ok {
		account.Caps, account.Slots = *s.Caps, s.Slots
		e.accounts[s.Owner] = account
	} else {
		key := e.keys[s.Owner]
		key.Caps, key.Slots = *s.Caps, s.Slots
		e.keys[s.Owner], e.disabled[s.Owner] = key, s.Disabled
	}
	e.queue.SetLimits(e.slots)
	e.ledger.RefreshCaps()
}

// decisions calls Reserve for the requests that have got a slot, in order of arrival, and returns those that are decided.
func (e *caseEngine) decisions() map[string]ledgercases.Decision {
	decided := map[string]ledgercases.Decision{}
	for changed := true; changed; {
		changed = false
		for i, r := range e.waiting {
			d, ok := e.decision(r)
			if !ok {
				continue
			}
			decided[r.id] = d
			e.waiting = append(e.waiting[:i:i], e.waiting[i+1:]...)
			changed = true
			break
		}
	}
	return decided
}

// decision returns the decision on a request, if there is one.
func (e *caseEngine) decision(r *caseRequest) (d ledgercases.Decision, ok bool) {
	synctest.Wait()
	if r.call == nil {
		select {
		case err := <-r.hasSlot:
			must(e.t, err)
		default:
			return d, false
		}
		e.reserve(r)
	}
	if !r.call.returned() {
		return d, false
	}
	if r.call.err != nil {
		r.slot.Release()
	}
	var exceeded *budget.Exceeded
	switch err := r.call.err; {
	case err == nil:
		return ledgercases.Decision{Kind: ledgercases.Granted, MaxTokens: r.call.r.MaxTokens()}, true
	case errors.As(err, &exceeded):
		return refusedBy(exceeded), true
	case errors.Is(err, errMustCount):
		return ledgercases.Decision{Kind: ledgercases.Count}, true
	case errors.Is(err, budget.ErrKeyDisabled):
		return ledgercases.Decision{Kind: ledgercases.Disabled}, true
	default:
		e.t.Fatal(err)
		return d, false
	}
}

func refusedBy(e *budget.Exceeded) ledgercases.Decision {
	return ledgercases.Decision{Kind: ledgercases.Refused, Refusal: &ledgercases.Refusal{
		Scope: string(e.Scope), Window: string(e.Window), Meter: string(e.Meter),
		Limit: e.Limit, Used: e.Used, Reserved: e.Reserved, ResetsAt: e.ResetsAt,
	}}
}

// reserve calls Reserve in another goroutine, until it returns or waits.
func (e *caseEngine) reserve(r *caseRequest) {
	r.call = &call{cancel: r.cancel, done: make(chan struct{})}
	go func() {
		defer close(r.call.done)
		p := budget.Payer{Key: r.key, Account: e.keys[r.key].Account}
		r.call.r, r.call.err = e.ledger.Reserve(r.ctx, p, budget.Request{ID: r.id}, r.demand, &fakeRequester{countErr: errMustCount})
	}()
	synctest.Wait()
}

// Rows reads the table of ended requests.
func (e *caseEngine) Rows() []ledgercases.Row {
	must(e.t, e.db.WriteGrouped(e.t.Context(), func(database.Tx) error { return nil })) // after the rows that are queued
	const text = `SELECT request_id, key_id, state, time, prompt_tokens, completion_tokens FROM requests ORDER BY request_id`
	rows, err := e.db.Read().QueryContext(e.t.Context(), text)
	must(e.t, err)
	defer rows.Close()
	var all []ledgercases.Row
	for rows.Next() {
		var r ledgercases.Row
		var micro int64
		must(e.t, rows.Scan(&r.Request, &r.Key, &r.State, &micro, &r.Prompt, &r.Completion))
		r.Date = time.UnixMicro(micro).UTC().Format(time.DateOnly)
		all = append(all, r)
	}
	must(e.t, rows.Err())
	return all
}
