package batch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// Cluster is what a Service needs to share its database, which is PostgreSQL's, with other gateways.
//
// A batch is leased to one gateway. The lease counts while the gateway's epoch does, which ends when others declare it
// dead. Every transaction that records something of a batch checks the lease, so a gateway that has lost it records
// nothing; and each lease writes objects of its own, so such a gateway damages no result of its successor either.
type Cluster struct {
	// Epoch returns this gateway's number and its epoch on the ledger, and false while it has none.
	Epoch func() (gateway int32, epoch int64, ok bool)

	// Backends returns the backends of all models.
	Backends func() []Backend
}

// Join makes the Service one of several. It is called before Start.
func (s *Service) Join(c Cluster) {
	s.cluster = &cluster{Cluster: c}
	s.clock = s.cluster.now
}

// cluster is the state of a Service that has joined others.
type cluster struct {
	Cluster

	clockOffset atomic.Int64 // of the database's clock to this machine's, in nanoseconds
	sweeper     atomic.Pointer[lease]

	// The poller owns it.
	registered holder // the epoch in which this gateway has asked for batches
}

// now returns the database's time.
func (c *cluster) now() time.Time { return time.Now().Add(time.Duration(c.clockOffset.Load())) }

// holder is a gateway in one of its epochs.
type holder struct {
	gateway int32
	epoch   int64
}

// holder returns this gateway in its current epoch; the zero holder while it has none.
func (c *cluster) holder() holder {
	gateway, epoch, ok := c.Epoch()
	if !ok {
		return holder{}
	}
	return holder{gateway, epoch}
}

// lease is a gateway's permission to run a batch. A Service that is alone has the zero lease on every batch.
type lease struct {
	holder
	fence int64 // rises with each lease of the batch
}

// sweeperSeq stands for the deletion of what has expired, where a batch is leased.
const sweeperSeq = 0

// errLeaseLost is the error of a write for a batch that another gateway may run, and the cause of the end of its job.
var errLeaseLost = errors.New("another gateway may run the batch")

// writeLeased makes a write for a batch, in a transaction that fails with errLeaseLost if the lease does not count any
// more.
func (s *Service) writeLeased(ctx context.Context, seq int64, l lease, apply func(context.Context, database.Tx) error) error {
	return s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if s.cluster != nil {
			if err := checkLease(ctx, tx, seq, l); err != nil {
				return err
			}
		}
		return apply(ctx, tx)
	})
}

// leases returns this gateway's leases on batches. It takes batches that are due and no gateway has, unless the gateway drains.
func (s *Service) leases(ctx context.Context, w *work) (map[int64]lease, error) {
	c := s.cluster
	me := c.holder()
	if me == (holder{}) {
		c.sweeper.Store(nil)
		return nil, nil //nolint:nilnil // it has none
	}
	began := time.Now()
	held, now, err := heldLeases(ctx, s.db.Read())
	if err != nil {
		return nil, fmt.Errorf("read the leases of batches: %w", err)
	}
	c.clockOffset.Store(int64(time.UnixMicro(now).Sub(began.Add(time.Since(began) / 2))))
	_, swept := held[sweeperSeq]
	free := !swept
	for i := range w.batches {
		_, leased := held[w.batches[i].seq]
		free = free || !leased
	}
	if (free || c.registered != me) && !s.isDraining() {
		err := s.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
			held, err = s.takeLeases(ctx, tx, me, w.share)
			return err
		})
		switch {
		case errors.Is(err, errLeaseLost): // the epoch has just ended
			c.sweeper.Store(nil)
			return nil, nil //nolint:nilnil // it has none
		case err != nil:
			return nil, fmt.Errorf("lease batches: %w", err)
		}
		c.registered = me
	}
	maps.DeleteFunc(held, func(_ int64, l lease) bool { return l.holder != me })
	c.sweeper.Store(nil)
	if l, ok := held[sweeperSeq]; ok && !s.isDraining() {
		c.sweeper.Store(&l)
	}
	return held, nil
}

// takeLeases takes this gateway's part of the batches that are due and no gateway has, and returns all leases.
func (s *Service) takeLeases(ctx context.Context, tx database.Tx, me holder, share int) (map[int64]lease, error) {
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
	if _, swept := held[sweeperSeq]; !swept {
		if held[sweeperSeq], err = takeLease(ctx, tx, sweeperSeq, me); err != nil {
			return nil, err
		}
	}
	w, err := s.findWork(ctx, tx, share)
	if err != nil {
		return nil, err
	}
	all := w.batches
	runners, err := countRunners(ctx, tx)
	if err != nil {
		return nil, err
	}
	own, part := 0, (len(all)+runners-1)/max(runners, 1)
	for i := range all {
		if held[all[i].seq].holder == me {
			own++
		}
	}
	for i := range all {
		seq := all[i].seq
		if _, leased := held[seq]; leased || own >= part {
			continue
		}
		if held[seq], err = takeLease(ctx, tx, seq, me); err != nil {
			return nil, err
		}
		own++
	}
	return held, nil
}

// isDraining reports whether no new lines are sent to backends.
func (s *Service) isDraining() bool {
	select {
	case <-s.drained:
		return true
	default:
		return false
	}
}

// leaves reports whether other gateways are to finish the batches of this one.
func (s *Service) leaves() bool { return s.cluster != nil && s.isDraining() }

// release gives leases back, so that other gateways take the batches at once, and reports whether it has.
func (s *Service) release(ctx context.Context, seqs []int64) bool {
	me := s.cluster.registered
	if me == (holder{}) {
		return true
	}
	s.cluster.sweeper.Store(nil)
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := removeRunner(ctx, tx, me); err != nil {
			return err
		}
		for _, seq := range seqs {
			if err := releaseLease(ctx, tx, seq, me); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("the leases of batches cannot be released yet", zap.Error(err))
	}
	return err == nil
}

// releaseTimeout limits the wait for the database when the Service is closed.
const releaseTimeout = 2 * time.Second

// releaseAll gives back what this gateway has leased.
func (s *Service) releaseAll() {
	me := s.cluster.registered
	if me == (holder{}) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), releaseTimeout)
	defer cancel()
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := removeRunner(ctx, tx, me); err != nil {
			return err
		}
		return releaseHolder(ctx, tx, me)
	})
	if err != nil {
		s.log.Warn("the leases of batches could not be released; they end with the gateway's epoch", zap.Error(err))
	}
}
