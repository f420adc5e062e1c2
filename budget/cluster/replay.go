package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

const (
	// replayAge is how long settlements are kept after the database has acknowledged them.
	replayAge = time.Minute
	// maxReplayed limits their number, and so their memory to about 30 MB.
	maxReplayed = 1 << 16
	// replayBatch is how many are written at a time.
	replayBatch = 256
)

// recentSettlements are those that the database has acknowledged during replayAge, in case it loses them.
type recentSettlements struct {
	mu  sync.Mutex
	all []acknowledged // the oldest first
}

type acknowledged struct {
	settle *settlement
	at     time.Time
}

func (r *recentSettlements) add(s *settlement) {
	if s.row.admission == nil || s.row.time == 0 {
		return // the database said nothing of its row
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == maxReplayed {
		r.all[0] = acknowledged{}
		r.all = r.all[1:]
	}
	r.all = append(r.all, acknowledged{s, time.Now()})
}

// prune forgets what is older than replayAge.
func (r *recentSettlements) prune(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(a acknowledged) bool { return now.Sub(a.at) > replayAge })
}

// list returns what was acknowledged during replayAge.
func (r *recentSettlements) list() []*settlement {
	r.prune(time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*settlement, len(r.all))
	for i, a := range r.all {
		all[i] = a.settle
	}
	return all
}

// replay writes the settlements of the last minute again, after the database has lost commits. It is called before the
// gateway joins again, so that leases that are left are settled and not interrupted. It can be repeated.
func (l *Ledger) replay(ctx context.Context, lost *epoch) error {
	all := l.recent.list()
	written := 0
	for batch := range slices.Chunk(all, replayBatch) {
		n, err := l.replayBatch(ctx, lost, batch)
		if err != nil {
			return fmt.Errorf("write settlements again: %w", err)
		}
		written += n
		l.metrics.replayed.Add(float64(n))
	}
	l.log.Error("the database has lost commits that it had acknowledged, as after a failover to a standby that was behind; "+
		"the settlements of the last minute that it did not have are written again",
		zap.Int("kept", len(all)), zap.Int("written", written))
	return nil
}

// replayBatch writes settlements that the database does not have, and returns their number. A lease that is left of a request is settled;
// a request without a lease is charged in the windows of its row's time.
func (l *Ledger) replayBatch(ctx context.Context, lost *epoch, all []*settlement) (written int, err error) {
	t, s := newTransaction(l, lost.gateway, 0, noLane), &selection{heads: defaultHeads, wait: true}
	for _, n := range all {
		s.accounts, s.keys = append(s.accounts, n.row.admission.Account), append(s.keys, n.row.admission.Key)
		s.ids, s.times = append(s.ids, n.ID), append(s.times, n.row.time)
	}
	err = l.inTransaction(ctx, func(q query) error {
		return t.update(ctx, q, s, func() {
			written = 0
			for _, n := range all {
				if t.replay(n, lost.number) {
					written++
				}
			}
		})
	})
	return written, err
}

func (t *transaction) replay(n *settlement, epoch int64) bool {
	r := n.row.admission
	a := t.accounts[r.Account]
	if a == nil || a.owners[r.Key] == nil || slices.Contains(t.rows, n.ID) {
		return false
	}
	again := *n
	held, found := t.leases[n.ID]
	if found {
		again.Gateway, again.Epoch, again.lease = held.Gateway, held.Epoch, *held.lease()
	} else {
		opened := *r
		opened.Epoch, opened.Time, opened.Day = &epoch, n.row.time, n.lease.Date.Days()
		t.write.open = append(t.write.open, &opened)
		again.Gateway, again.Epoch, again.lease.Input, again.lease.Output = t.gateway, epoch, 0, 0
		again.lease.Line = true // it has no slot any longer
	}
	a.Settle(&again.lease, n.Prompt, n.Completion)
	a.Grant(t.time(a), false)
	t.collect(a)
	t.write.settle = append(t.write.settle, &again)
	return true
}

// inTransaction runs f in a transaction of the database.
func (l *Ledger) inTransaction(ctx context.Context, f func(q query) error) error {
	return pgx.BeginFunc(ctx, l.db.Pool(), func(tx pgx.Tx) error {
		return f(func(ctx context.Context, text string, args []any, into ...any) error {
			return tx.QueryRow(ctx, text, args...).Scan(into...)
		})
	})
}
