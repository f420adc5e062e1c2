package batch

import (
	"context"
	"errors"
	"time"

	"basegate/database"
)

// leases decide which batches this gateway runs. A batch is leased to one gateway, and each transaction that records something
// of a batch checks its lease. The lease of a gateway that is alone always counts.
type leases interface {
	// holder returns this gateway in its current epoch; the zero holder while it has none.
	holder() holder

	// take returns the batches that are leased to this gateway. It leases those of w that no gateway has, unless the gateway
	// drains. jobs are the batches that it runs.
	take(ctx context.Context, w *work, jobs []int64, drains bool) (map[int64]holder, error)

	// check returns errLeaseLost unless the lease counts, which it then does until the end of the transaction.
	check(ctx context.Context, tx database.Tx, seq int64, h holder) error

	// release ends the lease of a batch that is parked, has ended, or is left to others.
	release(ctx context.Context, tx database.Tx, seq int64, h holder) error

	// leave makes this gateway one that takes no batches. If all is true, its leases end.
	leave(ctx context.Context, all bool) error

	// sweeps reports whether this gateway is the one that deletes what has expired.
	sweeps() bool

	// share returns how many of most places at a backend are this gateway's.
	share(most int, now time.Time) int

	// deleteOrphans marks the objects whose writers are gone, and returns their number.
	deleteOrphans(ctx context.Context, tx database.Tx, now time.Time) (int64, error)

	// checkStorage returns ErrStorageMismatch if the storage is not that of the other gateways.
	checkStorage(ctx context.Context) error
}

// holder is a gateway in one of its epochs.
type holder struct {
	gateway int32
	epoch   int64
}

// errLeaseLost is the error of a write for a batch that another gateway may run, and the cause of the end of its job.
var errLeaseLost = errors.New("another gateway may run the batch")

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

// alone are the leases of a gateway on a database that it shares with none: SQLite's. The zero value is that of a command.
type alone struct{ self holder }

// newAlone returns the leases of a new epoch.
func newAlone(now time.Time) alone { return alone{holder{gateway: 1, epoch: now.UnixMicro()}} }

func (a alone) holder() holder { return a.self }

func (a alone) take(_ context.Context, w *work, jobs []int64, drains bool) (map[int64]holder, error) {
	all := map[int64]holder{}
	for _, seq := range jobs {
		all[seq] = a.self
	}
	for i := range w.batches {
		if !drains {
			all[w.batches[i].seq] = a.self
		}
	}
	return all, nil
}

func (alone) check(context.Context, database.Tx, int64, holder) error   { return nil }
func (alone) release(context.Context, database.Tx, int64, holder) error { return nil }
func (alone) leave(context.Context, bool) error                         { return nil }
func (alone) sweeps() bool                                              { return true }
func (alone) share(most int, _ time.Time) int                           { return most }
func (alone) checkStorage(context.Context) error                        { return nil }

func (a alone) deleteOrphans(ctx context.Context, tx database.Tx, now time.Time) (int64, error) {
	return deleteOrphans(ctx, tx, `gateway = 1 AND epoch = $2`, now, a.self.epoch)
}
