package budget

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// By is what usage is added up by.
type By string

// What usage may be added up by.
const (
	ByRequest  By = "request" // not added up
	ByKey      By = "key"
	ByAccount  By = "account"
	ByModel    By = "model"
	ByDay      By = "day"       // UTC
	ByDayModel By = "day-model" // each model's days, UTC
	ByWorkload By = "workload"
	ByUser     By = "user" // the tag that the request gave
)

// Filter says which requests are wanted. Its zero value wants all.
type Filter struct {
	Since   time.Time // from here on; zero: from the beginning
	Until   time.Time // before this; zero: to the end
	Account string    // id
	Key     string    // id
	Model   string
	Failed  bool   // only what ended with an error's code, or was interrupted
	Search  string // only requests whose id or code begins like this, or whose user, workload or backend has it
	Limit   int    // of rows, the first in order; 0: none
}

// Row is one request, or what all have in common that were added up.
type Row struct {
	Requests         int64 // 1 for a request
	PromptTokens     int64
	CompletionTokens int64

	Time      time.Time // of a request, UTC; the beginning of a day
	KeyID     string    // of a request or a key
	AccountID string    // of a request, a key or an account
	Model     string    // of a request or a model
	Workload  string    // of a request or a workload
	User      string    // of a request or a user

	// What follows is of a request alone.

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

// Usage is Rows in a slice.
func (l *Ledger) Usage(ctx context.Context, f Filter, by By) ([]Row, error) {
	var all []Row
	for r, err := range l.Rows(ctx, f, by) {
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Rows reads the requests that have ended, one by one: requests and days from the newest, the others from the one
// with the most tokens. After an error there is nothing more.
func (l *Ledger) Rows(ctx context.Context, f Filter, by By) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		report, ok := reportBy(by)
		if !ok {
			yield(Row{}, fmt.Errorf("read usage: it is not added up by %q", by))
			return
		}
		rows, err := selectUsage(ctx, l.db.Read(), f, report)
		if err != nil {
			yield(Row{}, fmt.Errorf("read usage: %w", err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			r, err := report.scan(rows)
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
