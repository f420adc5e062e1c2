package fleet_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/internal/poll"
)

// eventLog collects the events of a fleet.
type eventLog struct {
	mu  sync.Mutex
	all []fleet.Event
}

func (l *eventLog) add(e fleet.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

func (l *eventLog) kinds() []fleet.EventKind {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kinds []fleet.EventKind
	for _, e := range l.all {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (l *eventLog) await(t *testing.T, want ...fleet.EventKind) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("events %v", want), func() bool { return slices.Equal(l.kinds(), want) })
}

func TestBreakerEventsAreOpenedAndClosed(t *testing.T) {
	s := newServer(t, 100)
	f := startFleet(t, modelConfig(t, "m", s.URL))
	events := new(eventLog)
	f.OnEvent(events.add)
	l := acquire(t, getModel(t, f, "m"))
	l.Report(breaker.EngineDead, false)
	l.Release()
	events.await(t, fleet.BreakerOpened, fleet.BackendDied)
	if e := events.all[0]; e.Model != "m" || e.Backend != "b0" {
		t.Errorf("got event %+v, want one of m and b0", e)
	}
}

func TestBootEventsAreBegunAndEnded(t *testing.T) {
	b := newManagedServer(t, 0)
	b.script("start", "touch $0.up")
	f := startFleetWith(t, nil, zap.NewNop(), b.model(nil))
	events := new(eventLog)
	f.OnEvent(events.add)
	if err := getModel(t, f, "m").Warm("the test"); err != nil {
		t.Fatal(err)
	}
	events.await(t, fleet.BootBegun, fleet.BootEnded)
}

func TestBackendThatDiesIsAnEvent(t *testing.T) {
	s := newServer(t, 100)
	f := startFleet(t, modelConfig(t, "m", s.URL))
	events := new(eventLog)
	f.OnEvent(events.add)
	l := acquire(t, getModel(t, f, "m"))
	l.Report(breaker.Refused, false)
	l.Release()
	events.await(t, fleet.BackendDied)
}

func TestFailedBootIsAnEventWithItsReason(t *testing.T) {
	b := newManagedServer(t, 0)
	b.script("start", "exit 3")
	f := startFleetWith(t, nil, zap.NewNop(), b.model(nil))
	events := new(eventLog)
	f.OnEvent(events.add)
	if err := getModel(t, f, "m").Warm("the test"); err != nil {
		t.Fatal(err)
	}
	events.await(t, fleet.BootBegun, fleet.BootFailed)
	if reason := events.all[1].Reason; reason == "" {
		t.Error("the event of a failed boot has no reason")
	}
}
