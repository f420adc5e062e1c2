package history

import (
	"slices"
	"time"
	"unicode/utf8"
)

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	BreakerOpened EventKind = "breaker_opened"
	BreakerClosed EventKind = "breaker_closed"
	BootBegun     EventKind = "boot_begun"
	BootEnded     EventKind = "boot_ended"
	BootStopped   EventKind = "boot_stopped"
	BootFailed    EventKind = "boot_failed"
	BudgetNear    EventKind = "budget_80"
	BudgetUsed    EventKind = "budget_100"
	DiskLow       EventKind = "disk_low"
)

// Event is an entry of the timeline. Fields that do not apply are empty.
type Event struct {
	Time      time.Time `json:"t"`
	Kind      EventKind `json:"k"`
	Model     string    `json:"m,omitempty"`
	Backend   string    `json:"b,omitempty"`
	AccountID string    `json:"a,omitempty"` // of the account whose budget it is, or whose key's
	KeyID     string    `json:"y,omitempty"` // of the key whose budget it is
	Detail    string    `json:"d,omitempty"` // in words, for operators
}

// maxDetail limits an event's detail, in bytes.
const maxDetail = 300

// Add adds an event to the timeline. If its hour has too many, the oldest ones go.
func (h *History) Add(e Event) {
	if len(e.Detail) > maxDetail {
		cut := maxDetail
		for cut > 0 && !utf8.RuneStart(e.Detail[cut]) {
			cut--
		}
		e.Detail = e.Detail[:cut] + "…"
	}
	if e.Time.IsZero() {
		e.Time = h.clock()
	}
	e.Time = e.Time.UTC()
	h.mu.Lock()
	defer h.mu.Unlock()
	current, _ := h.at(e.Time)
	current.changed = true
	if len(current.events) >= maxEvents {
		current.events = slices.Delete(current.events, 0, 1)
	}
	current.events = append(current.events, e)
}

// Events returns the latest events since a time, at most limit, the newest first. One that several gateways have recorded
// within a minute is returned once.
func (h *History) Events(since time.Time, limit int) []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Event
	for _, hours := range []map[int64]*hour{h.hours, h.others.hours} {
		for _, o := range hours {
			for _, e := range slices.Backward(o.events) {
				if !e.Time.Before(since) {
					all = append(all, e)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int { return b.Time.Compare(a.Time) })
	if len(h.others.hours) > 0 {
		all = withoutRepeats(all)
	}
	return all[:min(limit, len(all))]
}
