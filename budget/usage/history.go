package usage

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// maxSearched limits the rows among which History looks for those that the filter selects.
var maxSearched = 20_000

// Requests are a page of History.
type Requests struct {
	Rows     []Row
	Next     Cursor    // of the next page; zero if there is none
	Searched time.Time // of the oldest request that was looked at; zero if the page is full or the last one
}

// History returns the requests after a cursor that a filter selects, from the newest: those on the ledger and those that
// were refused. A page has up to Filter.Limit of them; the ending takes the place of Filter.Failed. If the filter selects by key,
// model or text, for which there is no index, History looks at no more than 20,000 requests for a page, of the account that it
// may select; if the page is not full then, the next one continues where the search has stopped. An id is found among all.
func (s *Store) History(ctx context.Context, f Filter, ending Ending, after Cursor) (page Requests, err error) {
	err = s.report(ctx, f.Reader, reportWait, func(ctx context.Context, from source) error {
		page, err = readHistory(ctx, from, f, ending, after)
		return err
	})
	if err != nil {
		return Requests{}, fmt.Errorf("read requests: %w", err)
	}
	return page, nil
}

func readHistory(ctx context.Context, from source, f Filter, ending Ending, after Cursor) (page Requests, err error) {
	f.Failed = ending == HasFailed
	var (
		rows    []listed
		stopped int64 // where the search in the ledger has stopped; 0 if it has not
	)
	if ending != WereRefused {
		if rows, stopped, err = searchLedger(ctx, from, f, ending, after); err != nil {
			return Requests{}, err
		}
	}
	if ending == AnyEnding || ending == WereRefused {
		within := f
		if since := time.UnixMicro(stopped); stopped > 0 && since.After(within.Since) {
			within.Since = since
		}
		refusals := listing{table: refusalsTable, filter: within, after: after, limit: f.Limit + 1}
		refused, err := refusals.read(ctx, from)
		if err != nil {
			return Requests{}, err
		}
		rows = append(rows, refused...)
		slices.SortStableFunc(rows, func(a, b listed) int { return a.at.compare(b.at) })
	}
	if len(rows) > f.Limit {
		rows = rows[:f.Limit]
		page.Next = rows[f.Limit-1].at
	} else if stopped > 0 {
		page.Next, page.Searched = Cursor{time: stopped, refused: true}, time.UnixMicro(stopped).UTC()
	}
	for i := range rows {
		page.Rows = append(page.Rows, rows[i].Row)
	}
	return page, nil
}

// searchLedger returns up to Filter.Limit+1 rows of the ledger after a place. If it has stopped before the oldest, because it
// has looked at maxSearched rows, it also returns the time of the last of them.
func searchLedger(ctx context.Context, from source, f Filter, ending Ending, after Cursor) (all []listed, stopped int64, err error) {
	searching, err := f.endAt(after).limitSearch(ctx, from)
	if err != nil {
		return nil, 0, err
	}
	rows := listing{table: ledgerTable, filter: searching, ending: ending, after: after, limit: f.Limit + 1}
	if all, err = rows.read(ctx, from); err != nil {
		return nil, 0, err
	}
	if searching.Since.After(f.Since) && len(all) <= f.Limit {
		stopped = searching.Since.UnixMicro()
	}
	if stopped == 0 || f.Search == "" {
		return all, stopped, nil
	}
	older := f // an id is found among all
	older.Until, older.Search = searching.Since, ""
	one := listing{table: ledgerTable, filter: older, ending: ending, id: f.Search, limit: 1}
	byID, err := one.read(ctx, from)
	if len(byID) > 0 {
		stopped = 0
	}
	return append(all, byID...), stopped, err
}

// limitSearch returns a copy of the filter whose bounds leave at most maxSearched rows to look at.
func (f Filter) limitSearch(ctx context.Context, from source) (Filter, error) {
	if f.Key == "" && f.Model == "" && f.Search == "" {
		return f, nil
	}
	watermark, err := selectWatermark(ctx, from)
	if err != nil {
		return f, err
	}
	among := Filter{Account: f.Account, Key: f.Key, Model: f.Model}
	switch tail, err := hasTail(ctx, from, &among, watermark); {
	case err != nil:
		return f, err
	case !tail && (f.Key != "" || f.Model != ""): // begin where the rollups say that there are some
		day, found, err := selectLastDay(ctx, from, &among)
		if err != nil {
			return f, err
		}
		if !found {
			day = -1
		}
		if end := time.UnixMicro(days.start(day + 1)).UTC(); f.Until.IsZero() || end.Before(f.Until) {
			f.Until = end
		}
	}
	at, found, err := selectNthTime(ctx, from, f, maxSearched)
	if oldest := time.UnixMicro(at).UTC(); found && oldest.After(f.Since) {
		f.Since = oldest
	}
	return f, err
}

// selectNthTime returns the time of the nth newest request that Account, Failed and the range of times select; found is
// false if there are fewer.
func selectNthTime(ctx context.Context, from source, f Filter, n int) (at int64, found bool, err error) {
	f.Key, f.Model, f.Search = "", "", ""
	var s statement
	s.add(`SELECT time FROM requests WHERE true`)
	s.addRowFilter(&f)
	s.addParam(` ORDER BY time DESC LIMIT 1 OFFSET `, n-1)
	return s.queryInt(ctx, from)
}

// selectLastDay returns the newest day for which there are rollups.
func selectLastDay(ctx context.Context, from source, f *Filter) (day int64, found bool, err error) {
	var s statement
	s.add(`SELECT max(u.period) FROM usage_series s JOIN usage_days u ON u.series = s.id WHERE true`)
	s.addFilter(f, "s.")
	return s.queryInt(ctx, from)
}

// hasTail reports whether the filter selects rows after the watermark.
func hasTail(ctx context.Context, from source, f *Filter, watermark int64) (found bool, err error) {
	var s statement
	s.add(`SELECT 1 FROM requests` + from.noIndex + ` WHERE true`)
	s.addCondition(from.above, watermark)
	s.addRowFilter(f)
	s.add(` LIMIT 1`)
	_, found, err = s.queryInt(ctx, from)
	return found, err
}

// RefusalCount is how many requests were refused with a code.
type RefusalCount struct {
	Code     string
	Requests int64
}

// Refusals returns how many requests were refused in the hours of a range, by code, the most frequent first. Of the
// filter it uses Since, Until and Account.
func (s *Store) Refusals(ctx context.Context, f Filter) (all []RefusalCount, err error) {
	since, until := f.bounds()
	var q statement
	q.addParam(`SELECT code, sum(requests) FROM refusal_hours WHERE period >= `, hours.number(since))
	q.addParam(` AND period < `, hours.number(until+hourMicros-1))
	q.addFilter(&Filter{Account: f.Account}, "")
	q.add(` GROUP BY code ORDER BY sum(requests) DESC, code`)
	err = q.each(ctx, s.reads(), func(rows *sql.Rows) error {
		var c RefusalCount
		err := rows.Scan(&c.Code, &c.Requests)
		all = append(all, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read refusals: %w", err)
	}
	return all, nil
}
