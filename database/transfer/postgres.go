package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"basegate/database/postgres"
)

const (
	// statementTimeout limits one statement of a copy. The longest one sums up all requests.
	statementTimeout = time.Hour

	// lockTimeout is long enough for the server to end the session of an earlier run that was killed.
	lockTimeout = 15 * time.Second
)

// copyLock is the advisory lock that a copy to a database holds.
const copyLock = "25193, 0"

// server is a side that is a PostgreSQL database.
type server struct {
	db   *postgres.DB
	conn *pgx.Conn
}

// openPostgres opens a PostgreSQL database and migrates it.
func openPostgres(ctx context.Context, url string, target bool) (_ side, err error) {
	db, err := postgres.Open(ctx, postgres.Settings{
		URL: url, StatementTimeout: statementTimeout, LockTimeout: lockTimeout, Unfinished: target,
	})
	if err != nil {
		return nil, err
	}
	s := &server{db: db}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.conn, err = db.Connect(ctx); err != nil {
		return nil, err
	}
	if target {
		if _, err := s.conn.Exec(ctx, "SELECT pg_advisory_lock("+copyLock+")"); err != nil {
			return nil, fmt.Errorf("lock the target, to which another copy may be running: %w", err)
		}
	}
	// A gateway of an older version must not find its schema migrated.
	if err := s.refuseGateway(ctx); err != nil {
		return nil, err
	}
	schema, err := db.Migrate(ctx)
	switch {
	case err != nil:
		return nil, err
	case schema.Newer():
		return nil, fmt.Errorf("the schema has version %d, and this program copies that of version %d: use the newer basegate to copy",
			schema.Version, schema.Known)
	}
	return s, nil
}

func (s *server) describe() string {
	c := s.db.Config()
	return fmt.Sprintf("postgres://%s:%d/%s", c.Host, c.Port, c.Database)
}

func (s *server) close() error {
	defer s.db.Close()
	if s.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // the caller's may have ended
	defer cancel()
	if err := s.conn.Close(ctx); err != nil {
		return fmt.Errorf("close the connection: %w", err)
	}
	return nil
}

func (s *server) refuseUnfinished(ctx context.Context) error {
	if err := refuseGrowingFiles(ctx, s); err != nil {
		return err
	}
	return refuseRowsOf(ctx, s, "SELECT count(*) FROM pending_receipts",
		"receipts are not in the log yet: run a gateway with receipts.enabled for a moment, and stop it")
}

func (*server) source(t *table) *source { return &t.postgres }

func (s *server) query(ctx context.Context, text string, args []any, row func([]any) error) error {
	rows, err := s.conn.Query(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err == nil {
			err = row(values)
		}
		if err != nil {
			return err
		}
	}
	return rows.Err()
}

// refuseGateway returns ErrServing if a gateway has sent a heartbeat lately.
func (s *server) refuseGateway(ctx context.Context) error {
	var exists bool
	if err := s.conn.QueryRow(ctx, "SELECT to_regclass('gateway') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return err
	}
	const text = `SELECT name FROM gateway WHERE alive AND beat_at > (extract(epoch FROM clock_timestamp()) - $1) * 1000000 ORDER BY name`
	var names []string
	err := s.query(ctx, text, []any{deadAfter.Seconds()}, func(values []any) error {
		names = append(names, fmt.Sprint(values[0]))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the heartbeats of gateways: %w", err)
	}
	if len(names) > 0 {
		return fmt.Errorf("%w: %s serves from %s; one that has crashed counts as running for %v",
			ErrServing, strings.Join(names, ", "), s.describe(), deadAfter)
	}
	return nil
}

// deadAfter is the age of the last heartbeat of a gateway that does not run.
const deadAfter = 30 * time.Second

func (s *server) generation(ctx context.Context) (string, error) {
	return countRows(ctx, s, "SELECT revision FROM keys_revision UNION ALL SELECT coalesce(sum(epoch), 0)::bigint FROM gateway")
}

func (s *server) loadState(ctx context.Context) (*state, error) {
	var exists bool
	if err := s.conn.QueryRow(ctx, "SELECT to_regclass('database_copy') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return nil, err
	}
	return selectState(ctx, s)
}

func (s *server) begin(ctx context.Context, begun *state) error {
	encoded, err := encode(begun)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, createState); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, writeState, stateName, encoded)
		return err
	})
}

// prepare creates the partitions of all months in which the source has requests.
func (s *server) prepare(ctx context.Context, from side) error {
	next := int64(-1 << 62)
	for {
		first, found, err := firstRequest(ctx, from, next)
		if err != nil || !found {
			return err
		}
		y, m, _ := time.UnixMicro(first).UTC().Date()
		month := time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
		if _, err := s.conn.Exec(ctx, "SELECT ledger_partition_v1($1)", first); err != nil {
			return fmt.Errorf("create the partition of %s: %w", month.Format("2006-01"), err)
		}
		next = month.AddDate(0, 1, 0).UnixMicro()
	}
}

// firstRequest returns the time of the first request since a time, and false if there is none.
func firstRequest(ctx context.Context, from side, since int64) (first int64, found bool, err error) {
	for _, table := range []string{"requests", "inflight"} {
		err := from.query(ctx, "SELECT min(time) FROM "+table+" WHERE time >= $1", []any{since}, func(values []any) error {
			if n, ok := values[0].(int64); ok && (!found || n < first) {
				first, found = n, true
			}
			return nil
		})
		if err != nil {
			return 0, false, fmt.Errorf("read the times of requests: %w", err)
		}
	}
	return first, found, nil
}

func (s *server) write(ctx context.Context, t *table, rows [][]any, p progress) error {
	encoded, err := encode(p)
	if err != nil {
		return err
	}
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i] = c.name
	}
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{t.into}, names, pgx.CopyFromRows(rows)); err != nil {
			return err
		}
		if t.name == summed && p.Done {
			if _, err := tx.Exec(ctx, `UPDATE usage_watermark SET seq = pg_current_xact_id()::text::bigint`); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, writeState, t.name, encoded)
		return err
	})
}

// finish computes the counters of the ledger and sets the sequences.
func (s *server) finish(ctx context.Context, rows map[string]progress) error {
	err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		for _, t := range tables {
			if t.identity == "" || rows[t.name].Rows == 0 {
				continue
			}
			text := fmt.Sprintf("SELECT setval(pg_get_serial_sequence('%s', '%s'), max(%s)) FROM %s", t.name, t.identity, quote(t.identity), t.name)
			if _, err := tx.Exec(ctx, text); err != nil {
				return fmt.Errorf("set the sequence of %s: %w", t.name, err)
			}
		}
		if _, err := tx.Exec(ctx, "SELECT ledger_fill_v1()"); err != nil {
			return fmt.Errorf("compute the counters of the ledger: %w", err)
		}
		_, err := tx.Exec(ctx, "DROP TABLE database_copy")
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.conn.Exec(ctx, "ANALYZE")
	return err
}
