package cluster_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/internal/ledgercases"
	"basegate/quota"
)

func TestLedgerRepliesAsTheCommittedCasesSay(t *testing.T) {
	for _, c := range ledgercases.All(t) {
		t.Run(c.Name, func(t *testing.T) { c.Check(t, newCaseEngine(t, &c)) })
	}
}

// caseEngine runs a case on the ledger of one gateway.
type caseEngine struct {
	t        *testing.T
	db       *testDatabase
	ledger   *cluster.Ledger
	owners   map[string]cluster.Owner
	requests map[string]*caseRequest
}

// caseRequest is a request of a case.
type caseRequest struct {
	account     string
	admission   *cluster.Admission
	reservation budget.Reservation
	waiting     bool
}

func newCaseEngine(t *testing.T, c *ledgercases.Case) *caseEngine {
	t.Helper()
	e := &caseEngine{t: t, db: newDatabase(t), owners: map[string]cluster.Owner{}, requests: map[string]*caseRequest{}}
	e.db.setClock(t, c.Start)
	e.ledger = start(t, e.db, cluster.Settings{Name: "gateway", Lanes: 1})
	var owners []cluster.Owner
	for _, a := range c.Accounts {
		owners = append(owners, cluster.Owner{ID: a.ID, Caps: quotaCaps(a.Caps), Enabled: true})
	}
	for _, k := range c.Keys {
		owners = append(owners, cluster.Owner{ID: k.ID, Account: k.Account, Slots: k.Slots, Caps: quotaCaps(k.Caps), Enabled: true})
	}
	for _, o := range owners {
		e.owners[o.ID] = o
	}
	must(t, e.ledger.SetOwners(t.Context(), owners))
	return e
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

// Apply does one operation.
func (e *caseEngine) Apply(s ledgercases.Step) (reply ledgercases.Reply) {
	e.t.Helper()
	r := e.requests[s.Request]
	switch s.Op {
	case ledgercases.Admit:
		d := e.admit(s)
		reply.Decision = &d
	case ledgercases.Settle:
		must(e.t, r.reservation.Settle(e.t.Context(), budget.Outcome{Prompt: s.Prompt, Completion: s.Completion, Status: 200}))
	case ledgercases.Interrupt:
		r.reservation.Release()
	case ledgercases.Checkpoint:
		r.reservation.SetPromptTokens(s.Prompt)
		r.reservation.SetProgress(s.Completion)
	case ledgercases.Cancel:
		r.admission.Cancel()
		r.waiting = false
	case ledgercases.Clock:
		e.db.setClock(e.t, *s.Time)
	case ledgercases.SetCaps:
		o := e.owners[s.Owner]
		o.Caps, o.Slots, o.Enabled = quotaCaps(*s.Caps), s.Slots, !s.Disabled
		must(e.t, e.ledger.SetOwners(e.t.Context(), []cluster.Owner{o}))
	default:
		e.t.Fatalf("unknown operation %q", s.Op)
	}
	reply.Decided = e.decided()
	reply.Totals.Key, reply.Totals.Account = e.totals(s.Key), e.totals(e.owners[s.Key].Account)
	return reply
}

func (e *caseEngine) admit(s ledgercases.Step) ledgercases.Decision {
	account := e.owners[s.Key].Account
	admission, kind, reservation, err := e.ledger.Submit(e.t, budget.Payer{Key: s.Key, Account: account}, budget.Request{ID: s.Request},
		budget.Demand{
			PromptTokens: s.Demand.PromptTokens, Exact: s.Demand.Exact, Candidates: s.Demand.Candidates, MaxTokens: s.Demand.MaxTokens,
			MinTokens: s.Demand.MinTokens, Prompts: s.Demand.Prompts, Context: s.Demand.Context,
		})
	e.requests[s.Request] = &caseRequest{account, admission, reservation, kind == string(ledgercases.Wait)}
	return decision(kind, reservation, err)
}

// decided returns the decisions on requests that have waited.
func (e *caseEngine) decided() map[string]ledgercases.Decision {
	for _, o := range e.owners {
		if o.Account == "" {
			e.ledger.Sync(e.t, o.ID)
		}
	}
	var all map[string]ledgercases.Decision
	for id, r := range e.requests {
		if !r.waiting {
			continue
		}
		kind, reservation, err, ok := r.admission.Decided()
		if !ok {
			continue
		}
		if all == nil {
			all = map[string]ledgercases.Decision{}
		}
		r.waiting, r.reservation = false, reservation
		all[id] = decision(kind, reservation, err)
	}
	return all
}

func decision(kind string, r budget.Reservation, err error) ledgercases.Decision {
	d := ledgercases.Decision{Kind: ledgercases.Kind(kind)}
	if r != nil {
		d.MaxTokens = r.MaxTokens()
	}
	if exceeded, ok := errors.AsType[*budget.Exceeded](err); ok {
		d.Refusal = &ledgercases.Refusal{
			Scope: string(exceeded.Scope), Window: string(exceeded.Window), Meter: string(exceeded.Meter),
			Limit: exceeded.Limit, Used: exceeded.Used, Reserved: exceeded.Reserved, ResetsAt: exceeded.ResetsAt,
		}
	}
	return d
}

// totals reads the counters of an owner in the windows that the database's clock shows.
func (e *caseEngine) totals(owner string) (c ledgercases.Counters) {
	const text = `
		SELECT month_in * same_month, month_out * same_month, (day_in + day_out) * same_day, (reserved_in + reserved_out) * same_month
		FROM owner, LATERAL (SELECT (month = ledger_month(ledger_day(ledger_now())))::integer AS same_month,
			(day = ledger_day(ledger_now()))::integer AS same_day) s
		WHERE id = $1`
	e.db.query(e.t, text, []any{owner}, &c.MonthInput, &c.MonthOutput, &c.Day, &c.Reserved)
	return c
}

// Rows reads the table of ended requests.
func (e *caseEngine) Rows() []ledgercases.Row {
	const text = `SELECT request_id, key_id, state, time, prompt_tokens, completion_tokens FROM requests ORDER BY request_id`
	rows, err := e.db.conn.Query(e.t.Context(), text)
	must(e.t, err)
	var (
		all   []ledgercases.Row
		r     ledgercases.Row
		micro int64
	)
	_, err = pgx.ForEachRow(rows, []any{&r.Request, &r.Key, &r.State, &micro, &r.Prompt, &r.Completion}, func() error {
		r.Date = time.UnixMicro(micro).UTC().Format(time.DateOnly)
		all = append(all, r)
		return nil
	})
	must(e.t, err)
	return all
}
