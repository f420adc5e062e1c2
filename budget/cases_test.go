package budget_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/ledgertest"
)

var updateCases = flag.Bool("update", false, "rewrite the file of cases in testdata, or the one that BASEGATE_LEDGER_CASES names")

// casesFile holds the cases of storedSeeds seeds of each family. See testdata/README.md.
const (
	casesFile   = "testdata/cases.jsonl.gz"
	storedSeeds = 50
)

// Variables of the environment for the cases that are generated: how many seeds to take, which are new in each run and shared out
// to the families, or the one seed to take, with every family.
const (
	freshSeeds = "BASEGATE_LEDGER_SEEDS"
	oneSeed    = "BASEGATE_LEDGER_SEED"
)

// generatedCases returns the cases of storedSeeds seeds of each family, or those that the environment asks for.
func generatedCases(t *testing.T) (all []ledgertest.Case) {
	t.Helper()
	number := func(name string) (n uint64, set bool) {
		text := os.Getenv(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		return n, true
	}
	seed, one := number(oneSeed)
	fresh, many := number(freshSeeds)
	switch {
	case one:
		for i := range families {
			all = append(all, *generate(t, &families[i], seed))
		}
	case many:
		for i := range fresh {
			all = append(all, *generate(t, &families[i%uint64(len(families))], uint64(rand.Uint32())))
		}
	default:
		for i := range families {
			for seed := range uint64(storedSeeds) {
				all = append(all, *generate(t, &families[i], seed))
			}
		}
	}
	return all
}

func TestCasesAreThoseOfTheReference(t *testing.T) {
	cases := generatedCases(t)
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for i := range cases {
		must(t, encoder.Encode(&cases[i]))
	}
	if *updateCases {
		var content bytes.Buffer
		file := gzip.NewWriter(&content)
		_, err := file.Write(lines.Bytes())
		must(t, errors.Join(err, file.Close(), os.WriteFile(ledgertest.Path(casesFile), content.Bytes(), 0o600)))
		return
	}
	stored := map[string]string{}
	for _, c := range ledgertest.Read(t, casesFile) {
		stored[c.Name] = ledgertest.Text(c)
	}
	for _, c := range cases {
		if stored[c.Name] != ledgertest.Text(c) {
			t.Errorf("%s differs: go test ./budget -run TestCasesAreThoseOfTheReference -update writes the file anew", c.Name)
		}
	}
	if len(stored) != len(cases) {
		t.Errorf("the file has %d cases, want %d", len(stored), len(cases))
	}
}

// The file would show little if a decision were rare in it.
func TestCasesHaveEveryDecisionOften(t *testing.T) {
	counts := map[string]int{}
	for _, c := range ledgertest.Read(t, casesFile) {
		for _, s := range c.Steps {
			counts[string(s.Op)]++
			if d := s.Reply.Decision; d != nil {
				counts[fmt.Sprintf("at once, line %v: %s", s.Line, d.Kind)]++
			}
			for _, d := range s.Reply.Decided {
				counts["after a wait: "+string(d.Kind)]++
			}
		}
	}
	t.Log(counts)
	for _, what := range []string{
		"admit", "settle", "checkpoint", "interrupt", "cancel", "clock", "change",
		"at once, line false: granted", "at once, line false: refused", "at once, line false: count", "at once, line false: wait",
		"at once, line false: disabled", "at once, line true: granted", "at once, line true: refused", "at once, line true: count",
		"at once, line true: reserved", "after a wait: granted", "after a wait: refused", "after a wait: disabled",
	} {
		if counts[what] < 50 {
			t.Errorf("%s: %d times, want at least 50", what, counts[what])
		}
	}
}

func TestAccountObeysTheRules(t *testing.T) {
	playAll(t, ledgertest.Read(t, casesFile), func(_ *testing.T, c *ledgertest.Case, use func(ledgertest.Engine)) { use(newAccountEngine(c)) })
}

// More seeds than the file has, and a clock that is also set back, which the ledger on PostgreSQL does not follow.
func TestAccountAgreesWithTheReference(t *testing.T) {
	var cases []ledgertest.Case
	for _, f := range families {
		for seed := range uint64(100) {
			cases = append(cases, *generate(t, &f, storedSeeds+seed))
		}
		f.name, f.back = f.name+" and a clock set back", true
		for seed := range uint64(100) {
			cases = append(cases, *generate(t, &f, seed))
		}
	}
	playAll(t, cases, func(_ *testing.T, c *ledgertest.Case, use func(ledgertest.Engine)) { use(newAccountEngine(c)) })
}

func TestLedgerObeysTheRules(t *testing.T) {
	playAll(t, ledgertest.Read(t, casesFile), func(t *testing.T, c *ledgertest.Case, use func(ledgertest.Engine)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { use(newLedgerEngine(t, c)) })
	})
}

// playAll runs cases on the engines that run creates. One that fails is reduced to the operations that it needs to fail.
func playAll(t *testing.T, cases []ledgertest.Case, run func(*testing.T, *ledgertest.Case, func(ledgertest.Engine))) {
	t.Helper()
	play := func(t *testing.T, c *ledgertest.Case) (err error) {
		t.Helper()
		run(t, c, func(e ledgertest.Engine) { err = ledgertest.Play(c, e) })
		return err
	}
	for i := range cases {
		t.Run(cases[i].Name, func(t *testing.T) {
			err := play(t, &cases[i])
			if err == nil {
				return
			}
			c := &cases[i]
			for size := len(c.Steps) / 2; size > 0; size /= 2 {
				for at := 0; at < len(c.Steps); {
					shorter := replied(c, slices.Delete(slices.Clone(c.Steps), at, min(at+size, len(c.Steps))))
					if failed := play(t, shorter); failed != nil {
						c, err = shorter, failed
					} else {
						at += size
					}
				}
			}
			t.Errorf("%v\n%d of its %d steps are enough to fail:\n%s", err, len(c.Steps), len(cases[i].Steps), ledgertest.Text(c))
		})
	}
}

// replied returns a case with those of the steps that are possible, and the replies of the reference.
func replied(c *ledgertest.Case, steps []ledgertest.Step) *ledgertest.Case {
	of := &ledgertest.Case{Name: c.Name, Start: c.Start, Accounts: c.Accounts, Keys: c.Keys}
	r := newReference(of)
	for _, s := range steps {
		if r.possible(&s) {
			s.Reply = r.Apply(&s)
			of.Steps = append(of.Steps, s)
		}
	}
	of.Rows = r.Rows()
	return of
}

// accountEngine runs a case on accounts alone.
type accountEngine struct {
	now      time.Time
	accounts map[string]*budget.Account // by the ids of accounts and of keys
	all      []*budget.Account
	requests map[string]*accountRequest

	// Of budget.Account; mutants have others.
	admit  func(*budget.Account, time.Time, *budget.Waiter) budget.Decision
	settle func(a *budget.Account, l *budget.Lease, input, output int64)
	grant  func(a *budget.Account, now time.Time, all bool)
}

// accountRequest is a request of a case.
type accountRequest struct {
	waiter  *budget.Waiter
	lease   *budget.Lease // nil unless it runs
	outcome ledgertest.Row
	ended   bool
	input   int64 // of the last checkpoint
	output  int64
}

func newAccountEngine(c *ledgertest.Case) *accountEngine {
	e := &accountEngine{
		now: c.Start, accounts: map[string]*budget.Account{}, requests: map[string]*accountRequest{},
		admit: (*budget.Account).Admit, settle: (*budget.Account).Settle, grant: (*budget.Account).Grant,
	}
	keys := map[string]*budget.Owner{}
	for i := range c.Accounts {
		a := budget.NewAccount(c.Accounts[i].ID, keys)
		e.all = append(e.all, a)
		e.accounts[a.ID] = a
		e.set(&c.Accounts[i])
	}
	for i := range c.Keys {
		e.accounts[c.Keys[i].ID] = e.accounts[c.Keys[i].Account]
		e.set(&c.Keys[i])
	}
	return e
}

func (e *accountEngine) set(to *ledgertest.Owner) {
	o := &e.accounts[to.ID].Owner
	if o.ID != to.ID {
		o = e.accounts[to.ID].Key(to.ID)
	}
	if to.Parent != "" {
		o.Parent = e.accounts[to.ID].Key(to.Parent)
	}
	o.SetCaps(to.Caps)
	o.Slots, o.Disabled = to.Slots, to.Disabled
}

// Apply implements ledgertest.Engine.
func (e *accountEngine) Apply(s *ledgertest.Step) (reply ledgertest.Reply) {
	a, r := e.accounts[s.Key], e.requests[s.Request]
	switch s.Op {
	case ledgertest.Admit:
		r = &accountRequest{waiter: &budget.Waiter{Request: budget.Request{ID: s.Request, KeyID: s.Key}, Demand: budget.Demand(*s.Demand)}}
		if s.Line {
			r.waiter.NoWait, r.waiter.Request.Batch = true, "batch"
		}
		e.requests[s.Request] = r
		decided := e.admit(a, e.now, r.waiter)
		d := r.decide(&decided)
		reply.Decision = &d
	case ledgertest.Settle:
		e.end(a, r, "settled", s.Prompt, s.Completion)
	case ledgertest.Checkpoint:
		r.input, r.output = s.Prompt, s.Completion
	case ledgertest.Interrupt:
		e.end(a, r, "interrupted", r.input, r.output)
	case ledgertest.Cancel:
		a.Cancel(r.waiter)
		e.grant(a, e.now, false)
	case ledgertest.Clock:
		e.now = *s.Time
		for _, a := range e.all {
			if a.Waiting > 0 && a.Granted != budget.DateOf(e.now) {
				e.grant(a, e.now, false)
			}
		}
	case ledgertest.Change:
		e.set(s.Owner)
		for _, a := range e.all {
			e.grant(a, e.now, true)
		}
	}
	for _, a := range e.all {
		for _, w := range a.Changes.Decided {
			if reply.Decided == nil {
				reply.Decided = map[string]ledgertest.Decision{}
			}
			reply.Decided[w.Request.ID] = e.requests[w.Request.ID].decide(&w.Result)
		}
		a.Changes = budget.Changes{}
	}
	today := budget.DateOf(e.now)
	k := a.Key(s.Key)
	reply.Key, reply.Account = totals(k.Counters(today)), totals(a.Counters(today))
	if k.Parent != nil {
		of := totals(k.Parent.Counters(today))
		reply.Parent = &of
	}
	return reply
}

// decide records a decision, and returns it in the form of a case.
func (r *accountRequest) decide(d *budget.Decision) ledgertest.Decision {
	if d.Kind == budget.Granted {
		r.lease = &d.Lease
		r.outcome = ledgertest.Row{Request: d.Lease.Request, Key: d.Lease.Key, Date: d.Time.Format(time.DateOnly)}
		return ledgertest.Decision{Kind: ledgertest.Granted, MaxTokens: d.MaxTokens}
	}
	if d.Kind == budget.Refused {
		return ledgertest.RefusedBy(d.Exceeded)
	}
	return ledgertest.Decision{Kind: ledgertest.Kind(d.Kind)}
}

// end charges no more than is reserved, once.
func (e *accountEngine) end(a *budget.Account, r *accountRequest, state string, input, output int64) {
	if r.ended {
		return
	}
	r.ended, r.outcome.State = true, state
	r.outcome.Prompt, r.outcome.Completion = min(input, r.lease.Input), min(output, r.lease.Output)
	e.settle(a, r.lease, r.outcome.Prompt, r.outcome.Completion)
	e.grant(a, e.now, false)
}

// Rows implements ledgertest.Engine.
func (e *accountEngine) Rows() (all []ledgertest.Row) {
	for _, r := range e.requests {
		if r.ended {
			all = append(all, r.outcome)
		}
	}
	slices.SortFunc(all, func(a, b ledgertest.Row) int { return cmp.Compare(a.Request, b.Request) })
	return all
}

func totals(c budget.Counters) ledgertest.Totals {
	return ledgertest.Totals{
		LifeInput: c.Used[quota.Life].Input, LifeOutput: c.Used[quota.Life].Output, ReservedEver: c.Reserved[quota.Life].Total(),
		MonthInput: c.Used[quota.Month].Input, MonthOutput: c.Used[quota.Month].Output, Day: c.Used[quota.Day].Total(),
		Reserved: c.Reserved[quota.Month].Total(),
	}
}

// ledgerEngine runs a case on a Ledger. It must run in a synctest bubble.
type ledgerEngine struct {
	t        *testing.T
	clock    testClock
	db       *database.DB
	ledger   *budget.Ledger
	owners   map[string]ledgertest.Owner
	requests map[string]*call // of Reserve
	waiting  map[string]*call
}

var (
	errMustCount   = errors.New("the prompt must be counted")
	errCaseDisable = errors.New("disabled")
)

func newLedgerEngine(t *testing.T, c *ledgertest.Case) *ledgerEngine {
	t.Helper()
	e := &ledgerEngine{
		t: t, db: openDatabase(t, newPath(t)), owners: map[string]ledgertest.Owner{}, requests: map[string]*call{},
		waiting: map[string]*call{},
	}
	for _, o := range append(slices.Clone(c.Keys), c.Accounts...) {
		e.owners[o.ID] = o
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

func (e *ledgerEngine) payer(key string) (budget.Payer, error) {
	k := e.owners[key]
	if k.Disabled {
		return budget.Payer{}, errCaseDisable
	}
	a := e.owners[k.Account]
	p := budget.Payer{
		Key: key, Account: a.ID, KeyCaps: k.Caps, AccountCaps: a.Caps, Slots: k.Slots, AccountSlots: a.Slots,
	}
	if k.Parent != "" {
		parent := e.owners[k.Parent]
		if parent.Disabled {
			return budget.Payer{}, errCaseDisable
		}
		p.Parent = &budget.ParentKey{ID: k.Parent, Caps: parent.Caps, Slots: parent.Slots}
	}
	return p, nil
}

// Apply implements ledgertest.Engine.
func (e *ledgerEngine) Apply(s *ledgertest.Step) (reply ledgertest.Reply) {
	e.t.Helper()
	r := e.requests[s.Request]
	switch s.Op {
	case ledgertest.Admit:
		e.reserve(s)
	case ledgertest.Settle:
		settle(e.t, r.r, s.Prompt, s.Completion)
	case ledgertest.Interrupt:
		r.r.Release()
	case ledgertest.Checkpoint:
		r.r.SetPromptTokens(s.Prompt)
		r.r.SetProgress(s.Completion)
	case ledgertest.Cancel:
		r.cancel()
		<-r.done
		delete(e.waiting, s.Request)
	case ledgertest.Clock:
		e.clock.set(*s.Time)
		e.ledger.Rollover(e.t.Context())
	case ledgertest.Change:
		e.owners[s.Owner.ID] = *s.Owner
		e.ledger.RefreshCaps()
	}
	decided := map[string]ledgertest.Decision{}
	for id, r := range e.waiting {
		if r.returned() {
			decided[id] = e.decision(r)
			delete(e.waiting, id)
		}
	}
	if s.Op == ledgertest.Admit {
		d, ok := decided[s.Request]
		if !ok {
			d.Kind = ledgertest.Wait
		}
		delete(decided, s.Request)
		reply.Decision = &d
	}
	if len(decided) > 0 {
		reply.Decided = decided
	}
	k := e.owners[s.Key]
	p := budget.Payer{Key: s.Key, Account: k.Account}
	if k.Parent != "" {
		p.Parent = &budget.ParentKey{ID: k.Parent}
	}
	b := e.ledger.Balance(p)
	reply.Key, reply.Account = totals(b.Key), totals(b.Account)
	if p.Parent != nil {
		of := totals(b.Parent)
		reply.Parent = &of
	}
	return reply
}

// reserve calls Reserve in another goroutine, or TryReserve for the line of a batch.
func (e *ledgerEngine) reserve(s *ledgertest.Step) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	r := &call{cancel: cancel, done: make(chan struct{})}
	e.requests[s.Request], e.waiting[s.Request] = r, r
	reserve, request := e.ledger.Reserve, budget.Request{ID: s.Request}
	if s.Line {
		reserve, request.Batch = e.ledger.TryReserve, "batch"
	}
	go func() {
		defer close(r.done)
		p := budget.Payer{Key: s.Key, Account: e.owners[s.Key].Account}
		r.r, r.err = reserve(ctx, p, request, budget.Demand(*s.Demand), &fakeRequester{countErr: errMustCount})
	}()
}

// decision returns what a call of Reserve has returned.
func (e *ledgerEngine) decision(r *call) (d ledgertest.Decision) {
	var exceeded *budget.Exceeded
	switch {
	case r.err == nil:
		return ledgertest.Decision{Kind: ledgertest.Granted, MaxTokens: r.r.MaxTokens()}
	case errors.As(r.err, &exceeded):
		return ledgertest.RefusedBy(exceeded)
	case errors.Is(r.err, errMustCount):
		d.Kind = ledgertest.Count
	case errors.Is(r.err, budget.ErrReserved):
		d.Kind = ledgertest.Reserved
	case errors.Is(r.err, budget.ErrKeyDisabled):
		d.Kind = ledgertest.Disabled
	default:
		e.t.Fatal(r.err)
	}
	return d
}

// Rows reads the table of ended requests.
func (e *ledgerEngine) Rows() (all []ledgertest.Row) {
	must(e.t, e.db.WriteGrouped(e.t.Context(), func(database.Tx) error { return nil })) // after the rows that are queued
	const text = `SELECT request_id, key_id, state, time, prompt_tokens, completion_tokens FROM requests ORDER BY request_id`
	rows, err := e.db.Read().QueryContext(e.t.Context(), text)
	must(e.t, err)
	defer rows.Close()
	for rows.Next() {
		var r ledgertest.Row
		var micro int64
		must(e.t, rows.Scan(&r.Request, &r.Key, &r.State, &micro, &r.Prompt, &r.Completion))
		r.Date = time.UnixMicro(micro).UTC().Format(time.DateOnly)
		all = append(all, r)
	}
	must(e.t, rows.Err())
	return all
}
