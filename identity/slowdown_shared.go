package identity

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// sharedSlowdown are attempts in PostgreSQL, which delay those at every gateway. Times are those of its clock.
type sharedSlowdown struct {
	db       *database.DB
	kind     string
	settings slowdownSettings
}

// begin implements attempts.
func (s *sharedSlowdown) begin(ctx context.Context, subject string) error {
	return s.change(ctx, subject, func(f *failures, now time.Time) error { return s.settings.begin(f, now) })
}

// takeBack implements attempts.
func (s *sharedSlowdown) takeBack(ctx context.Context, subject string) error {
	return s.change(ctx, subject, func(f *failures, _ time.Time) error { f.takeBack(); return nil })
}

// forget implements attempts.
func (s *sharedSlowdown) forget(ctx context.Context, subject string) error {
	const text = `DELETE FROM sign_in_failures WHERE kind = $1 AND subject = $2`
	err := s.db.WriteGrouped(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, text, s.kind, hashSubject(subject))
		return err
	})
	if err != nil {
		return fmt.Errorf("forget failed sign-ins: %w", err)
	}
	return nil
}

// change reads the failures of a subject, changes them and writes them, in a transaction that no other one runs beside.
func (s *sharedSlowdown) change(ctx context.Context, subject string, change func(*failures, time.Time) error) error {
	const (
		clock  = `SELECT ` + databaseNow
		find   = `SELECT failures, counted, next FROM sign_in_failures WHERE kind = $1 AND subject = $2`
		upsert = `
			INSERT INTO sign_in_failures (kind, subject, failures, counted, next) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (kind, subject) DO UPDATE
			SET failures = excluded.failures, counted = excluded.counted, next = excluded.next`
	)
	hash := hashSubject(subject)
	var refused error
	err := s.db.WriteGrouped(ctx, func(tx database.Tx) error {
		var micros, counted, next int64
		if err := tx.QueryRowContext(ctx, clock).Scan(&micros); err != nil {
			return err
		}
		var f failures
		err := tx.QueryRowContext(ctx, find, s.kind, hash).Scan(&f.count, &counted, &next)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		now := time.UnixMicro(micros)
		f.counted, f.next = time.UnixMicro(counted), time.UnixMicro(next)
		if refused = change(&f, now); refused != nil {
			return nil //nolint:nilerr // there is nothing to write
		}
		if err := s.deleteForgotten(ctx, tx, now); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, upsert, s.kind, hash, f.count, f.counted.UnixMicro(), max(f.next.UnixMicro(), 0))
		return err
	})
	if err != nil {
		return fmt.Errorf("count failed sign-ins: %w", err)
	}
	return refused
}

// deleteForgotten deletes some of the oldest rows whose failures are forgotten: more than an attempt adds.
func (s *sharedSlowdown) deleteForgotten(ctx context.Context, tx database.Tx, now time.Time) error {
	const text = `
		DELETE FROM sign_in_failures WHERE (kind, subject) IN (
			SELECT kind, subject FROM (
				SELECT kind, subject, failures, counted FROM sign_in_failures WHERE kind = $1 ORDER BY counted LIMIT 20) AS oldest
			WHERE counted + failures * $2::bigint < $3::bigint)`
	_, err := tx.ExecContext(ctx, text, s.kind, s.settings.forget.Microseconds(), now.UnixMicro())
	return err
}

// hashSubject keeps addresses and networks out of the database, and limits their length.
func hashSubject(subject string) []byte {
	sum := sha256.Sum256([]byte(subject))
	return sum[:]
}
