package budget

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"basegate/database"
)

// closing is the end of a row on its way to the disk.
type closing struct {
	of      *Reservation
	row     row
	pending *database.Pending // the latest attempt; the keeper's own once it is adopted
	adopted bool              // whether the ledger sees to it; under its lock
	tried   bool              // an attempt may have put it on disk although it failed
	over    bool              // it is on disk, or never will be; the keeper's own
}

// write submits the row's end; waited says that somebody waits for it.
func (l *Ledger) write(c *closing, waited bool) {
	whole := c.of.opened == nil && !c.tried
	c.tried = true
	c.pending = l.submit(waited, func(ctx context.Context, tx database.Execer) error {
		if c.of.foreign {
			return ErrDuplicate
		}
		if whole {
			return c.of.insert(ctx, tx, c.row)
		}
		found, err := updateRequest(ctx, tx, c.row)
		if err != nil || found {
			return err
		}
		return insertRequest(ctx, tx, c.row)
	})
}

// adopt makes the ledger see to it that a row's end is written.
func (l *Ledger) adopt(c *closing) {
	l.mu.Lock()
	full := !c.adopted && len(l.backlog) >= l.settings.Backlog
	if !c.adopted && !full {
		c.adopted = true
		l.backlog = append(l.backlog, c)
	}
	l.mu.Unlock()
	if full {
		l.lost(c, errBacklog)
	}
}

var errBacklog = errors.New("too many rows wait for the database already")

// lost logs what cannot be written. The row stays open, or does not exist.
func (l *Ledger) lost(c *closing, err error) {
	l.metrics.lost.Add(1)
	l.log.Error("a request's end is not on the ledger", zap.String("request_id", c.row.request.ID),
		zap.Int64("prompt_tokens", c.row.outcome.Prompt), zap.Int64("completion_tokens", c.row.outcome.Completion),
		zap.Error(err))
}

// chunk is how many rows one attempt writes: half of what the writer puts into a transaction.
const chunk = 256

// rewrite sees to what was adopted. The first that has to be written again tells whether the others are worth trying.
func (l *Ledger) rewrite(ctx context.Context) {
	l.mu.Lock()
	pending := slices.Clone(l.backlog)
	l.mu.Unlock()
	if len(pending) == 0 {
		return
	}
	failed := l.outcomes(ctx, pending)
	for n := 1; len(failed) > 0; n = chunk {
		some := failed[:min(n, len(failed))]
		failed = failed[len(some):]
		for _, c := range some {
			l.write(c, true)
		}
		if len(l.outcomes(ctx, some)) > 0 {
			break
		}
	}
	l.mu.Lock()
	l.backlog = slices.DeleteFunc(l.backlog, func(c *closing) bool { return c.over })
	l.mu.Unlock()
}

// outcomes waits for the writes and returns those that are to be tried again.
func (l *Ledger) outcomes(ctx context.Context, all []*closing) (failed []*closing) {
	for _, c := range all {
		err := c.pending.Wait(ctx)
		switch {
		case err == nil:
			c.over = true
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, database.ErrUnavailable):
			failed = append(failed, c)
		default:
			c.over = true
			l.lost(c, err)
		}
	}
	return failed
}
