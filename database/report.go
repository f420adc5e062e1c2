package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/budget/admission"
)

// ErrReportsBusy is returned by Report if too many other reports run or wait. A later attempt may succeed.
var ErrReportsBusy = errors.New("too many reports are read from the database at once")

// ErrReportTooLong is returned by Report if the report does not end within Settings.ReportTimeout.
var ErrReportTooLong = errors.New("the report takes too long")

// DefaultReportTimeout is the ReportTimeout used if Settings.ReportTimeout is 0.
const DefaultReportTimeout = 10 * time.Second

// reportConns is the number of reports that run at the same time, each on a connection of its own. A subject has at
// most one of them, so that no subject can take them all.
const reportConns = 2

// Report runs read, for queries that may take long, in a transaction. It has connections that no other reads use, waits for
// one of them up to the given duration, and is interrupted after Settings.ReportTimeout. read must wait for nothing but its
// queries, such as a client that reads what they return.
//
// On SQLite its queries see one snapshot of the database, past which the write-ahead log cannot be written back. On
// PostgreSQL each query sees one of its own, and none is held between them.
//
// Subjects, such as accounts, get connections in turn, and the reports of one run one after the other; an empty subject has
// no such limit. The error is ErrReportsBusy, ErrReportTooLong, or that of read.
func (db *DB) Report(ctx context.Context, subject string, wait time.Duration, read func(context.Context, Reader) error) error {
	turn, err := db.acquireReport(ctx, subject, wait)
	if err != nil {
		return err
	}
	defer turn.Release()
	ends := time.Now().Add(db.settings.ReportTimeout)
	ctx, cancel := context.WithDeadlineCause(ctx, ends, ErrReportTooLong)
	defer cancel()
	err = db.readSnapshot(ctx, read)
	cause := context.Cause(ctx)
	interrupted := cause == nil && !time.Now().Before(ends) // by PostgreSQL, whose statement_timeout may come first
	if err != nil && (interrupted || errors.Is(cause, ErrReportTooLong)) {
		return fmt.Errorf("%w: more than %s", ErrReportTooLong, db.settings.ReportTimeout)
	}
	return err
}

// readSnapshot runs read in a read transaction.
func (db *DB) readSnapshot(ctx context.Context, read func(context.Context, Reader) error) error {
	tx, err := db.current.Load().reports.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: db.engine.snapshot()})
	if err != nil {
		return fmt.Errorf("begin report: %w", err)
	}
	defer tx.Rollback()
	return read(ctx, tx)
}

// acquireReport waits until the subject may run a report. The error is ErrReportsBusy, or the cause of the end of ctx.
func (db *DB) acquireReport(ctx context.Context, subject string, wait time.Duration) (*admission.Turn, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if subject == "" {
		subject = db.unlimited()
	}
	turn, err := db.reports.Acquire(waiting, subject)
	switch {
	case err == nil:
		return turn, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("wait for other reports: %w", context.Cause(ctx))
	}
	return nil, ErrReportsBusy
}

// unlimited returns a subject of its own.
func (db *DB) unlimited() string { return fmt.Sprintf("unnamed %d", db.unnamed.Add(1)) }

// pauseReports waits until no report runs, and keeps further ones waiting until resume.
func (db *DB) pauseReports(ctx context.Context) (resume func(), err error) {
	var held []*admission.Turn
	resume = func() {
		for _, turn := range held {
			turn.Release()
		}
	}
	for range reportConns {
		turn, err := db.reports.Acquire(ctx, db.unlimited())
		if err != nil {
			resume()
			return nil, err
		}
		held = append(held, turn)
	}
	return resume, nil
}

// Reports returns the places of reports, for metrics.
func (db *DB) Reports() *admission.Turns { return db.reports }
