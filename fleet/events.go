package fleet

import "basegate/breaker"

// EventKind says what happened to a backend.
type EventKind string

// The kinds of events.
const (
	BreakerOpened EventKind = "breaker_opened" // from closed; a trial that fails while it is half-open is no event
	BreakerClosed EventKind = "breaker_closed"
	BootBegun     EventKind = "boot_begun"
	BootEnded     EventKind = "boot_ended"   // the backend is ready
	BootStopped   EventKind = "boot_stopped" // an operator has stopped it
	BootFailed    EventKind = "boot_failed"
	BackendDied   EventKind = "backend_died" // one that was ready does not respond any more, and nobody has stopped it
)

// Event is something that happened to a backend and that an operator wants to see.
type Event struct {
	Kind    EventKind
	Model   string
	Backend string
	Reason  string // for operators, since it may name the launch command; may be empty
}

// OnEvent makes the fleet call f at every event. f must return at once and must not call the fleet, whose locks are held.
func (f *Fleet) OnEvent(call func(Event)) { f.observer.Store(&call) }

func (b *Backend) emit(kind EventKind, reason string) {
	if call := b.fleet.observer.Load(); call != nil {
		(*call)(Event{Kind: kind, Model: b.modelID, Backend: b.Name, Reason: reason})
	}
}

func (b *Backend) emitBreaker(from, to breaker.State) {
	switch {
	case from == breaker.Closed && to == breaker.Open:
		b.emit(BreakerOpened, "")
	case to == breaker.Closed:
		b.emit(BreakerClosed, "")
	}
}

func (b *Backend) emitTransition(from, to State, reason string) {
	switch {
	case to == Starting:
		b.emit(BootBegun, reason)
	case to == Failed:
		b.emit(BootFailed, reason)
	case from == Starting && to == Ready:
		b.emit(BootEnded, reason)
	case from == Starting:
		b.emit(BootStopped, reason)
	case from == Ready && to == Unreachable:
		b.emit(BackendDied, reason)
	}
}
