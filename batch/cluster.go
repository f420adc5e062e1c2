package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"basegate/batch/storage"
	"basegate/database"
)

// Join makes the Service one of several on a PostgreSQL database. epoch returns this gateway's number and its epoch on the
// ledger, and false while it has none. Join is called before Start.
//
// The lease of a batch counts while the gateway's epoch does, which ends when others declare it dead. Every transaction that
// records something of a batch checks the lease, so a gateway that has lost it records nothing; and since parts are written
// once, such a gateway damages no result of its successor either.
func (s *Service) Join(epoch func() (gateway int32, epoch int64, ok bool)) {
	c := &cluster{service: s, epoch: epoch}
	s.leases, s.clock = c, c.now
}

// cluster are the leases of a gateway among several.
type cluster struct {
	service *Service
	epoch   func() (int32, int64, bool)

	clockOffset atomic.Int64 // of the database's clock to this machine's, in nanoseconds
	runners     atomic.Pointer[[]int32]

	checking sync.Mutex // held while the storage is checked
	checked  atomic.Bool

	registered holder // the epoch in which this gateway has asked for batches. The poller owns it
}

// now returns the database's time.
func (c *cluster) now() time.Time { return time.Now().Add(time.Duration(c.clockOffset.Load())) }

func (c *cluster) holder() holder {
	gateway, epoch, ok := c.epoch()
	if !ok {
		return holder{}
	}
	return holder{gateway, epoch}
}

// take implements leases. Batches are divided equally between the gateways that take any.
func (c *cluster) take(ctx context.Context, w *work, _ []int64, drains bool) (map[int64]holder, error) {
	me := c.holder()
	if me == (holder{}) {
		c.runners.Store(nil)
		return nil, nil
	}
	if err := c.checkStorage(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	held, now, err := heldLeases(ctx, c.service.db.Read())
	if err != nil {
		return nil, fmt.Errorf("read the leases of batches: %w", err)
	}
	c.clockOffset.Store(int64(time.UnixMicro(now).Sub(began.Add(time.Since(began) / 2))))
	free := slices.ContainsFunc(w.batches, func(b Batch) bool { return held[b.seq] == (holder{}) })
	if (free || c.registered != me) && !drains {
		err := c.service.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
			held, err = c.takeFree(ctx, tx, me, w.share)
			return err
		})
		switch {
		case errors.Is(err, errLeaseLost): // the epoch has just ended
			c.runners.Store(nil)
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("lease batches: %w", err)
		}
		c.registered = me
	}
	runners, err := aliveRunners(ctx, c.service.db.Read())
	if err != nil {
		return nil, fmt.Errorf("read which gateways take batches: %w", err)
	}
	c.runners.Store(&runners)
	maps.DeleteFunc(held, func(_ int64, h holder) bool { return h != me })
	return held, nil
}

// takeFree leases this gateway's part of the batches that are due and no gateway has, and returns all leases.
func (c *cluster) takeFree(ctx context.Context, tx database.Tx, me holder, share int) (map[int64]holder, error) {
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
	w, err := c.service.findWork(ctx, tx, share) // again: one may have ended
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

func (*cluster) check(ctx context.Context, tx database.Tx, seq int64, h holder) error {
	return checkLease(ctx, tx, seq, h)
}

func (*cluster) release(ctx context.Context, tx database.Tx, seq int64, h holder) error {
	return deleteLease(ctx, tx, seq, h)
}

func (c *cluster) leave(ctx context.Context, all bool) error {
	me := c.registered
	if me == (holder{}) {
		return nil
	}
	c.runners.Store(nil)
	return c.service.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := removeRunner(ctx, tx, me); err != nil || !all {
			return err
		}
		return deleteLeasesOf(ctx, tx, me)
	})
}

// order returns how many gateways take batches, and how many of these are before this one. All gateways find the same order.
func (c *cluster) order() (before, all int) {
	runners := c.runners.Load()
	if runners == nil {
		return 0, 0
	}
	return slices.Index(*runners, c.holder().gateway), len(*runners)
}

func (c *cluster) sweeps() bool {
	before, all := c.order()
	return all > 0 && before == 0
}

// rotatePlaces is after how long another gateway gets the place that remains from the division.
const rotatePlaces = 10 * time.Second

func (c *cluster) share(most int, now time.Time) int {
	before, all := c.order()
	if all == 0 || before < 0 {
		return 0
	}
	share := most / all
	if turn := int(now.UnixNano() / int64(rotatePlaces) % int64(all)); (before+turn)%all < most%all {
		share++
	}
	return share
}

func (*cluster) deleteOrphans(ctx context.Context, tx database.Tx, now time.Time) (int64, error) {
	return deleteOrphans(ctx, tx, `EXISTS (SELECT FROM gateway g WHERE g.id = objects.gateway AND g.epoch = objects.epoch AND g.alive)`, now)
}

// ErrStorageMismatch is returned by Start if the storage is not that of the other gateways on the database.
var ErrStorageMismatch = errors.New("the storage of files is not that of the other gateways: all of them need the same bucket, or the " +
	"same folder (on a network file system)")

// storageID is what the row of an object has in place of a file by which gateways recognize that they share their storage.
const storageID = "storage"

// checkStorage implements leases: the object of storageID must be in the storage. The first gateway writes it. If no other
// gateway takes batches, the storage may have been replaced on purpose, and gets a new object. Nothing uses the storage before it
// was found to be the right one.
func (c *cluster) checkStorage(ctx context.Context) error {
	if c.checked.Load() {
		return nil
	}
	c.checking.Lock()
	defer c.checking.Unlock()
	for !c.checked.Load() {
		known, err := partsOf(ctx, c.service.db.Read(), storageID)
		if err != nil {
			return fmt.Errorf("check the storage of files: %w", err)
		}
		missing := ""
		if len(known) > 0 {
			missing = known[0].object
			content, err := c.service.store.Open(ctx, missing, 0, 1)
			if err == nil {
				_, err = io.ReadFull(content, make([]byte, 1))
				content.Close()
			}
			if err == nil {
				c.checked.Store(true)
				break
			}
			if !errors.Is(err, storage.ErrNotFound) {
				return fmt.Errorf("check the storage of files: %w", err)
			}
		}
		if err := c.identifyStorage(ctx, missing); err != nil {
			return err
		}
	}
	return nil
}

// identifyStorage writes the object of storageID, unless another gateway has just written one in the place of the missing one.
func (c *cluster) identifyStorage(ctx context.Context, missing string) error {
	s := c.service
	p := partOf(&File{ID: storageID}, []byte("The gateways recognize by this file that they share their storage.\n"))
	err := s.putUnchecked(ctx, p)
	if err == nil {
		err = s.write(ctx, func(ctx context.Context, tx database.Tx) error {
			current, err := partsOf(ctx, tx, storageID)
			if err != nil {
				return err
			}
			if len(current) > 0 && current[0].object != missing {
				return errIdentified
			}
			runners, err := aliveRunners(ctx, tx)
			switch {
			case err != nil:
				return err
			case missing != "" && len(runners) > 0:
				return ErrStorageMismatch
			}
			if err := deleteObject(ctx, tx, missing); err != nil {
				return err
			}
			return keepObject(ctx, tx, p.object)
		})
	}
	switch {
	case errors.Is(err, errIdentified):
		s.discard(ctx, p)
		return nil
	case err != nil:
		s.discard(ctx, p)
		return fmt.Errorf("check the storage of files: %w", err)
	case missing != "":
		s.log.Warn("the storage of files is not the one that gateways have used before; files that were not copied cannot be read")
	}
	return nil
}

var errIdentified = errors.New("another gateway has identified the storage")
