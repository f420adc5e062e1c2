package proxy

import (
	"context"
	"fmt"
	"math"

	"basegate/admission"
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

// ClusterSlots are the slots of keys if the Ledger gives them out with its reservations, for several gateways together. Package
// admission then counts requests and memory, and limits no key.
type ClusterSlots interface {
	// KeyStats returns how many requests of a key run and wait at all gateways, as of the last reply that concerned it.
	KeyStats(key string) admission.KeyStats
}

// noLimit is the limit of a queue that only counts.
const noLimit = math.MaxInt

// keyStats returns how many requests of the exchange's key run and wait.
func (s *Server) keyStats(key string) admission.KeyStats {
	if s.slots != nil {
		return s.slots.KeyStats(key)
	}
	return s.queue.KeyStats(key)
}

// countRunning counts a request whose slot came with its reservation.
func (s *Server) countRunning(x *exchange) error {
	slot, err := s.queue.Enqueue(x.caller.identity.KeyID, noLimit, &x.memory)
	if err != nil {
		x.reservation.Release()
		return err //nolint:wrapcheck // compared by reserveErr
	}
	x.slot = slot
	return nil
}

// acquireCount waits until the key may have another prompt counted at this gateway, if the request has no slot yet. release
// is never nil.
func (s *Server) acquireCount(ctx context.Context, x *exchange) (release func(), err error) {
	if s.slots == nil || x.caller.line != nil {
		return func() {}, nil
	}
	slot, err := s.counts.Acquire(ctx, x.caller.identity.KeyID, s.Concurrency(&x.caller.identity), &x.memory)
	if err != nil {
		return func() {}, err //nolint:wrapcheck // compared by reserveErr
	}
	return slot.Release, nil
}

// releaseSlot releases the slot, if the request has one. It may be called more than once.
func (x *exchange) releaseSlot() {
	if x.slot != nil {
		x.slot.Release()
	}
}

// clusterComment returns the comment of a request that waits in the ledger. The requests of the key that wait are known
// without their order, so their number is an upper bound; it only falls, since later ones come behind.
func (s *Server) clusterComment(x *exchange) func() string {
	most, key := math.MaxInt, x.caller.identity.KeyID
	return func() string {
		if waiting := s.slots.KeyStats(key).Waiting; waiting > 0 {
			most = min(most, waiting-1)
			return fmt.Sprintf("queued, at most %d before you", most)
		}
		return waitingForBudget()
	}
}
