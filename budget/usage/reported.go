package usage

import (
	"context"
	"database/sql/driver"
	"fmt"

	"basegate/database"
)

// Reported is what a backend reports of a request besides the tokens that are charged; what it does not report is nil. The times are
// the engine's own, in microseconds.
type Reported struct {
	CachedTokens  *int64 `json:"cached,omitempty"`         // of the prompt, which the prefix cache had
	CreatedTokens *int64 `json:"created,omitempty"`        // of the prompt, which it did not have and keeps
	Queue         *int64 `json:"engine_queue,omitempty"`   // until it was scheduled
	Prefill       *int64 `json:"engine_prefill,omitempty"` // from then to the first token
	Between       *int64 `json:"engine_between,omitempty"` // two tokens, on average
}

// ReportedColumns are the columns of requests with the fields, in their order.
const ReportedColumns = `cached_tokens, created_tokens, engine_queue_us, engine_prefill_us, engine_between_us`

// fields returns the fields in the order of ReportedColumns.
func (r *Reported) fields() []**int64 {
	return []**int64{&r.CachedTokens, &r.CreatedTokens, &r.Queue, &r.Prefill, &r.Between}
}

// AppendValues appends the values of ReportedColumns, NULL for what is not reported.
func (r *Reported) AppendValues(to []any) []any {
	for _, f := range r.fields() {
		var value driver.Value
		if *f != nil {
			value = **f
		}
		to = append(to, value)
	}
	return to
}

// FirstToken returns the engine's time to the first token, which is its queue and its prefill, or nil.
func (r *Reported) FirstToken() *int64 {
	if r.Queue == nil || r.Prefill == nil {
		return nil
	}
	return new(*r.Queue + *r.Prefill)
}

// Cached returns the prompt tokens that were cached, of Known; nil if that is not known of any.
func (r *Row) Cached() *int64 { return r.ifKnown(r.CachedTokens) }

// Known returns the prompt tokens of which it is known whether they were cached; nil if there are none.
func (r *Row) Known() *int64 { return r.ifKnown(r.KnownTokens) }

// Saved returns the tokens of the responses that were replayed; nil if there are none.
func (r *Row) Saved() *int64 {
	if r.SavedTokens == 0 {
		return nil
	}
	return &r.SavedTokens
}

func (r *Row) ifKnown(n int64) *int64 {
	if r.KnownTokens == 0 {
		return nil
	}
	return &n
}

// Reporting is what a backend has reported of its latest requests.
type Reporting struct {
	Model, Backend        string
	CachedTokens, Metrics bool
}

// Reporting returns the backends that have served one of the latest thousand requests that succeeded.
func (s *Store) Reporting(ctx context.Context) (all []Reporting, err error) {
	const text = `
		SELECT model, backend, count(cached_tokens) > 0, count(engine_prefill_us) > 0 FROM (
			SELECT model, backend, cached_tokens, engine_prefill_us FROM requests
			WHERE code = '' AND state = 'settled' ORDER BY time DESC LIMIT 1000) r
		GROUP BY model, backend`
	all, err = database.List(ctx, s.db.Read(), func(row database.Scanner) (r Reporting, err error) {
		err = row.Scan(&r.Model, &r.Backend, &r.CachedTokens, &r.Metrics)
		return r, err
	}, text)
	if err != nil {
		return nil, fmt.Errorf("read what backends report: %w", err)
	}
	return all, nil
}
