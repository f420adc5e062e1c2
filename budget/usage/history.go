package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Refused is the State of a request that was refused before it had a row on the ledger. Only History and Request return
// it.
const Refused State = "refused"

// Ending selects requests by how they have ended.
type Ending string

// The endings.
const (
	AnyEnding   Ending = ""
	Succeeded   Ending = "succeeded"
	HasFailed   Ending = "failed"  // with an error code or interrupted, and with a row on the ledger
	WereRefused Ending = "refused" // without a row on the ledger
)

// Cursor is a place in the order of History, between two requests. The zero value is the place before the newest one.
type Cursor struct {
	time    int64
	refused bool   // after all rows of the ledger with this time
	id      string // of the request before it, in its table; empty: after all of its table with this time
}

var errCursor = errors.New("this is no place in the list of requests")

// ParseCursor parses what Cursor.String returns.
func ParseCursor(text string) (c Cursor, err error) {
	if text == "" {
		return Cursor{}, nil
	}
	parts := strings.Split(text, "-")
	if len(parts) != 3 || parts[1] != "l" && parts[1] != "r" {
		return Cursor{}, errCursor
	}
	at, err := strconv.ParseInt(parts[0], 36, 64)
	if err != nil || at < 0 || at >= maxTime || parts[2] == "" && parts[1] == "l" || !utf8.ValidString(parts[2]) || strings.Contains(parts[2], "\x00") {
		return Cursor{}, errCursor
	}
	return Cursor{at, parts[1] == "r", parts[2]}, nil
}

// String returns the cursor for a URL; empty for the zero value.
func (c Cursor) String() string {
	if c.IsZero() {
		return ""
	}
	table := "l"
	if c.refused {
		table = "r"
	}
	return strconv.FormatInt(c.time, 36) + "-" + table + "-" + c.id
}

// IsZero reports whether the cursor is the place before the newest request.
func (c Cursor) IsZero() bool { return c == Cursor{} }

// Requests are a page of History.
type Requests struct {
	Rows     []Row
	Next     Cursor    // of the next page; zero if there is none
	Searched time.Time // of the oldest request that was looked at; zero if the page is full or the last one
}

// History returns the requests after a cursor that a filter selects, from the newest: those on the ledger and those that
// were refused. A page has up to Filter.Limit of them, and Filter.Failed does not apply. Like Recent it looks at no more
// than 20,000 requests for a page; if the page is not full then, the next one continues where the search has stopped.
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
	if !after.IsZero() {
		if end := time.UnixMicro(after.time + 1).UTC(); f.Until.IsZero() || end.Before(f.Until) {
			f.Until = end
		}
	}
	var rows, refused []placed
	stopped := int64(0) // where the search in the ledger has stopped; 0 if it has not
	if ending != WereRefused {
		if rows, stopped, err = searchLedger(ctx, from, f, ending, after); err != nil {
			return Requests{}, err
		}
	}
	if ending == AnyEnding || ending == WereRefused {
		within := f
		within.Failed = false
		if stopped > 0 && time.UnixMicro(stopped).After(within.Since) {
			within.Since = time.UnixMicro(stopped)
		}
		if refused, err = selectRefusals(ctx, from, &within, after, f.Limit+1); err != nil {
			return Requests{}, err
		}
	}
	all := slices.Concat(rows, refused)
	slices.SortStableFunc(all, func(a, b placed) int { return a.at.compare(b.at) })
	if len(all) > f.Limit {
		all = all[:f.Limit]
		page.Next = all[f.Limit-1].at
	} else if stopped > 0 {
		page.Next, page.Searched = Cursor{time: stopped, refused: true}, time.UnixMicro(stopped).UTC()
	}
	for _, p := range all {
		page.Rows = append(page.Rows, p.row)
	}
	return page, nil
}

// placed is a request with its place in the order of History.
type placed struct {
	row Row
	at  Cursor
}

// compare orders places from the newest. Those of one table and time are equal: the database has ordered them, and may
// compare text in another way than Go.
func (c Cursor) compare(d Cursor) int {
	if byTime := cmp.Compare(d.time, c.time); byTime != 0 || c.refused == d.refused {
		return byTime
	}
	if d.refused {
		return -1
	}
	return 1
}

// position returns the place in one of the two tables, among the requests that are not newer than the cursor; nil is before
// all of them.
func (c Cursor) position(refusals bool) *position {
	switch {
	case c.IsZero():
		return nil
	case c.refused == refusals:
		return &position{c.time, c.id}
	case refusals: // those of the same time come after the rows of the ledger
		return nil
	default:
		return &position{c.time, ""}
	}
}

// searchLedger returns up to Filter.Limit+1 rows of the ledger. If it has stopped before the oldest, because it has looked
// at maxSearched rows, it also returns the time of the last of them.
func searchLedger(ctx context.Context, from source, f Filter, ending Ending, after Cursor) (all []placed, stopped int64, err error) {
	searching := f
	if err := searching.limitSearch(ctx, from); err != nil {
		return nil, 0, err
	}
	found, err := selectPlaced(ctx, from, ledgerTable, &searching, endingCondition(ending), mark{}, after.position(false), f.Limit+1)
	if err != nil {
		return nil, 0, err
	}
	if searching.Since.After(f.Since) && len(found) <= f.Limit {
		stopped = searching.Since.UnixMicro()
	}
	if stopped > 0 && f.Search != "" { // an id is found among all
		older := f
		older.Until = searching.Since
		byID, err := selectByID(ctx, from, older, f.Search)
		if err != nil {
			return nil, 0, err
		}
		if len(byID) > 0 {
			stopped = 0
		}
		for _, r := range byID {
			found = append(found, placed{r, Cursor{time: r.Time.UnixMicro()}})
		}
	}
	return found, stopped, nil
}

func selectRefusals(ctx context.Context, from source, f *Filter, after Cursor, limit int) ([]placed, error) {
	return selectPlaced(ctx, from, refusalsTable, f, "", mark{}, after.position(true), limit)
}

// Detail is what is known of one request.
type Detail struct {
	Row
	Boot     time.Duration // waiting for the model's boot
	Attempts []Attempt     // empty if there was at most one, which succeeded
}

// Request returns a request of an account by its id, or of any account if that is empty; found is false if there is none.
func (s *Store) Request(ctx context.Context, account, id string) (d Detail, found bool, err error) {
	from := s.reads()
	f := Filter{Account: account}
	rows, err := selectByID(ctx, from, f, id)
	if err == nil && len(rows) == 0 {
		d, found, err = selectRefusal(ctx, from, account, id)
	}
	if err == nil && len(rows) > 0 {
		d.Row, found = rows[0], true
		err = d.readDetails(ctx, from)
	}
	if err != nil {
		return Detail{}, false, fmt.Errorf("read request: %w", err)
	}
	return d, found, nil
}

// RefusalCount is how many requests were refused with a code.
type RefusalCount struct {
	Code     string
	Requests int64
}

// Refusals returns how many requests were refused in the hours of a range, by code, the most frequent first. Of the
// filter it uses Since, Until and Account.
func (s *Store) Refusals(ctx context.Context, f Filter) ([]RefusalCount, error) {
	all, err := selectRefusalCounts(ctx, s.reads(), &f)
	if err != nil {
		return nil, fmt.Errorf("read refusals: %w", err)
	}
	return all, nil
}
