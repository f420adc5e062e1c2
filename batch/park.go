package batch

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
	"basegate/proxy"
)

// A batch that waits is parked: it is a row, and nothing in memory. Its key is asked at each poll whether it may send lines,
// so that a batch whose budget is used up costs next to nothing until it resets. Batches that wait for a backend are parked
// only to give others of their account a turn.

const (
	parkAfter   = 2 * time.Second  // that a batch waits for its budget, its key or its account
	rotateAfter = 10 * time.Second // that a batch waits for a backend while others of its account are not in memory
	passAfter   = time.Minute      // that a batch is parked for a backend while others with later deadlines run

	maxActive      = 512 // batches of all accounts in memory; but an account has one at least
	maxActiveOwned = 4   // batches of an account in memory

	maxUnparked   = 64  // batches at a poll
	maxAskedKeys  = 256 // keys at a poll
	maxParkedRead = 256 // batches of a key at a poll
)

// errParked is the cause of the end of a job whose batch waits.
var errParked = errors.New("the batch waits")

// waitOf returns what a batch waits for; the time is zero if it is not known.
func waitOf(reason proxy.WaitReason, resetsAt time.Time) waiting {
	w := waiting{Reason: reason}
	if !resetsAt.IsZero() {
		w.ResetsAt = resetsAt.Unix()
	}
	return w
}

// isForBackend reports whether a batch waits for a backend, and not for its payer.
func (w waiting) isForBackend() bool {
	return w.Reason == proxy.WaitsForModel || w.Reason == proxy.WaitsForCapacity || w.Reason == proxy.WaitsForWindow
}

// isOver reports whether a batch only has to end: its deadline has passed, or its key was revoked.
func (s *Service) isOver(b *Batch) bool {
	return b.ExpiresAt <= s.now() || s.completer.Standing(b.Key).Revoked
}

// isBlocked reports whether a key's standing keeps all lines of a batch from running. Kept responses answer lines without a budget.
func (b *Batch) isBlocked(st *proxy.Standing) bool {
	return st.Reason != "" && (!b.replay || st.Reason != proxy.WaitsForBudget)
}

// mayPark reports whether a batch waits whatever the backends do.
func (s *Service) mayPark(b *Batch, st *proxy.Standing) bool {
	switch {
	case st.Revoked, b.ExpiresAt <= s.now():
		return false
	case b.Status == Validating: // which needs no budget
		return st.Reason == proxy.WaitsForKey || st.Reason == proxy.WaitsForAccount
	}
	return b.Status == InProgress && st.Reason != ""
}

// isDue reports whether a parked batch may go on.
func (s *Service) isDue(b *Batch, st *proxy.Standing) bool {
	now := s.now()
	switch {
	case st.Revoked, b.ExpiresAt <= now, b.Status != InProgress && b.Status != Validating:
		return true
	case s.mayPark(b, st):
		return false
	case b.Wait.Reason != proxy.WaitsForBudget:
		return true
	}
	// What was left of a budget did not suffice, and only becomes less until the cap resets or is changed. Without a time of
	// reset, requests in flight were in the way.
	return b.parkedCaps != st.Caps || b.Wait.ResetsAt <= now
}

// isParkable reports whether the batch may become a row: no line runs, one is left, and the job does not end for another reason. The
// caller holds the job's lock.
func (j *job) isParkable() bool {
	return j.unrecorded == 0 && j.left.Load() > 0 && j.ctx.Err() == nil
}

// parkWaiting ends the job if its batch waits for long for something else than a backend, and reports for how long it has waited
// for one; 0 if it has not.
func (j *job) parkWaiting(now time.Time) (forBackend time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.isParkable() || j.Reason == "" {
		return 0
	}
	waited := now.Sub(j.waitsSince)
	switch {
	case j.isForBackend():
		return waited
	case j.Reason == proxy.WaitsForBudget && !j.blocked && !j.isUnfit():
	case waited >= parkAfter:
		j.cancel(errParked)
	}
	return 0
}

// parkForTurn ends the job for the turn of another batch of its account, unless a line runs or none is left.
func (j *job) parkForTurn() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.isParkable() {
		j.cancel(errParked)
	}
}

// yield ends the job for a batch of its account with an earlier deadline, once the last of the lines that run is recorded.
func (j *job) yield() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.yields = true
	j.parkIfYields()
}

// parkIfYields ends a job that is to yield, unless a line runs or none is left. The caller holds the job's lock.
func (j *job) parkIfYields() {
	if j.yields && j.isParkable() {
		j.waiting = waiting{}
		j.cancel(errParked)
	}
}

// isUnfit reports whether the budget has refused each line that is left. The caller holds the job's lock.
func (j *job) isUnfit() (unfit bool) {
	for _, s := range j.sources {
		if !s.unfit && !s.done {
			return false
		}
		unfit = unfit || s.unfit
	}
	return unfit
}

// park makes the batch of a job wait as a row.
func (r *recorder) park(ctx context.Context) error {
	r.mu.Lock()
	w, caps := r.waiting, r.waitCaps
	r.mu.Unlock()
	return r.service.parkAll(ctx, []parking{{&r.batch, r.lease, w, caps}})
}

// parking is a batch that is to be parked.
type parking struct {
	batch *Batch
	lease holder
	wait  waiting
	caps  int64
}

// parkAll parks batches.
func (s *Service) parkAll(ctx context.Context, all []parking) error {
	if len(all) == 0 {
		return nil
	}
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		for i := range all {
			p := &all[i]
			if err := s.leases.check(ctx, tx, p.batch.seq, p.lease); err != nil {
				return err
			}
			if err := s.leases.release(ctx, tx, p.batch.seq, p.lease); err != nil {
				return err
			}
			if err := park(ctx, tx, p.batch, p.wait, p.caps, s.now()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("park batches: %w", err)
	}
	return nil
}

// parkJobs parks the batches of jobs that wait: one of an account at a time if others of it wait for their turn.
func (p *poller) parkJobs(ctx context.Context, w *work) error {
	now, longest, jobs := time.Now(), map[string]time.Duration{}, map[string]*job{}
	p.mu.Lock()
	for _, j := range p.jobs {
		account := j.batch.Account
		if waited := j.parkWaiting(now); waited >= rotateAfter && waited > longest[account] {
			longest[account], jobs[account] = waited, j
		}
	}
	p.mu.Unlock()
	for account, j := range jobs {
		if w.active[account] < w.share {
			continue
		}
		if !w.crowded[account] {
			others, err := parkedForBackend(ctx, p.db.Read(), account)
			if err != nil {
				return fmt.Errorf("find batches that wait: %w", err)
			}
			if !others {
				continue
			}
		}
		j.parkForTurn()
	}
	return nil
}

// answers are what keys with parked batches have said.
type answers struct {
	due   []int64   // batches that go on
	turns []Batch   // that may go on, and have waited for a backend
	keys  []parking // whose batches all wait for the same
}

// unparkDue asks keys with parked batches whether they may send lines, and makes batches due that may go on. Those that have waited
// for a backend go on in the order in which they were parked, if their accounts may have more in memory. In a cluster, the gateway
// does it that deletes what has expired.
func (p *poller) unparkDue(ctx context.Context, w *work) error {
	if !p.leases.sweeps() || p.isDraining() {
		return nil
	}
	var a answers
	for range maxAskedKeys {
		if len(a.due) >= maxUnparked {
			break
		}
		first, err := firstParked(ctx, p.db.Read(), p.asked.account, p.asked.key)
		if errors.Is(err, sql.ErrNoRows) {
			p.asked.account, p.asked.key = "", ""
			break
		}
		if err == nil {
			p.asked.account, p.asked.key = first.Account, first.Key
			err = p.askKey(ctx, w, &first, &a)
		}
		if err != nil {
			return fmt.Errorf("find batches that wait: %w", err)
		}
	}
	a.giveTurns(w, p.now())
	if len(a.due)+len(a.keys) == 0 {
		return nil
	}
	if err := p.write(ctx, a.write); err != nil {
		return fmt.Errorf("go on with batches that have waited: %w", err)
	}
	if len(a.due) > 0 {
		wait.Wake(p.created)
	}
	return nil
}

// askKey asks the key of a parked batch, the first of the key, which of them may go on.
func (p *poller) askKey(ctx context.Context, w *work, first *Batch, a *answers) error {
	st := p.completer.Standing(first.Key)
	if st.Reason != "" && !p.isDue(first, &st) {
		if now := waitOf(st.Reason, st.ResetsAt); first.Wait != now {
			a.keys = append(a.keys, parking{batch: first, wait: now})
		}
		if st.Reason != proxy.WaitsForBudget { // which one that is to be validated does not need
			return nil
		}
	}
	all, err := parkedOf(ctx, p.db.Read(), first.Account, first.Key, &st, p.now(), maxParkedRead)
	if err != nil {
		return err
	}
	for i := range all {
		b := &all[i]
		switch {
		case !p.isDue(b, &st):
		case b.Status == InProgress && b.Wait.isForBackend() && !p.isOver(b):
			a.turns = append(a.turns, *b)
		case len(a.due) < maxUnparked:
			a.due = append(a.due, b.seq)
			if b.Status == InProgress {
				w.active[b.Account]++
			}
		}
	}
	return nil
}

// giveTurns makes batches due that have waited for a backend: those first that were parked first, or the place that one has given
// up would be its own again. If its account has no place, one that was parked long ago gets that of one with a later deadline, which
// yields. They do so one at a time, with pauses as long as their turns: many that wait for one model take half a place at most from
// those that run.
func (a *answers) giveTurns(w *work, now int64) {
	slices.SortStableFunc(a.turns, func(b, c Batch) int { return cmp.Compare(b.parkedAt, c.parkedAt) })
	newest := map[string]int64{}
	for _, t := range a.turns {
		newest[t.Account] = t.parkedAt
	}
	for _, t := range a.turns {
		if len(a.due) >= maxUnparked {
			return
		}
		switch {
		case w.active[t.Account] < w.share:
			w.active[t.Account]++
		case t.ExpiresAt < w.latest[t.Account] && now-t.parkedAt >= int64(passAfter/time.Second) &&
			now-newest[t.Account] >= int64(rotateAfter/time.Second):
			delete(w.latest, t.Account)
		default:
			continue
		}
		a.due = append(a.due, t.seq)
	}
}

func (a *answers) write(ctx context.Context, tx database.Tx) error {
	for _, k := range a.keys {
		if err := setParkedWait(ctx, tx, k.batch.Account, k.batch.Key, k.wait); err != nil {
			return err
		}
	}
	for _, seq := range a.due {
		if err := unpark(ctx, tx, seq); err != nil {
			return err
		}
	}
	return nil
}

// showWaits writes what the batches of jobs wait for into their rows, for everybody to show.
func (p *poller) showWaits(ctx context.Context, w *work) {
	changed := map[int64]waiting{}
	p.mu.Lock()
	for i := range w.batches {
		b := &w.batches[i]
		if j := p.jobs[b.seq]; j != nil {
			if now := j.waitingFor(); now != b.Wait {
				changed[b.seq] = now
			}
		}
	}
	p.mu.Unlock()
	if len(changed) == 0 {
		return
	}
	err := p.write(ctx, func(ctx context.Context, tx database.Tx) error {
		for seq, w := range changed {
			if err := setWait(ctx, tx, seq, w); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		p.log.Warn("what batches wait for cannot be written, and is tried again", zap.Error(err))
	}
}
