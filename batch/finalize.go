package batch

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"basegate/database"
	"basegate/proxy"
)

// endRest writes the lines that have not run to the error file.
func (r *recorder) endRest(ctx context.Context, why ending) error {
	for {
		rest, err := restOfLines(ctx, r.service.db.Read(), r.batch.seq, maxRecorded)
		if err != nil {
			return fmt.Errorf("read the lines of a batch: %w", err)
		}
		if len(rest) == 0 {
			return nil
		}
		all, err := r.endLines(ctx, rest, why)
		if err != nil {
			return err
		}
		written := r.newResults(all)
		if err := r.write(ctx, written); err != nil {
			r.service.discard(ctx, written.parts...)
			return err
		}
	}
}

// endLines returns the outcomes of lines that will not run. Each line is read, for its custom_id.
func (r *recorder) endLines(ctx context.Context, lines []lineRef, why ending) ([]outcome, error) {
	all := make([]outcome, len(lines))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(storageRequests)
	for i, ref := range lines {
		group.Go(func() error {
			text, err := r.readLine(ctx, ref)
			if err != nil {
				return err
			}
			l, refused := parseLine(text)
			if refused != nil {
				return fmt.Errorf("parse a line of a batch: %s", refused.Message)
			}
			e := errorObject{why.code, why.unstarted}
			if ref.attempts > 0 {
				e.Message = why.again
			}
			all[i] = newResult(ref, l.customID, &e, proxy.LineResult{})
			return nil
		})
	}
	return all, group.Wait()
}

// finalize makes the files final, and ends the batch.
func (r *recorder) finalize(ctx context.Context, end Status) error {
	s := r.service
	if end == Completed && r.batch.Status == InProgress {
		if err := r.setStatus(ctx, Finalizing, InProgress); err != nil {
			return err
		}
		if r.batch.Status == Cancelling { // it was cancelled at the same moment
			end = StatusCancelled
		}
	}
	for _, f := range r.files {
		if f == nil {
			continue
		}
		var err error
		if f.sha256, err = s.digest(ctx, f); err != nil {
			return fmt.Errorf("read a file of results: %w", err)
		}
	}
	if err := r.setStatus(ctx, end, InProgress, Finalizing, Cancelling); err != nil {
		return err
	}
	s.log.Info("batch ended", zap.String("batch", r.batch.ID), zap.String("status", string(end)),
		zap.Int64("completed", r.batch.Completed), zap.Int64("failed", r.batch.Failed))
	s.ended(r.batch, end)
	return nil
}

// setStatus changes the status. If it is the last one, it makes the files final too, whose digests are set.
func (r *recorder) setStatus(ctx context.Context, to Status, from ...Status) error {
	s := r.service
	changed := false
	err := s.writeLeased(ctx, r.batch.seq, r.lease, func(ctx context.Context, tx database.Tx) (err error) {
		now := s.now()
		if changed, err = setStatus(ctx, tx, r.batch.seq, to, now, from...); err != nil || !to.Ended() {
			return err
		}
		for _, f := range r.files {
			if f == nil {
				continue
			}
			if err := setFileFinal(ctx, tx, f.ID, f.sha256, now+s.keepOf(&r.batch)); err != nil {
				return err
			}
		}
		return s.leases.release(ctx, tx, r.batch.seq, r.lease)
	})
	if err != nil {
		return fmt.Errorf("change the status of a batch: %w", err)
	}
	if changed {
		r.batch.Status = to
		return nil
	}
	b, err := batchBySeq(ctx, s.db.Read(), r.batch.seq)
	if err != nil {
		return fmt.Errorf("read a batch: %w", err)
	}
	r.batch.Status = b.Status
	return nil
}
