package refusals

import (
	"context"
	"time"
)

// Flush writes what has been recorded.
func (r *Recorder) Flush(ctx context.Context) { r.flush(ctx) }

// PruneAt deletes what is too old or too much at a time.
func (r *Recorder) PruneAt(ctx context.Context, now time.Time) error { return r.pruneAt(ctx, now) }
