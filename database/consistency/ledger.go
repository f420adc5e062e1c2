package consistency

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"basegate/database/postgres"
	"basegate/internal/wait"
)

const (
	// maxHeartbeatAge is the age of a heartbeat after which requests of its gateway are named. Gateways reap each other after 12 s.
	maxHeartbeatAge = time.Minute

	// statementTimeout limits the sum of a month's requests.
	statementTimeout = 10 * time.Minute
)

// Ledger checks the ledger of several gateways.
type Ledger struct {
	db *postgres.DB

	// Observe is how long a gateway that seems dead is observed before its requests are ended; 0 means 15 s. Gateways send a
	// heartbeat every 2 s.
	Observe time.Duration
}

// NewLedger returns the check of a database's ledger.
func NewLedger(db *postgres.DB) *Ledger { return &Ledger{db: db} }

// connect opens a connection whose statements may take long.
func (l *Ledger) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := l.db.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf("SET statement_timeout = %d", statementTimeout.Milliseconds())); err != nil {
		postgres.CloseConn(ctx, conn)
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// Check compares counters with rows, and names what belongs to no gateway. Gateways may be running: each statement sees one
// snapshot, in which both agree.
func (l *Ledger) Check(ctx context.Context, report func(Problem)) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer postgres.CloseConn(ctx, conn)
	for _, check := range []func(context.Context, *pgx.Conn, func(Problem)) error{
		checkCounters, checkOwners, checkOrphans, checkCaps, checkTransactions,
	} {
		if err := check(ctx, conn, report); err != nil {
			return fmt.Errorf("check the ledger: %w", err)
		}
	}
	return nil
}

// difference is a counter that is not the sum of its rows.
type difference struct {
	Account, Owner, Counter string
	Stored, Counted         int64
}

// differences returns those of all time, and of all months whose requests are kept. Each month is a statement, so no snapshot is long.
func differences(ctx context.Context, conn *pgx.Conn) (found []difference, err error) {
	var since, last time.Time
	const text = `SELECT date_trunc('month', least(to_timestamp(min(time) / 1e6), clock_timestamp()))::date,
		greatest(to_timestamp(max(time) / 1e6), clock_timestamp())::date FROM requests` // sessions are in UTC
	if err := conn.QueryRow(ctx, text).Scan(&since, &last); err != nil {
		return nil, err
	}
	add := func(function string, args ...any) (err error) {
		rows, _ := conn.Query(ctx, `SELECT account, owner, counter, stored, counted FROM `+function, args...) // AppendRows returns its error
		found, err = pgx.AppendRows(found, rows, pgx.RowToStructByPos[difference])
		return err
	}
	for month := since; !month.After(last) && err == nil; month = month.AddDate(0, 1, 0) {
		err = add(`ledger_differences_v1($1)`, month)
	}
	if err == nil {
		err = add(`ledger_life_differences_v1()`)
	}
	return found, err
}

func checkCounters(ctx context.Context, conn *pgx.Conn, report func(Problem)) error {
	found, err := differences(ctx, conn)
	for _, d := range found {
		report(Problem{Part: "counters", Text: fmt.Sprintf("%s of account %s: %s is %d, its rows have %d", d.Owner, d.Account, d.Counter, d.Stored, d.Counted)})
	}
	return err
}

// checkOwners names accounts and keys whose requests the ledger would refuse.
func checkOwners(ctx context.Context, conn *pgx.Conn, report func(Problem)) error {
	return each(ctx, conn, `
		SELECT o.id FROM (SELECT id FROM accounts UNION ALL SELECT id FROM keys) o
		WHERE NOT EXISTS (SELECT 1 FROM owner WHERE owner.id = o.id) ORDER BY 1`,
		func(id string) {
			report(Problem{Part: "owners", Text: id + " is not on the ledger, so its requests are refused"})
		})
}

// each calls found with each row of one text.
func each(ctx context.Context, conn *pgx.Conn, query string, found func(string)) error {
	rows, _ := conn.Query(ctx, query) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, text := range all {
		found(text)
	}
	return err
}

// orphan is a gateway that holds requests, and does not run.
type orphan struct {
	Gateway         int32
	Name            string
	Alive           bool // it has not been seen to end
	Epoch, Beat     int64
	Leases, Waiters int64
}

func orphans(ctx context.Context, conn *pgx.Conn) ([]orphan, error) {
	const text = `SELECT gateway, name, alive, epoch, beat, leases, waiters FROM ledger_orphans_v1($1)`
	rows, _ := conn.Query(ctx, text, maxHeartbeatAge.Microseconds()) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[orphan])
}

// String describes the gateway.
func (o orphan) String() string {
	switch {
	case o.Name == "":
		return fmt.Sprintf("gateway %d, which does not exist", o.Gateway)
	case o.Alive:
		return fmt.Sprintf("gateway %s, whose heartbeats have stopped", o.Name)
	}
	return fmt.Sprintf("gateway %s, in an epoch that has ended", o.Name)
}

func checkOrphans(ctx context.Context, conn *pgx.Conn, report func(Problem)) error {
	found, err := orphans(ctx, conn)
	for _, o := range found {
		report(Problem{Part: "leases", Text: fmt.Sprintf("%d requests in flight and %d waiters of %s", o.Leases, o.Waiters, o)})
	}
	return err
}

// checkCaps names owners that use and reserve more than a cap. That is no inconsistency: a cap may have been lowered, and a
// backend may use more than was reserved.
func checkCaps(ctx context.Context, conn *pgx.Conn, report func(Problem)) error {
	// The columns of a cap WINDOW_METER begin with its window.
	return each(ctx, conn, `
		SELECT format('%s: %s is %s, used and reserved are %s', o.id, c.name, c.cap, s.sum)
		FROM owner o CROSS JOIN LATERAL jsonb_each_text(o.caps) c(name, cap)
			CROSS JOIN LATERAL (SELECT split_part(c.name, '_', 1) AS window, split_part(c.name, '_', 2) AS meter) k
			CROSS JOIN LATERAL (SELECT sum(n.value::bigint) FROM jsonb_each_text(to_jsonb(o)) n WHERE n.key ~ ('^(reserved_)?' || k.window
				|| CASE k.meter WHEN 'input' THEN '_in$' WHEN 'output' THEN '_out$' ELSE '_(in|out)$' END)) s(sum)
		WHERE s.sum > c.cap::bigint
			AND (k.window NOT IN ('month', 'day') OR date_trunc(k.window, o.day) = date_trunc(k.window, clock_timestamp()))
		ORDER BY 1`,
		func(text string) {
			report(Problem{Part: "caps", Text: text + ": the cap was lowered, or a backend used more than was reserved", Note: true})
		})
}

// HasForeignTransactions reports whether the requests have numbers of another server's transactions, as after pg_restore: usage
// pages then lack the requests that follow.
func HasForeignTransactions(ctx context.Context, db *postgres.DB) (foreign bool, err error) {
	if err := db.Pool().QueryRow(ctx, selectForeign).Scan(&foreign); err != nil {
		return false, fmt.Errorf("compare the requests with the server's transactions: %w", err)
	}
	return foreign, nil
}

const selectForeign = `SELECT ledger_foreign_v1()`

func checkTransactions(ctx context.Context, conn *pgx.Conn, report func(Problem)) error {
	var foreign bool
	err := conn.QueryRow(ctx, selectForeign).Scan(&foreign)
	if foreign {
		report(Problem{Part: "requests", Text: "they have numbers of another server's transactions, as after pg_restore, so the rollups lack those that follow"})
	}
	return err
}

// renumber gives requests numbers of this server's transactions, if they have others.
func renumber(ctx context.Context, conn *pgx.Conn, report func(string)) error {
	foreign := false
	if err := checkTransactions(ctx, conn, func(Problem) { foreign = true }); err != nil || !foreign {
		return err
	}
	if _, err := conn.Exec(ctx, `SELECT ledger_renumber_v1()`); err != nil {
		return err
	}
	report("requests: they have numbers of this server's transactions")
	return nil
}

// Repair ends requests that belong to no gateway, puts owners on the ledger, and makes counters the sums of their rows.
// Gateways may be running; requests of the accounts that are counted again wait meanwhile. It reports what it did. endLeft ends what
// the ended epochs of gateways have left, as gateways do, and returns how many requests were in flight.
func (l *Ledger) Repair(ctx context.Context, endLeft func(ctx context.Context) (int64, error), report func(string)) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer postgres.CloseConn(ctx, conn)
	if err := l.endOrphans(ctx, conn, endLeft, report); err != nil {
		return fmt.Errorf("end requests that belong to no gateway: %w", err)
	}
	if err := renumber(ctx, conn, report); err != nil {
		return fmt.Errorf("renumber requests: %w", err)
	}
	missing := 0
	if err := checkOwners(ctx, conn, func(Problem) { missing++ }); err != nil {
		return fmt.Errorf("look for owners: %w", err)
	}
	if missing > 0 {
		if _, err := conn.Exec(ctx, `SELECT ledger_fill_v1()`); err != nil {
			return fmt.Errorf("put owners on the ledger: %w", err)
		}
		report(fmt.Sprintf("owners: %d are put on the ledger, and all counters counted again", missing))
	}
	found, err := differences(ctx, conn)
	if err != nil || len(found) == 0 {
		return err
	}
	var accounts []string
	for _, d := range found {
		accounts = append(accounts, d.Account)
	}
	slices.Sort(accounts)
	accounts = slices.Compact(accounts)
	for _, account := range accounts { // one at a time, so that requests wait shortly
		if _, err := conn.Exec(ctx, `SELECT ledger_recount_v1($1)`, []string{account}); err != nil {
			return fmt.Errorf("count account %s again: %w", account, err)
		}
	}
	report(fmt.Sprintf("counters: %d counters of %d accounts are counted again", len(found), len(accounts)))
	return nil
}

// defaultObserve is the Observe that 0 means.
const defaultObserve = 15 * time.Second

// endOrphans ends requests of epochs that have ended, and those of gateways that send no heartbeat while they are observed.
func (l *Ledger) endOrphans(ctx context.Context, conn *pgx.Conn, endLeft func(ctx context.Context) (int64, error), report func(string)) error {
	found, err := orphans(ctx, conn)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(found, func(o orphan) bool { return o.Alive }) {
		observe := cmp.Or(l.Observe, defaultObserve)
		report(fmt.Sprintf("leases: observing gateways whose heartbeats have stopped for %v", observe))
		if !wait.For(ctx, observe) {
			return context.Cause(ctx)
		}
	}
	for _, o := range found {
		if o.Alive { // it is not ended if it has beaten meanwhile
			if _, err := conn.Exec(ctx, `SELECT ledger_reap_v1(NULL, NULL, $1, $2, $3)`, o.Gateway, o.Epoch, o.Beat); err != nil {
				return err
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	ended, err := endLeft(ctx)
	if err != nil {
		return err
	}
	if ended > 0 {
		report(fmt.Sprintf("leases: %d requests of ended gateways are charged by their last checkpoint, as interrupted", ended))
	}
	return nil
}
