package identity

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"basegate/database"
)

// TooManyAttemptsError is returned when too many sign-ins have failed for an account or from a network. The password was
// not checked.
type TooManyAttemptsError struct {
	RetryIn time.Duration
}

// Error implements error.
func (e *TooManyAttemptsError) Error() string {
	return fmt.Sprintf("too many attempts to sign in have failed; try again in %s", e.RetryIn.Round(time.Second))
}

// throttle says how failed attempts delay the next one.
type throttle struct {
	kind     string
	free     float64       // failures that delay nothing
	forget   time.Duration // after which one failure is forgotten
	maxDelay time.Duration // the first failure beyond free delays by a second, and each further one by twice as long
}

// The delays of failed sign-ins. They bound the guesses at a password: 720 a day for an account, whatever networks they
// come from, and 4,800 a day from a network. A whole laboratory may share a network, so that has more free failures.
var (
	accountThrottle = throttle{kind: "account", free: 5, forget: 3 * time.Minute, maxDelay: 2 * time.Minute}
	networkThrottle = throttle{kind: "network", free: 50, forget: 18 * time.Second, maxDelay: 20 * time.Second}
)

// failures are the failed attempts of a subject.
type failures struct {
	count   float64   // failures at the time of the latest attempt that was allowed, less those forgotten
	counted time.Time // that time
	next    time.Time // when the next attempt is allowed
}

// begin counts an attempt as failed. The error is a *TooManyAttemptsError if it comes before the next is allowed. A delay
// is never longer than maxDelay, also if the clock was ahead and has been corrected.
func (t throttle) begin(f *failures, now time.Time) error {
	if wait := f.next.Sub(now); wait > 0 && wait <= t.maxDelay {
		return &TooManyAttemptsError{RetryIn: wait}
	}
	forgotten := max(float64(now.Sub(f.counted))/float64(t.forget), 0)
	f.count, f.counted = max(f.count-forgotten, 0)+1, now
	if excess := math.Ceil(f.count - t.free); excess > 0 {
		delay := math.Min(math.Exp2(excess-1)*float64(time.Second), float64(t.maxDelay))
		f.next = now.Add(time.Duration(delay))
	}
	return nil
}

// subject is what a failed attempt counts for, such as an account or a network.
type subject struct {
	throttle

	hash []byte // keeps addresses and networks out of the database, and limits their length
}

func (t throttle) of(name string) subject {
	hash := sha256.Sum256([]byte(name))
	return subject{t, hash[:]}
}

// beginAttempt counts an attempt to sign in as failed, before its password is checked, so that concurrent attempts are
// delayed too. The error is a *TooManyAttemptsError, and the attempt not counted, if it comes too early for one subject.
func (s *Sessions) beginAttempt(ctx context.Context, subjects []subject) error {
	err := s.db.WriteGrouped(ctx, func(tx database.Tx) error {
		at := now()
		if s.db.Postgres() != nil { // by whose clock all gateways count
			var micros int64
			if err := tx.QueryRowContext(ctx, `SELECT `+databaseNow).Scan(&micros); err != nil {
				return err
			}
			at = time.UnixMicro(micros)
		}
		for _, counted := range subjects {
			if err := countFailure(ctx, tx, counted, at); err != nil {
				return err
			}
		}
		return nil
	})
	if _, tooMany := errors.AsType[*TooManyAttemptsError](err); err != nil && !tooMany {
		return fmt.Errorf("count failed sign-ins: %w", err)
	}
	return err
}

func countFailure(ctx context.Context, tx database.Tx, s subject, at time.Time) error {
	const (
		find   = `SELECT failures, counted, next FROM sign_in_failures WHERE kind = $1 AND subject = $2`
		upsert = `
			INSERT INTO sign_in_failures (kind, subject, failures, counted, next) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (kind, subject) DO UPDATE
			SET failures = excluded.failures, counted = excluded.counted, next = excluded.next`
		// Some of the oldest rows whose failures are forgotten: more than an attempt adds.
		clean = `
			DELETE FROM sign_in_failures WHERE (kind, subject) IN (
				SELECT kind, subject FROM (
					SELECT kind, subject, failures, counted FROM sign_in_failures WHERE kind = $1 ORDER BY counted LIMIT 20) AS oldest
				WHERE counted + failures * $2 < $3)`
	)
	var f failures
	var counted, next int64
	err := tx.QueryRowContext(ctx, find, s.kind, s.hash).Scan(&f.count, &counted, &next)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	f.counted, f.next = time.UnixMicro(counted), time.UnixMicro(next)
	if err := s.begin(&f, at); err != nil {
		return err
	}
	if err := database.Exec(ctx, tx, clean, s.kind, float64(s.forget.Microseconds()), float64(at.UnixMicro())); err != nil {
		return err
	}
	return database.Exec(ctx, tx, upsert, s.kind, s.hash, f.count, f.counted.UnixMicro(), f.next.UnixMicro())
}

// endAttempt makes the attempt that beginAttempt has counted a success: it does not count for a network, and all failures
// of an account are forgotten.
func (s *Sessions) endAttempt(ctx context.Context, subjects []subject) error {
	const (
		forget   = `DELETE FROM sign_in_failures WHERE kind = $1 AND subject = $2`
		takeBack = `UPDATE sign_in_failures SET failures = CASE WHEN failures > 1 THEN failures - 1 ELSE 0 END, next = 0
			WHERE kind = $1 AND subject = $2`
	)
	return write(ctx, s.db, "forget failed sign-ins", func(tx database.Tx) error {
		for _, counted := range subjects {
			text := forget
			if counted.kind == networkThrottle.kind {
				text = takeBack
			}
			if err := database.Exec(ctx, tx, text, counted.kind, counted.hash); err != nil {
				return err
			}
		}
		return nil
	})
}
