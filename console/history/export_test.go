package history

import (
	"context"
	"time"
)

// The limits of one hour.
const (
	MaxSeries = maxSeries
	MaxCodes  = maxCodes
	MaxEvents = maxEvents
)

// SetClock replaces the clock. Call it before Start.
func (h *History) SetClock(clock func() time.Time) { h.clock = clock }

// Sample samples the gauges at once.
func (h *History) Sample() { h.recordGauges() }

// Save saves at once. Call it only if the History is not started.
func (h *History) Save(ctx context.Context) { h.save(ctx) }

// Hours returns the number of hours in memory.
func (h *History) Hours() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.hours)
}

// Reencode decodes a stored hour and encodes it again.
func Reencode(data []byte) ([]byte, error) {
	o, err := decode(data)
	if err != nil {
		return nil, err
	}
	return encode(o.stored())
}

// ReadOthers reads what other gateways have saved. Call it only if the History is not started.
func (h *History) ReadOthers(ctx context.Context) { h.readOthers(ctx) }
