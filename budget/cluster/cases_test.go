package cluster_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/internal/ledgertest"
)

func TestLedgerObeysTheRules(t *testing.T) {
	db := newDatabase(t)
	db.setClock(t, time.Now())
	ledger := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1})
	for _, c := range ledgertest.Read(t, "../testdata/cases.jsonl.gz") {
		t.Run(c.Name, func(t *testing.T) {
			e := newCaseEngine(t, db, ledger, &c)
			defer e.close()
			if err := ledgertest.Play(&c, e); err != nil {
				t.Error(err)
			}
		})
	}
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
func newCaseEngine(t *testing.T, db *testDatabase, ledger *cluster.Ledger, c *ledgertest.Case) *caseEngine {
	t.Helper()
	e := &caseEngine{t: t, db: db, ledger: ledger, owners: map[string]cluster.Owner{}, requests: map[string]*caseRequest{}}
	db.exec(t, `DELETE FROM owner; DELETE FROM inflight; DELETE FROM waiter; DELETE FROM decided;
		DELETE FROM requests`)
	db.setClock(t, c.Start)
	for _, a := range c.Accounts {
		e.accounts = append(e.accounts, a.ID)
	}
	for _, o := range append(slices.Clone(c.Accounts), c.Keys...) {
		e.set(&o)
	}
	e.writeOwners()
	return e
}

func (e *caseEngine) set(o *ledgertest.Owner) {
	e.owners[o.ID] = cluster.Owner{ID: o.ID, Account: o.Account, Parent: o.Parent, Slots: o.Slots, Caps: o.Caps, Enabled: !o.Disabled}
}

// writeOwners evaluates all requests that wait again.
func (e *caseEngine) writeOwners() {
	must(e.t, e.ledger.SetOwners(e.t.Context(), slices.Collect(maps.Values(e.owners))))
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

// Apply does one operation.
func (e *caseEngine) Apply(s *ledgertest.Step) (reply ledgertest.Reply) {
	e.t.Helper()
	r := e.requests[s.Request]
	switch s.Op {
	case ledgertest.Admit:
		d := e.admit(s)
		reply.Decision = &d
	case ledgertest.Settle:
		must(e.t, r.reservation.Settle(e.t.Context(), budget.Outcome{Prompt: s.Prompt, Completion: s.Completion, Status: 200}))
	case ledgertest.Interrupt:
		r.reservation.Release()
	case ledgertest.Checkpoint:
		r.reservation.SetPromptTokens(s.Prompt)
		r.reservation.SetProgress(s.Completion)
	case ledgertest.Cancel:
		r.admission.Cancel()
		r.waiting = false
	case ledgertest.Clock:
		e.db.setClock(e.t, *s.Time)
	case ledgertest.Change:
		e.set(s.Owner)
		e.writeOwners()
	default:
		e.t.Fatalf("unknown operation %q", s.Op)
	}
	for _, account := range e.accounts {
		if s.Op == ledgertest.Clock || s.Op == ledgertest.Change || account == e.owners[s.Key].Account {
			e.ledger.Sync(e.t, account)
		}
	}
	reply.Decided = e.decided()
	e.addTotals(s.Key, &reply)
	return reply
}

func (e *caseEngine) admit(s *ledgertest.Step) ledgertest.Decision {
	account, request := e.owners[s.Key].Account, budget.Request{ID: s.Request}
	if s.Line {
		request.Batch = "batch"
	}
	admission, kind, reservation, err := e.ledger.Submit(e.t, budget.Payer{Key: s.Key, Account: account}, request, budget.Demand(*s.Demand))
	e.requests[s.Request] = &caseRequest{account, admission, reservation, kind == string(ledgertest.Wait)}
	return decision(kind, reservation, err)
}

// decided returns the decisions on requests that have waited.
func (e *caseEngine) decided() map[string]ledgertest.Decision {
	var all map[string]ledgertest.Decision
	for id, r := range e.requests {
		if !r.waiting {
			continue
		}
		kind, reservation, err, ok := r.admission.Decided()
		if !ok {
			continue
		}
		if all == nil {
			all = map[string]ledgertest.Decision{}
		}
		r.waiting, r.reservation = false, reservation
		all[id] = decision(kind, reservation, err)
	}
	return all
}

func decision(kind string, r budget.Reservation, err error) ledgertest.Decision {
	d := ledgertest.Decision{Kind: ledgertest.Kind(kind)}
	if r != nil {
		d.MaxTokens = r.MaxTokens()
	}
	if exceeded, ok := errors.AsType[*budget.Exceeded](err); ok {
		return ledgertest.RefusedBy(exceeded)
	}
	return d
}

// addTotals reads the counters of the owners of a key's requests in the windows that the database's clock shows.
func (e *caseEngine) addTotals(key string, to *ledgertest.Reply) {
	const text = `
		SELECT life_in, life_out, month_in * same_month, month_out * same_month, (day_in + day_out) * same_day, (reserved_month_in + reserved_month_out) * same_month,
			reserved_life_in + reserved_life_out
		FROM owner, LATERAL (SELECT (ledger_month(day) = ledger_month(ledger_day(ledger_now())))::integer AS same_month,
			(day = ledger_day(ledger_now()))::integer AS same_day) s
		WHERE id IN ($1, $2, $3) ORDER BY id = $2, id = $3`
	o := e.owners[key]
	rows, err := e.db.conn.Query(e.t.Context(), text, key, o.Account, o.Parent)
	must(e.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ledgertest.Totals])
	must(e.t, err)
	to.Key, to.Account = all[0], all[len(all)-1]
	if o.Parent != "" {
		to.Parent = &all[1]
	}
}

// Rows reads the table of ended requests. It fails the test if a counter is not the sum of its rows.
func (e *caseEngine) Rows() []ledgertest.Row {
	const differences = `
		SELECT coalesce(string_agg(d::text, ' '), '') FROM (
			SELECT ledger_month(day) AS month FROM owner UNION SELECT ledger_month(ledger_day(time)) FROM requests) m, LATERAL (
				SELECT * FROM ledger_differences_v1(m.month) UNION SELECT * FROM ledger_life_differences_v1()) d`
	var found string
	if e.db.query(e.t, differences, nil, &found); found != "" {
		e.t.Errorf("counters that are not the sums of their rows: %s", found)
	}
	const text = `SELECT request_id, key_id, state, time, prompt_tokens, completion_tokens FROM requests ORDER BY request_id`
	rows, err := e.db.conn.Query(e.t.Context(), text)
	must(e.t, err)
	var (
		all   []ledgertest.Row
		r     ledgertest.Row
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
