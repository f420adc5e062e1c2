package fleet

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
	"basegate/database/postgres"
)

// operation is what a gateway does with a backend while it holds the backend's lease.
type operation string

const (
	opNone   operation = ""
	opLaunch operation = "launch"
	opWake   operation = "wake"
	opStop   operation = "stop"
	opSleep  operation = "sleep"
)

func (o operation) boots() bool { return o == opLaunch || o == opWake }

// outcome is how an operation has ended.
type outcome string

const (
	outcomeReady     outcome = "ready"
	outcomeFailed    outcome = "failed"
	outcomeAbandoned outcome = "abandoned" // nothing of it goes on, so another gateway may begin again at once
	outcomeStopped   outcome = "stopped"
	outcomeSlept     outcome = "slept"
	outcomeCancelled outcome = "cancelled" // before anything was stopped
)

// backendID names a backend in the database.
type backendID struct{ model, backend string }

// lease is the row of a backend: the operation of the gateway that holds the lease, or how the last one has ended.
type lease struct {
	id        backendID
	fence     int64
	operation operation
	committed bool          // of a stop or sleep: it cannot be cancelled
	idle      time.Duration // of a stop or sleep of an idle backend; 0: an operator's
	reason    string
	elapsed   time.Duration // since the operation has begun
	remaining time.Duration // until its deadline; negative after it
	outcome   outcome
	endedAgo  time.Duration
	held      bool
	holder    string        // name of the gateway
	mine      bool          // this gateway holds it, in its current epoch
	alive     bool          // the epoch in which it was taken has not ended
	idleFor   time.Duration // only of begin: since the last request at any other gateway
	before    outcome       // only of begin: of the operation before; empty if there was none, or it is not known
}

// errNotMember is returned while the gateway has no epoch: another gateway has ended it, or it has not begun.
var errNotMember = errors.New("the gateway has no epoch in the cluster")

// leases reads and writes the leases of all backends. Its transactions follow each other in all gateways, as all writes
// of package database do, so what one has read stays true until its commit.
type leases struct {
	db    *database.DB
	epoch func() (gateway int32, epoch int64, ok bool)
}

// write makes a write if the gateway's epoch has not ended.
func (l *leases) write(ctx context.Context, apply func(tx database.Tx, gateway int32, epoch int64) error) error {
	gateway, epoch, ok := l.epoch()
	if !ok {
		return errNotMember
	}
	return l.db.WriteExclusive(ctx, func(tx database.Tx) error {
		var member bool
		const text = `SELECT EXISTS (SELECT FROM gateway WHERE id = $1 AND epoch = $2 AND alive)`
		if err := tx.QueryRowContext(ctx, text, gateway, epoch).Scan(&member); err != nil {
			return err
		}
		if !member {
			return errNotMember
		}
		return apply(tx, gateway, epoch)
	})
}

// change makes a write that depends on the lease of a backend, and returns the result of apply, or none with an error.
func change[T any](ctx context.Context, l *leases, id backendID, apply func(tx database.Tx, r lease, gateway int32, epoch int64) (T, error)) (result T, err error) {
	var changed T
	err = l.write(ctx, func(tx database.Tx, gateway int32, epoch int64) error {
		r, err := readOne(ctx, tx, id, gateway, epoch)
		if err == nil {
			changed, err = apply(tx, r, gateway, epoch)
		}
		return err
	})
	if err != nil {
		return result, err
	}
	return changed, nil
}

const databaseTime = postgres.Now

const selectLeases = `
	SELECT l.model, l.backend, l.fence, l.operation, l.committed, l.idle_us, l.reason, ` + databaseTime + ` - l.began_at,
		l.deadline - ` + databaseTime + `, l.outcome, ` + databaseTime + ` - l.ended_at, l.held, coalesce(g.name, ''),
		l.gateway = $1 AND l.epoch = $2, coalesce(g.alive AND g.epoch = l.epoch, false)
	FROM backend_leases l LEFT JOIN gateway g ON g.id = l.gateway`

func scanLease(row database.Scanner) (lease, error) {
	var (
		r                                    lease
		idle, elapsed, remaining, endedSince int64
	)
	err := row.Scan(&r.id.model, &r.id.backend, &r.fence, &r.operation, &r.committed, &idle, &r.reason, &elapsed,
		&remaining, &r.outcome, &endedSince, &r.held, &r.holder, &r.mine, &r.alive)
	r.idle, r.elapsed, r.remaining, r.endedAgo = micros(idle), micros(elapsed), micros(remaining), micros(endedSince)
	return r, err
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// read returns the leases of all backends that have had one.
func (l *leases) read(ctx context.Context) ([]lease, error) {
	gateway, epoch, _ := l.epoch()
	return database.List(ctx, l.db.Read(), scanLease, selectLeases, gateway, epoch)
}

// readOne returns the lease of a backend, which is created if it does not exist.
func readOne(ctx context.Context, tx database.Tx, id backendID, gateway int32, epoch int64) (lease, error) {
	const create = `INSERT INTO backend_leases (model, backend, fence) VALUES ($1, $2, ` + databaseTime + `) ON CONFLICT DO NOTHING`
	if err := database.Exec(ctx, tx, create, id.model, id.backend); err != nil {
		return lease{}, fmt.Errorf("create lease: %w", err)
	}
	return scanLease(tx.QueryRowContext(ctx, selectOne, gateway, epoch, id.model, id.backend))
}

const selectOne = selectLeases + ` WHERE l.model = $3 AND l.backend = $4`

// addOrder queues an operator's order for the gateway that holds the lease of a backend.
func addOrder(ctx context.Context, tx database.Tx, id backendID, o operation) error {
	const text = `INSERT INTO model_orders (model, backend, order_name, given_at) VALUES ($1, $2, $3, ` + databaseTime + `)`
	return database.Exec(ctx, tx, text, id.model, id.backend, string(o))
}

// claimResult is the result of a request for a lease.
type claimResult uint8

const (
	granted   claimResult = iota
	following             // another gateway holds it, or has died holding it
	cooling               // the last boot has failed a short time ago
	cancelled             // what kept the backend from serving has been cancelled
	inUse                 // a gateway has sent it requests since
	draining              // a gateway has requests in flight at it, or does not know yet that it drains
)

// claimRequest is a request for a lease.
type claimRequest struct {
	operation operation
	reason    string
	limit     time.Duration // of the operation
	idle      time.Duration // see lease
	needed    func() bool   // whether the operation is still to begin once the row is read; nil: it is
}

// begin asks for the lease of a backend. If its commit is of unknown outcome, a repetition has the same answer. A stop
// or sleep by an operator while another gateway boots the backend becomes an order for that gateway. A boot while
// another one drains the backend cancels the drain.
func (l *leases) begin(ctx context.Context, id backendID, q claimRequest) (lease, claimResult, error) {
	type answer struct {
		lease
		claimResult
	}
	a, err := change(ctx, l, id, func(tx database.Tx, r lease, gateway int32, epoch int64) (answer, error) {
		v, err := following, error(nil)
		switch {
		case r.mine && r.operation == q.operation:
			return answer{r, granted}, nil // by an earlier call
		case q.needed != nil && !q.needed():
		case r.operation == opNone || r.replaceableBy(q.operation):
			v, err = beginFree(ctx, tx, &r, q, gateway)
		case q.operation.boots() && !r.operation.boots() && !r.committed && !r.mine:
			v, err = cancelled, endLease(ctx, tx, id, r.fence, outcomeCancelled, q.reason)
		case !q.operation.boots() && q.idle == 0 && r.operation.boots():
			err = addOrder(ctx, tx, id, q.operation)
		}
		if err != nil || v != granted {
			return answer{r, v}, err
		}
		const text = `UPDATE backend_leases SET fence = greatest(fence + 1, ` + databaseTime + `), gateway = $3, epoch = $4, operation = $5,
			committed = false, idle_us = $6, reason = $7, began_at = ` + databaseTime + `, deadline = ` + databaseTime + ` + $8, outcome = '',
			held = $9 WHERE model = $1 AND backend = $2`
		held := !q.operation.boots() && (q.idle == 0 || r.held)
		if err := database.Exec(ctx, tx, text, id.model, id.backend, gateway, epoch, string(q.operation), q.idle.Microseconds(),
			q.reason, q.limit.Microseconds(), held); err != nil {
			return answer{}, fmt.Errorf("take lease: %w", err)
		}
		taken, err := readOne(ctx, tx, id, gateway, epoch)
		taken.idleFor, taken.before = r.idleFor, r.outcome
		return answer{taken, granted}, err
	})
	return a.lease, a.claimResult, err
}

// replaceableBy reports whether the gateway's own operation ends with the begin of another one: a boot that is stopped,
// say.
func (r *lease) replaceableBy(o operation) bool {
	return r.mine && !r.committed && r.operation != o && (r.operation.boots() || !o.boots())
}

// beginFree decides on a lease that nobody else holds.
func beginFree(ctx context.Context, tx database.Tx, r *lease, q claimRequest, gateway int32) (claimResult, error) {
	if q.operation.boots() {
		if r.outcome == outcomeFailed && r.operation == opNone && r.endedAgo < failureCooldown {
			return cooling, nil
		}
		return granted, nil
	}
	if q.idle == 0 {
		return granted, nil
	}
	var err error
	if r.idleFor, err = idleElsewhere(ctx, tx, r.id, gateway); err != nil {
		return 0, err
	}
	// A gateway tells of its requests a few seconds late. A drain that it has to cancel would disturb its requests.
	if r.idleFor < q.idle+useLag(q.idle) {
		return inUse, nil
	}
	return granted, nil
}

// idleElsewhere returns how long ago the last request at a backend began or ended at any gateway but this.
func idleElsewhere(ctx context.Context, tx database.Tx, id backendID, gateway int32) (time.Duration, error) {
	const text = `SELECT ` + databaseTime + ` - coalesce(max(CASE WHEN u.in_flight > 0 AND g.alive AND g.epoch = u.epoch THEN ` + databaseTime + ` ELSE u.used_at END), 0)
		FROM backend_uses u JOIN gateway g ON g.id = u.gateway WHERE u.model = $1 AND u.backend = $2 AND u.gateway <> $3`
	var idle int64
	if err := tx.QueryRowContext(ctx, text, id.model, id.backend, gateway).Scan(&idle); err != nil {
		return 0, fmt.Errorf("read uses: %w", err)
	}
	return micros(min(idle, int64(1<<53))), nil // of a backend without a use it is the time since 1970
}

// commitStop makes a stop or sleep irrevocable. The answer is granted; or draining, and the caller asks again; or
// inUse, or following if the lease is lost.
func (l *leases) commitStop(ctx context.Context, id backendID, fence int64, limit time.Duration) (claimResult, error) {
	return change(ctx, l, id, func(tx database.Tx, r lease, gateway int32, _ int64) (claimResult, error) {
		switch {
		case r.fence != fence || !r.mine || r.operation == opNone || r.operation.boots():
			return following, nil
		case r.committed:
			return granted, nil // by an earlier call
		}
		const others = `SELECT coalesce(bool_or(u.seen IS NULL OR u.seen < $4), false), coalesce(bool_or(u.in_flight > 0), false)
			FROM gateway g LEFT JOIN backend_uses u ON u.gateway = g.id AND u.epoch = g.epoch AND u.model = $1 AND u.backend = $2
			WHERE g.alive AND g.id <> $3`
		var unaware, inFlight bool
		if err := tx.QueryRowContext(ctx, others, id.model, id.backend, gateway, fence).Scan(&unaware, &inFlight); err != nil {
			return 0, fmt.Errorf("read uses: %w", err)
		}
		switch {
		case inFlight && r.idle > 0:
			return inUse, nil
		case inFlight || unaware:
			return draining, nil
		case r.idle > 0:
			if idle, err := idleElsewhere(ctx, tx, id, gateway); err != nil || idle < r.idle {
				return inUse, err
			}
		}
		const text = `UPDATE backend_leases SET committed = true, deadline = ` + databaseTime + ` + $3 WHERE model = $1 AND backend = $2`
		return granted, database.Exec(ctx, tx, text, id.model, id.backend, limit.Microseconds())
	})
}

// cancelDrain cancels the stop or sleep of another gateway, and returns false if it is committed or has ended.
func (l *leases) cancelDrain(ctx context.Context, id backendID, reason string) (bool, error) {
	return change(ctx, l, id, func(tx database.Tx, r lease, _ int32, _ int64) (bool, error) {
		if r.operation != opStop && r.operation != opSleep || r.committed || r.mine {
			return false, nil
		}
		return true, endLease(ctx, tx, id, r.fence, outcomeCancelled, reason)
	})
}

// takeOver takes the lease of a gateway whose epoch has ended, with what it has begun. It returns nil if the lease has
// changed since.
func (l *leases) takeOver(ctx context.Context, id backendID, fence int64) (*lease, error) {
	return change(ctx, l, id, func(tx database.Tx, r lease, gateway int32, epoch int64) (*lease, error) {
		switch {
		case r.operation == opNone || !r.mine && (r.fence != fence || r.alive):
			return nil, nil
		case r.mine: // by an earlier call
			return &r, nil
		}
		const text = `UPDATE backend_leases SET fence = greatest(fence + 1, ` + databaseTime + `), gateway = $3, epoch = $4
			WHERE model = $1 AND backend = $2`
		if err := database.Exec(ctx, tx, text, id.model, id.backend, gateway, epoch); err != nil {
			return nil, fmt.Errorf("take over lease: %w", err)
		}
		r, err := readOne(ctx, tx, id, gateway, epoch)
		return &r, err
	})
}

// holds reports whether the gateway holds the lease with a fence.
func (l *leases) holds(ctx context.Context, id backendID, fence int64) (bool, error) {
	gateway, epoch, _ := l.epoch()
	r, err := scanLease(l.db.Read().QueryRowContext(ctx, selectOne, gateway, epoch, id.model, id.backend))
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil && r.mine && r.alive && r.fence == fence && r.operation != opNone, err
}

// end records the outcome of an operation, unless the lease with this fence has been lost.
func (l *leases) end(ctx context.Context, id backendID, fence int64, o outcome, reason string) error {
	_, err := change(ctx, l, id, func(tx database.Tx, r lease, _ int32, _ int64) (ended bool, err error) {
		if ended = r.fence == fence && r.mine; ended {
			err = endLease(ctx, tx, id, fence, o, reason)
		}
		return ended, err
	})
	return err
}

// endLease ends the operation with a fence. The fence rises, so that rows that were read before can be told from the
// new one.
func endLease(ctx context.Context, tx database.Tx, id backendID, fence int64, o outcome, reason string) error {
	const text = `UPDATE backend_leases SET fence = greatest(fence + 1, ` + databaseTime + `), operation = '', committed = false, outcome = $4,
		reason = $5, ended_at = ` + databaseTime + `, held = held AND $4 <> 'cancelled'
		WHERE model = $1 AND backend = $2 AND fence = $3 AND operation <> ''`
	return database.Exec(ctx, tx, text, id.model, id.backend, fence, string(o), reason)
}

// clearStop ends the hold of a row with this fence. A later stop keeps its own.
func (l *leases) clearStop(ctx context.Context, id backendID, fence int64) error {
	return l.write(ctx, func(tx database.Tx, _ int32, _ int64) error {
		const text = `UPDATE backend_leases SET held = false WHERE model = $1 AND backend = $2 AND fence = $3`
		return database.Exec(ctx, tx, text, id.model, id.backend, fence)
	})
}

// use is what a gateway tells of its requests at a backend.
type use struct {
	requested time.Time // when the last one began or ended; zero: never
	inFlight  bool
	seen      int64 // fence of the lease that the gateway acts on
}

// reportUses records uses of backends by this gateway.
func (l *leases) reportUses(ctx context.Context, uses map[backendID]use) error {
	return l.write(ctx, func(tx database.Tx, gateway int32, epoch int64) error {
		const text = `INSERT INTO backend_uses AS u (gateway, model, backend, epoch, used_at, in_flight, seen)
			VALUES ($1, $2, $3, $4, CASE WHEN $5 THEN ` + databaseTime + ` - $6 ELSE 0 END, CASE WHEN $7 THEN 1 ELSE 0 END, $8)
			ON CONFLICT (model, backend, gateway) DO UPDATE SET epoch = excluded.epoch, used_at = greatest(u.used_at, excluded.used_at),
			in_flight = excluded.in_flight, seen = excluded.seen`
		for id, u := range uses {
			used, idle := !u.requested.IsZero(), time.Since(u.requested).Microseconds()
			if err := database.Exec(ctx, tx, text, gateway, id.model, id.backend, epoch, used, idle, u.inFlight, u.seen); err != nil {
				return fmt.Errorf("report uses: %w", err)
			}
		}
		return nil
	})
}
