package usage

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// requestTable is a table with requests.
type requestTable struct {
	refused bool
	columns string
	name    string
}

var (
	ledgerTable   = requestTable{columns: requestColumns, name: `requests`}
	refusalsTable = requestTable{refused: true, columns: refusalColumns, name: `refusals`}
)

// details returns the expression for the details of a row, in the encoding of EncodeDetails.
func (t requestTable) details(d *dialect) string {
	if t.refused {
		return `''`
	}
	return d.attempts
}

// refusalColumns are requestColumns of the table refusals.
const refusalColumns = `request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
	status, code, 'refused', 0, 0, queue_us, 0, total_us`

// endingCondition returns the condition for an ending, unless Filter.Failed is it.
func endingCondition(e Ending) string {
	if e == Succeeded {
		return ` AND code = '' AND state = 'settled'`
	}
	return ""
}

// selectPlaced returns up to limit rows of a table after a position, from the newest. Only the ledger has marks.
func selectPlaced(
	ctx context.Context, from source, t requestTable, f *Filter, condition string, at mark, after *position, limit int,
) ([]placed, error) {
	var s statement
	s.add(`SELECT ` + t.columns + `, ` + t.details(from.dialect) + ` FROM ` + t.name + ` WHERE true`)
	s.addMark(from.dialect, at)
	s.addRowFilter(f)
	s.add(condition)
	if after != nil {
		s.addParam(` AND (time, request_id) < (`, after.time)
		s.addParam(`, `, after.id)
		s.add(`)`)
	}
	s.addParam(` ORDER BY time DESC, request_id DESC LIMIT `, limit)
	found, err := s.query(ctx, from)
	if err != nil {
		return nil, err
	}
	var all []placed
	err = each(found, func() error {
		var details string
		r, err := scanRequest(withMore{found, []any{&details}})
		if err == nil {
			r.ChainID, err = chainIDOf(details)
		}
		all = append(all, placed{r, Cursor{r.Time.UnixMicro(), t.refused, r.RequestID}})
		return err
	})
	return all, err
}

// selectRefusal returns a refused request by its id.
func selectRefusal(ctx context.Context, from source, account, id string) (d Detail, found bool, err error) {
	var s statement
	s.addParam(`SELECT `+refusalColumns+`, boot_us FROM refusals WHERE request_id = `, id)
	s.addFilter(&Filter{Account: account}, "")
	rows, err := s.query(ctx, from)
	if err != nil {
		return d, false, err
	}
	err = each(rows, func() error {
		var boot int64
		d.Row, err = scanRequest(withMore{rows, []any{&boot}})
		d.Boot, found = time.Duration(boot)*time.Microsecond, true
		return err
	})
	return d, found, err
}

// withMore scans a row that has further columns at its end.
type withMore struct {
	row  scanner
	more []any
}

// Scan implements scanner.
func (w withMore) Scan(targets ...any) error { return w.row.Scan(append(targets, w.more...)...) }

// readDetails reads what most requests do not have.
func (d *Detail) readDetails(ctx context.Context, from source) error {
	var (
		boot     int64
		attempts string
	)
	err := from.QueryRowContext(ctx, from.details, d.RequestID).Scan(&boot, &attempts)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		d.Boot = time.Duration(boot) * time.Microsecond
		d.Attempts, d.ChainID, err = decodeDetails(attempts)
	}
	return err
}

func selectRefusalCounts(ctx context.Context, from source, f *Filter) ([]RefusalCount, error) {
	since, until := f.bounds()
	var s statement
	s.addParam(`SELECT code, sum(requests) FROM refusal_hours WHERE period >= `, hours.number(since))
	s.addParam(` AND period < `, hours.number(until+hourMicros-1))
	s.addFilter(&Filter{Account: f.Account}, "")
	s.add(` GROUP BY code ORDER BY sum(requests) DESC, code`)
	found, err := s.query(ctx, from)
	if err != nil {
		return nil, err
	}
	var all []RefusalCount
	err = each(found, func() error {
		var c RefusalCount
		err := found.Scan(&c.Code, &c.Requests)
		all = append(all, c)
		return err
	})
	return all, err
}
