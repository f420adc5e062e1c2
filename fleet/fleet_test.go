package fleet_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

// fakeServer is a vLLM server whose health the test controls.
type fakeServer struct {
	*httptest.Server
	unhealthy atomic.Bool
	metrics   atomic.Value // a string
}

func newServer(t *testing.T, contextLength int) *fakeServer {
	t.Helper()
	s := new(fakeServer)
	s.metrics.Store("")
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.unhealthy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprintf(w, `{"data":[{"id":"other","max_model_len":1},{"id":"org/M","max_model_len":%d}]}`, contextLength)
		case "/version":
			io.WriteString(w, `{"version":"0.27.0"}`)
		case "/metrics":
			io.WriteString(w, s.metrics.Load().(string))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func modelConfig(t *testing.T, id string, addresses ...string) config.Model {
	t.Helper()
	m := config.Model{ID: id, Checkpoint: "org/M", MaxLogprobs: 20}
	for i, a := range addresses {
		u, err := url.Parse(a)
		if err != nil {
			t.Fatal(err)
		}
		m.Backends = append(m.Backends, config.Backend{Name: fmt.Sprint("b", i), URL: u})
	}
	return m
}

var settings = fleet.Settings{
	Breaker:       breaker.Settings{ConsecutiveFailures: 2, OpenFor: time.Minute, HalfOpenRequests: 1},
	ProbeInterval: 10 * time.Millisecond, ProbeTimeout: 5 * time.Minute,
}

func startFleet(t *testing.T, models ...config.Model) *fleet.Fleet {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := fleet.New(models, settings, transport, nil, zap.NewNop())
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func getModel(t *testing.T, f *fleet.Fleet, id string) *fleet.Model {
	t.Helper()
	m, ok := f.Model(id)
	if !ok {
		t.Fatalf("model %s not found", id)
	}
	return m
}

func acquire(t *testing.T, m *fleet.Model, tried ...fleet.FailedAttempt) *fleet.Lease {
	t.Helper()
	l, err := m.Acquire(tried, fleet.Caller{}, fleet.Prefix{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAcquirePrefersTheBackendWithTheFewestInFlightAttempts(t *testing.T) {
	one, two, three := newServer(t, 100), newServer(t, 100), newServer(t, 100)
	m := getModel(t, startFleet(t, modelConfig(t, "m", one.URL, two.URL, three.URL)), "m")
	for range 30 {
		defer acquire(t, m).Release()
	}
	for _, b := range m.Backends() {
		if b.InFlight() != 10 {
			t.Errorf("%s has %d of 30 attempts in flight, want 10", b.Name, b.InFlight())
		}
	}
}

func TestAcquirePrefersReadyBackends(t *testing.T) {
	first, second := newServer(t, 100), newServer(t, 100)
	first.unhealthy.Store(true)
	m := getModel(t, startFleet(t, modelConfig(t, "m", first.URL, second.URL)), "m")
	for range 5 { // although the ready one has more attempts in flight each time
		l := acquire(t, m)
		defer l.Release()
		if l.Name != "b1" {
			t.Errorf("got %s, want b1", l.Name)
		}
	}
	first.unhealthy.Store(false)
	poll.Until(t, "a probe finds the other backend ready", func() bool {
		state, _ := m.Backends()[0].State()
		return state == fleet.Ready
	})
}

func TestAcquireUsesTriedBackendsLastOrNever(t *testing.T) {
	one, two := newServer(t, 100), newServer(t, 100)
	m := getModel(t, startFleet(t, modelConfig(t, "m", one.URL, two.URL)), "m")
	first, second := m.Backends()[0], m.Backends()[1]
	for range 20 {
		l := acquire(t, m, fleet.FailedAttempt{Backend: first, RetrySame: true})
		l.Release()
		if l.Backend != second {
			t.Fatal("got the backend that was tried, want the other one")
		}
	}
	l := acquire(t, m, fleet.FailedAttempt{Backend: first, RetrySame: true}, fleet.FailedAttempt{Backend: second, RetrySame: false})
	l.Release()
	if l.Backend != first {
		t.Error("got the backend that must not be tried again")
	}
	if _, err := m.Acquire([]fleet.FailedAttempt{{first, false}, {second, false}}, fleet.Caller{}, fleet.Prefix{}); !errors.Is(err, fleet.ErrNoOtherBackend) {
		t.Errorf("got %v, want ErrNoOtherBackend", err)
	}
}

func TestBreakerOpenErrorHasTheRemainingTime(t *testing.T) {
	m := getModel(t, startFleet(t, modelConfig(t, "m", newServer(t, 100).URL)), "m")
	began := time.Now()
	for range 2 {
		l := acquire(t, m)
		l.Report(breaker.ServerError, false)
		l.Release()
	}
	_, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{})
	open, ok := errors.AsType[*fleet.BreakerOpenError](err)
	if !ok || open.RetryIn < time.Minute-time.Since(began) || open.RetryIn > time.Minute {
		t.Errorf("got %v %+v", err, open)
	}
	if m.EnsureServable(fleet.Caller{}) == nil || m.Status() != fleet.StatusUnavailable {
		t.Errorf("EnsureServable: %v, status %s; want an error and %s", m.EnsureServable(fleet.Caller{}), m.Status(), fleet.StatusUnavailable)
	}
}

func TestRefusedConnectionMakesTheBackendUnreachableUntilAProbe(t *testing.T) {
	s := newServer(t, 100)
	m := getModel(t, startFleet(t, modelConfig(t, "m", s.URL)), "m")
	s.unhealthy.Store(true)
	l := acquire(t, m)
	l.Report(breaker.Refused, false)
	l.Release()
	if state, reason := m.Backends()[0].State(); state != fleet.Unreachable || reason == "" {
		t.Errorf("got %s (%q), want %s with a reason", state, reason, fleet.Unreachable)
	}
	s.unhealthy.Store(false)
	poll.Until(t, "a probe finds it ready", func() bool { return m.Status() == fleet.StatusWarm })
}

func TestMaxModelLenIsConfiguredOrTheSmallestReported(t *testing.T) {
	one, two := newServer(t, 4096), newServer(t, 2048)
	configured := modelConfig(t, "c", one.URL)
	configured.MaxModelLen = 512
	f := startFleet(t, modelConfig(t, "m", one.URL, two.URL), configured)
	if n := getModel(t, f, "m").MaxModelLen(); n != 2048 {
		t.Errorf("reported: got %d, want 2048", n)
	}
	if n := getModel(t, f, "c").MaxModelLen(); n != 512 {
		t.Errorf("configured: got %d, want 512", n)
	}
	if v := getModel(t, f, "m").Backends()[0].Version(); v != "0.27.0" {
		t.Errorf("version: got %q, want 0.27.0", v)
	}
}

func TestContextOfAnAdapterIsThatOfItsParent(t *testing.T) {
	for models, want := range map[string]int64{
		`[{"id":"base","max_model_len":300},{"id":"org/M","parent":"base","max_model_len":null}]`: 300,
		`[{"id":"org/M","parent":"base"},{"id":"base","max_model_len":300}]`:                      300,
		`[{"id":"base","max_model_len":300},{"id":"org/M","parent":"base","max_model_len":200}]`:  200,
		`[{"id":"base","max_model_len":300},{"id":"org/M","parent":"gone","max_model_len":null}]`: 0,
		`[{"id":"base","max_model_len":300},{"id":"org/M","max_model_len":null}]`:                 0,
		`[{"id":"org/M","parent":"org/M","max_model_len":null}]`:                                  0,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				fmt.Fprintf(w, `{"data":%s}`, models)
			}
		}))
		if n := getModel(t, startFleet(t, modelConfig(t, "m", server.URL)), "m").MaxModelLen(); n != want {
			t.Errorf("%s: got %d, want %d", models, n, want)
		}
		server.Close()
	}
}

func TestReloadKeepsUnchangedBackendsAndProbesNewOnes(t *testing.T) {
	kept, removed, added := newServer(t, 100), newServer(t, 100), newServer(t, 100)
	f := startFleet(t, modelConfig(t, "m", kept.URL, removed.URL))
	before := getModel(t, f, "m").Backends()[0]
	lease := acquire(t, getModel(t, f, "m"))
	defer lease.Release()
	f.Reload([]config.Model{modelConfig(t, "m", kept.URL), modelConfig(t, "n", added.URL)}, settings)
	if got := getModel(t, f, "m").Backends(); len(got) != 1 || got[0] != before {
		t.Error("the unchanged backend was replaced")
	}
	poll.Until(t, "the new backend is ready", func() bool { return getModel(t, f, "n").Status() == fleet.StatusWarm })
}
