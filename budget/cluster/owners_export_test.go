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
	Parent  string // of a key; empty if it has none
	Caps    quota.Caps
	Slots   int  // the requests that may run at once; 0 is unbounded
	Enabled bool // false refuses its requests, also those that wait
}

// ownerChange is an Owner as ledger_owners reads it.
type ownerChange struct {
	ID      string     `json:"id"`
	Account string     `json:"account"`
	Parent  *string    `json:"parent"`
	Enabled bool       `json:"enabled"`
	Caps    quota.Caps `json:"caps"`
	Slots   *int       `json:"slots"`
}

// SetOwners does what changes of keys and accounts do, without their tables. An account that only keys name is recorded as
// disabled.
func (l *Ledger) SetOwners(ctx context.Context, owners []Owner) error {
	rows := make([]ownerChange, 0, len(owners))
	for _, o := range owners {
		row := ownerChange{ID: o.ID, Account: cmp.Or(o.Account, o.ID), Enabled: o.Enabled, Caps: o.Caps}
		if o.Parent != "" {
			row.Parent = &o.Parent
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
