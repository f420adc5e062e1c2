package fleet

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"basegate/database"
)

// addOrder queues an operator's order for the gateway that holds the lease of a backend.
func addOrder(ctx context.Context, tx database.Tx, id backendID, o operation) error {
	const text = `INSERT INTO model_orders (model, backend, order_name, given_at) VALUES ($1, $2, $3, ` + databaseTime + `)`
	if _, err := tx.ExecContext(ctx, text, id.model, id.backend, string(o)); err != nil {
		return fmt.Errorf("queue order: %w", err)
	}
	return nil
}

// orders takes the orders that are a gateway's to execute from the queue of all gateways.
type orders struct {
	leases *leases
	unsure map[int64]queuedCommand // taken by a transaction whose outcome is unknown; used by take alone
}

// take removes the orders that are this gateway's to execute from the queue, and returns them, the oldest first: those
// to backends and models whose lease it holds, or no gateway does. Each is executed once; or twice, which changes
// nothing, if another gateway takes one of which this gateway does not know whether it has taken it.
func (o *orders) take(ctx context.Context) ([]queuedCommand, error) {
	var queued bool
	if err := o.leases.db.Read().QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM model_orders)`).Scan(&queued); err != nil {
		return nil, err
	}
	if !queued {
		return o.resolve(nil, nil), nil
	}
	var taken atomic.Pointer[[]queuedCommand] // set once: by the write, or after an error, when it may still run and must not commit
	var left map[int64]bool
	err := o.leases.write(ctx, func(tx database.Tx, gateway int32, epoch int64) error {
		removed, err := takeOrders(ctx, tx, gateway, epoch)
		if err != nil {
			return err
		}
		if !taken.CompareAndSwap(nil, &removed) {
			return errAbandoned
		}
		left, err = queuedOrders(ctx, tx)
		return err
	})
	if err == nil {
		return o.resolve(*taken.Load(), left), nil
	}
	if !taken.CompareAndSwap(nil, &[]queuedCommand{}) {
		for _, c := range *taken.Load() {
			o.unsure[c.id] = c
		}
	}
	return nil, err
}

// errAbandoned rolls back a write whose caller has not waited for it.
var errAbandoned = errors.New("nobody waits for the orders any more")

// resolve returns the orders that have been taken now or by a transaction before, and forgets those that are in the
// queue still.
func (o *orders) resolve(taken []queuedCommand, left map[int64]bool) []queuedCommand {
	for _, c := range taken {
		o.unsure[c.id] = c
	}
	maps.DeleteFunc(o.unsure, func(id int64, _ queuedCommand) bool { return left[id] })
	all := slices.SortedFunc(maps.Values(o.unsure), func(a, b queuedCommand) int { return cmp.Compare(a.id, b.id) })
	clear(o.unsure)
	return all
}

// takeOrders removes orders from the queue and returns them.
func takeOrders(ctx context.Context, tx database.Tx, gateway int32, epoch int64) ([]queuedCommand, error) {
	const text = `WITH held AS (
			SELECT l.model, l.backend, l.gateway = $1 AND l.epoch = $2 AS mine
			FROM backend_leases l JOIN gateway g ON g.id = l.gateway AND g.epoch = l.epoch AND g.alive WHERE l.operation <> '')
		DELETE FROM model_orders o
		WHERE EXISTS (SELECT FROM held h WHERE h.mine AND h.model = o.model AND o.backend IN ('', h.backend))
			OR NOT EXISTS (SELECT FROM held h WHERE h.model = o.model AND o.backend IN ('', h.backend))
		RETURNING id, model, backend, order_name, ` + databaseTime + ` - given_at`
	rows, err := tx.QueryContext(ctx, text, gateway, epoch)
	if err != nil {
		return nil, fmt.Errorf("take orders: %w", err)
	}
	return scanOrders(rows)
}

// queuedOrders returns the ids of the orders in the queue.
func queuedOrders(ctx context.Context, tx database.Tx) (map[int64]bool, error) {
	rows, err := tx.QueryContext(ctx, `SELECT id FROM model_orders`)
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	defer rows.Close()
	all := map[int64]bool{}
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("read orders: %w", err)
		}
		all[id] = true
	}
	return all, rows.Err()
}

func scanOrders(rows *sql.Rows) (all []queuedCommand, err error) {
	defer rows.Close()
	for rows.Next() {
		var (
			c   queuedCommand
			age int64
		)
		if err := rows.Scan(&c.id, &c.model, &c.backend, &c.command, &age); err != nil {
			return nil, fmt.Errorf("take orders: %w", err)
		}
		c.age = micros(age)
		all = append(all, c)
	}
	return all, rows.Err()
}
