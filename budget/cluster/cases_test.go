package cluster_test

import (
	"cmp"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/internal/ledgercases"
)

func TestLedgerObeysTheRules(t *testing.T) {
	db := newDatabase(t)
	db.setClock(t, time.Now())
	ledger := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1})
	suite := ledgercases.Suite{Order: ledgercases.ByArrival, Run: func(t *testing.T, c *ledgercases.Case, use func(ledgercases.Engine)) {
		t.Helper()
		e := newCaseEngine(t, db, ledger, c)
		defer e.close()
		use(e)
	}}
	suite.Test(t)
}

// caseEngine runs a case on the ledger of one gateway.
type caseEngine struct {
	t        *testing.T
	db       *testDatabase
	ledger   *cluster.Ledger
	owners   map[string]cluster.Owner
	accounts []string
	requests map[string]*caseRequest
}

// caseRequest is a request of a case.
type caseRequest struct {
	account     string
	admission   *cluster.Admission
	reservation budget.Reservation
	waiting     bool
}

// newCaseEngine empties the database of the cases before.
func newCaseEngine(t *testing.T, db *testDatabase, ledger *cluster.Ledger, c *ledgercases.Case) *caseEngine {
	t.Helper()
	e := &caseEngine{t: t, db: db, ledger: ledger, owners: map[string]cluster.Owner{}, requests: map[string]*caseRequest{}}
	db.exec(t, `DELETE FROM owner; DELETE FROM inflight; DELETE FROM waiter; DELETE FROM decided;
		DELETE FROM requests`)
	db.setClock(t, c.Start)
	var owners []cluster.Owner
	for _, a := range c.Accounts {
		e.accounts = append(e.accounts, a.ID)
		owners = append(owners, cluster.Owner{ID: a.ID, Slots: a.Slots, Caps: quotaCaps(a.Caps), Enabled: true})
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

// close ends all requests, so that the ledger holds nothing for the next case.
func (e *caseEngine) close() {
	for _, r := range e.requests {
		switch {
		case r.waiting:
			r.admission.Cancel()
		case r.reservation != nil:
			r.reservation.Release()
		}
	}
	for _, account := range e.accounts {
		e.ledger.Sync(e.t, account)
	}
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
	for _, account := range e.accounts {
		if s.Op == ledgercases.Clock || account == cmp.Or(e.owners[cmp.Or(s.Owner, s.Key)].Account, s.Owner) {
			e.ledger.Sync(e.t, account)
		}
	}
	reply.Decided = e.decided()
	reply.Totals = e.totals(s.Key)
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

// totals reads the counters of a key and its account in the windows that the database's clock shows.
func (e *caseEngine) totals(key string) ledgercases.Totals {
	const text = `
		SELECT month_in * same_month, month_out * same_month, day_used * same_day, (reserved_in + reserved_out) * same_month
		FROM owner, LATERAL (SELECT (ledger_month(day) = ledger_month(ledger_day(ledger_now())))::integer AS same_month,
			(day = ledger_day(ledger_now()))::integer AS same_day) s
		WHERE id IN ($1, $2) ORDER BY id = account`
	rows, err := e.db.conn.Query(e.t.Context(), text, key, e.owners[key].Account)
	must(e.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ledgercases.Counters])
	must(e.t, err)
	return ledgercases.Totals{Key: all[0], Account: all[1]}
}

// Rows reads the table of ended requests. It fails the test if a counter is not the sum of its rows.
func (e *caseEngine) Rows() []ledgercases.Row {
	const differences = `
		SELECT coalesce(string_agg(d::text, ' '), '') FROM (
			SELECT ledger_month(day) AS month FROM owner UNION SELECT ledger_month(ledger_day(time)) FROM requests) m, ledger_differences_v1(m.month) d`
	var found string
	if e.db.query(e.t, differences, nil, &found); found != "" {
		e.t.Errorf("counters that are not the sums of their rows: %s", found)
	}
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
