package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
)

const (
	pollInterval     = time.Second            // between looks for batches that commands have created or cancelled
	sharedInterval   = 400 * time.Millisecond // the same for those that other gateways have
	dispatchInterval = 250 * time.Millisecond // between looks for room that no outcome has announced
	sweepInterval    = 10 * time.Second

	storageRequests = 8 // that one task makes at a time
)

// recover marks what a crash has left half-written.
func (s *Service) recover(ctx context.Context) error {
	if s.cluster != nil { // the sweeper does, since other gateways may be writing
		return s.startStorage(ctx)
	}
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

// poller is the state of poll.
type poller struct {
	*Service
	validating map[int64]bool
	validated  chan int64
	failing    bool // the last poll has failed
	left       bool // the other gateways know that this one takes no batches any more
}

// poll validates, starts and cancels batches.
func (s *Service) poll() {
	interval := pollInterval
	if s.cluster != nil {
		interval = sharedInterval
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	p := &poller{Service: s, validating: map[int64]bool{}, validated: make(chan int64, 1)}
	for {
		err := p.once(s.ctx)
		if err != nil && s.ctx.Err() == nil && !p.failing {
			s.log.Warn("the batches cannot be read", zap.Error(err))
		}
		p.failing = err != nil
		select {
		case <-s.ctx.Done():
			return
		case seq := <-p.validated:
			delete(p.validating, seq)
		case <-s.created:
		case <-tick.C:
		}
	}
}

// once looks once at the batches that have not ended.
func (p *poller) once(ctx context.Context) error {
	all, err := unfinished(ctx, p.db.Read())
	if err != nil {
		return err
	}
	var mine map[int64]lease
	if p.cluster != nil {
		if err := p.storageChecked(ctx); err != nil {
			return err
		}
		if mine, err = p.leases(ctx, all); err != nil {
			return err
		}
		p.endLostJobs(mine)
		p.showWaits(ctx)
	}
	var given []int64
	for i := range all {
		b := &all[i]
		l, leased := mine[b.seq]
		switch {
		case p.cluster != nil && !leased, p.validating[b.seq]:
		case b.Status == Validating && !p.leaves():
			p.validating[b.seq] = true
			p.tasks.Go(func() {
				p.validateUntilDone(b, l)
				select {
				case p.validated <- b.seq:
				case <-p.ctx.Done():
				}
			})
		case !p.ensureJob(b, l):
			given = append(given, b.seq)
		}
	}
	if p.leaves() && (!p.left || len(given) > 0) {
		p.left = p.release(ctx, append(given, sweeperSeq))
	}
	return nil
}

// validateUntilDone validates a batch, again if the gateway cannot.
func (s *Service) validateUntilDone(b *Batch, l lease) {
	for {
		err := s.validate(s.ctx, b, l)
		if err == nil || errors.Is(err, errLeaseLost) || s.ctx.Err() != nil {
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

// ensureJob starts the job of a batch that has none, unless other gateways are to run it, and ends that of a batch that is
// to be cancelled. It reports whether the batch has a job.
func (s *Service) ensureJob(b *Batch, l lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[b.seq]; j != nil {
		if b.Status == Cancelling {
			j.cancel(errCancelled)
		}
		return true
	}
	if s.leaves() {
		return false
	}
	input, err := findFile(s.ctx, s.db.Read(), b.Account, b.InputFile, 0)
	if err != nil {
		s.log.Error("a batch waits, since its input file cannot be looked up", zap.String("batch", b.ID), zap.Error(err))
		return true
	}
	j := s.newJob(b, l, &input)
	s.jobs[b.seq] = j
	s.tasks.Go(func() {
		j.run()
		s.mu.Lock()
		delete(s.jobs, b.seq)
		s.mu.Unlock()
		wake(s.created)
	})
	wake(s.changed)
	return true
}

// endLostJobs ends the jobs whose leases are not among those of this gateway.
func (s *Service) endLostJobs(mine map[int64]lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq, j := range s.jobs {
		if mine[seq] != j.lease {
			j.cancel(errLeaseLost)
		}
	}
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
	if s.isDraining() {
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
