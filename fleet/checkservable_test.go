package fleet_test

import (
	"errors"
	"testing"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/gateway/config"
)

func TestCheckServableStartsNothing(t *testing.T) {
	server := newManagedServer(t, 0)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), server.model(nil)), "m")
	if err := m.CheckServable(fleet.Caller{}); err != nil {
		t.Errorf("a cold model: got %v", err)
	}
	if state, _ := m.Backends()[0].State(); state != fleet.Stopped || len(server.commands()) > 0 {
		t.Errorf("got state %s after the commands %v, want stopped and none", state, server.commands())
	}
	if err := m.CheckServable(fleet.Caller{Filter: func(*fleet.Backend) bool { return false }}); !errors.Is(err, fleet.ErrUnsuitable) {
		t.Errorf("no suitable backend: got %v", err)
	}

	failing := server.model(func(m *config.Model) { m.Backends[0].Launch.Start = []string{"false"} })
	m = getModel(t, startFleetWith(t, nil, zap.NewNop(), failing), "m")
	if err := m.Warm("test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Failed)
	if _, ok := errors.AsType[*fleet.BootFailedError](m.CheckServable(fleet.Caller{})); !ok {
		t.Errorf("in cooldown: got %v", m.CheckServable(fleet.Caller{}))
	}

	m = getModel(t, startFleet(t, modelConfig(t, "m", newServer(t, 100).URL)), "m")
	if err := m.CheckServable(fleet.Caller{}); err != nil {
		t.Errorf("a ready model: got %v", err)
	}
	lease := acquire(t, m)
	lease.Report(breaker.EngineDead, false) // opens the breaker at once
	lease.Release()
	if _, ok := errors.AsType[*fleet.BreakerOpenError](m.CheckServable(fleet.Caller{})); !ok {
		t.Errorf("with an open breaker: got %v", m.CheckServable(fleet.Caller{}))
	}
}
