package budget

import (
	"context"

	"go.uber.org/zap"

	"basegate/database"
)

// recover closes what a crash has left and counts what has been used since the month began.
func (l *Ledger) recover(ctx context.Context) error {
	var left int64
	err := l.db.WriteExclusive(ctx, func(tx database.Tx) (err error) {
		left, err = interruptRequests(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	if left > 0 {
		l.log.Info("requests that were in flight are closed as interrupted", zap.Int64("requests", left))
	}
	first := momentOf(l.clock())
	first.day = 0
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = first.month
	return selectSpent(ctx, l.db.Read(), first.start(), func(s spent) {
		at := momentOf(s.day)
		key, account := l.parties(&Payer{Key: s.key, Account: s.account})
		key.use(s.last)
		for _, p := range []*party{key, account} {
			found, _ := p.period(at.month)
			found.charge(at.day, s.prompt, s.completion)
		}
	})
}

// checkpoint writes how far the open requests have come, as far as that has changed. What fails is written with the next
// one.
func (l *Ledger) checkpoint(ctx context.Context) {
	l.mu.Lock()
	var changed []*Reservation
	for _, r := range l.open {
		if r.saved != r.latest() {
			changed = append(changed, r)
		}
	}
	l.mu.Unlock()
	for len(changed) > 0 {
		some := changed[:min(chunk, len(changed))]
		changed = changed[len(some):]
		if l.save(ctx, some) != nil {
			return // the database has told the log
		}
	}
}

func (l *Ledger) save(ctx context.Context, some []*Reservation) error {
	saved, found := make([]progress, len(some)), make([]bool, len(some))
	for i, r := range some {
		saved[i] = r.latest()
	}
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		ctx := context.WithoutCancel(ctx)
		for i, r := range some {
			if r.foreign {
				continue
			}
			var err error
			if found[i], err = updateProgress(ctx, tx, r.request.ID, saved[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, r := range some {
		if found[i] { // else its row is still to be made, or its end has been written
			r.saved = saved[i]
		}
	}
	return nil
}
