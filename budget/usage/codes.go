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

// Codes returns how many requests that a filter selects have ended with which error code; its range is of whole hours. It reads the
// rows of those that failed, by the accounts' indexes on them, and the numbers of those that were refused, which are known by account
// only: there are none for a key, a model or a run.
func (s *Store) Codes(ctx context.Context, f Filter) (all []CodeCount, err error) {
	err = s.report(ctx, f.Reader, reportWait, func(ctx context.Context, from source) error {
		var q statement
		since, until := f.bounds()
		q.addParam(`SELECT r.time / 3600000000, r.model, CASE WHEN r.code = '' THEN 'interrupted' ELSE r.code END, count(*)
			FROM accounts a CROSS JOIN requests r
			WHERE r.account_id = a.id AND (r.code <> '' OR r.state = 'interrupted') AND r.time >= `, since)
		q.addParam(` AND r.time < `, until)
		q.addFilter(&f, "r.")
		q.add(` GROUP BY 1, 2, 3`)
		if f.Key == "" && f.Model == "" && f.Run == "" {
			q.addParam(` UNION ALL SELECT period, '', code, sum(requests) FROM refusal_hours WHERE period >= `, hours.number(since))
			q.addParam(` AND period < `, hours.number(until))
			if f.Account != "" {
				q.addParam(` AND account_id = `, f.Account)
			}
			q.add(` GROUP BY period, code`)
		}
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
