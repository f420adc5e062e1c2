package batch

import (
	"context"
	"database/sql"
	"errors"

	"basegate/database"
	"basegate/database/postgres"
)

// The statements on the tables that only PostgreSQL has. Transactions of writes follow each other there, over all
// gateways, so what one of them reads stays true until its commit; but for the epochs, which the ledger ends.

// gatewayLock is the class of the advisory lock that the end of a gateway's epoch takes exclusively.
const gatewayLock = 25191

// checkHolder returns errLeaseLost unless the epoch is current, which it then is until the end of the transaction.
func checkHolder(ctx context.Context, tx database.Tx, h holder) error {
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock_shared($1, $2)`, gatewayLock, h.gateway); err != nil {
		return err
	}
	var current bool
	err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM gateway WHERE id = $1 AND epoch = $2 AND alive)`,
		h.gateway, h.epoch).Scan(&current)
	if err == nil && !current {
		return errLeaseLost
	}
	return err
}

// checkLease returns errLeaseLost unless the lease counts, which it then does until the end of the transaction.
func checkLease(ctx context.Context, tx database.Tx, seq int64, l lease) error {
	if err := checkHolder(ctx, tx, l.holder); err != nil {
		return err
	}
	var current bool
	err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM batch_leases
		WHERE batch = $1 AND gateway = $2 AND epoch = $3 AND fence = $4)`, seq, l.gateway, l.epoch, l.fence).Scan(&current)
	if err == nil && !current {
		return errLeaseLost
	}
	return err
}

// heldLeases returns the leases that count, and the time in microseconds.
func heldLeases(ctx context.Context, q querier) (held map[int64]lease, now int64, err error) {
	rows, err := q.QueryContext(ctx, `SELECT n.now, l.batch, l.gateway, l.epoch, l.fence
		FROM (SELECT `+postgres.Now+` AS now) n LEFT JOIN
		(batch_leases l JOIN gateway g ON l.gateway <> 0 AND g.id = l.gateway AND g.epoch = l.epoch AND g.alive) ON true`)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	held = map[int64]lease{}
	for rows.Next() {
		var seq, gateway, epoch, fence sql.NullInt64
		if err := rows.Scan(&now, &seq, &gateway, &epoch, &fence); err != nil {
			return nil, 0, err
		}
		if seq.Valid {
			held[seq.Int64] = lease{holder{int32(gateway.Int64), epoch.Int64}, fence.Int64} //nolint:gosec // an INTEGER
		}
	}
	return held, now, rows.Err()
}

// takeLease leases a batch that no gateway has.
func takeLease(ctx context.Context, tx database.Tx, seq int64, h holder) (lease, error) {
	l := lease{holder: h}
	err := tx.QueryRowContext(ctx, `INSERT INTO batch_leases (batch, gateway, epoch, fence) VALUES ($1, $2, $3, 1)
		ON CONFLICT (batch) DO UPDATE SET gateway = excluded.gateway, epoch = excluded.epoch, fence = batch_leases.fence + 1,
			reason = '', resets_at = 0 RETURNING fence`, seq, h.gateway, h.epoch).Scan(&l.fence)
	return l, err
}

// releaseLease ends a gateway's lease on a batch. The row stays, so that the next lease has a greater fence.
func releaseLease(ctx context.Context, tx database.Execer, seq int64, h holder) error {
	_, err := tx.ExecContext(ctx, `UPDATE batch_leases SET gateway = 0, epoch = 0, reason = '', resets_at = 0
		WHERE batch = $1 AND gateway = $2 AND epoch = $3`, seq, h.gateway, h.epoch)
	return err
}

// releaseHolder ends all leases of a gateway, and those of places.
func releaseHolder(ctx context.Context, tx database.Execer, h holder) error {
	_, err := tx.ExecContext(ctx, `UPDATE batch_leases SET gateway = 0, epoch = 0, reason = '', resets_at = 0
		WHERE gateway = $1 AND epoch = $2`, h.gateway, h.epoch)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM batch_places WHERE gateway = $1 AND epoch = $2`, h.gateway, h.epoch)
	return err
}

// deleteLease deletes the lease of a batch that has ended.
func deleteLease(ctx context.Context, tx database.Execer, seq int64) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM batch_leases WHERE batch = $1`, seq)
	return err
}

// addRunner counts a gateway among those that take batches.
func addRunner(ctx context.Context, tx database.Execer, h holder) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO batch_runners (gateway, epoch) VALUES ($1, $2)
		ON CONFLICT (gateway) DO UPDATE SET epoch = excluded.epoch`, h.gateway, h.epoch)
	return err
}

func removeRunner(ctx context.Context, tx database.Execer, h holder) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM batch_runners WHERE gateway = $1 AND epoch = $2`, h.gateway, h.epoch)
	return err
}

// countRunners returns how many gateways take batches.
func countRunners(ctx context.Context, q querier) (n int, err error) {
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM batch_runners r JOIN gateway g ON g.id = r.gateway AND g.epoch = r.epoch AND g.alive`).Scan(&n)
	return n, err
}

// insertWriter records who writes an object; the zero holder is a command.
func insertWriter(ctx context.Context, tx database.Execer, object string, h holder) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO object_writers (object, gateway, epoch, begun_at)
		VALUES ($1, nullif(CAST($2 AS INTEGER), 0), $3, `+postgres.Now+`)`, object, h.gateway, h.epoch)
	return err
}

// commandTime is how long a command may write an object.
const commandTime = "24 * 3600 * 1000000::bigint" // microseconds

// deleteOrphans marks the objects whose writers are dead, and returns their number.
func deleteOrphans(ctx context.Context, tx database.Execer) (int64, error) {
	result, err := tx.ExecContext(ctx, `UPDATE objects SET state = 'deleted' WHERE state = 'writing' AND NOT EXISTS (
		SELECT FROM object_writers w LEFT JOIN gateway g ON g.id = w.gateway
		WHERE w.object = objects.name AND (g.alive AND g.epoch = w.epoch
			OR w.gateway IS NULL AND w.begun_at > `+postgres.Now+` - `+commandTime+`))`)
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM object_writers w WHERE NOT EXISTS (
		SELECT FROM objects o WHERE o.name = w.object AND o.state = 'writing')`)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func insertPart(ctx context.Context, tx database.Execer, file string, p part) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO file_parts (file, start, object, fence) VALUES ($1, $2, $3, $4)`, file, p.start, p.object, p.fence)
	return err
}

// partsOf returns the parts of a file that a batch writes.
func partsOf(ctx context.Context, q querier, file string) ([]part, error) {
	return collect(ctx, q, func(r *sql.Rows) (p part, err error) { return p, r.Scan(&p.start, &p.object, &p.fence) },
		`SELECT start, object, fence FROM file_parts WHERE file = $1 ORDER BY start`, file)
}

// deleteParts deletes the parts of a file, and marks their objects but the one that becomes the file's.
func deleteParts(ctx context.Context, tx database.Execer, file, except string) error {
	_, err := tx.ExecContext(ctx, `UPDATE objects SET state = 'deleted'
		WHERE name <> $2 AND name IN (SELECT object FROM file_parts WHERE file = $1)`, file, except)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM file_parts WHERE file = $1`, file)
	return err
}

// storageMarker returns the name of the object by which gateways recognize their storage; empty if there is none.
func storageMarker(ctx context.Context, q querier) (object string, err error) {
	err = q.QueryRowContext(ctx, `SELECT object FROM storage_marker`).Scan(&object)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return object, err
}

func setStorageMarker(ctx context.Context, tx database.Execer, object string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO storage_marker ("only", object) VALUES (1, $1)
		ON CONFLICT ("only") DO UPDATE SET object = excluded.object`, object)
	return err
}

// placesOfOthers returns the places of a backend that other gateways have leased.
func placesOfOthers(ctx context.Context, tx database.Tx, model, backend string, me holder) ([]otherPlaces, error) {
	return collect(ctx, tx, func(r *sql.Rows) (o otherPlaces, err error) { return o, r.Scan(&o.gateway, &o.places, &o.wants) },
		`SELECT p.gateway, p.places, p.wants FROM batch_places p JOIN gateway g ON g.id = p.gateway AND g.epoch = p.epoch AND g.alive
			WHERE p.model = $1 AND p.backend = $2 AND p.gateway <> $3`, model, backend, me.gateway)
}

func setPlaces(ctx context.Context, tx database.Execer, model, backend string, me holder, places int64, wants bool) error {
	if places == 0 && !wants {
		_, err := tx.ExecContext(ctx, `DELETE FROM batch_places WHERE model = $1 AND backend = $2 AND gateway = $3`, model, backend, me.gateway)
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO batch_places (model, backend, gateway, epoch, places, wants) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (model, backend, gateway) DO UPDATE SET epoch = excluded.epoch, places = excluded.places, wants = excluded.wants`,
		model, backend, me.gateway, me.epoch, places, wants)
	return err
}
