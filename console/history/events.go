package history

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"basegate/database"
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
	BackendDied   EventKind = "backend_died"
	BudgetNear    EventKind = "budget_80"
	BudgetUsed    EventKind = "budget_100"
	DiskLow       EventKind = "disk_low"
)

// Event is an entry of the timeline. Fields that do not apply are empty.
type Event struct {
	Time      time.Time
	Kind      EventKind
	Model     string
	Backend   string
	AccountID string // of the account whose budget it is, or whose key's
	KeyID     string // of the key whose budget it is
	Detail    string // in words, for operators

	gateway string // that has recorded it
}

const (
	maxDetail = 300         // bytes of an event's detail
	sameEvent = time.Minute // how far apart equal events of several gateways are shown as one
)

const insertEvent = `
	INSERT INTO history_events (time, gateway, kind, model, backend, account_id, key_id, detail)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`

// Add adds an event to the timeline, and deletes those that are too old. It does not wait for the database, which logs that it cannot write.
func (h *History) Add(ctx context.Context, e Event) {
	if len(e.Detail) > maxDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:maxDetail], "") + "…"
	}
	if e.Time.IsZero() {
		e.Time = h.clock()
	}
	e.gateway = h.gateway
	oldest := h.clock().Add(-Keep)
	h.db.Submit(func(tx database.Tx) error {
		err := database.Exec(ctx, tx, insertEvent,
			e.Time.UnixMicro(), e.gateway, string(e.Kind), e.Model, e.Backend, e.AccountID, e.KeyID, e.Detail)
		if err != nil {
			return err
		}
		return database.Exec(ctx, tx, `DELETE FROM history_events WHERE time < $1`, oldest.UnixMicro())
	})
}

// Events returns the latest events since a time, at most limit, the newest first. One that several gateways have recorded
// within a minute is returned once.
func (h *History) Events(ctx context.Context, since time.Time, limit int) ([]Event, error) {
	const gateways = 10 // that may have recorded each
	const text = `
		SELECT time, gateway, kind, model, backend, account_id, key_id, detail
		FROM history_events WHERE time >= $1 ORDER BY time DESC, seq DESC LIMIT $2`
	all, err := database.List(ctx, h.db.Read(), scanEvent, text, since.UnixMicro(), gateways*limit)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	all = withoutRepeats(all)
	return all[:min(limit, len(all))], nil
}

// withoutRepeats removes the events that another gateway has recorded too. The events are ordered by time, the newest
// first; of equal ones the earliest stays.
func withoutRepeats(all []Event) []Event {
	kept := make([]Event, 0, len(all))
	latest := map[Event]Event{} // by what they say, without their time and gateway
	for _, e := range slices.Backward(all) {
		what := e
		what.Time, what.gateway = time.Time{}, ""
		before, repeated := latest[what]
		if repeated && before.gateway != e.gateway && e.Time.Sub(before.Time) < sameEvent {
			continue
		}
		latest[what] = e
		kept = append(kept, e)
	}
	slices.Reverse(kept)
	return kept
}

func scanEvent(row database.Scanner) (e Event, err error) {
	var at int64
	err = row.Scan(&at, &e.gateway, &e.Kind, &e.Model, &e.Backend, &e.AccountID, &e.KeyID, &e.Detail)
	e.Time = time.UnixMicro(at).UTC()
	return e, err
}
