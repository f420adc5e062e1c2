package fleet_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/gateway/config"
)

// A backend is ready only if /v1/models, requested with its key, lists the checkpoint.
func TestBackendIsReadyOnlyIfItListsTheCheckpoint(t *testing.T) {
	var models atomic.Value
	models.Store(`{"data":[{"id":"org/M","max_model_len":100}]}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models" && r.Header.Get("Authorization") != "Bearer right":
			http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
		case r.URL.Path == "/v1/models":
			io.WriteString(w, models.Load().(string))
		}
	}))
	t.Cleanup(server.Close)
	keyed := func(key string) config.Model {
		m := modelConfig(t, "m", server.URL)
		m.Backends[0].APIKey = config.NewSecret(key)
		return m
	}
	wrong := getModel(t, startFleet(t, keyed("wrong")), "m").Backends()[0]
	if state, reason := wrong.State(); state != fleet.Unreachable || !strings.Contains(reason, "401") {
		t.Errorf("with a wrong key: got %s (%s), want unreachable because of 401", state, reason)
	}
	right := getModel(t, startFleet(t, keyed("right")), "m").Backends()[0]
	wantState(t, right, fleet.Ready)
	for _, other := range []string{`{"data":[{"id":"org/Other"}]}`, `{"data":[]}`, `{}`, ``, `not JSON`} {
		models.Store(other)
		wantState(t, right, fleet.Unreachable)
		if _, reason := right.State(); !strings.Contains(reason, "org/M") {
			t.Errorf("%s: got reason %q, want the checkpoint in it", other, reason)
		}
		models.Store(`{"data":[{"id":"org/Other"},{"id":"org/M"}]}`)
		wantState(t, right, fleet.Ready)
	}
}

// A backend that probes have seen fail and recover has been restarted: it is tried at once, whatever its breaker counted
// before.
func TestRestartClosesTheBreaker(t *testing.T) {
	server := newServer(t, 100)
	b := getModel(t, startFleet(t, modelConfig(t, "m", server.URL)), "m")
	backend := b.Backends()[0]
	wantState(t, backend, fleet.Ready)
	for range 3 {
		lease := acquire(t, b)
		lease.Report(breaker.EngineDead, false)
		lease.Release()
		wantState(t, backend, fleet.Ready) // the dead engine's process still answers probes
		if got := backend.Breaker(); got != breaker.Open {
			t.Fatalf("without a failed probe: the breaker is %s, want open", got)
		}
		server.unhealthy.Store(true)
		wantState(t, backend, fleet.Unreachable)
		server.unhealthy.Store(false)
		wantState(t, backend, fleet.Ready)
		if got := backend.Breaker(); got != breaker.Closed {
			t.Fatalf("after a restart: the breaker is %s, want closed", got)
		}
	}
}

func TestBootClosesTheBreaker(t *testing.T) {
	server := newManagedServer(t, 0)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), server.model(nil)), "m")
	backend := m.Backends()[0]
	for i := range 2 {
		server.unhealthy.Store(true)
		if err := m.EnsureServable(fleet.Caller{}); err == nil {
			t.Fatal("the model was ready without a boot")
		}
		server.unhealthy.Store(false)
		wantState(t, backend, fleet.Ready)
		if got := backend.Breaker(); got != breaker.Closed {
			t.Fatalf("boot %d: the breaker is %s, want closed", i, got)
		}
		lease := acquire(t, m)
		lease.Report(breaker.OutOfMemoryDead, false)
		lease.Release()
		if err := m.Stop(fmt.Sprint("test ", i)); err != nil {
			t.Fatal(err)
		}
		wantState(t, backend, fleet.Stopped)
	}
}
