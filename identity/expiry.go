package identity

import (
	"database/sql"
	"fmt"
	"time"
)

// nullableTime converts between a column in microseconds and a time, whose zero value is NULL.
type nullableTime struct{ at *time.Time }

// Scan implements sql.Scanner.
func (t nullableTime) Scan(column any) error {
	switch v := column.(type) {
	case nil:
		*t.at = time.Time{}
	case int64:
		*t.at = time.UnixMicro(v).UTC()
	default:
		return fmt.Errorf("scan a time from %T", column)
	}
	return nil
}

// timeColumn returns the value of a column for a time, whose zero value is NULL.
func timeColumn(at time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: at.UnixMicro(), Valid: !at.IsZero()}
}

// normalizeTime returns a time at the database's resolution, in UTC, so that equal times compare equal.
func normalizeTime(at time.Time) time.Time {
	if at.IsZero() {
		return time.Time{}
	}
	return time.UnixMicro(at.UnixMicro()).UTC()
}

// Expired reports whether the key has expired.
func (k Key) Expired() bool { return hasPassed(k.ExpiresAt) }

// ReplacedSecretWorks reports whether a secret that Rotate has replaced still works.
func (k Key) ReplacedSecretWorks() bool {
	return !k.ReplacedUntil.IsZero() && !hasPassed(k.ReplacedUntil)
}

// hasPassed reports whether a time is not in the future. The zero time never passes.
func hasPassed(at time.Time) bool { return !at.IsZero() && !at.After(time.Now()) }

// earlier returns the earlier of two times; the zero time is later than all others.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func expiryText(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return at.UTC().Format(time.RFC3339)
}
