package console

import (
	"context"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
)

// Ledger has the counters of keys and accounts. A budget.Ledger is one on SQLite, a cluster.Ledger one that several
// gateways share on PostgreSQL.
type Ledger interface {
	KeyTotals(id string) budget.WindowTotals
	AccountTotals(id string) budget.WindowTotals

	// Standings returns all caps of a payer that are set; AccountStandings those of an account alone.
	Standings(p budget.Payer) []budget.Standing
	AccountStandings(account string, caps quota.Caps) []budget.Standing

	// Exhausted returns the cap that refuses every request of a payer, or nil.
	Exhausted(p budget.Payer) *budget.Exceeded

	// LastUse returns when a key was last used, and the zero time if it never was.
	LastUse(ctx context.Context, key string) (time.Time, error)
}
