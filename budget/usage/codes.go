package usage

import (
	"context"
	"database/sql"
	"fmt"
	"sort"
	"time"
)

// Record counts a duration.
func (h *Histogram) Record(d time.Duration) {
	h.add(sort.Search(maxBucket, func(bucket int) bool { return bucketStart(bucket+1) > d.Microseconds() }), 1)
}

// CodeCount is how many requests of an hour have ended with an error code.
type CodeCount struct {
	Hour     time.Time
	Model    string // empty if they were refused, and have no row on the ledger
	Code     string
	Requests int64
}

// Codes returns how many requests have ended with which error code since the begin of an hour. It reads the rows of those
// that failed, by the accounts' indexes on them, and the numbers of those that were refused.
func (s *Store) Codes(ctx context.Context, reader string, since time.Time) (all []CodeCount, err error) {
	err = s.report(ctx, reader, reportWait, func(ctx context.Context, from source) error {
		var q statement
		q.addParam(`SELECT r.time / 3600000000, r.model, CASE WHEN r.code = '' THEN 'interrupted' ELSE r.code END, count(*)
			FROM accounts a CROSS JOIN requests r
			WHERE r.account_id = a.id AND (r.code <> '' OR r.state = 'interrupted') AND r.time >= `, since.UnixMicro())
		q.addParam(` GROUP BY 1, 2, 3
			UNION ALL SELECT period, '', code, sum(requests) FROM refusal_hours WHERE period >= `, hours.number(since.UnixMicro()))
		q.add(` GROUP BY period, code`)
		return q.each(ctx, from, func(rows *sql.Rows) error {
			var hour int64
			var c CodeCount
			err := rows.Scan(&hour, &c.Model, &c.Code, &c.Requests)
			c.Hour = time.UnixMicro(hour * hourMicros).UTC()
			all = append(all, c)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read error codes: %w", err)
	}
	return all, nil
}
