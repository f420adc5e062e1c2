package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
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

// Reader runs the queries of a report.
type Reader interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Report runs read, for queries that may take long, in a transaction. It has connections that no other reads use, waits for
// one of them up to the given duration, and is interrupted after Settings.ReportTimeout. read must wait for nothing but its
// queries, such as a client that reads what they return.
//
// On SQLite its queries see one snapshot of the database, past which the write-ahead log cannot be written back. On
// PostgreSQL each query sees one of its own, and none is held between them.
//
// The reports of one subject, such as an account, run one after the other; an empty subject has no such limit. The error
// is ErrReportsBusy, ErrReportTooLong, or that of read.
func (db *DB) Report(ctx context.Context, subject string, wait time.Duration, read func(context.Context, Reader) error) error {
	release, err := db.reports.acquire(ctx, subject, wait)
	if err != nil {
		return err
	}
	defer release()
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
	defer tx.Rollback() //nolint:errcheck // nothing was written
	return read(ctx, tx)
}

// reportQueue limits the reports that run at the same time.
type reportQueue struct {
	slots *semaphore.Weighted // reportConns of them; in order of arrival

	mu       sync.Mutex
	subjects map[string]*reportSubject // those with reports that run or wait
}

// reportSubject limits the reports of one subject.
type reportSubject struct {
	slot    *semaphore.Weighted
	reports int // that run or wait; guarded by the queue's lock
}

func newReportQueue() *reportQueue {
	return &reportQueue{slots: semaphore.NewWeighted(reportConns), subjects: map[string]*reportSubject{}}
}

// acquire waits until the subject may run a report. The error is ErrReportsBusy, or the cause of the end of ctx.
func (q *reportQueue) acquire(ctx context.Context, subject string, wait time.Duration) (release func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	leave, err := q.enter(waiting, subject)
	if err == nil {
		if err = q.slots.Acquire(waiting, 1); err != nil {
			leave()
		}
	}
	switch {
	case err == nil:
		return func() { q.slots.Release(1); leave() }, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("wait for other reports: %w", context.Cause(ctx))
	}
	return nil, ErrReportsBusy
}

// enter waits until no other report of the subject runs.
func (q *reportQueue) enter(ctx context.Context, subject string) (leave func(), err error) {
	if subject == "" {
		return func() {}, nil
	}
	q.mu.Lock()
	s := q.subjects[subject]
	if s == nil {
		s = &reportSubject{slot: semaphore.NewWeighted(1)}
		q.subjects[subject] = s
	}
	s.reports++
	q.mu.Unlock()
	err = s.slot.Acquire(ctx, 1)
	leave = func() {
		if err == nil {
			s.slot.Release(1)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if s.reports--; s.reports == 0 {
			delete(q.subjects, subject)
		}
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// pause waits until no report runs, and keeps further ones waiting until resume.
func (q *reportQueue) pause(ctx context.Context) (resume func(), err error) {
	if err := q.slots.Acquire(ctx, reportConns); err != nil {
		return nil, err
	}
	return func() { q.slots.Release(reportConns) }, nil
}
