package budget

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Grouping is what requests have in common that are summed up in one row of usage.
type Grouping string

// The groupings.
const (
	ByRequest  Grouping = "request" // one row per request
	ByKey      Grouping = "key"
	ByAccount  Grouping = "account"
	ByModel    Grouping = "model"
	ByDay      Grouping = "day"       // UTC
	ByDayModel Grouping = "day-model" // one row per day (UTC) and model
	ByWorkload Grouping = "workload"
	ByUser     Grouping = "user" // the user tag of the request
)

// Filter selects requests. The zero value selects all that have ended.
type Filter struct {
	Since   time.Time // inclusive; zero means no lower bound
	Until   time.Time // exclusive; zero means no upper bound
	Account string    // id
	Key     string    // id
	Model   string
	Failed  bool   // only requests that ended with an error code or were interrupted
	Search  string // only requests whose id or code starts with it, or whose user, workload or backend contains it
	Limit   int    // maximum number of rows, the first in order; 0 means all
}

// Row is one request, or the sum of the requests of one group. Fields that the requests of a group do not share are
// zero.
type Row struct {
	Requests         int64 // 1 if grouped by request
	PromptTokens     int64
	CompletionTokens int64

	Time      time.Time // UTC; by request: when it arrived; by day: the start of the day
	KeyID     string    // by request or key
	AccountID string    // by request, key or account
	Model     string    // by request or model
	Workload  string    // by request or workload
	User      string    // by request or user

	// The fields below are set only if grouped by request.

	RequestID  string
	Backend    string
	Endpoint   string
	Stream     bool
	Status     int
	Code       string
	State      State
	Queue      time.Duration
	FirstToken time.Duration
	Total      time.Duration
}

// Usage returns Rows as a slice.
func (l *Ledger) Usage(ctx context.Context, f Filter, by Grouping) ([]Row, error) {
	var all []Row
	for r, err := range l.Rows(ctx, f, by) {
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Rows returns an iterator over the usage of the requests that have ended. Requests and days are ordered from the
// newest, other groups by descending number of tokens. The iteration ends after an error.
func (l *Ledger) Rows(ctx context.Context, f Filter, by Grouping) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		query, ok := usageQueryFor(by)
		if !ok {
			yield(Row{}, fmt.Errorf("read usage: unknown grouping %q", by))
			return
		}
		rows, err := selectUsage(ctx, l.db.Read(), f, query)
		if err != nil {
			yield(Row{}, fmt.Errorf("read usage: %w", err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			r, err := query.scan(rows)
			if err != nil {
				yield(Row{}, fmt.Errorf("read usage: %w", err))
				return
			}
			if !yield(r, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(Row{}, fmt.Errorf("read usage: %w", err))
		}
	}
}
