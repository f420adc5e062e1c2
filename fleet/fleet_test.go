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
	"basegate/config"
	"basegate/fleet"
	"basegate/internal/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a backend whose health the test decides.
type server struct {
	*httptest.Server
	ill atomic.Bool
}

func newServer(t *testing.T, contextLength int) *server {
	t.Helper()
	s := new(server)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.ill.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprintf(w, `{"data":[{"id":"other","max_model_len":1},{"id":"org/M","max_model_len":%d}]}`, contextLength)
		case "/version":
			io.WriteString(w, `{"version":"0.27.0"}`)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func model(t *testing.T, id string, addresses ...string) config.Model {
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
	ProbeInterval: 10 * time.Millisecond, ProbeTimeout: time.Second,
}

func started(t *testing.T, models ...config.Model) *fleet.Fleet {
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

func find(t *testing.T, f *fleet.Fleet, id string) *fleet.Model {
	t.Helper()
	m, ok := f.Model(id)
	if !ok {
		t.Fatalf("no model %s", id)
	}
	return m
}

func acquire(t *testing.T, m *fleet.Model, tried ...fleet.FailedAttempt) *fleet.Lease {
	t.Helper()
	l, err := m.Acquire(tried)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestTheBackendWithTheFewestInFlightIsTaken(t *testing.T) {
	one, two, three := newServer(t, 100), newServer(t, 100), newServer(t, 100)
	m := find(t, started(t, model(t, "m", one.URL, two.URL, three.URL)), "m")
	for range 30 {
		defer acquire(t, m).Release()
	}
	for _, b := range m.Backends() {
		if b.InFlight() != 10 {
			t.Errorf("%s has %d in flight of 30", b.Name, b.InFlight())
		}
	}
}

func TestAReadyBackendGoesBeforeOneThatIsNot(t *testing.T) {
	ill, well := newServer(t, 100), newServer(t, 100)
	ill.ill.Store(true)
	m := find(t, started(t, model(t, "m", ill.URL, well.URL)), "m")
	for range 5 { // though the ready one is busier and busier
		l := acquire(t, m)
		defer l.Release()
		if l.Name != "b1" {
			t.Errorf("got %s", l.Name)
		}
	}
	ill.ill.Store(false)
	poll.Until(t, "the other is found ready", func() bool {
		state, _ := m.Backends()[0].State()
		return state == fleet.Ready
	})
}

func TestWhatWasTriedComesLastOrNotAtAll(t *testing.T) {
	one, two := newServer(t, 100), newServer(t, 100)
	m := find(t, started(t, model(t, "m", one.URL, two.URL)), "m")
	first, second := m.Backends()[0], m.Backends()[1]
	for range 20 {
		l := acquire(t, m, fleet.FailedAttempt{Backend: first, RetrySame: true})
		l.Release()
		if l.Backend != second {
			t.Fatal("the one that was tried was taken")
		}
	}
	l := acquire(t, m, fleet.FailedAttempt{Backend: first, RetrySame: true}, fleet.FailedAttempt{Backend: second, RetrySame: false})
	l.Release()
	if l.Backend != first {
		t.Error("the one that must not be tried again was")
	}
	if _, err := m.Acquire([]fleet.FailedAttempt{{first, false}, {second, false}}); !errors.Is(err, fleet.ErrNoOtherBackend) {
		t.Errorf("got %v", err)
	}
}

func TestOpenBreakersAreToldWithTheTimeLeft(t *testing.T) {
	m := find(t, started(t, model(t, "m", newServer(t, 100).URL)), "m")
	for range 2 {
		l := acquire(t, m)
		l.Report(breaker.ServerError)
		l.Release()
	}
	_, err := m.Acquire(nil)
	open, ok := errors.AsType[*fleet.BreakerOpenError](err)
	if !ok || open.RetryIn <= 50*time.Second || open.RetryIn > time.Minute {
		t.Errorf("got %v %+v", err, open)
	}
	if m.EnsureServable() == nil || m.Status() != fleet.StatusUnavailable {
		t.Error("it is said to be servable")
	}
}

func TestARefusedConnectionMarksTheBackendUntilAProbe(t *testing.T) {
	s := newServer(t, 100)
	m := find(t, started(t, model(t, "m", s.URL)), "m")
	s.ill.Store(true)
	l := acquire(t, m)
	l.Report(breaker.Refused)
	l.Release()
	if state, reason := m.Backends()[0].State(); state != fleet.Unreachable || reason == "" {
		t.Errorf("it is %s (%s)", state, reason)
	}
	s.ill.Store(false)
	poll.Until(t, "a probe finds it ready", func() bool { return m.Status() == fleet.StatusWarm })
}

func TestTheSmallestContextCountsUnlessConfigured(t *testing.T) {
	one, two := newServer(t, 4096), newServer(t, 2048)
	configured := model(t, "c", one.URL)
	configured.MaxModelLen = 512
	f := started(t, model(t, "m", one.URL, two.URL), configured)
	if n := find(t, f, "m").MaxModelLen(); n != 2048 {
		t.Errorf("got %d", n)
	}
	if n := find(t, f, "c").MaxModelLen(); n != 512 {
		t.Errorf("configured: got %d", n)
	}
	if v := find(t, f, "m").Backends()[0].Version(); v != "0.27.0" {
		t.Errorf("version %q", v)
	}
}

func TestAReloadKeepsWhatStaysAndProbesWhatIsNew(t *testing.T) {
	stays, goes, comes := newServer(t, 100), newServer(t, 100), newServer(t, 100)
	f := started(t, model(t, "m", stays.URL, goes.URL))
	kept := find(t, f, "m").Backends()[0]
	under := acquire(t, find(t, f, "m"))
	defer under.Release()
	f.Reload([]config.Model{model(t, "m", stays.URL), model(t, "n", comes.URL)}, settings)
	if got := find(t, f, "m").Backends(); len(got) != 1 || got[0] != kept {
		t.Error("the backend that stays was made anew")
	}
	poll.Until(t, "the new one is ready", func() bool { return find(t, f, "n").Status() == fleet.StatusWarm })
}
