package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/database"
	postgresdb "basegate/database/postgres"
	"basegate/internal/wait"
)

const (
	retentionInterval = time.Hour

	// Detaching a partition waits for the transactions that use the table, and keeps none of them waiting.
	detachTimeout = 10 * time.Minute
)

// Retention deletes the rows of requests of whole months, on PostgreSQL, where each month is a partition. The rollups
// keep their sums.
type Retention struct {
	db   *database.DB
	log  *zap.Logger
	keep time.Duration
	loop wait.Loop
}

// NewRetention returns a Retention that keeps rows for at least a time, and less than a month longer.
func NewRetention(db *database.DB, log *zap.Logger, keep time.Duration) *Retention {
	return &Retention{db: db, log: log, keep: keep}
}

// Start deletes months when they are old enough, until Close. A month that is being deleted then is deleted later.
func (r *Retention) Start(ctx context.Context) {
	r.loop.Start(ctx, func(ctx context.Context) {
		wait.Every(ctx, retentionInterval, func(ctx context.Context) {
			if err := r.Apply(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("requests that are too old cannot be deleted; another attempt follows in an hour", zap.Error(err))
			}
		})
	})
}

// Close ends what Start has started.
func (r *Retention) Close() { r.loop.Close() }

// Apply deletes the months that ended before the time for which rows are kept. Of several gateways that do it at the same
// time one succeeds; the others return an error or find nothing to do.
func (r *Retention) Apply(ctx context.Context) error {
	conn, err := r.db.Postgres().Connect(ctx)
	if err != nil {
		return err
	}
	defer postgresdb.CloseConn(ctx, conn)
	limit := fmt.Sprintf("SET statement_timeout = %[1]d; SET lock_timeout = %[1]d", detachTimeout.Milliseconds())
	if _, err := conn.Exec(ctx, limit, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("set time limit: %w", err)
	}
	old, err := r.oldMonths(ctx, conn)
	if err != nil {
		return err
	}
	for _, m := range old {
		if err := r.drop(ctx, conn, m); err != nil {
			return fmt.Errorf("delete the requests of %s: %w", m, err)
		}
		r.log.Info("the requests of a month are deleted; their sums are kept", zap.Stringer("month", m))
	}
	return nil
}

// month is a table with the requests of a month.
type month struct {
	table  string
	begin  time.Time
	detach string // how to detach the partition: CONCURRENTLY, or FINALIZE if that was interrupted; empty if it is none any more
}

func (m month) String() string { return m.begin.Format("2006-01") }

// oldMonths returns the months that are not kept, the oldest first, also those that are no partitions any more.
func (r *Retention) oldMonths(ctx context.Context, conn *pgx.Conn) (old []month, err error) {
	rows, err := conn.Query(ctx, `
		SELECT c.relname::text, CASE WHEN i.inhdetachpending THEN 'FINALIZE' WHEN i.inhrelid IS NULL THEN '' ELSE 'CONCURRENTLY' END
		FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = 'requests'::regclass
		WHERE c.relkind = 'r' AND c.relname ~ '^requests_[0-9]{4}_[0-9]{2}$'
			AND c.relname < to_char((clock_timestamp() - $1::interval) AT TIME ZONE 'UTC', '"requests_"YYYY_MM')
			AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'requests'::regclass)
		ORDER BY c.relname`, r.keep)
	if err == nil {
		var m month
		_, err = pgx.ForEachRow(rows, []any{&m.table, &m.detach}, func() (err error) {
			m.begin, err = time.Parse("requests_2006_01", m.table)
			old = append(old, m)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list months: %w", err)
	}
	return old, nil
}

var errNotSummedUp = errors.New("not all of them are summed up yet")

// drop deletes a month. If it is interrupted after any step, the next attempt continues.
func (r *Retention) drop(ctx context.Context, conn *pgx.Conn, m month) error {
	table := pgx.Identifier{m.table}.Sanitize()
	if m.detach == "CONCURRENTLY" {
		if err := r.recordCutoff(ctx, table, m.begin.AddDate(0, 1, 0)); err != nil {
			return err
		}
	}
	statements := []string{"DROP TABLE " + table}
	if m.detach != "" {
		statements = slices.Insert(statements, 0, "ALTER TABLE requests DETACH PARTITION "+table+" "+m.detach)
	}
	for _, text := range statements {
		if _, err := conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol); err != nil {
			if postgresdb.Code(err) == "42501" {
				return fmt.Errorf("the role of database.url must own the tables: %w", err)
			}
			return err
		}
	}
	return nil
}

// recordCutoff records that the rows before a time are not kept, unless some of a table are not in the rollups.
func (r *Retention) recordCutoff(ctx context.Context, table string, before time.Time) error {
	return r.db.WriteGrouped(ctx, func(tx database.Tx) error {
		var missing bool
		text := `SELECT EXISTS (SELECT FROM ` + table + ` WHERE xid > (SELECT seq::text::xid8 FROM usage_watermark))`
		if err := tx.QueryRowContext(ctx, text).Scan(&missing); err != nil {
			return err
		}
		if missing {
			return errNotSummedUp
		}
		return database.Exec(ctx, tx, `UPDATE usage_watermark SET kept_since = greatest(kept_since, $1)`, before.UnixMicro())
	})
}
