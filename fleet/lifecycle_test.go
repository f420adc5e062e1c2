package fleet_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
)

// newCountingServer returns a server that counts its probes.
func newCountingServer(t *testing.T) (address string, count *atomic.Int64) {
	t.Helper()
	count = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			count.Add(1)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, count
}

func TestOpenBreakerStaysOpenAcrossAReload(t *testing.T) {
	s := newServer(t, 100)
	f := startFleet(t, modelConfig(t, "m", s.URL))
	l := acquire(t, getModel(t, f, "m"))
	l.Report(breaker.EngineDead, false)
	l.Release()
	withSecond := modelConfig(t, "m", s.URL, newServer(t, 100).URL)
	f.Reload([]config.Model{withSecond}, settings)
	m := getModel(t, f, "m")
	if got := m.Backends()[0].Breaker(); got != breaker.Open {
		t.Errorf("got breaker state %s, want %s", got, breaker.Open)
	}
	if err := m.EnsureServable(fleet.Caller{}); err != nil {
		t.Errorf("got %v, but another backend is ready", err)
	}
	l = acquire(t, m)
	defer l.Release()
	if l.Name != "b1" {
		t.Errorf("got %s, want b1", l.Name)
	}
}

func TestReloadWithOtherBreakerSettingsReplacesTheBreakers(t *testing.T) {
	s := newServer(t, 100)
	f := startFleet(t, modelConfig(t, "m", s.URL))
	l := acquire(t, getModel(t, f, "m"))
	l.Report(breaker.EngineDead, false)
	l.Release()
	other := settings
	other.Breaker.ConsecutiveFailures = 1
	f.Reload([]config.Model{modelConfig(t, "m", s.URL)}, other)
	l = acquire(t, getModel(t, f, "m"))
	l.Report(breaker.ServerError, false)
	l.Release()
	if err := getModel(t, f, "m").EnsureServable(fleet.Caller{}); err == nil {
		t.Error("the new breaker is closed after one failure, want open")
	}
}

func TestReloadReplacesABackendWithAnotherAddressOrKey(t *testing.T) {
	one, two := newServer(t, 100), newServer(t, 100)
	f := startFleet(t, modelConfig(t, "m", one.URL))
	before := getModel(t, f, "m").Backends()[0]
	moved := modelConfig(t, "m", two.URL)
	f.Reload([]config.Model{moved}, settings)
	after := getModel(t, f, "m").Backends()[0]
	if after == before || after.CompletionsURL().Host == before.CompletionsURL().Host {
		t.Error("the backend still has the old address")
	}
	locked := modelConfig(t, "m", two.URL)
	locked.Backends[0].APIKey = config.NewSecret("s3cret")
	f.Reload([]config.Model{locked}, settings)
	header := http.Header{}
	getModel(t, f, "m").Backends()[0].Authorize(header)
	if header.Get("Authorization") != "Bearer s3cret" {
		t.Errorf("got Authorization %q, want the new key", header.Get("Authorization"))
	}
}

func TestRemovedBackendIsNotProbed(t *testing.T) {
	removed, removedProbes := newCountingServer(t)
	kept, keptProbes := newCountingServer(t)
	f := startFleet(t, modelConfig(t, "m", removed), modelConfig(t, "n", kept))
	poll.Until(t, "the first backend is probed", func() bool { return removedProbes.Load() > 2 })
	f.Reload([]config.Model{modelConfig(t, "n", kept)}, settings)
	if _, found := f.Model("m"); found {
		t.Error("the removed model is still found")
	}
	// One probe may be in progress during the reload, so counting begins after two more probe intervals.
	start := keptProbes.Load()
	poll.Until(t, "the kept backend is probed twice", func() bool { return keptProbes.Load() > start+2 })
	poll.Until(t, "the removed backend gets no probe while the kept one gets ten", func() bool {
		last, start := removedProbes.Load(), keptProbes.Load()
		poll.Until(t, "the kept backend is probed ten times more", func() bool { return keptProbes.Load() > start+10 })
		return removedProbes.Load() == last
	})
	last, start := removedProbes.Load(), keptProbes.Load()
	poll.Until(t, "the kept backend is probed ten times more", func() bool { return keptProbes.Load() > start+10 })
	if got := removedProbes.Load(); got > last {
		t.Errorf("the removed backend got %d more probes, want none", got-last)
	}
}

func TestCloseWaitsForEveryProbe(t *testing.T) {
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hangs.Close()
	before := goleak.IgnoreCurrent()
	transport := &http.Transport{}
	s := settings
	s.ProbeTimeout = 50 * time.Millisecond
	f := fleet.New([]config.Model{modelConfig(t, "m", hangs.URL, hangs.URL)}, s, transport, nil, zap.NewNop())
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.ProbeTimeout = time.Hour // probes hang during Close
	f.Reload([]config.Model{modelConfig(t, "m", hangs.URL, hangs.URL)}, s)
	for range 2 {
		f.Close()
	}
	transport.CloseIdleConnections()
	hangs.CloseClientConnections()
	goleak.VerifyNone(t, before)
	fleet.New(nil, s, transport, nil, zap.NewNop()).Close() // Close without Start
}

func TestFailedProbeMakesTheBackendUnreachable(t *testing.T) {
	s := newServer(t, 100)
	m := getModel(t, startFleet(t, modelConfig(t, "m", s.URL)), "m")
	if m.Status() != fleet.StatusWarm {
		t.Fatalf("got status %s, want %s", m.Status(), fleet.StatusWarm)
	}
	s.unhealthy.Store(true)
	poll.Until(t, "/health of a probe fails", func() bool {
		state, reason := m.Backends()[0].State()
		return state == fleet.Unreachable && reason == "/health answered 503"
	})
	if m.Status() != fleet.StatusUnavailable {
		t.Errorf("got status %s, want %s", m.Status(), fleet.StatusUnavailable)
	}
	l := acquire(t, m) // no other backend is better
	l.Release()
	s.unhealthy.Store(false)
	poll.Until(t, "a probe succeeds", func() bool { return m.Status() == fleet.StatusWarm })
}

// The gateway cannot launch such a backend, so it is treated like one that is not managed.
func TestUnreachableBackendWithSleepOnlyIsStillAttempted(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	c := modelConfig(t, "m", closed.URL)
	c.Backends[0].Sleep = &config.Sleep{Level: 1, IdleAfter: time.Hour}
	m := getModel(t, startFleet(t, c), "m")
	for range settings.Breaker.ConsecutiveFailures {
		if err := m.EnsureServable(fleet.Caller{}); err != nil {
			t.Error(err)
		}
		l := acquire(t, m)
		if state, _ := l.State(); state != fleet.Unreachable {
			t.Errorf("got %s, want %s", state, fleet.Unreachable)
		}
		l.Report(breaker.Refused, false)
		l.Release()
	}
	_, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{})
	if _, open := errors.AsType[*fleet.BreakerOpenError](err); !open || m.Backends()[0].Breaker() != breaker.Open {
		t.Errorf("got %v and breaker state %s, want *fleet.BreakerOpenError and open", err, m.Backends()[0].Breaker())
	}
}

// The launch command must end before the stop command runs, or it could start what was just stopped.
func TestStopDuringABootAbortsTheBoot(t *testing.T) {
	t.Parallel() // it waits
	b := newManagedServer(t, 0)
	b.script("start", "trap 'sleep 0.1; echo ended >> $0.log; exit 1' TERM; echo started >> $0.log; while :; do sleep 0.1; done; touch $0.up")
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	backend := m.Backends()[0]
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Starting)
	poll.Until(t, "the launch command runs", func() bool { return len(b.commands()) == 1 })
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	if state, _ := backend.State(); state != fleet.Draining {
		t.Errorf("after Stop: got %s, want %s", state, fleet.Draining)
	}
	if _, ok := errors.AsType[*fleet.BootingError](m.EnsureServable(fleet.Caller{})); !ok {
		t.Error("EnsureServable during the stop: want *fleet.BootingError")
	}
	if err := m.Stop("the operator stops it"); err != nil { // or the request would start it
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Stopped)
	before := b.probes.Load()
	poll.Until(t, "the stopped backend is probed ten times", func() bool { return b.probes.Load() > before+10 })
	if state, reason := backend.State(); state != fleet.Stopped || reason != "the operator stops it" {
		t.Errorf("got %s (%s), want %s (the operator stops it)", state, reason, fleet.Stopped)
	}
	if got := b.commands(); !slices.Equal(got, []string{"started", "ended", "stopped"}) {
		t.Errorf("got commands %q", got)
	}
	b.script("start", "echo started >> $0.log; touch $0.up")
	if err := m.AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Errorf("a request does not start it again: %v", err)
	}
}

// A shell exits at once on SIGTERM, but the processes it runs may take longer.
func TestStopDuringABootWaitsForTheCommandsChildren(t *testing.T) {
	t.Parallel() // it waits
	b := newManagedServer(t, 0)
	b.script("compose", "trap 'sleep 0.1; echo ended >> ${0%compose}start.log; exit 1' TERM; echo started >> ${0%compose}start.log; while :; do sleep 0.1; done")
	b.script("start", "${0%start}compose; touch $0.up")
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the launch command runs", func() bool { return len(b.commands()) == 1 })
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Stopped)
	if got := b.commands(); !slices.Equal(got, []string{"started", "ended", "stopped"}) {
		t.Errorf("got commands %q", got)
	}
}

func TestStopDuringAWakePutsTheBackendBackToSleep(t *testing.T) {
	var asleep atomic.Bool
	asleep.Store(true)
	waking, wake := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/is_sleeping":
			fmt.Fprintf(w, `{"is_sleeping":%t}`, asleep.Load())
		case "/wake_up":
			close(waking)
			<-wake
			asleep.Store(false)
		case "/sleep":
			if asleep.Swap(true) {
				t.Error("got /sleep before /wake_up returned")
			}
		}
	}))
	t.Cleanup(s.Close)
	c := modelConfig(t, "m", s.URL)
	c.Backends[0].Sleep = &config.Sleep{Level: 1, IdleAfter: time.Hour}
	m := getModel(t, startFleet(t, c), "m")
	backend := m.Backends()[0]
	wantState(t, backend, fleet.Asleep)
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	<-waking
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	if state, _ := backend.State(); state != fleet.Draining {
		t.Errorf("after Stop: got %s, want %s", state, fleet.Draining)
	}
	close(wake)
	wantState(t, backend, fleet.Asleep)
	if !asleep.Load() {
		t.Error("the backend is awake, want asleep")
	}
}

// A start that is requested while the stop command runs follows it, unless the operator stops the model again.
func TestStartRequestedDuringAStopFollowsIt(t *testing.T) {
	t.Parallel() // it waits for programs
	warm := func(m *fleet.Model) error { return m.Warm("the operator warms it") }
	stop := func(m *fleet.Model) error { return m.Stop("the operator stops it") }
	request := func(m *fleet.Model) error {
		if _, ok := errors.AsType[*fleet.BootingError](m.EnsureServable(fleet.Caller{})); !ok {
			return errors.New("EnsureServable returned no *fleet.BootingError")
		}
		return nil
	}
	for name, c := range map[string]struct {
		during []func(*fleet.Model) error
		exit   string // status of the stop command
		state  fleet.State
		want   []string
	}{
		"warm":                   {[]func(*fleet.Model) error{warm}, "0", fleet.Ready, []string{"started", "stopped", "started"}},
		"requests":               {[]func(*fleet.Model) error{request, request}, "0", fleet.Ready, []string{"started", "stopped", "started"}},
		"warm, the stop fails":   {[]func(*fleet.Model) error{warm}, "1", fleet.Ready, []string{"started", "stopped", "started"}},
		"warm, then stop":        {[]func(*fleet.Model) error{warm, stop}, "0", fleet.Stopped, []string{"started", "stopped"}},
		"warm, stop, then warm":  {[]func(*fleet.Model) error{warm, stop, warm}, "0", fleet.Ready, []string{"started", "stopped", "started"}},
		"request, then stop":     {[]func(*fleet.Model) error{request, stop}, "0", fleet.Stopped, []string{"started", "stopped"}},
		"nothing else is wanted": {nil, "0", fleet.Stopped, []string{"started", "stopped"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newManagedServer(t, 0)
			b.script("stop", "touch $0.runs; until [ -e $0.end ]; do sleep 0.01; done; rm -f ${0%stop}start.up; echo stopped >> ${0%stop}start.log; exit "+c.exit)
			m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
			if err := m.AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
				t.Fatal(err)
			}
			if err := stop(m); err != nil {
				t.Fatal(err)
			}
			poll.Until(t, "the stop command runs", func() bool {
				_, err := os.Stat(filepath.Join(b.dir, "stop.runs"))
				return err == nil
			})
			for _, do := range c.during {
				if err := do(m); err != nil {
					t.Error(err)
				}
			}
			b.mark("stop.end")
			poll.Until(t, "the commands have run", func() bool { return slices.Equal(b.commands(), c.want) })
			wantState(t, m.Backends()[0], c.state)
			before := b.probes.Load()
			poll.Until(t, "the backend is probed ten times", func() bool { return b.probes.Load() > before+10 })
			if state, _ := m.Backends()[0].State(); state != c.state || !slices.Equal(b.commands(), c.want) {
				t.Errorf("got %s and commands %q, want %s and %q", state, b.commands(), c.state, c.want)
			}
		})
	}
}

func TestWarmingADrainingModelCancelsTheDrain(t *testing.T) {
	b := newManagedServer(t, 0)
	b.script("start", "touch $0.up")
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	if err := m.AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	l, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Draining)
	if err := m.Warm("the operator wants it"); err != nil {
		t.Error(err)
	}
	wantState(t, m.Backends()[0], fleet.Ready)
}
