package batch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"basegate/database"
)

// Join makes the Service one of several on a PostgreSQL database. epoch returns this gateway's number and its epoch on the
// ledger, and false while it has none. Join is called before Start.
//
// The lease of a batch counts while the gateway's epoch does, which ends when others declare it dead. Every transaction that
// records something of a batch checks the lease, so a gateway that has lost it records nothing; and since parts are written
// once, such a gateway damages no result of its successor either.
func (s *Service) Join(epoch func() (gateway int32, epoch int64, ok bool)) {
	s.leases.epoch, s.leases.joined = epoch, true
	s.clock = s.leases.now
}

// leases decide which batches this gateway runs. A batch is leased to one gateway, and each transaction that records something
// of a batch checks its lease. The leases of a gateway that has not joined a cluster always count, and have no rows.
type leases struct {
	service *Service
	joined  bool
	epoch   func() (int32, int64, bool) // nil: this is a command

	clockOffset atomic.Int64 // of the database's clock to this machine's, in nanoseconds
	runners     atomic.Pointer[[]int32]
	registered  holder // the epoch in which this gateway has asked for batches. The poller owns it
}

// holder is a gateway in one of its epochs.
type holder struct {
	gateway int32
	epoch   int64
}

// errLeaseLost is the error of a write for a batch that another gateway may run, and the cause of the end of its job.
var errLeaseLost = errors.New("another gateway may run the batch")

// now returns the database's time.
func (l *leases) now() time.Time { return time.Now().Add(time.Duration(l.clockOffset.Load())) }

// holder returns this gateway in its current epoch; the zero holder while it has none, and for a command.
func (l *leases) holder() holder {
	if l.epoch != nil {
		if gateway, epoch, ok := l.epoch(); ok {
			return holder{gateway, epoch}
		}
	}
	return holder{}
}

// take returns the batches that are leased to this gateway, which runs or validates those of busy. It leases those of w that no
// gateway has, unless the gateway drains: batches are divided equally between the gateways that take any.
func (l *leases) take(ctx context.Context, w *work, busy []int64, drains bool) (map[int64]holder, error) {
	me := l.holder()
	if !l.joined {
		all := map[int64]holder{}
		for _, seq := range busy {
			all[seq] = me
		}
		for i := range w.batches {
			if !drains {
				all[w.batches[i].seq] = me
			}
		}
		return all, nil
	}
	if me == (holder{}) {
		l.runners.Store(nil)
		return nil, nil
	}
	if err := l.service.checkStorage(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	held, now, err := heldLeases(ctx, l.service.db.Read())
	if err != nil {
		return nil, fmt.Errorf("read the leases of batches: %w", err)
	}
	l.clockOffset.Store(int64(time.UnixMicro(now).Sub(began.Add(time.Since(began) / 2))))
	free := slices.ContainsFunc(w.batches, func(b Batch) bool { return held[b.seq] == (holder{}) })
	if (free || l.registered != me) && !drains {
		err := l.service.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
			held, err = l.takeFree(ctx, tx, me, w.share)
			return err
		})
		switch {
		case errors.Is(err, errLeaseLost): // the epoch has just ended
			l.runners.Store(nil)
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("lease batches: %w", err)
		}
		l.registered = me
	}
	runners, err := aliveRunners(ctx, l.service.db.Read())
	if err != nil {
		return nil, fmt.Errorf("read which gateways take batches: %w", err)
	}
	l.runners.Store(&runners)
	maps.DeleteFunc(held, func(_ int64, h holder) bool { return h != me })
	return held, nil
}

// takeFree leases this gateway's part of the batches that are due and no gateway has, and returns all leases.
func (l *leases) takeFree(ctx context.Context, tx database.Tx, me holder, share int) (map[int64]holder, error) {
	if err := checkHolder(ctx, tx, me); err != nil {
		return nil, err
	}
	if err := addRunner(ctx, tx, me); err != nil {
		return nil, err
	}
	held, _, err := heldLeases(ctx, tx)
	if err != nil {
		return nil, err
	}
	w, err := l.service.findWork(ctx, tx, share) // again: one may have ended
	if err != nil {
		return nil, err
	}
	runners, err := aliveRunners(ctx, tx)
	if err != nil {
		return nil, err
	}
	part := (len(w.batches) + len(runners) - 1) / max(len(runners), 1)
	for i := range w.batches {
		if held[w.batches[i].seq] == me {
			part--
		}
	}
	for i := range w.batches {
		seq := w.batches[i].seq
		if held[seq] != (holder{}) || part <= 0 {
			continue
		}
		if err := addLease(ctx, tx, seq, me); err != nil {
			return nil, err
		}
		held[seq] = me
		part--
	}
	return held, nil
}

// writeLeased makes a write for a batch, in a transaction that fails with errLeaseLost if the lease does not count any
// more.
func (s *Service) writeLeased(ctx context.Context, seq int64, h holder, apply func(context.Context, database.Tx) error) error {
	return s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := s.leases.check(ctx, tx, seq, h); err != nil {
			return err
		}
		return apply(ctx, tx)
	})
}

// leave makes this gateway one that takes no batches. If all is true, its leases end.
func (l *leases) leave(ctx context.Context, all bool) error {
	me := l.registered
	if me == (holder{}) {
		return nil
	}
	l.runners.Store(nil)
	return l.service.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := removeRunner(ctx, tx, me); err != nil || !all {
			return err
		}
		return deleteLeasesOf(ctx, tx, me)
	})
}

// order returns how many gateways take batches, and how many of these are before this one. All gateways find the same order.
func (l *leases) order() (before, all int) {
	if !l.joined {
		return 0, 1
	}
	runners := l.runners.Load()
	if runners == nil {
		return 0, 0
	}
	return slices.Index(*runners, l.holder().gateway), len(*runners)
}

// sweeps reports whether this gateway is the one that deletes what has expired.
func (l *leases) sweeps() bool {
	before, all := l.order()
	return all > 0 && before == 0
}

// rotatePlaces is after how long another gateway gets the place that remains from the division.
const rotatePlaces = 10 * time.Second

// share returns how many of most places at a backend are this gateway's.
func (l *leases) share(most int, now time.Time) int {
	before, all := l.order()
	if all == 0 || before < 0 {
		return 0
	}
	share := most / all
	if turn := int(now.UnixNano() / int64(rotatePlaces) % int64(all)); (before+turn)%all < most%all {
		share++
	}
	return share
}
