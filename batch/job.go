package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/internal/wait"
	"basegate/proxy"
)

// Causes of the end of a job's context. The ledger takes those that are a context.Canceled for a client that disconnects.
var (
	errStopping  = errors.New("the gateway is stopping")
	errExpired   = fmt.Errorf("the batch has expired: %w", context.Canceled)
	errCancelled = fmt.Errorf("the batch was cancelled: %w", context.Canceled)
	errRevoked   = fmt.Errorf("the key was revoked: %w", context.Canceled)
)

// ending is what the error file says of the lines of a batch that ends before them: of those that never ran, of those that were to
// run again, and of those that ran.
type ending struct{ code, unstarted, again, cut string }

var endings = map[error]ending{
	errExpired: {
		"batch_expired", "the batch expired before this line ran", "the batch expired before this line ran again",
		"the line was ended while it ran, when the batch expired",
	},
	errCancelled: {
		"batch_cancelled", "the batch was cancelled before this line ran", "the batch was cancelled before this line ran again",
		"cancelled while it ran",
	},
	errRevoked: {"batch_cancelled", keyRevoked, keyRevoked, "cancelled while it ran, since the key was revoked"},
}

const keyRevoked = "the key was revoked"

const (
	linesAhead    = 256  // lines of a model that a job has read
	maxDelayed    = 256  // lines of a model that wait for another attempt
	maxUnrecorded = 1024 // lines of a job that run, or whose results are not on disk
	maxOutcomes   = 16   // that wait for the recorder of a job; further ones wait in the goroutines of their lines

	// A batch whose budget is used up tries so many lines, which may be small enough, and pauses.
	budgetTries = 64
	budgetPause = 500 * time.Millisecond

	waitDelay    = 200 * time.Millisecond // before a line that found no place is tried again
	modelDelay   = 5 * time.Second        // before one is whose model does not run
	storageDelay = 5 * time.Second        // before one is that could not be read
	retryBase    = time.Second            // doubles with each attempt
	retryMost    = time.Minute
)

// job is a batch that runs. Its lines run in goroutines of their own, which the dispatcher starts, and each of which sends
// one outcome; its recorder receives them.
type job struct {
	service  *Service
	lease    holder
	batch    Batch  // as it was when the job began
	input    []part // of the input file
	ctx      context.Context
	cancel   context.CancelCauseFunc
	outcomes chan outcome
	left     atomic.Int64 // lines without a result

	mu         sync.Mutex // guards the fields below
	sources    []*source  // one for each model
	unrecorded int        // lines that run, or whose outcomes the recorder has not handled
	yields     bool       // no line is started any more, and the batch is parked when none runs

	waiting              // why the last line could not be started
	asks       int       // lines among unrecorded that run without a place
	waitsSince time.Time // when no line has run since
	waitCaps   int64     // Standing.Caps as of the last look at the key
	blocked    bool      // isBlocked, as of the last look at the key
}

func (s *Service) newJob(b *Batch, l holder, input []part) *job {
	j := &job{service: s, lease: l, batch: *b, input: input, outcomes: make(chan outcome, maxOutcomes), waitsSince: time.Now()}
	j.ctx, j.cancel = context.WithCancelCause(s.ctx)
	j.waitCaps = s.completer.Standing(b.Key).Caps
	if b.Wait.isForBackend() { // until a line has been tried
		j.waiting = b.Wait
	}
	j.left.Store(b.remaining())
	for i, model := range b.Models {
		j.sources = append(j.sources, &source{index: i, model: model, held: map[int64]struct{}{}})
	}
	return j
}

// waitingFor returns what the batch waits for; nothing if a line runs.
func (j *job) waitingFor() waiting {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unrecorded > j.asks {
		return waiting{}
	}
	return j.waiting
}

// source are the lines of one model of a job.
type source struct {
	index int
	model string

	read     []lineRef          // ahead
	after    int64              // the position behind which lines are read
	held     map[int64]struct{} // positions of lines that run, are delayed or chosen
	chosen   lineRef            // the next line, if its length is not 0: there was no place for it
	running  int
	delayed  []delayedLine
	refused  int  // lines in succession that the budget has refused
	skipped  bool // lines before after are left in the table
	fitted   bool // the budget has not refused each line since after was 0
	unfit    bool // it has refused each line that is left
	done     bool // no line is left
	asking   bool // a line asks whether the model is to be started
	askAfter time.Time
	pausedTo time.Time // no line is taken before
}

// delayedLine is a line that is tried again.
type delayedLine struct {
	lineRef
	notBefore time.Time
}

// next returns a line that may run now. It reads ahead from the database. The caller holds the job's lock.
func (s *source) next(j *job, now time.Time) (l lineRef, found bool, err error) {
	if now.Before(s.pausedTo) {
		return lineRef{}, false, nil
	}
	if s.chosen.length > 0 {
		l, s.chosen = s.chosen, lineRef{}
		return l, true, nil
	}
	for i, d := range s.delayed {
		if !now.Before(d.notBefore) {
			s.delayed = append(s.delayed[:i], s.delayed[i+1:]...)
			return d.lineRef, true, nil
		}
	}
	if len(s.delayed) >= maxDelayed {
		return lineRef{}, false, nil
	}
	for {
		for len(s.read) > 0 {
			l, s.read = s.read[0], s.read[1:]
			if _, held := s.held[l.position]; !held {
				s.held[l.position] = struct{}{}
				return l, true, nil
			}
		}
		if s.read, err = nextLines(j.ctx, j.service.db.Read(), j.batch.seq, s.index, s.after, linesAhead); err != nil {
			return lineRef{}, false, err
		}
		if len(s.read) > 0 {
			s.after = s.read[len(s.read)-1].position
			continue
		}
		if s.running > 0 {
			return lineRef{}, false, nil
		}
		s.done = !s.skipped && len(s.delayed) == 0
		s.unfit = !s.done && !s.fitted && len(s.delayed) == 0
		if s.skipped && s.after > 0 { // from the beginning again
			s.after, s.skipped, s.fitted, s.pausedTo = 0, false, false, now.Add(budgetPause)
		}
		return lineRef{}, false, nil
	}
}

// putBack makes a line that has not run wait.
func (s *source) putBack(l lineRef, delay time.Duration) {
	s.delayed = append(s.delayed, delayedLine{l, time.Now().Add(delay)})
}

// refuse drops a line that the budget has refused: it is read again after the others.
func (s *source) refuse(l lineRef) {
	delete(s.held, l.position)
	s.skipped = true
	if s.refused++; s.refused%budgetTries == 0 {
		s.pausedTo = time.Now().Add(budgetPause)
	}
}

// round is what the jobs of one round of the dispatcher need not ask again.
type round struct {
	*Service
	most      int                         // lines at a backend
	full      map[string]proxy.WaitReason // models without room
	standings map[string]proxy.Standing
}

// perBackend returns how many lines this gateway may run at a backend.
func (s *Service) perBackend() int { return s.leases.share(s.settings.Load().PerBackend, s.clock()) }

func newRound(s *Service) *round {
	return &round{s, s.perBackend(), map[string]proxy.WaitReason{}, map[string]proxy.Standing{}}
}

// standing tells whether a key may send lines.
func (r *round) standing(key string) proxy.Standing {
	st, known := r.standings[key]
	if !known {
		st = r.completer.Standing(key)
		r.standings[key] = st
	}
	return st
}

// start starts one line of the job if its key may send lines, there is one, and its model has room, and reports whether it did. A
// line whose model does not run is started without a place, to ask whether the model is to be started for it. No line of a batch is
// started that was cancelled before the job began.
func (j *job) start(r *round) bool {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.batch.Status != InProgress || j.unrecorded >= maxUnrecorded || j.yields || j.ctx.Err() != nil {
		return false
	}
	st := r.standing(j.batch.Key)
	if st.Revoked {
		j.cancel(errRevoked)
		return false
	}
	if st.Caps != j.waitCaps {
		j.waitCaps = st.Caps
		for _, source := range j.sources { // lines that other caps have refused may fit
			source.fitted, source.unfit = true, false
		}
	}
	if j.blocked = j.batch.isBlocked(&st); j.blocked {
		j.waiting = waitOf(st.Reason, st.ResetsAt)
		return false
	}
	for _, source := range j.sources {
		if j.startOf(source, r, now) {
			return true
		}
	}
	return false
}

// startOf starts one line of a source. The caller holds the job's lock.
func (j *job) startOf(source *source, r *round, now time.Time) bool {
	if source.done {
		return false
	}
	settings := r.settings.Load()
	reason, full := r.full[source.model]
	mayAsk := settings.StartModels && !source.asking && !now.Before(source.askAfter)
	if full && (reason != proxy.WaitsForModel || !mayAsk) {
		j.waiting = waiting{Reason: reason}
		return false
	}
	l, found, err := source.next(j, now)
	if err != nil {
		if j.ctx.Err() == nil {
			r.log.Warn("the lines of a batch cannot be read", zap.String("batch", j.batch.ID), zap.Error(err))
		}
		source.pausedTo = now.Add(storageDelay)
	}
	if !found {
		return false
	}
	var place proxy.Place
	if !full {
		place, reason = r.completer.AcquirePlace(source.model, r.most, false)
	}
	if place == nil {
		if reason == proxy.WaitsForModel && !settings.StartModels {
			reason = proxy.WaitsForWindow
		}
		r.full[source.model] = reason
		if reason != proxy.WaitsForModel || !mayAsk {
			source.chosen = l
			j.waiting = waiting{Reason: reason}
			return false
		}
		source.asking = true
		j.asks++
	}
	j.unrecorded++
	source.running++
	r.metrics.running.Add(1)
	r.tasks.Go(func() {
		o := j.runLine(l, place)
		o.asked = place == nil
		wait.Wake(r.changed) // its place is free
		j.outcomes <- o
	})
	return true
}

// done counts an outcome as handled. The caller is the recorder.
func (j *job) done(o *outcome) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unrecorded--
	j.service.metrics.running.Add(-1)
	source := j.sources[o.line.model]
	source.running--
	if o.asked {
		source.asking = false
		j.asks--
	}
	switch o.kind {
	case isResult:
		delete(source.held, o.line.position)
		source.refused, source.fitted, source.unfit = 0, true, false
		j.waiting, j.waitsSince = waiting{}, time.Now()
	case isRetry:
		source.fitted, j.waitsSince = true, time.Now()
		source.putBack(o.line, backoff(o.line.attempts))
	case isUntried:
		j.doneUntried(source, o)
	}
	j.parkIfYields()
	wait.Wake(j.service.changed)
}

// doneUntried handles the outcome of a line that has not run. The caller holds the job's lock.
func (j *job) doneUntried(source *source, o *outcome) {
	if o.reason == proxy.WaitsForBudget {
		before, now := j.waiting, j.service.now()
		j.waiting = waitOf(proxy.WaitsForBudget, o.resetsAt)
		if before.Reason == proxy.WaitsForBudget && before.ResetsAt > now {
			j.ResetsAt = min(before.ResetsAt, j.ResetsAt)
		}
		source.fitted = source.fitted || o.resetsAt.IsZero() // requests in flight are in the way
		source.refuse(o.line)
		return
	}
	source.fitted = true
	if o.reason != "" {
		j.waiting = waiting{Reason: o.reason}
	}
	now := time.Now()
	if o.asked && source.chosen.length == 0 {
		source.chosen, source.askAfter = o.line, now.Add(o.delay)
	} else {
		source.putBack(o.line, o.delay)
	}
	if o.unreadable {
		source.pausedTo = now.Add(o.delay)
	}
}

// backoff returns the time before the next attempt at a line: random, up to a bound that doubles.
func backoff(attempts int) time.Duration {
	bound := min(retryBase<<min(attempts, 10), retryMost)
	return bound/2 + rand.N(bound/2)
}
