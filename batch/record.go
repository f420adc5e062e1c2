package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/database"
	"basegate/internal/wait"
)

const (
	maxRecorded    = 256         // results in one transaction: some 3 ms, by which it delays the settlements of others
	maxRecordBytes = 8 << 20     // results of one write
	recordEvery    = time.Second // between writes of few results, each of which is a part of a file
	recordRetry    = time.Second
)

// recorder writes the results of a job.
type recorder struct {
	*job
	batch Batch     // with the counts and the status of the last write
	files [2]*File  // by toOutput and toErrors; the latter is nil before the first failure
	last  time.Time // of the last results
}

// run records the outcomes of a job's lines until all have ended, its deadline passes, or it is cancelled, and ends the
// batch.
func (j *job) run() {
	defer j.drain()
	s := j.service
	r := &recorder{job: j, batch: j.batch}
	for {
		err := r.record(s.ctx)
		if errors.Is(err, errParked) {
			err = r.park(s.ctx)
		}
		switch {
		case err == nil || s.ctx.Err() != nil:
			return
		case errors.Is(err, errLeaseLost):
			s.log.Info("the batch goes on at another gateway, or at the next start", zap.String("batch", j.batch.ID))
			return
		}
		s.log.Error("a batch cannot be recorded, and is tried again", zap.String("batch", j.batch.ID), zap.Error(err))
		if !wait.For(s.ctx, recordRetry) {
			return
		}
	}
}

// drain ends the lines that run, whose results do not count any more.
func (j *job) drain() {
	j.cancel(nil)
	for !j.idle() {
		j.end([]outcome{<-j.outcomes}, false)
	}
}

// record does what is left to do of a batch.
func (r *recorder) record(ctx context.Context) error {
	s := r.service
	if err := r.open(ctx); err != nil {
		return err
	}
	if r.batch.Status == InProgress {
		r.recordLines(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	cause := context.Cause(r.ctx)
	switch {
	case errors.Is(cause, errLeaseLost):
		return errLeaseLost
	case errors.Is(cause, errParked) && r.batch.Status == InProgress: // else it was cancelled before it was a row, and only has to end
		return errParked
	}
	end, why := Completed, error(nil)
	switch {
	case errors.Is(cause, errRevoked):
		end, why = StatusCancelled, errRevoked
	case r.batch.Status == Cancelling, errors.Is(cause, errCancelled):
		end, why = StatusCancelled, errCancelled
		if r.batch.InProgressAt == 0 { // the lines that were validated do not count
			if err := s.clear(ctx, r.batch.seq, r.lease); err != nil {
				return err
			}
		}
	case r.batch.remaining() > 0, errors.Is(cause, errExpired) && r.batch.Failed > 0: // lines that ran at the deadline have failed
		end, why = Expired, errExpired
	}
	if why != nil {
		if err := r.endRest(ctx, endings[why]); err != nil {
			return err
		}
	}
	return r.finalize(ctx, end)
}

// open reads the files of the batch, whose lengths are those that count.
func (r *recorder) open(ctx context.Context) error {
	b, err := batchBySeq(ctx, r.service.db.Read(), r.batch.seq)
	if err != nil {
		return fmt.Errorf("read a batch: %w", err)
	}
	r.batch = b
	for i, id := range []string{toOutput: b.OutputFile, toErrors: b.ErrorFile} {
		if id == "" {
			continue
		}
		file, err := findFile(ctx, r.service.db.Read(), b.Account, id, 0)
		if err != nil {
			return fmt.Errorf("find a file of a batch: %w", err)
		}
		r.files[i] = &file
	}
	return nil
}

// recordLines handles outcomes until no line is left, or none runs and the job's context has ended or others are to run
// the rest.
func (r *recorder) recordLines(ctx context.Context) {
	deadline := time.NewTimer(time.Unix(r.batch.ExpiresAt, 0).Sub(r.service.clock()))
	defer deadline.Stop()
	drained := r.service.drained
	for r.batch.remaining() > 0 {
		ended := r.ctx.Done()
		if r.ctx.Err() != nil {
			if r.idle() {
				return
			}
			ended = nil
		}
		if r.service.isDraining() && ended != nil && r.leaveIfIdle() {
			return
		}
		select {
		case o := <-r.outcomes:
			r.handle(ctx, r.gather(o))
		case <-deadline.C:
			r.cancel(errExpired)
		case <-drained:
			drained = nil
		case <-ended:
		}
	}
}

// idle reports whether no line runs.
func (j *job) idle() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unrecorded == 0
}

// leaveIfIdle leaves the batch to another gateway if no line runs, and reports whether it has.
func (j *job) leaveIfIdle() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unrecorded > 0 {
		return false
	}
	j.cancel(errLeaseLost)
	return true
}

// gather returns an outcome with those that have come meanwhile. If lines are left, it waits for more results until the last write
// is recordEvery ago.
func (r *recorder) gather(first outcome) []outcome {
	left := recordEvery - time.Since(r.last)
	all, bytes, waits := []outcome{first}, len(first.text), first.kind == isResult && left > 0
	var more <-chan time.Time
	if waits {
		timer := time.NewTimer(left)
		defer timer.Stop()
		more = timer.C
	}
	for len(all) < maxRecorded && bytes < maxRecordBytes {
		var o outcome
		select {
		case o = <-r.outcomes:
		default:
			if !waits || !r.expectsMore(len(all)) || r.ctx.Err() != nil {
				return all
			}
			select {
			case o = <-r.outcomes:
			case <-more:
				return all
			case <-r.ctx.Done():
				return all
			case <-r.service.drained:
				return all
			}
		}
		all, bytes, waits = append(all, o), bytes+len(o.text), waits && o.kind == isResult
	}
	return all
}

// expectsMore reports whether more than n lines have no result, and the job is not to end before they do.
func (j *job) expectsMore(n int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.yields && j.left.Load() > int64(n)
}

// handle writes the results among the outcomes, however often that takes, unless the gateway stops or the lease is lost.
func (r *recorder) handle(ctx context.Context, all []outcome) {
	written := false
	results := r.newResults(all)
	for {
		// A stop must not discard the results of lines that have ended, which would run again.
		err := r.write(context.WithoutCancel(ctx), results)
		switch {
		case err == nil:
			written = true
		case errors.Is(err, errLeaseLost):
			r.cancel(errLeaseLost)
		case errors.Is(err, budget.ErrNotReserved): // they cannot be charged, so they do not count
			for i := range all {
				if o := &all[i]; o.kind == isResult { // so it runs again
					o.kind, o.delay = isUntried, waitDelay
				}
			}
		case ctx.Err() == nil:
			r.service.log.Error("the results of a batch cannot be written, and are tried again", zap.String("batch", r.batch.ID), zap.Error(err))
			if wait.For(ctx, recordRetry) {
				continue
			}
		}
		break
	}
	if !written {
		r.service.discard(ctx, results.parts...)
	}
	r.last = time.Now()
	r.end(all, written)
}

// end ends what the lines of outcomes hold, which are written or not.
func (j *job) end(all []outcome, written bool) {
	for i := range all {
		o := &all[i]
		if o.result.Settlement != nil {
			if written {
				o.result.Settlement.Commit()
			} else {
				o.result.Settlement.Abandon()
			}
		}
		if o.result.Release != nil {
			o.result.Release()
		}
		if written && o.kind == isResult {
			j.service.metrics.ended(j.sources[o.line.model].model, o.success)
		}
		j.done(o)
	}
}

// The files of a batch.
const (
	toOutput = iota
	toErrors
)

// results are outcomes that are written together.
type results struct {
	outcomes []outcome
	parts    []*newPart
	counts   counts
}

// newResults returns the results among outcomes as the next parts of their files.
func (r *recorder) newResults(all []outcome) *results {
	w := &results{outcomes: all}
	var texts [2][][]byte
	for i := range all {
		o := &all[i]
		if o.kind != isResult {
			continue
		}
		to := toErrors
		if o.success {
			to = toOutput
		}
		texts[to] = append(texts[to], o.text)
		w.counts.input += o.result.Usage.Prompt // which the gateway has counted itself if the response does not say it
		w.counts.output += o.result.Usage.Completion
		w.counts.cached += o.cached
		w.counts.reasoning += o.reasoning
	}
	w.counts.completed, w.counts.failed = int64(len(texts[toOutput])), int64(len(texts[toErrors]))
	for i, lines := range texts {
		if len(lines) == 0 {
			continue
		}
		if r.files[i] == nil {
			f := r.service.newOutput(&r.batch, "error")
			r.files[i] = &f
		}
		w.parts = append(w.parts, partOf(r.files[i], bytes.Join(lines, nil)))
	}
	return w
}

// write writes results to the storage, and then the parts, the charges and the lines in one transaction. After an error, it may be
// called again.
func (r *recorder) write(ctx context.Context, w *results) error {
	if !slices.ContainsFunc(w.outcomes, func(o outcome) bool { return o.kind != isUntried }) {
		return nil
	}
	for _, p := range w.parts {
		if err := r.service.put(ctx, p); err != nil {
			return err
		}
	}
	err := r.service.writeLeased(ctx, r.batch.seq, r.lease, func(ctx context.Context, tx database.Tx) error {
		fresh, err := r.writeLines(ctx, tx, w.outcomes)
		if err != nil || !fresh {
			return err
		}
		return r.writeFiles(ctx, tx, w)
	})
	if err != nil {
		return fmt.Errorf("record results: %w", err)
	}
	r.advance(w)
	return nil
}

// writeLines writes the outcomes of lines, with their charges. It reports false if an earlier try of this transaction has
// reached the disk.
func (r *recorder) writeLines(ctx context.Context, tx database.Tx, all []outcome) (fresh bool, err error) {
	var charges []budget.Settlement
	for i := range all {
		o := &all[i]
		switch o.kind {
		case isUntried:
		case isRetry:
			if err := setAttempts(ctx, tx, r.batch.seq, o.line); err != nil {
				return false, err
			}
		case isResult:
			if there, err := deleteLine(ctx, tx, r.batch.seq, o.line); err != nil || !there {
				return false, err
			}
			if o.result.Settlement != nil {
				charges = append(charges, o.result.Settlement)
			}
		}
	}
	return true, budget.WriteSettlements(ctx, tx, charges)
}

// writeFiles writes what counts of the files.
func (r *recorder) writeFiles(ctx context.Context, tx database.Tx, w *results) error {
	for _, p := range w.parts {
		if p.file.seq == 0 {
			if err := insertFile(ctx, tx, p.file); err != nil {
				return err
			}
			if err := setErrorFile(ctx, tx, r.batch.seq, p.file.ID); err != nil {
				return err
			}
		}
		if err := setFileBytes(ctx, tx, p.file.ID, p.start, p.end); err != nil {
			return err
		}
		if err := keepObject(ctx, tx, p.object); err != nil {
			return err
		}
	}
	return addCounts(ctx, tx, r.batch.seq, w.counts)
}

// advance counts what has been written.
func (r *recorder) advance(w *results) {
	for _, p := range w.parts {
		p.file.Bytes, p.file.seq = p.end, max(p.file.seq, 1) // it has a row
	}
	r.batch.Completed += w.counts.completed
	r.batch.Failed += w.counts.failed
	r.left.Store(r.batch.remaining())
}
