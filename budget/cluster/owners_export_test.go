package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"basegate/budget/quota"
)

// Owner is a key or an account, as the ledger knows it.
type Owner struct {
	ID      string
	Account string // of a key; empty for an account
	Caps    quota.Caps
	Slots   int  // the requests that may run at once; 0 is unbounded
	Enabled bool // false refuses its requests, also those that wait
}

// ownerChange is an Owner as ledger_owners reads it.
type ownerChange struct {
	ID          string    `json:"id"`
	Account     string    `json:"account"`
	Enabled     bool      `json:"enabled"`
	MonthTotal  quota.Cap `json:"month_total"`
	DayTotal    quota.Cap `json:"day_total"`
	MonthInput  quota.Cap `json:"month_input"`
	MonthOutput quota.Cap `json:"month_output"`
	Slots       *int      `json:"slots"`
}

// SetOwners does what changes of keys and accounts do, without their tables. An account that only keys name is recorded as
// disabled.
func (l *Ledger) SetOwners(ctx context.Context, owners []Owner) error {
	rows := make([]ownerChange, 0, len(owners))
	for _, o := range owners {
		row := ownerChange{
			ID: o.ID, Account: cmp.Or(o.Account, o.ID), Enabled: o.Enabled, MonthTotal: o.Caps.MonthTotal,
			DayTotal: o.Caps.DayTotal, MonthInput: o.Caps.MonthInput, MonthOutput: o.Caps.MonthOutput,
		}
		if o.Slots > 0 {
			row.Slots = &o.Slots
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b ownerChange) int { return cmp.Compare(a.ID, b.ID) })
	text, err := json.Marshal(rows)
	if err != nil {
		return fmt.Errorf("set owners: %w", err)
	}
	if _, err := l.db.Pool().Exec(ctx, `SELECT ledger_owners($1)`, string(text)); err != nil {
		return fmt.Errorf("set owners: %w", err)
	}
	return nil
}
