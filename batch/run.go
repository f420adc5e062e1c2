package batch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"basegate/database"
	"basegate/internal/wait"
)

const (
	pollInterval     = time.Second            // between looks for batches that commands have created or cancelled
	dispatchInterval = 250 * time.Millisecond // between looks for room that no outcome has announced
	sweepInterval    = 10 * time.Second

	storageRequests = 8 // that one task makes at a time
)

// recover marks what a crash has left half-written.
func (s *Service) recover(ctx context.Context) error {
	var left int64
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
		left, err = deleteWriting(ctx, tx)
		return err
	})
	if err != nil {
		return fmt.Errorf("recover files: %w", err)
	}
	if left > 0 {
		s.log.Info("uploads that a crash has cut off are deleted", zap.Int64("objects", left))
	}
	return nil
}

// poll validates, starts and cancels batches.
func (s *Service) poll() {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	validating := map[int64]bool{}
	validated := make(chan int64, 1)
	for {
		all, err := unfinished(s.ctx, s.db.Read())
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("the batches cannot be read", zap.Error(err))
		}
		for i := range all {
			b := &all[i]
			switch {
			case b.Status != Validating:
				s.ensureJob(b)
			case !validating[b.seq]:
				validating[b.seq] = true
				s.tasks.Go(func() {
					s.validateUntilDone(b)
					select {
					case validated <- b.seq:
					case <-s.ctx.Done():
					}
				})
			}
		}
		select {
		case <-s.ctx.Done():
			return
		case seq := <-validated:
			delete(validating, seq)
		case <-s.created:
		case <-tick.C:
		}
	}
}

// validateUntilDone validates a batch, again if the gateway cannot.
func (s *Service) validateUntilDone(b *Batch) {
	for {
		err := s.validate(s.ctx, b)
		if err == nil || s.ctx.Err() != nil {
			return
		}
		s.log.Warn("a batch cannot be validated, and is tried again", zap.String("batch", b.ID), zap.Error(err))
		if now, err := batchBySeq(s.ctx, s.db.Read(), b.seq); err == nil && now.Status != Validating {
			return
		}
		if !wait.For(s.ctx, storageDelay) {
			return
		}
	}
}

// ensureJob starts the job of a batch that has none, and ends that of a batch that is to be cancelled.
func (s *Service) ensureJob(b *Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[b.seq]; j != nil {
		if b.Status == Cancelling {
			j.cancel(errCancelled)
		}
		return
	}
	input, err := findFile(s.ctx, s.db.Read(), b.Account, b.InputFile, 0)
	if err != nil {
		s.log.Error("the file of a batch is missing", zap.String("batch", b.ID), zap.Error(err))
		return
	}
	j := s.newJob(b, &input)
	s.jobs[b.seq] = j
	s.tasks.Go(func() {
		j.run()
		s.mu.Lock()
		delete(s.jobs, b.seq)
		s.mu.Unlock()
		wake(s.created)
	})
	wake(s.changed)
}

// dispatch starts lines where there is room.
func (s *Service) dispatch() {
	tick := time.NewTicker(dispatchInterval)
	defer tick.Stop()
	last := ""
	for {
		for s.startRound(&last) {
		}
		select {
		case <-s.ctx.Done():
			return
		case <-s.changed:
		case <-tick.C:
		}
	}
}

// startRound gives each account a turn to start one line, and reports whether any did. last is the account that had the
// last turn.
func (s *Service) startRound(last *string) (started bool) {
	accounts := s.jobsByAccount()
	names := make([]string, 0, len(accounts))
	for name := range accounts {
		names = append(names, name)
	}
	slices.Sort(names)
	if at := slices.IndexFunc(names, func(name string) bool { return strings.Compare(name, *last) > 0 }); at > 0 {
		names = append(names[at:], names[:at]...)
	}
	full := map[string]Reason{}
	for _, name := range names {
		for _, j := range accounts[name] {
			if j.start(full) {
				started, *last = true, name
				break
			}
		}
	}
	return started
}

// jobsByAccount returns the jobs of each account, those with the earliest deadline first; none if the gateway drains.
func (s *Service) jobsByAccount() map[string][]*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	accounts := map[string][]*job{}
	if s.draining {
		return accounts
	}
	for _, j := range s.jobs {
		accounts[j.batch.Account] = append(accounts[j.batch.Account], j)
	}
	for _, jobs := range accounts {
		slices.SortFunc(jobs, func(a, b *job) int {
			return cmp.Or(cmp.Compare(a.batch.ExpiresAt, b.batch.ExpiresAt), cmp.Compare(a.batch.seq, b.batch.seq))
		})
	}
	return accounts
}

// sweep deletes the files whose time is over, and the bytes of deleted files.
func (s *Service) sweep() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	deleted := map[string]time.Time{}
	for {
		if err := s.sweepOnce(s.ctx, deleted); err != nil && s.ctx.Err() == nil {
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

// sweepOnce deletes what is to be deleted at the moment. deleted says when an object was deleted for the first time; it is
// deleted once more when no write to it can still be on its way.
func (s *Service) sweepOnce(ctx context.Context, deleted map[string]time.Time) error {
	expired, err := expiredFiles(ctx, s.db.Read(), s.now())
	if err != nil {
		return fmt.Errorf("find expired files: %w", err)
	}
	err = s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		for i := range expired {
			if err := deleteFile(ctx, tx, &expired[i]); err != nil {
				return err
			}
		}
		return forget(ctx, tx, s.now())
	})
	if err != nil {
		return fmt.Errorf("delete expired files: %w", err)
	}
	if err := s.deleteOldErrors(ctx); err != nil {
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
