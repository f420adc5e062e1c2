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

// requests returns an iterator over requests, from the newest. Rows are never changed in a way that moves them, so the rows
// before the mark of the first page are a snapshot.
func (s *Store) requests(ctx context.Context, f Filter) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		page := listing{table: ledgerTable, filter: f}
		left, wait := f.Limit, reportWait
		for {
			page.limit = pageRows
			if f.Limit > 0 {
				page.limit = min(pageRows, left)
			}
			var rows []listed
			err := s.report(ctx, f.Reader, wait, func(ctx context.Context, from source) (err error) {
				if page.after.IsZero() {
					if page.at, err = selectMark(ctx, from); err != nil {
						return err
					}
				}
				rows, err = page.read(ctx, from)
				return err
			})
			if err != nil {
				yield(Row{}, fmt.Errorf("read usage: %w", err))
				return
			}
			for i := range rows {
				if !yield(rows[i].Row, nil) {
					return
				}
			}
			if left -= len(rows); len(rows) < page.limit || left == 0 {
				return
			}
			page.after, wait = rows[len(rows)-1].at, pageWait
		}
	}
}
