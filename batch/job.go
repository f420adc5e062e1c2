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
)

// Causes of the end of a job's context. The ledger takes those that are a context.Canceled for a client that disconnects.
var (
	errStopping  = errors.New("the gateway is stopping")
	errExpired   = fmt.Errorf("the batch has expired: %w", context.Canceled)
	errCancelled = fmt.Errorf("the batch was cancelled: %w", context.Canceled)
)

// ending is what the error file says of the lines of a batch that ends before them.
type ending struct{ code, unstarted, cut string }

var endings = map[error]ending{
	errExpired:   {"batch_expired", "the batch expired before this line ran", "the line was ended while it ran, when the batch expired"},
	errCancelled: {"batch_cancelled", "the batch was cancelled before this line ran", "the line was cancelled while it ran"},
}

const (
	readAhead     = 256  // lines of a model that a job has read
	maxDelayed    = 256  // lines of a model that wait for another attempt
	maxUnrecorded = 1024 // lines of a job that run, or whose results are not on disk

	// A batch whose budget is used up tries so many lines, which may be small enough, and pauses.
	budgetTries = 64
	budgetPause = 500 * time.Millisecond

	waitDelay    = 200 * time.Millisecond // before a line that found no place is tried again
	keyDelay     = time.Second            // before one is whose key may not be used
	storageDelay = 5 * time.Second        // before one is that could not be read
	retryBase    = time.Second            // doubles with each attempt
	retryMost    = time.Minute
)

// job is a batch that runs. Its lines run in goroutines of their own, which the dispatcher starts, and each of which sends
// one outcome; its recorder receives them.
type job struct {
	service  *Service
	lease    lease
	batch    Batch // as it was when the job began
	input    File
	ctx      context.Context //nolint:containedctx // of its lines
	cancel   context.CancelCauseFunc
	outcomes chan outcome
	left     atomic.Int64 // lines without a result

	mu         sync.Mutex // guards the fields below
	sources    []*source  // one for each model
	unrecorded int        // lines that run, or whose outcomes the recorder has not handled
	closed     bool       // no line is started any more
	reason     Reason     // why the last line could not be started
	resetsAt   time.Time
}

func (s *Service) newJob(b *Batch, l lease, input *File) *job {
	j := &job{service: s, lease: l, batch: *b, input: *input, outcomes: make(chan outcome, maxUnrecorded)}
	j.ctx, j.cancel = context.WithCancelCause(s.ctx)
	j.left.Store(b.remaining())
	for i, model := range b.Models {
		j.sources = append(j.sources, &source{index: i, model: model, held: map[int64]struct{}{}})
	}
	return j
}

// waitingFor returns what the batch waits for; nil if a line runs, or nothing is known.
func (j *job) waitingFor() *Waiting {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unrecorded > 0 || j.reason == Nothing {
		return nil
	}
	w := &Waiting{Reason: j.reason}
	if !j.resetsAt.IsZero() {
		w.ResetsAt = orNull(j.resetsAt.Unix())
	}
	return w
}

// source are the lines of one model of a job.
type source struct {
	index int
	model string

	read     []lineRef          // ahead
	after    int64              // the position behind which lines are read
	held     map[int64]struct{} // positions of lines that run or are delayed
	delayed  []delayedLine
	refused  int       // lines in succession that the budget has refused
	skipped  bool      // lines before after are left in the table
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
		if s.read, err = nextLines(j.ctx, j.service.db.Read(), j.batch.seq, s.index, s.after, readAhead); err != nil {
			return lineRef{}, false, err
		}
		if len(s.read) > 0 {
			s.after = s.read[len(s.read)-1].position
			continue
		}
		if s.skipped && s.after > 0 { // from the beginning again
			s.after, s.skipped, s.pausedTo = 0, false, now.Add(budgetPause)
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

// start starts one line of the job if there is one and its model has room, and reports whether it did. full are models
// that had no room in this round.
func (j *job) start(full map[string]Reason) bool {
	settings := j.service.settings.Load()
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unrecorded >= maxUnrecorded || j.closed || j.ctx.Err() != nil {
		return false
	}
	for _, source := range j.sources {
		reason, known := full[source.model]
		if known {
			j.reason, j.resetsAt = reason, time.Time{}
			continue
		}
		place, reason := j.service.completer.AcquirePlace(source.model, settings.PerBackend, settings.StartModels)
		if place == nil {
			if reason == Model && !settings.StartModels {
				reason = Window
			}
			full[source.model] = reason
			j.reason, j.resetsAt = reason, time.Time{}
			continue
		}
		l, found, err := source.next(j, now)
		if err != nil {
			if j.ctx.Err() == nil {
				j.service.log.Warn("the lines of a batch cannot be read", zap.String("batch", j.batch.ID), zap.Error(err))
			}
			source.pausedTo = now.Add(storageDelay)
		}
		if !found {
			place.Release()
			continue
		}
		j.unrecorded++
		j.service.metrics.running.Add(1)
		j.service.tasks.Go(func() {
			o := j.runLine(l, place)
			wake(j.service.changed) // its place is free
			j.outcomes <- o
		})
		return true
	}
	return false
}

// done counts an outcome as handled. The caller is the recorder.
func (j *job) done(o *outcome) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unrecorded--
	j.service.metrics.running.Add(-1)
	source := j.sources[o.line.model]
	switch o.kind {
	case isResult:
		delete(source.held, o.line.position)
		source.refused = 0
		j.reason = Nothing
	case isRetry:
		source.putBack(o.line, backoff(o.line.attempts))
	case isUntried:
		if o.reason == Budget {
			j.reason, j.resetsAt = o.reason, o.resetsAt
			source.refuse(o.line)
		} else {
			if o.reason != Nothing {
				j.reason, j.resetsAt = o.reason, time.Time{}
			}
			source.putBack(o.line, o.delay)
			if o.unreadable {
				source.pausedTo = time.Now().Add(o.delay)
			}
		}
	}
	wake(j.service.changed)
}

// backoff returns the time before the next attempt at a line: random, up to a bound that doubles.
func backoff(attempts int) time.Duration {
	bound := min(retryBase<<min(attempts, 10), retryMost)
	return bound/2 + rand.N(bound/2) //nolint:gosec // jitter needs no secrecy
}
