package usage

import (
	"context"
	"fmt"
	"iter"
	"time"
)

const (
	reportWait = 2 * time.Second  // for other reports, before the first row
	pageWait   = 30 * time.Second // between two pages: what has been read is not thrown away soon
	pageRows   = 1000             // requests read in one snapshot
)

// Rows returns an iterator over the usage that a filter selects. Requests and days are ordered from the newest, other
// groups by descending number of tokens. No connection and no snapshot of the database is held while a row is used, so
// its use may take as long as it likes; the requests are nevertheless those that had ended when the iteration began. The
// iteration ends after an error.
func (s *Store) Rows(ctx context.Context, f Filter, by Grouping) iter.Seq2[Row, error] {
	if by == ByRequest {
		return s.requests(ctx, f)
	}
	return func(yield func(Row, error) bool) {
		all, err := s.Groups(ctx, f, by)
		if err != nil {
			yield(Row{}, err)
			return
		}
		for _, r := range all[0] {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// List returns Rows as a slice.
func (s *Store) List(ctx context.Context, f Filter, by Grouping) ([]Row, error) {
	var all []Row
	for r, err := range s.Rows(ctx, f, by) {
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// requests returns an iterator over requests, from the newest.
func (s *Store) requests(ctx context.Context, f Filter) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		pages := requestPages{store: s, filter: f}
		for wait := reportWait; !pages.complete; wait = pageWait {
			rows, err := pages.next(ctx, wait)
			if err != nil {
				yield(Row{}, fmt.Errorf("read usage: %w", err))
				return
			}
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// requestPages reads requests page by page. Rows are never changed in a way that moves them, so the rows before the mark of
// the first page are a snapshot.
type requestPages struct {
	store    *Store
	filter   Filter
	at       mark      // of the first page
	after    *position // the end of the previous page; nil before the first
	read     int       // rows
	complete bool
}

func (p *requestPages) next(ctx context.Context, wait time.Duration) (page []Row, err error) {
	limit := pageRows
	if p.filter.Limit > 0 {
		limit = min(limit, p.filter.Limit-p.read)
	}
	err = p.store.report(ctx, p.filter.Reader, wait, func(ctx context.Context, from source) (err error) {
		if p.after == nil {
			if p.at, err = selectMark(ctx, from); err != nil {
				return err
			}
		}
		var end position
		page, end, err = selectRequests(ctx, from, &p.filter, p.at, p.after, limit)
		p.after = &end
		return err
	})
	p.read += len(page)
	p.complete = len(page) < limit || p.read == p.filter.Limit
	return page, err
}

// maxSearched limits the rows among which Recent looks for those that the filter selects.
var maxSearched = 20_000

// Recent returns the newest requests that a filter selects, up to Filter.Limit. If it selects by key, model or text, for
// which there is no index, Recent looks only among the newest 20,000 requests of the account that it may select;
// searched is the time of the oldest of them, or zero if it looked among all. An id is found among all.
func (s *Store) Recent(ctx context.Context, f Filter) (rows []Row, searched time.Time, err error) {
	err = s.report(ctx, f.Reader, reportWait, func(ctx context.Context, from source) error {
		searching := f
		if err := searching.limitSearch(ctx, from); err != nil {
			return err
		}
		if searching.Since.After(f.Since) {
			searched = searching.Since
		}
		var err error
		rows, _, err = selectRequests(ctx, from, &searching, mark{}, nil, f.Limit)
		if err != nil || searched.IsZero() || f.Search == "" || len(rows) == f.Limit {
			return err
		}
		older := f
		older.Until = searched
		found, err := selectByID(ctx, from, older, f.Search)
		rows = append(rows, found...)
		return err
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read requests: %w", err)
	}
	return rows, searched, nil
}

// limitSearch moves the bounds of the filter so that it has at most maxSearched rows to look at.
func (f *Filter) limitSearch(ctx context.Context, from source) error {
	if f.Key == "" && f.Model == "" && f.Search == "" {
		return nil
	}
	w, err := selectWatermark(ctx, from)
	if err != nil {
		return err
	}
	switch tail, err := hasTail(ctx, from, &Filter{Account: f.Account, Key: f.Key, Model: f.Model}, w); {
	case err != nil:
		return err
	case !tail && (f.Key != "" || f.Model != ""): // begin where the rollups say that there are some
		day, found, err := selectLastDay(ctx, from, f)
		if err != nil {
			return err
		}
		if !found {
			day = -1
		}
		if end := time.UnixMicro(days.start(day + 1)).UTC(); f.Until.IsZero() || end.Before(f.Until) {
			f.Until = end
		}
	}
	at, found, err := selectNthTime(ctx, from, *f, maxSearched)
	if err != nil {
		return err
	}
	if oldest := time.UnixMicro(at).UTC(); found && oldest.After(f.Since) {
		f.Since = oldest
	}
	return nil
}
