package fleet_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
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

// asked is a backend that counts its probes.
func asked(t *testing.T) (address string, count *atomic.Int64) {
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

func TestAnOpenBreakerStaysOpenOverAReload(t *testing.T) {
	s := newServer(t, 100)
	f := started(t, model(t, "m", s.URL))
	l := acquire(t, find(t, f, "m"))
	l.Report(breaker.EngineDead)
	l.Release()
	longer := model(t, "m", s.URL, newServer(t, 100).URL)
	f.Reload([]config.Model{longer}, settings)
	m := find(t, f, "m")
	if got := m.Backends()[0].Breaker(); got != breaker.Open {
		t.Errorf("it is %s", got)
	}
	if err := m.EnsureServable(); err != nil {
		t.Errorf("there is another backend, but: %v", err)
	}
	l = acquire(t, m)
	defer l.Release()
	if l.Name != "b1" {
		t.Errorf("got %s", l.Name)
	}
}

func TestAReloadWithOtherBreakersMakesThemAnew(t *testing.T) {
	s := newServer(t, 100)
	f := started(t, model(t, "m", s.URL))
	l := acquire(t, find(t, f, "m"))
	l.Report(breaker.EngineDead)
	l.Release()
	other := settings
	other.Breaker.ConsecutiveFailures = 1
	f.Reload([]config.Model{model(t, "m", s.URL)}, other)
	l = acquire(t, find(t, f, "m"))
	l.Report(breaker.ServerError)
	l.Release()
	if err := find(t, f, "m").EnsureServable(); err == nil {
		t.Error("one failure opens the new breaker, but it is closed")
	}
}

func TestABackendWhoseAddressOrKeyChangesIsAnother(t *testing.T) {
	one, two := newServer(t, 100), newServer(t, 100)
	f := started(t, model(t, "m", one.URL))
	before := find(t, f, "m").Backends()[0]
	moved := model(t, "m", two.URL)
	f.Reload([]config.Model{moved}, settings)
	after := find(t, f, "m").Backends()[0]
	if after == before || after.CompletionsURL().Host == before.CompletionsURL().Host {
		t.Error("it still goes to the old address")
	}
	locked := model(t, "m", two.URL)
	locked.Backends[0].APIKey = config.NewSecret("s3cret")
	f.Reload([]config.Model{locked}, settings)
	header := http.Header{}
	find(t, f, "m").Backends()[0].Authorize(header)
	if header.Get("Authorization") != "Bearer s3cret" {
		t.Errorf("it is asked with %q", header.Get("Authorization"))
	}
}

func TestABackendThatWentIsProbedNoMore(t *testing.T) {
	goes, old := asked(t)
	stays, next := asked(t)
	f := started(t, model(t, "m", goes), model(t, "n", stays))
	poll.Until(t, "it is probed", func() bool { return old.Load() > 2 })
	f.Reload([]config.Model{model(t, "n", stays)}, settings)
	if _, there := f.Model("m"); there {
		t.Error("the model is still there")
	}
	// A probe may be under way; ten of the other's interval later there is none.
	begin := next.Load()
	poll.Until(t, "the other is probed on", func() bool { return next.Load() > begin+2 })
	last := old.Load()
	poll.Until(t, "the other is probed on", func() bool { return next.Load() > begin+12 })
	if old.Load() > last {
		t.Errorf("%d probes came after it went", old.Load()-last)
	}
}

func TestCloseWaitsForEveryProbe(t *testing.T) {
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hangs.Close()
	before := goleak.IgnoreCurrent()
	transport := &http.Transport{}
	s := settings
	s.ProbeTimeout = 50 * time.Millisecond
	f := fleet.New([]config.Model{model(t, "m", hangs.URL, hangs.URL)}, s, transport, nil, zap.NewNop())
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.ProbeTimeout = time.Hour // the probes hang while it closes
	f.Reload([]config.Model{model(t, "m", hangs.URL, hangs.URL)}, s)
	for range 2 {
		f.Close()
	}
	transport.CloseIdleConnections()
	hangs.CloseClientConnections()
	goleak.VerifyNone(t, before)
	fleet.New(nil, s, transport, nil, zap.NewNop()).Close() // without a start
}

func TestAProbeThatIsNotAnsweredMarksTheBackend(t *testing.T) {
	s := newServer(t, 100)
	m := find(t, started(t, model(t, "m", s.URL)), "m")
	if m.Status() != fleet.StatusWarm {
		t.Fatalf("it is %s", m.Status())
	}
	s.ill.Store(true)
	poll.Until(t, "it is found ill", func() bool { return m.Status() == fleet.StatusUnavailable })
	if state, reason := m.Backends()[0].State(); state != fleet.Unreachable || reason != "/health answered 503" {
		t.Errorf("it is %s (%s)", state, reason)
	}
	l := acquire(t, m) // there is no better one
	l.Release()
	s.ill.Store(false)
	poll.Until(t, "it is found well", func() bool { return m.Status() == fleet.StatusWarm })
}

// Nobody here can start it, so it is treated like one that is not managed at all.
func TestABackendThatOnlySleepsIsAttemptedWhenItDoesNotAnswer(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	c := model(t, "m", closed.URL)
	c.Backends[0].Sleep = &config.Sleep{Level: 1, IdleAfter: time.Hour}
	m := find(t, started(t, c), "m")
	for range settings.Breaker.ConsecutiveFailures {
		if err := m.EnsureServable(); err != nil {
			t.Error(err)
		}
		l := acquire(t, m)
		if state, _ := l.State(); state != fleet.Unreachable {
			t.Errorf("it is %s", state)
		}
		l.Report(breaker.Refused)
		l.Release()
	}
	_, err := m.Acquire(nil)
	if _, open := errors.AsType[*fleet.BreakerOpenError](err); !open || m.Backends()[0].Breaker() != breaker.Open {
		t.Errorf("got %v, the breaker is %s", err, m.Backends()[0].Breaker())
	}
}

// The launch command has ended before the stop runs, or it could start what was just stopped.
func TestAStopDuringABootEndsIt(t *testing.T) {
	b := newBox(t, 0)
	b.script("start", "trap 'sleep 0.3; echo ended >> $0.log; exit 1' TERM; echo started >> $0.log; while :; do sleep 0.1; done; touch $0.up")
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(nil)), "m")
	backend := m.Backends()[0]
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Starting)
	poll.Until(t, "the command runs", func() bool { return len(b.commands()) == 1 })
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	if state, _ := backend.State(); state != fleet.Draining {
		t.Errorf("it is %s", state)
	}
	if _, ok := errors.AsType[*fleet.BootingError](m.EnsureServable()); !ok {
		t.Error("who asks meanwhile is not told to come again")
	}
	wantState(t, backend, fleet.Stopped)
	before := b.asked.Load()
	poll.Until(t, "it is probed on", func() bool { return b.asked.Load() > before+10 })
	if state, reason := backend.State(); state != fleet.Stopped || reason != "the operator stops it" {
		t.Errorf("it is %s (%s)", state, reason)
	}
	if got := b.commands(); !slices.Equal(got, []string{"started", "ended", "stopped"}) {
		t.Errorf("%q was run", got)
	}
	b.script("start", "echo started >> $0.log; touch $0.up")
	if err := m.AwaitBoot(t.Context()); err != nil {
		t.Errorf("it is not started again for who asks: %v", err)
	}
}

// A shell ends at once when it is told to, and what it runs may take a while.
func TestAStopDuringABootWaitsForWhatTheCommandHasStarted(t *testing.T) {
	b := newBox(t, 0)
	b.script("compose", "trap 'sleep 0.3; echo ended >> ${0%compose}start.log; exit 1' TERM; echo started >> ${0%compose}start.log; while :; do sleep 0.1; done")
	b.script("start", "${0%start}compose; touch $0.up")
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(nil)), "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the command runs", func() bool { return len(b.commands()) == 1 })
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Stopped)
	if got := b.commands(); !slices.Equal(got, []string{"started", "ended", "stopped"}) {
		t.Errorf("%q was run", got)
	}
}

func TestAStopDuringAWakePutsItBackToSleep(t *testing.T) {
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
				t.Error("it is put to sleep before it has woken")
			}
		}
	}))
	t.Cleanup(s.Close)
	c := model(t, "m", s.URL)
	c.Backends[0].Sleep = &config.Sleep{Level: 1, IdleAfter: time.Hour}
	m := find(t, started(t, c), "m")
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
		t.Errorf("it is %s", state)
	}
	close(wake)
	wantState(t, backend, fleet.Asleep)
	if !asleep.Load() {
		t.Error("it is awake")
	}
}
