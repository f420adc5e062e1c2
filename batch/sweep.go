package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"basegate/database"
)

// sweep deletes the files whose time is over, and the bytes of deleted files.
func (s *Service) sweep() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	deleted := map[string]time.Time{}
	for {
		if l, ok := s.sweeperLease(); !ok {
			clear(deleted)
			s.backlog.Store(nil) // another gateway counts it
		} else if err := s.sweepOnce(s.ctx, l, deleted); err != nil && s.ctx.Err() == nil && !errors.Is(err, errLeaseLost) {
			s.log.Warn("deleted files cannot be removed from the storage yet", zap.Error(err))
		}
		select {
		case <-s.ctx.Done():
			return
		case <-s.deleted:
		case <-tick.C:
		}
	}
}

// sweeperLease returns the lease on the deletion of what has expired, and false if another gateway has it.
func (s *Service) sweeperLease() (lease, bool) {
	if s.cluster == nil {
		return lease{}, true
	}
	l := s.cluster.sweeper.Load()
	if l == nil {
		return lease{}, false
	}
	return *l, true
}

// sweepOnce deletes what is to be deleted at the moment. deleted says when an object was deleted for the first time.
func (s *Service) sweepOnce(ctx context.Context, l lease, deleted map[string]time.Time) error {
	if err := s.countBacklog(ctx); err != nil {
		return err
	}
	if err := s.deleteExpired(ctx, l); err != nil {
		return fmt.Errorf("delete expired files: %w", err)
	}
	if err := s.deleteOldErrors(ctx, l); err != nil {
		return fmt.Errorf("delete the errors of old batches: %w", err)
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

// deleteExpired deletes the rows of expired files and idempotency tokens, and marks the objects of these files, and those
// that a gateway has left half-written, for deletion.
func (s *Service) deleteExpired(ctx context.Context, l lease) error {
	expired, err := expiredFiles(ctx, s.db.Read(), s.now())
	if err != nil {
		return fmt.Errorf("find expired files: %w", err)
	}
	orphans := int64(0)
	err = s.writeLeased(ctx, sweeperSeq, l, func(ctx context.Context, tx database.Tx) (err error) {
		for i := range expired {
			if err := deleteFile(ctx, tx, &expired[i]); err != nil {
				return err
			}
		}
		if s.cluster != nil {
			if orphans, err = deleteOrphans(ctx, tx); err != nil {
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

// purge deletes the bytes of deleted objects, and once more when no write to them can still be on its way. The row of an
// object is deleted with the second deletion.
func (s *Service) purge(ctx context.Context, names []string, deleted map[string]time.Time) error {
	var due []string
	for _, name := range names {
		first, again := deleted[name]
		if !again || s.clock().Sub(first) >= s.store.LateWrites() {
			due = append(due, name)
		}
	}
	if err := s.deleteObjects(ctx, due); err != nil {
		return err
	}
	for _, name := range due {
		if _, again := deleted[name]; !again {
			deleted[name] = s.clock()
		}
		if s.clock().Sub(deleted[name]) < s.store.LateWrites() {
			continue
		}
		err := s.write(ctx, func(ctx context.Context, tx database.Tx) error { return removeObject(ctx, tx, name) })
		if err != nil {
			return fmt.Errorf("forget a deleted object: %w", err)
		}
		delete(deleted, name)
	}
	return nil
}

// deleteObjects deletes objects, some at a time: each is a request to an S3 server.
func (s *Service) deleteObjects(ctx context.Context, names []string) error {
	var group errgroup.Group
	group.SetLimit(storageRequests)
	for _, name := range names {
		group.Go(func() error { return s.store.Delete(ctx, name) })
	}
	return group.Wait() //nolint:wrapcheck // it says what failed
}
