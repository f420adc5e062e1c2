package history

import (
	"context"
	"time"

	"basegate/database"
)

// SetClock replaces the clock. Call it before Start.
func (h *History) SetClock(clock func() time.Time) { h.clock = clock }

// Sample samples the gauges at once.
func (h *History) Sample() { h.recordGauges() }

// Flush waits until all events are written.
func (h *History) Flush(ctx context.Context) error {
	return h.db.WriteGrouped(ctx, func(database.Tx) error { return nil })
}
