package cluster_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"basegate/budget"
	"basegate/budget/quota"
)

// ownerRow is a row of the table owner, of which ledger_evaluate reads these columns.
type ownerRow struct {
	ID          string `json:"id"`
	Day         string `json:"day"`
	Month       string `json:"month"`
	Running     int    `json:"running"`
	Blocked     bool   `json:"blocked"`
	MonthTotal  *int64 `json:"month_total"`
	DayTotal    *int64 `json:"day_total"`
	MonthInput  *int64 `json:"month_input"`
	MonthOutput *int64 `json:"month_output"`
	MonthIn     int64  `json:"month_in"`
	MonthOut    int64  `json:"month_out"`
	DayIn       int64  `json:"day_in"`
	DayOut      int64  `json:"day_out"`
	ReservedIn  int64  `json:"reserved_in"`
	ReservedOut int64  `json:"reserved_out"`
	ReservedDay int64  `json:"reserved_day"`
}

// evaluated is a request to evaluate, with its key and account.
type evaluated struct {
	I          int      `json:"i"`
	Key        ownerRow `json:"k"`
	Account    ownerRow `json:"a"`
	Prompt     int64    `json:"prompt"`
	Candidates int64    `json:"candidates"`
	Max        int64    `json:"max"`
	Min        int64    `json:"min"`
	Prompts    []int64  `json:"prompts,omitempty"`
	Times      []int64  `json:"times,omitempty"`
	Context    int64    `json:"context"`
}

// randomOwner returns an owner with counters and caps of a few tokens, so that several caps often leave the same.
func randomOwner(rng *rand.Rand, id string) ownerRow {
	limit := func() *int64 {
		if rng.IntN(2) == 0 {
			return nil
		}
		tokens := rng.Int64N(40)
		return &tokens
	}
	return ownerRow{
		ID: id, Day: "2027-11-27", Month: "2027-11-01",
		MonthTotal: limit(), DayTotal: limit(), MonthInput: limit(), MonthOutput: limit(),
		MonthIn: rng.Int64N(8), MonthOut: rng.Int64N(8), DayIn: rng.Int64N(8), DayOut: rng.Int64N(8),
		ReservedIn: rng.Int64N(8), ReservedOut: rng.Int64N(8), ReservedDay: rng.Int64N(8),
	}
}

func randomRequest(rng *rand.Rand, i int) evaluated {
	e := evaluated{
		I: i, Key: randomOwner(rng, "key"), Account: randomOwner(rng, "acc"), Prompt: rng.Int64N(16),
		Candidates: 1 + rng.Int64N(3), Max: 1 + rng.Int64N(12), Min: rng.Int64N(6),
	}
	if rng.IntN(2) == 0 {
		return e
	}
	e.Context, e.Prompt = 4+rng.Int64N(16), 0
	e.Candidates = 1 + rng.Int64N(2)
	for range e.Candidates {
		n := rng.Int64N(e.Context + 1)
		e.Prompts, e.Times = append(e.Prompts, n), append(e.Times, 1)
		e.Prompt += min(n, max(e.Context-e.Max, 0))
	}
	return e
}

// estimate evaluates the request by package budget.
func (e *evaluated) estimate() budget.Estimate {
	caps := func(o *ownerRow) quota.Caps {
		limit := func(tokens *int64) quota.Cap {
			if tokens == nil {
				return quota.Unbounded()
			}
			return quota.Limit(*tokens)
		}
		return quota.Caps{
			MonthTotal: limit(o.MonthTotal), DayTotal: limit(o.DayTotal), MonthInput: limit(o.MonthInput), MonthOutput: limit(o.MonthOutput),
		}
	}
	counters := func(o *ownerRow) budget.Counters {
		return budget.Counters{
			MonthInput: o.MonthIn, MonthOutput: o.MonthOut, Day: o.DayIn + o.DayOut,
			ReservedInput: o.ReservedIn, ReservedOutput: o.ReservedOut, ReservedDay: o.ReservedDay,
		}
	}
	b := budget.Balance{
		Payer: budget.Payer{Key: "key", Account: "acc", KeyCaps: caps(&e.Key), AccountCaps: caps(&e.Account)},
		Key:   counters(&e.Key), Account: counters(&e.Account), Time: time.Date(2027, 11, 27, 8, 0, 0, 0, time.UTC),
	}
	return b.Estimate(budget.Demand{
		PromptTokens: e.Prompt, Exact: true, Candidates: e.Candidates, MaxTokens: e.Max, MinTokens: e.Min,
		Prompts: e.Prompts, Context: e.Context,
	})
}

// The generated cases rarely reach caps that leave the same, or a prompt that a lower max_tokens makes too long.
func TestUsedTokensRefuseAndLowerRequestsAsInPackageBudget(t *testing.T) {
	const requests = 5_000
	rng := rand.New(rand.NewPCG(1, 1))
	all := make([]evaluated, requests)
	for i := range all {
		all[i] = randomRequest(rng, i)
	}
	text, err := json.Marshal(all)
	must(t, err)
	const query = `
		SELECT e.max_tokens, coalesce(e.refusal, '')
		FROM json_to_recordset($1) AS n(i integer, k json, a json, prompt bigint, candidates bigint, max bigint, min bigint,
			prompts bigint[], times bigint[], context bigint),
			LATERAL ledger_evaluate(json_populate_record(NULL::owner, n.k), json_populate_record(NULL::owner, n.a), n.prompt,
				n.candidates, n.max, n.min, n.prompts, n.times, n.context, true) e
		ORDER BY n.i`
	rows, err := newDatabase(t).conn.Query(t.Context(), query, string(text))
	must(t, err)
	type result struct {
		MaxTokens int64
		Refusal   string
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[result])
	must(t, err)
	counts := map[string]int{}
	for i, e := range all {
		estimate := e.estimate()
		want := result{MaxTokens: estimate.MaxTokens}
		kind := "admitted"
		if r := estimate.Refused; r != nil {
			kind = "refused"
			want.Refusal = fmt.Sprintf(`["%s", "%s", "%s", %d, %d, %d, %d]`,
				r.Scope, r.Window, r.Meter, r.Limit, r.Used, r.Reserved, r.ResetsAt.UnixMicro())
			got[i].MaxTokens = 0
		}
		counts[kind]++
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Fatalf("%+v (-package budget +PostgreSQL):\n%s", e, diff)
		}
	}
	if counts["admitted"] < requests/10 || counts["refused"] < requests/10 {
		t.Errorf("got %v, want many of both", counts)
	}
}
