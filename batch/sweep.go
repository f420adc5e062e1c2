package batch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"basegate/database"
	"basegate/internal/wait"
)

// lateWrites is how long after a crash or a failed write its bytes may still arrive: S3 servers end requests sooner whose client is
// gone.
const lateWrites = 30 * time.Second

// sweep deletes the files whose time is over, and the bytes of deleted files.
func (s *Service) sweep() {
	deleted := map[string]time.Time{}
	wait.EveryOrWoken(s.ctx, sweepInterval, s.deleted, func(ctx context.Context) {
		if !s.leases.sweeps() {
			clear(deleted)
			s.metrics.setBacklog(0, 0) // another gateway counts it
		} else if err := s.sweepOnce(ctx, deleted); err != nil && ctx.Err() == nil {
			s.log.Warn("deleted files cannot be removed from the storage yet", zap.Error(err))
		}
	})
}

// sweepOnce deletes what is to be deleted at the moment. deleted says when an object was deleted for the first time.
func (s *Service) sweepOnce(ctx context.Context, deleted map[string]time.Time) error {
	if err := s.countBacklog(ctx); err != nil {
		return err
	}
	if err := s.deleteExpired(ctx); err != nil {
		return fmt.Errorf("delete expired files: %w", err)
	}
	names, err := deletedObjects(ctx, s.db.Read())
	if err != nil {
		return fmt.Errorf("find deleted objects: %w", err)
	}
	if len(names) > 0 { // the rows must not come back after the bytes are gone
		if err := s.db.Flush(ctx); err != nil {
			return fmt.Errorf("flush deletions: %w", err)
		}
	}
	return s.purge(ctx, names, deleted)
}

// deleteExpired deletes the rows of expired files and idempotency tokens, and marks the objects of these files, of the errors of old
// batches, and those that a gateway has left half-written, for deletion.
func (s *Service) deleteExpired(ctx context.Context) error {
	expired, err := expiredFiles(ctx, s.db.Read(), s.now())
	if err != nil {
		return fmt.Errorf("find expired files: %w", err)
	}
	failed, err := oldErrors(ctx, s.db.Read(), s.now()-int64(s.settings.Load().Keep.Seconds()))
	if err != nil {
		return fmt.Errorf("find the errors of old batches: %w", err)
	}
	orphans := int64(0)
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
		for i := range expired {
			if err := deleteFile(ctx, tx, expired[i].ID); err != nil {
				return err
			}
		}
		if orphans, err = s.leases.deleteOrphans(ctx, tx, s.clock()); err != nil {
			return err
		}
		for i := range failed {
			if err := setErrors(ctx, tx, failed[i].seq, ""); err != nil {
				return err
			}
			if err := markDeleted(ctx, tx, objectNamed, failed[i].errorsObject); err != nil {
				return err
			}
		}
		return forget(ctx, tx, s.now())
	})
	if err == nil && orphans > 0 {
		s.log.Info("objects that a gateway has left half-written are deleted", zap.Int64("objects", orphans))
	}
	return err
}

// purge deletes the bytes of deleted objects, and once more when no write to them can still be on its way. Their rows are
// deleted then.
func (s *Service) purge(ctx context.Context, names []string, deleted map[string]time.Time) error {
	now := s.clock()
	due := slices.DeleteFunc(names, func(name string) bool {
		first, again := deleted[name]
		return again && now.Sub(first) < lateWrites
	})
	var group errgroup.Group
	group.SetLimit(storageRequests) // each is a request to an S3 server
	for _, name := range due {
		group.Go(func() error { return s.store.Delete(ctx, name) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var gone []string
	for _, name := range due {
		if _, again := deleted[name]; again {
			gone = append(gone, name)
		} else {
			deleted[name] = now
		}
	}
	for some := range slices.Chunk(gone, maxRecorded) {
		err := s.write(ctx, func(ctx context.Context, tx database.Tx) error { return removeObjects(ctx, tx, some) })
		if err != nil {
			return fmt.Errorf("forget deleted objects: %w", err)
		}
		for _, name := range some {
			delete(deleted, name)
		}
	}
	return nil
}
