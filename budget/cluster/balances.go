package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/wait"
)

// Counters are an owner's tokens and requests, as of the latest reply of the database that carried them.
type Counters struct {
	budget.Counters

	Running, Waiting int64 // requests; those that run are without lines of batches

	day int64 // days since 1970 for which the counters are
}

// balances are the latest known counters of keys and accounts.
type balances struct {
	owners sync.Map      // id → *knownCounters
	offset atomic.Int64  // of the database's clock from this machine's, in nanoseconds
	wake   chan struct{} // capacity 1: next is not nil

	mu   sync.Mutex
	next *counterRead // the one that has not begun; nil if no caller waits for one
}

// counterRead is a read of counters for all callers that asked before it began.
type counterRead struct {
	owners map[string]struct{}
	done   chan struct{}
	found  map[string]Counters // what was read, once done is closed
	err    error
}

// knownCounters are counters that were read at a time of this machine.
type knownCounters struct {
	Counters

	at time.Time
}

const (
	// readAge is the age at which counters are read again before they are shown.
	readAge = time.Second
	// readTimeout limits such a read, after which the counters are shown as they were.
	readTimeout = 2 * time.Second
)

// now returns the time of the database.
func (b *balances) now() time.Time { return time.Now().Add(time.Duration(b.offset.Load())).UTC() }

// today returns the day of the database, since 1970.
func (b *balances) today() int64 { return budget.DateOf(b.now()).Days() }

// store records the counters of an owner in the windows of a day.
func (b *balances) store(id string, o *budget.Owner, day budget.Date, now time.Time) {
	b.owners.Store(id, &knownCounters{Counters{o.Counters(day), int64(o.Running), int64(o.Waiting), day.Days()}, now})
}

// newCounters returns the counters that selectCounters returns of an owner.
func newCounters(n []int64) (c Counters) {
	for i, to := range countersOf(&c.Counters) {
		*to = n[i]
	}
	c.Running, c.Waiting, c.day = n[countersPerOwner], n[countersPerOwner+1], n[countersPerOwner+2]
	return c
}

// get returns the latest known counters of an owner, in the windows of a day, and whether they are older than readAge or not
// known.
func (b *balances) get(owner string, day int64) (c Counters, old bool) {
	value, ok := b.owners.Load(owner)
	if !ok {
		return Counters{day: day}, true
	}
	known := value.(*knownCounters)
	return known.in(day), time.Since(known.at) > readAge
}

// in returns the counters in the windows of a day, or of their own if that is later.
func (c Counters) in(day int64) Counters {
	if c.day < day {
		c.Counters = c.In(budget.DateOfDay(c.day), budget.DateOfDay(day))
		c.day = day
	}
	return c
}

// balance returns the latest known balance of a payer, and the owners whose counters are old or not known. Without any, an
// owner has used nothing: those that have used something of their caps are read by Start.
func (l *Ledger) balance(p budget.Payer) (balance budget.Balance, old []string) {
	return l.balanceOf(p, l.balances.get)
}

// balanceOf returns the balance of a payer by the counters that get returns, and the owners of those that it calls old.
func (l *Ledger) balanceOf(p budget.Payer, get func(owner string, day int64) (Counters, bool)) (balance budget.Balance, old []string) {
	balance = budget.Balance{Payer: p, Time: l.balances.now()}
	day := budget.DateOf(balance.Time).Days()
	for _, o := range []struct {
		id   string
		into *budget.Counters
	}{{p.Account, &balance.Account}, {p.ParentID(), &balance.Parent}, {p.Key, &balance.Key}} {
		if o.id == "" {
			continue
		}
		c, isOld := get(o.id, day)
		if c.day > day { // the database's clock went back
			day, balance.Time = c.day, budget.DateOfDay(c.day).Start()
		}
		*o.into = c.Counters
		if isOld {
			old = append(old, o.id)
		}
	}
	return balance, old
}

// Balance returns the latest known balance at once, with the caps that the payer has in p. Counters that are old are read in the
// background for the next call.
func (l *Ledger) Balance(p budget.Payer) budget.Balance {
	balance, old := l.balance(p)
	if len(old) > 0 && p.HasCaps() {
		l.balances.read(old)
	}
	return balance
}

// Recent returns the balance by counters that are at most readAge old, or as they are known if the database does not reply.
func (l *Ledger) Recent(ctx context.Context, p budget.Payer) budget.Balance {
	return l.RecentOf(ctx, []budget.Payer{p})[0]
}

// RecentOf is Recent of several payers, whose counters are read together.
func (l *Ledger) RecentOf(ctx context.Context, payers []budget.Payer) []budget.Balance {
	all := make([]budget.Balance, len(payers))
	known := func() (old []string) {
		for i, p := range payers {
			balance, itsOld := l.balance(p)
			all[i], old = balance, append(old, itsOld...)
		}
		return old
	}
	if old := known(); len(old) > 0 {
		if _, err := l.readCounters(ctx, old); err == nil {
			known()
		}
	}
	return all
}

// read returns a read of the counters of owners that begins after the call. Reads follow one another, so all callers that
// wait for the same one cost one query.
func (b *balances) read(owners []string) *counterRead {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = &counterRead{owners: map[string]struct{}{}, done: make(chan struct{})}
	}
	for _, id := range owners {
		b.next.owners[id] = struct{}{}
	}
	wait.Wake(b.wake)
	return b.next
}

// ReadBalance returns the balance that Reserve would decide on, by the caps currently configured and the counters as the database
// has them after the call has begun, whichever gateway has changed them last. Its errors are those of Reserve but
// *budget.Exceeded. The balance is the latest known one if the database does not reply, and has no caps if the key may not be used.
func (l *Ledger) ReadBalance(ctx context.Context, p budget.Payer) (budget.Balance, error) {
	if l.closed.Load() || l.epoch.Load() == nil {
		balance, _ := l.balance(p)
		return balance, budget.ErrClosed
	}
	if err := p.Refresh(l.settings.Payer); err != nil {
		return budget.Balance{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	owners := slices.DeleteFunc([]string{p.Account, p.ParentID(), p.Key}, func(id string) bool { return id == "" })
	read := l.balances.read(owners)
	var err error
	select {
	case <-read.done:
		err = read.err
	case <-ctx.Done():
		err = fmt.Errorf("%w: read counters: %w", database.ErrUnavailable, ctx.Err())
	}
	if err != nil {
		balance, _ := l.balance(p)
		return balance, fmt.Errorf("read the balance: %w", err)
	}
	balance, _ := l.balanceOf(p, func(owner string, day int64) (Counters, bool) { return read.found[owner].in(day), false })
	return balance, nil
}

// selectCounters returns counters in the order of countersOf, and what newCounters expects behind them.
var selectCounters = func() string {
	var text strings.Builder
	for w := range quota.Windows {
		text.WriteString(strings.ReplaceAll(`W_in, W_out, reserved_W_in, reserved_W_out, `, `W`, w.String()))
	}
	return `SELECT id, ARRAY[` + text.String() + `running, waiting, day - date '1970-01-01'] FROM owner`
}()

// readCounters reads the counters of owners. A reply to a call that arrives meanwhile is not replaced.
func (l *Ledger) readCounters(ctx context.Context, owners []string) (found map[string]Counters, err error) {
	before := make(map[string]any, len(owners))
	for _, id := range owners {
		before[id], _ = l.balances.owners.Load(id)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found = map[string]Counters{}
	if err := l.scanCounters(ctx, found, selectCounters+` WHERE id = ANY ($1)`, owners); err != nil {
		return nil, err
	}
	now := time.Now()
	for _, id := range owners {
		c, ok := found[id]
		if !ok {
			c.day = l.balances.today()
			found[id] = c
		}
		if known := (&knownCounters{c, now}); before[id] == nil {
			l.balances.owners.LoadOrStore(id, known)
		} else {
			l.balances.owners.CompareAndSwap(id, before[id], known)
		}
	}
	return found, nil
}

func (l *Ledger) scanCounters(ctx context.Context, into map[string]Counters, query string, args ...any) error {
	rows, _ := l.db.Pool().Query(ctx, query, args...) // ForEachRow returns its error
	var (
		id       string
		counters []int64
	)
	_, err := pgx.ForEachRow(rows, []any{&id, &counters}, func() error {
		into[id] = newCounters(counters)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: read counters: %w", database.ErrUnavailable, err)
	}
	return nil
}

// loadBalances reads the database's clock, and the counters of all owners that have used something this month or have a cap for life.
func (l *Ledger) loadBalances(ctx context.Context) error {
	began := time.Now()
	var micros int64
	if err := l.db.Pool().QueryRow(ctx, `SELECT ledger_time_v1()`).Scan(&micros); err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	l.balances.setClock(micros, began)
	found := map[string]Counters{}
	used := selectCounters + ` WHERE day >= $1 AND (month_in > 0 OR month_out > 0 OR running > 0) OR enabled AND caps::text LIKE '%"life\_%'`
	now := l.balances.now()
	if err := l.scanCounters(ctx, found, used, now.AddDate(0, 0, 1-now.Day())); err != nil {
		return err
	}
	at := time.Now()
	for id, c := range found {
		l.balances.owners.Store(id, &knownCounters{c, at})
	}
	return nil
}

// setClock records the difference of the clocks. began is when the database was asked.
func (b *balances) setClock(micros int64, began time.Time) {
	middle := began.Add(time.Since(began) / 2)
	b.offset.Store(int64(time.UnixMicro(micros).Sub(middle)))
}

// readBalances makes the reads that are asked for until ctx ends.
func (l *Ledger) readBalances(ctx context.Context) {
	b := &l.balances
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		b.mu.Lock()
		read := b.next
		b.next = nil
		b.mu.Unlock()
		if read == nil {
			continue
		}
		read.found, read.err = l.readCounters(ctx, slices.Sorted(maps.Keys(read.owners)))
		if read.err != nil && ctx.Err() == nil {
			l.log.Debug("counters of caps could not be read", zap.Error(read.err))
		}
		close(read.done)
	}
}

// Counters returns the latest known counters of a key or an account, and false if none are known.
func (l *Ledger) Counters(owner string) (Counters, bool) {
	if _, ok := l.balances.owners.Load(owner); !ok {
		return Counters{}, false
	}
	c, _ := l.balances.get(owner, l.balances.today())
	return c, true
}

// Stats returns how many requests of a payer's key and account run and wait at all gateways, by the latest known counters.
func (l *Ledger) Stats(p budget.Payer) (key, account budget.Stats) {
	for owner, stats := range map[string]*budget.Stats{p.Key: &key, p.Account: &account} {
		c, _ := l.Counters(owner)
		*stats = budget.Stats{Running: int(c.Running), Waiting: int(c.Waiting)}
	}
	return key, account
}

// LastUse returns the last use of a key.
func (l *Ledger) LastUse(ctx context.Context, key string) (budget.Use, error) {
	const text = `
		SELECT last_use AS time, last_address FROM owner WHERE id = $1
		UNION ALL SELECT time, address FROM key_uses WHERE key_id = $1
		ORDER BY time DESC LIMIT 1`
	var (
		at      int64
		address string
	)
	switch err := l.db.Pool().QueryRow(ctx, text, key).Scan(&at, &address); {
	case errors.Is(err, pgx.ErrNoRows):
		return budget.Use{}, nil
	case err != nil:
		return budget.Use{}, fmt.Errorf("read last use: %w", err)
	}
	return budget.NewUse(at, address), nil
}
