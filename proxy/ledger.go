package proxy

import (
	"context"
	"fmt"
	"math"

	"basegate/budget"
	"basegate/budget/admission"
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

// ClusterSlots are the slots of keys and accounts if the Ledger gives them out with its reservations, for several gateways together. Package
// admission then counts requests and memory, and limits no key.
type ClusterSlots interface {
	// Stats returns how many requests of a key or an account run and wait at all gateways, as of the last reply that concerned
	// it.
	Stats(owner string) admission.KeyStats
}

// noLimit is the limit of a queue that only counts.
const noLimit = math.MaxInt

// keyStats returns how many requests of the exchange's key run and wait.
func (s *Server) keyStats(key string) admission.KeyStats {
	if s.slots != nil {
		return s.slots.Stats(key)
	}
	return s.queue.KeyStats(key)
}

// accountStats returns how many requests of an account run and wait.
func (s *Server) accountStats(account string) admission.KeyStats {
	if s.slots != nil {
		return s.slots.Stats(account)
	}
	return s.queue.AccountStats(account)
}

// countRunning counts a request whose slot came with its reservation.
func (s *Server) countRunning(x *exchange) error {
	slot, err := s.queue.Enqueue(admission.Requester{
		Key: x.caller.identity.KeyID, Account: x.caller.identity.AccountID, Limits: admission.Limits{Key: noLimit},
	}, &x.memory)
	if err != nil {
		x.reservation.Release()
		return err
	}
	x.slot = slot
	return nil
}

// acquireCount waits until the key and its account may have another prompt counted at this gateway, if the request has no slot yet. release
// is never nil.
func (s *Server) acquireCount(ctx context.Context, x *exchange) (release func(), err error) {
	if s.slots == nil || x.caller.line != nil {
		return func() {}, nil
	}
	slot, err := s.counts.Acquire(ctx, s.requester(x), &x.memory)
	if err != nil {
		return func() {}, err
	}
	return slot.Release, nil
}

// releaseSlot releases the slot, if the request has one. It may be called more than once.
func (x *exchange) releaseSlot() {
	if x.slot != nil {
		x.slot.Release()
	}
}

// clusterComment returns the comment of a request that waits in the ledger. The requests that wait of its key, and of its
// account if that has no slot, are known without their order, so their number is an upper bound; it only falls, since later ones
// come behind.
func (s *Server) clusterComment(x *exchange) func() string {
	most, i := math.MaxInt, &x.caller.identity
	return func() string {
		waiting, account := s.slots.Stats(i.KeyID).Waiting, s.slots.Stats(i.AccountID)
		if limit := s.Limits(i).Account; waiting > 0 && limit > 0 && account.Running >= limit {
			waiting = max(waiting, account.Waiting)
		}
		if waiting > 0 {
			most = min(most, waiting-1)
			return fmt.Sprintf("queued, at most %d before you", most)
		}
		return waitingForBudget()
	}
}
