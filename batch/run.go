package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
)

const (
	pollInterval     = 400 * time.Millisecond // between looks for batches that commands or other gateways have created or cancelled
	dispatchInterval = 250 * time.Millisecond // between looks for room that no outcome has announced
	sweepInterval    = 10 * time.Second

	storageRequests = 8 // that one task makes at a time
)

// poller is the state of poll.
type poller struct {
	*Service
	accounts int                           // with batches in progress that are not parked, at the last poll
	asked    struct{ account, key string } // the last key with parked batches that was asked
	failing  bool                          // the last poll has failed
	left     bool                          // the other gateways know that this one takes no batches any more
}

// poll validates, starts and cancels batches.
func (s *Service) poll() {
	p := &poller{Service: s}
	wait.EveryOrWoken(s.ctx, pollInterval, s.created, func(ctx context.Context) {
		err := p.once(ctx)
		if err != nil && ctx.Err() == nil && !p.failing {
			s.log.Warn("the batches cannot be read", zap.Error(err))
		}
		p.failing = err != nil
	})
}

// work are the batches that a poll has found.
type work struct {
	batches []Batch
	share   int             // batches in progress of an account that are in memory
	active  map[string]int  // batches in progress of an account that are not parked, up to share
	crowded map[string]bool // accounts that have more

	// latest is the latest deadline among active. Accounts have none while an active batch waits for a backend; one that was parked
	// does until it runs.
	latest map[string]int64
}

// statuses are those that a gateway does something about.
var statuses = []Status{Finalizing, Cancelling, InProgress, Validating}

// findWork returns the batches that are due: some of each account, those with the earliest deadlines first, and others whose
// keys were revoked.
func (s *Service) findWork(ctx context.Context, q database.Reader, share int) (*work, error) {
	w := &work{share: share, active: map[string]int{}, crowded: map[string]bool{}, latest: map[string]int64{}}
	for _, status := range statuses {
		most := maxActiveOwned
		if status == InProgress {
			most = share + 1
		}
		due, err := dueBatches(ctx, q, status, most)
		if err != nil {
			return nil, fmt.Errorf("find batches: %w", err)
		}
		for _, b := range due {
			if status == InProgress {
				if w.active[b.Account] == share {
					w.crowded[b.Account] = true
					continue
				}
				w.active[b.Account]++
				w.latest[b.Account] = b.ExpiresAt
			}
			w.batches = append(w.batches, b)
		}
	}
	for i := range w.batches {
		if b := &w.batches[i]; b.Status == InProgress && b.Wait.isForBackend() {
			delete(w.latest, b.Account)
		}
	}
	for account := range w.crowded {
		if err := s.addRevoked(ctx, q, w, account); err != nil {
			return nil, fmt.Errorf("find batches of revoked keys: %w", err)
		}
	}
	return w, nil
}

// addRevoked adds a batch of each key of an account that was revoked: they only have to end.
func (s *Service) addRevoked(ctx context.Context, q database.Reader, w *work, account string) error {
	firsts, err := firstDueOfKeys(ctx, q, account)
	for i := range firsts {
		if b := firsts[i]; s.completer.Standing(b.Key).Revoked && !w.has(b.seq) {
			w.batches = append(w.batches, b)
		}
	}
	return err
}

func (w *work) has(seq int64) bool {
	return slices.ContainsFunc(w.batches, func(b Batch) bool { return b.seq == seq })
}

// once looks once at the batches that are due.
func (p *poller) once(ctx context.Context) error {
	share := max(1, min(maxActiveOwned, maxActive/max(1, p.accounts)))
	busy := p.busy() // before the rows are read: the row of a batch whose job ends meanwhile is out of date
	w, err := p.findWork(ctx, p.db.Read(), share)
	if err != nil {
		return err
	}
	p.accounts = len(w.active)
	mine, err := p.leases.take(ctx, w, busy, p.isDraining())
	if err != nil {
		return err
	}
	p.endLostJobs(mine)
	p.showWaits(ctx, w)
	if err := p.cancelJobs(ctx); err != nil {
		return err
	}
	var parked []parking
	for i := range w.batches {
		b := &w.batches[i]
		l, leased := mine[b.seq]
		if !leased || p.isDraining() || slices.Contains(busy, b.seq) {
			continue
		}
		st := p.completer.Standing(b.Key)
		switch {
		case b.isBlocked(&st) && p.mayPark(b, &st):
			parked = append(parked, parking{b, l, waitOf(st.Reason, st.ResetsAt), st.Caps})
		case b.Status == Validating:
			p.startValidation(b, l)
		default:
			p.startJob(b, l, w)
		}
	}
	if p.isDraining() {
		return p.giveBack(ctx, mine)
	}
	if err := p.parkAll(ctx, parked); err != nil {
		return err
	}
	if len(parked) > 0 {
		wait.Wake(p.created) // others of their accounts are due
	}
	if err := p.parkJobs(ctx, w); err != nil {
		return err
	}
	return p.unparkDue(ctx, w)
}

// startValidation validates a batch in a goroutine of its own.
func (p *poller) startValidation(b *Batch, l holder) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	p.mu.Lock()
	p.validating[b.seq] = cancel
	p.mu.Unlock()
	p.tasks.Go(func() {
		defer cancel(nil)
		p.validateUntilDone(ctx, b, l)
		p.mu.Lock()
		delete(p.validating, b.seq)
		p.mu.Unlock()
		wait.Wake(p.created)
	})
}

// giveBack releases the leases of batches that this gateway, which drains, does nothing for.
func (p *poller) giveBack(ctx context.Context, mine map[int64]holder) error {
	for _, seq := range p.busy() {
		delete(mine, seq)
	}
	if !p.left {
		if err := p.leases.leave(ctx, false); err != nil {
			return fmt.Errorf("leave batches to others: %w", err)
		}
		p.left = true
	}
	if len(mine) == 0 {
		return nil
	}
	err := p.write(ctx, func(ctx context.Context, tx database.Tx) error {
		for seq, l := range mine {
			if err := p.leases.release(ctx, tx, seq, l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("leave batches to others: %w", err)
	}
	return nil
}

// validateUntilDone validates a batch, again if the gateway cannot. It leaves one to the poller whose key may not be used.
func (s *Service) validateUntilDone(ctx context.Context, b *Batch, l holder) {
	for {
		err := s.validate(ctx, b, l)
		if err == nil || errors.Is(err, errLeaseLost) || ctx.Err() != nil {
			return
		}
		if st := s.completer.Standing(b.Key); s.mayPark(b, &st) {
			return
		}
		s.log.Warn("a batch cannot be validated, and is tried again", zap.String("batch", b.ID), zap.Error(err))
		if now, err := batchBySeq(ctx, s.db.Read(), b.seq); err == nil && now.Status != Validating {
			return
		}
		if !wait.For(ctx, storageDelay) {
			return
		}
	}
}

// busy returns the batches that have a job or are being validated.
func (s *Service) busy() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Keys(s.jobs)), maps.Keys(s.validating))
}

// startJob starts the job of a batch, unless its account has enough that run: then those with later deadlines end for it. A batch
// that only has to end needs no turn.
func (s *Service) startJob(b *Batch, l holder, w *work) {
	input, err := partsOf(s.ctx, s.db.Read(), objectsOfFile, b.InputFile)
	if err != nil {
		s.log.Error("a batch waits, since its input file cannot be looked up", zap.String("batch", b.ID), zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Status == InProgress && !s.isOver(b) {
		var running []*job
		for _, j := range s.jobs {
			if j.batch.Account == b.Account && j.batch.Status == InProgress && !s.isOver(&j.batch) {
				running = append(running, j)
			}
		}
		if len(running) >= w.share {
			for _, j := range running {
				if !w.has(j.batch.seq) {
					j.yield()
				}
			}
			return
		}
	}
	j := s.newJob(b, l, input)
	s.jobs[b.seq] = j
	s.tasks.Go(func() {
		j.run()
		s.mu.Lock()
		delete(s.jobs, b.seq)
		s.mu.Unlock()
		wait.Wake(s.created)
	})
	wait.Wake(s.changed)
}

// cancelJobs ends the jobs and the validations of batches that are to be cancelled.
func (p *poller) cancelJobs(ctx context.Context) error {
	cancelled, err := cancelling(ctx, p.db.Read())
	if err != nil {
		return fmt.Errorf("find cancelled batches: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seq := range cancelled {
		if j := p.jobs[seq]; j != nil {
			j.cancel(errCancelled)
		} else if cancel := p.validating[seq]; cancel != nil {
			cancel(errCancelled)
		}
	}
	return nil
}

// endLostJobs ends the jobs whose leases are not among those of this gateway.
func (s *Service) endLostJobs(mine map[int64]holder) {
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
	last := ""
	wait.EveryOrWoken(s.ctx, dispatchInterval, s.changed, func(context.Context) {
		for s.startRound(&last) {
		}
	})
}

// startRound gives each account a turn to start one line, and reports whether any did. last is the account that had the
// last turn.
func (s *Service) startRound(last *string) (started bool) {
	accounts := s.jobsByAccount()
	names := slices.Sorted(maps.Keys(accounts))
	if at := slices.IndexFunc(names, func(name string) bool { return name > *last }); at > 0 {
		names = append(names[at:], names[:at]...)
	}
	r := newRound(s)
	for _, name := range names {
		for _, j := range accounts[name] {
			if j.start(r) {
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
