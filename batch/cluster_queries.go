package batch

import (
	"context"
	"database/sql"

	"basegate/database"
	"basegate/database/postgres"
)

// The statements on the tables that only PostgreSQL has. Transactions of writes follow each other there, over all
// gateways, so what one of them reads stays true until its commit; but for the epochs, which the ledger ends.

// gatewayLock is the class of the advisory lock that the end of a gateway's epoch takes exclusively.
const gatewayLock = 25191

// checkHolder returns errLeaseLost unless the epoch is current, which it then is until the end of the transaction.
func checkHolder(ctx context.Context, tx database.Tx, h holder) error {
	return checkCurrent(ctx, tx, h, `EXISTS (SELECT FROM gateway WHERE id = $1 AND epoch = $2 AND alive)`)
}

// check returns errLeaseLost unless the lease counts, which it then does until the end of the transaction.
func (l *leases) check(ctx context.Context, tx database.Tx, seq int64, h holder) error {
	if !l.joined {
		return nil
	}
	return checkCurrent(ctx, tx, h, `EXISTS (SELECT FROM batch_leases l JOIN gateway g ON g.id = l.gateway AND g.epoch = l.epoch
		WHERE l.gateway = $1 AND l.epoch = $2 AND g.alive AND l.batch = $3)`, seq)
}

// checkCurrent returns errLeaseLost unless a condition on a gateway holds, whose epoch does not end before the transaction.
func checkCurrent(ctx context.Context, tx database.Tx, h holder, condition string, args ...any) error {
	if err := database.Exec(ctx, tx, `SELECT pg_advisory_xact_lock_shared($1, $2)`, gatewayLock, h.gateway); err != nil {
		return err
	}
	var current bool
	err := tx.QueryRowContext(ctx, `SELECT `+condition, append([]any{h.gateway, h.epoch}, args...)...).Scan(&current)
	if err == nil && !current {
		return errLeaseLost
	}
	return err
}

// heldLeases returns the leases that count, and the time in microseconds.
func heldLeases(ctx context.Context, q database.Reader) (held map[int64]holder, now int64, err error) {
	held = map[int64]holder{}
	err = database.Each(ctx, q, func(r *sql.Rows) error {
		var seq sql.NullInt64
		var h holder
		if err := r.Scan(&now, &seq, &h.gateway, &h.epoch); err != nil {
			return err
		}
		if seq.Valid {
			held[seq.Int64] = h
		}
		return nil
	}, `SELECT n.now, l.batch, coalesce(l.gateway, 0), coalesce(l.epoch, 0) FROM (SELECT `+postgres.Now+` AS now) n LEFT JOIN
		(batch_leases l JOIN gateway g ON g.id = l.gateway AND g.epoch = l.epoch AND g.alive) ON true`)
	return held, now, err
}

// addLease leases a batch that no gateway has.
func addLease(ctx context.Context, tx database.Execer, seq int64, h holder) error {
	return database.Exec(ctx, tx, `INSERT INTO batch_leases (batch, gateway, epoch) VALUES ($1, $2, $3)
		ON CONFLICT (batch) DO UPDATE SET gateway = excluded.gateway, epoch = excluded.epoch`, seq, h.gateway, h.epoch)
}

// release ends the lease of a batch that is parked, has ended, or is left to others.
func (l *leases) release(ctx context.Context, tx database.Execer, seq int64, h holder) error {
	if !l.joined {
		return nil
	}
	return database.Exec(ctx, tx, `DELETE FROM batch_leases WHERE batch = $1 AND gateway = $2 AND epoch = $3`, seq, h.gateway, h.epoch)
}

// deleteLeasesOf ends all leases of a gateway.
func deleteLeasesOf(ctx context.Context, tx database.Execer, h holder) error {
	return database.Exec(ctx, tx, `DELETE FROM batch_leases WHERE gateway = $1 AND epoch = $2`, h.gateway, h.epoch)
}

// addRunner counts a gateway among those that take batches.
func addRunner(ctx context.Context, tx database.Execer, h holder) error {
	return database.Exec(ctx, tx, `INSERT INTO batch_runners (gateway, epoch) VALUES ($1, $2)
		ON CONFLICT (gateway) DO UPDATE SET epoch = excluded.epoch`, h.gateway, h.epoch)
}

func removeRunner(ctx context.Context, tx database.Execer, h holder) error {
	return database.Exec(ctx, tx, `DELETE FROM batch_runners WHERE gateway = $1 AND epoch = $2`, h.gateway, h.epoch)
}

// aliveRunners returns the gateways that take batches, in order.
func aliveRunners(ctx context.Context, q database.Reader) ([]int32, error) {
	return database.List(ctx, q, func(r database.Scanner) (id int32, err error) { return id, r.Scan(&id) },
		`SELECT r.gateway FROM batch_runners r JOIN gateway g ON g.id = r.gateway AND g.epoch = r.epoch AND g.alive ORDER BY 1`)
}
