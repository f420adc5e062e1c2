package proxy

import (
	"context"

	"basegate/budget"
)

// Ledger reserves and charges the tokens of requests. A budget.Ledger is one on SQLite, a cluster.Ledger one that several
// gateways share on PostgreSQL.
type Ledger interface {
	// Reserve reserves the worst-case cost of a request, and waits as long as other requests stand in the way.
	Reserve(ctx context.Context, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester) (budget.Reservation, error)

	// TryReserve is Reserve without waiting: it returns budget.ErrReserved instead.
	TryReserve(ctx context.Context, p budget.Payer, r budget.Request, d budget.Demand, requester budget.Requester) (budget.Reservation, error)

	// Exhausted returns the cap that refuses every request of a payer, or nil.
	Exhausted(p budget.Payer) *budget.Exceeded

	// FitsUnused reports whether a demand would fit all caps of a payer if nothing of them were used.
	FitsUnused(p budget.Payer, d budget.Demand) bool

	// Estimate returns what Reserve would decide, and reserves nothing.
	Estimate(ctx context.Context, p budget.Payer, d budget.Demand) (budget.Estimate, error)

	// Standings returns all caps of a payer that are set, the key's before the account's.
	Standings(p budget.Payer) []budget.Standing

	// Headroom returns what the tightest caps of a payer leave, and false if none is set.
	Headroom(p budget.Payer) (h budget.Headroom, ok bool)
}
