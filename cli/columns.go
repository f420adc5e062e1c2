package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"basegate/budget"
	"basegate/identity"
)

// names tells people's words for the ids on the ledger.
type names struct {
	keys     map[string]identity.Key
	accounts map[string]string
}

func readNames(ctx context.Context, store *identity.Store) (names, error) {
	n := names{keys: map[string]identity.Key{}, accounts: map[string]string{}}
	all, err := store.Keys.List(ctx)
	if err != nil {
		return n, fmt.Errorf("list keys: %w", err)
	}
	for _, k := range all {
		n.keys[k.ID] = k
	}
	accounts, err := store.Accounts.List(ctx)
	if err != nil {
		return n, fmt.Errorf("list accounts: %w", err)
	}
	for _, a := range accounts {
		n.accounts[a.ID] = a.Email
	}
	return n, nil
}

func (n names) key(id string) string     { return cmp.Or(n.keys[id].Prefix, id) }
func (n names) account(id string) string { return cmp.Or(n.accounts[id], id) }

// column is one of a usage report's.
type column struct {
	name  string
	aside bool // too much for a table
	value func(names, *budget.Row) any
}

var (
	requestsColumn = column{name: "requests", value: func(_ names, r *budget.Row) any { return r.Requests }}
	promptColumn   = column{name: "prompt_tokens", value: func(_ names, r *budget.Row) any { return r.PromptTokens }}
	outputColumn   = column{name: "completion_tokens", value: func(_ names, r *budget.Row) any { return r.CompletionTokens }}
	totalColumn    = column{name: "total_tokens", value: func(_ names, r *budget.Row) any { return r.PromptTokens + r.CompletionTokens }}
	keyColumn      = column{name: "key", value: func(n names, r *budget.Row) any { return n.key(r.KeyID) }}
	keyNameColumn  = column{name: "name", value: func(n names, r *budget.Row) any { return n.keys[r.KeyID].Name }}
	accountColumn  = column{name: "account", value: func(n names, r *budget.Row) any { return n.account(r.AccountID) }}
	modelColumn    = column{name: "model", value: func(_ names, r *budget.Row) any { return r.Model }}
	dayColumn      = column{name: "day", value: func(_ names, r *budget.Row) any { return r.Time.Format(time.DateOnly) }}
)

// added are the figures of requests that were added up.
var added = []column{requestsColumn, promptColumn, outputColumn, totalColumn}

// groupings are what usage can be added up by.
var groupings = []string{string(budget.ByRequest), string(budget.ByKey), string(budget.ByAccount), string(budget.ByModel), string(budget.ByDay)}

var columnsBy = map[budget.Grouping][]column{
	budget.ByKey:     append([]column{keyColumn, keyNameColumn, accountColumn}, added...),
	budget.ByAccount: append([]column{accountColumn}, added...),
	budget.ByModel:   append([]column{modelColumn}, added...),
	budget.ByDay:     append([]column{dayColumn}, added...),
	budget.ByRequest: {
		{name: "request_id", aside: true, value: func(_ names, r *budget.Row) any { return r.RequestID }},
		{name: "time", value: func(_ names, r *budget.Row) any { return r.Time }},
		keyColumn, accountColumn, modelColumn,
		{name: "backend", value: func(_ names, r *budget.Row) any { return r.Backend }},
		{name: "endpoint", aside: true, value: func(_ names, r *budget.Row) any { return r.Endpoint }},
		{name: "workload", aside: true, value: func(_ names, r *budget.Row) any { return r.Workload }},
		{name: "user", aside: true, value: func(_ names, r *budget.Row) any { return r.User }},
		{name: "stream", aside: true, value: func(_ names, r *budget.Row) any { return r.Stream }},
		{name: "status", value: func(_ names, r *budget.Row) any { return r.Status }},
		{name: "code", value: func(_ names, r *budget.Row) any { return r.Code }},
		{name: "state", value: func(_ names, r *budget.Row) any { return string(r.State) }},
		promptColumn, outputColumn,
		{name: "queue_ms", aside: true, value: func(_ names, r *budget.Row) any { return milliseconds(r.Queue) }},
		{name: "first_token_ms", aside: true, value: func(_ names, r *budget.Row) any { return milliseconds(r.FirstToken) }},
		{name: "total_ms", value: func(_ names, r *budget.Row) any { return milliseconds(r.Total) }},
	},
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
