package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// cluster is a PostgreSQL database with the fleets of several gateways.
type cluster struct {
	t   *testing.T
	url string
}

// clusterTemplate is a database with all tables, of which those of the tests are copies.
var clusterTemplate struct {
	sync.Once
	name string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server := postgrestest.Shared(t)
	clusterTemplate.Do(func() {
		clusterTemplate.name = server.Create(t, "")
		db, err := database.Open(t.Context(), database.Settings{URL: server.URL(clusterTemplate.name)}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		db.Close()
	})
	name := server.Create(t, clusterTemplate.name)
	t.Cleanup(func() { server.Exec(t, "postgres", "DROP DATABASE "+name+" WITH (FORCE)") })
	return &cluster{t, server.URL(name)}
}

// member is a gateway of a cluster, as far as the fleet needs one.
type member struct {
	*fleet.Fleet
	t       *testing.T
	name    string
	db      *database.DB
	number  int32
	epoch   atomic.Int64
	events  chan fleet.Event
	gate    atomic.Pointer[chan struct{}] // until it is closed, the gateway neither reads nor writes what others do; nil: no such
	closeDB func()
}

// join starts a gateway with a model.
func (c *cluster) join(name string, models ...config.Model) *member {
	c.t.Helper()
	return c.joinWith(settings, name, models...)
}

func (c *cluster) joinWith(s fleet.Settings, name string, models ...config.Model) *member {
	c.t.Helper()
	db, err := database.Open(c.t.Context(), database.Settings{URL: c.url}, zap.NewNop())
	if err != nil {
		c.t.Fatal(err)
	}
	m := &member{t: c.t, name: name, db: db, events: make(chan fleet.Event, 1000)}
	m.closeDB = sync.OnceFunc(func() { db.Close() })
	c.t.Cleanup(m.closeDB)
	m.rejoin()
	m.Fleet = fleet.New(models, s, &http.Transport{DisableKeepAlives: true}, db, zap.NewNop())
	m.OnEvent(func(e fleet.Event) { m.events <- e })
	m.JoinCluster(func() (int32, int64, bool) {
		if gate := m.gate.Load(); gate != nil {
			<-*gate
		}
		return m.number, m.epoch.Load(), true
	})
	if err := m.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(m.Close)
	return m
}

// rejoin begins a new epoch, as the ledger does.
func (m *member) rejoin() {
	m.t.Helper()
	var number int32
	var epoch int64
	err := m.db.WriteExclusive(m.t.Context(), func(tx database.Tx) error {
		return tx.QueryRowContext(m.t.Context(), `SELECT gateway, epoch FROM ledger_join_v1($1, 'test', 1)`, m.name).Scan(&number, &epoch)
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if m.number == 0 { // it stays the same
		m.number = number
	}
	m.epoch.Store(epoch)
}

// reap ends the epoch of another gateway, as after 12 s without its heartbeats.
func (m *member) reap(dead *member) {
	m.t.Helper()
	err := m.db.WriteExclusive(m.t.Context(), func(tx database.Tx) error {
		const text = `SELECT ledger_reap_v1($1, $2, id, epoch, beat) FROM gateway WHERE id = $3`
		_, err := tx.ExecContext(m.t.Context(), text, m.number, m.epoch.Load(), dead.number)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// die ends a gateway without giving anything back, as SIGKILL does: its database is closed first, so that nothing that it
// writes arrives.
func (m *member) die() {
	m.closeDB()
	m.Close()
}

func (m *member) model() *fleet.Model { return getModel(m.t, m.Fleet, "m") }

func (m *member) backend() *fleet.Backend { return m.model().Backends()[0] }

func (m *member) wantState(want fleet.State) {
	m.t.Helper()
	poll.Until(m.t, fmt.Sprintf("the backend is %s at gateway %s", want, m.name), func() bool {
		state, _ := m.backend().State()
		return state == want
	})
}

// kinds returns the events of a gateway so far.
func (m *member) kinds() (all []fleet.EventKind) {
	for {
		select {
		case e := <-m.events:
			all = append(all, e.Kind)
		default:
			return all
		}
	}
}

// recordFences makes the programs of the server log their fencing numbers.
func (b *managedServer) recordFences() {
	b.script("start", "echo started $BASEGATE_FENCE >> $0.log; touch $0.up")
	b.script("stop", "rm -f ${0%stop}start.up; echo stopped $BASEGATE_FENCE >> ${0%stop}start.log")
}

// launched reports whether the start program has done what it does, so that its end changes nothing.
func (b *managedServer) launched() bool {
	_, err := os.Stat(filepath.Join(b.dir, "start.up"))
	return err == nil
}

// wantCommands checks the programs that were run, and that their fencing numbers rise.
func (b *managedServer) wantCommands(want ...string) {
	b.t.Helper()
	var got, fences []string
	for i, word := range b.commands() {
		if i%2 == 0 {
			got = append(got, word)
		} else {
			fences = append(fences, fmt.Sprintf("%020s", word))
		}
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("got programs %q, want %q", got, want)
	}
	if len(fences) != len(got) || !slices.IsSorted(fences) || len(slices.Compact(fences)) != len(got) {
		b.t.Errorf("got fencing numbers %q, want one of each program, rising", fences)
	}
}

func TestColdRequestsAtTwoGatewaysLaunchOnce(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 300*time.Millisecond)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	var all sync.WaitGroup
	for i := range 400 {
		at := []*member{one, two}[i%2]
		all.Go(func() {
			if err := at.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
				t.Errorf("a request at gateway %s: %v", at.name, err)
			}
		})
	}
	all.Wait()
	for _, m := range []*member{one, two} {
		m.wantState(fleet.Ready)
		acquire(t, m.model()).Release()
	}
	b.wantCommands("started")
	events := append(one.kinds(), two.kinds()...)
	if !slices.Equal(events, []fleet.EventKind{fleet.BootBegun, fleet.BootEnded}) {
		t.Errorf("got events %v, want one begin and one end of the boot in the whole cluster", events)
	}
}

func TestGatewayThatStartsDuringABootFollowsIt(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, time.Second)
	b.recordFences()
	one := c.join("one", b.model(nil))
	if _, ok := errors.AsType[*fleet.BootingError](one.model().EnsureServable(fleet.Caller{})); !ok {
		t.Fatal("EnsureServable does not start the model")
	}
	poll.Until(t, "the program has run", b.launched)
	two := c.join("two", b.model(nil))
	if state, _ := two.backend().State(); state != fleet.Starting && state != fleet.Ready {
		t.Errorf("got %s, want %s", state, fleet.Starting)
	}
	if err := two.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Error(err)
	}
	b.wantCommands("started")
}

func TestBootOfADeadGatewayIsAwaitedAndNotRepeated(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	b.unhealthy.Store(true)
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	if err := one.model().EnsureServable(fleet.Caller{}); err == nil {
		t.Fatal("EnsureServable does not start the model")
	}
	poll.Until(t, "the program has run", b.launched)
	one.die()
	two.wantState(fleet.Starting)
	waiting := make(chan error)
	go func() { waiting <- two.model().AwaitBoot(t.Context(), fleet.Caller{}) }()
	two.reap(one)
	before := b.probes.Load()
	poll.Until(t, "the successor has probed it many times", func() bool { return b.probes.Load() > before+10 })
	if state, _ := two.backend().State(); state != fleet.Starting {
		t.Errorf("after the death of the gateway that launches: got %s, want %s", state, fleet.Starting)
	}
	b.unhealthy.Store(false)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	b.wantCommands("started")
	if err := two.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Stopped)
	b.wantCommands("started", "stopped")
}

func TestStartThatIsRequestedWhileTheLeaderIsDeadIsMadeByItsSuccessor(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	one.die()
	waiting := make(chan error)
	go func() { waiting <- two.model().AwaitBoot(t.Context(), fleet.Caller{}) }()
	two.wantState(fleet.Starting)
	b.wantCommands()
	two.reap(one)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	b.wantCommands("started")
	if got := two.kinds(); !slices.Equal(got, []fleet.EventKind{fleet.BootBegun, fleet.BootEnded}) {
		t.Errorf("got events %v, want a begin and an end of the boot", got)
	}
}

// The leader may have been away for long when its successor is about to launch a backend.
func TestBackendThatIsUpWhenTheLeadIsTakenOverIsNotLaunched(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	rarely := settings
	rarely.ProbeInterval = time.Hour
	one, two := c.join("one", b.model(nil)), c.joinWith(rarely, "two", b.model(nil))
	one.die()
	before := b.probes.Load()
	waiting := make(chan error)
	go func() { waiting <- two.model().AwaitBoot(t.Context(), fleet.Caller{}) }()
	two.wantState(fleet.Starting)
	poll.Until(t, "it has been probed", func() bool { return b.probes.Load() > before })
	b.mark("start.up") // the leader had started it
	two.reap(one)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	b.wantCommands()
}

// What a gateway knew when it led is of no use after others have led.
func TestGatewayThatLeadsAgainContinuesWhatOthersHaveBegun(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	b.unhealthy.Store(true)
	one := c.join("one", b.model(nil))
	two := c.join("two", b.model(nil))
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	one.gate.Store(&gate)
	two.reap(one)
	if err := two.model().EnsureServable(fleet.Caller{}); err == nil {
		t.Fatal("EnsureServable does not start the model")
	}
	poll.Until(t, "the program has run", b.launched)
	two.die()
	one.rejoin()
	one.reap(two)
	waiting := make(chan error)
	go func() { waiting <- one.model().AwaitBoot(t.Context(), fleet.Caller{}) }()
	one.wantState(fleet.Starting)
	open()
	before := b.probes.Load()
	poll.Until(t, "the gateway has probed it many times", func() bool { return b.probes.Load() > before+10 })
	b.unhealthy.Store(false)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	b.wantCommands("started")
}

// The program of the dead gateway may still run until then.
func TestStopOfADeadGatewayIsRepeatedAfterItsLimit(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	b.script("stop", "test -e $0.begun || { touch $0.begun; exec sleep 60; }; rm -f ${0%stop}start.up; echo stopped $BASEGATE_FENCE >> ${0%stop}start.log")
	limited := b.model(func(m *config.Model) { m.Backends[0].Launch.BootTimeout = 10 * time.Second })
	one, two := c.join("one", limited), c.join("two", limited)
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Ready)
	ordered := time.Now()
	if err := two.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the stop program runs", func() bool {
		_, err := os.Stat(filepath.Join(b.dir, "stop.begun"))
		return err == nil
	})
	two.wantState(fleet.Draining)
	one.die()
	two.reap(one)
	two.wantState(fleet.Stopped)
	if took := time.Since(ordered); took < 10*time.Second {
		t.Errorf("the stop was repeated after %v, want 10s", took)
	}
	b.wantCommands("started", "stopped")
}

// The limit counts from the launch, not from the takeover.
func TestBootOfADeadGatewayFailsAtItsLimitAndIsThenRepeated(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	b.unhealthy.Store(true)
	limited := b.model(func(m *config.Model) { m.Backends[0].Launch.BootTimeout = 3 * time.Second })
	one, two := c.join("one", limited), c.join("two", limited)
	if err := one.model().EnsureServable(fleet.Caller{}); err == nil {
		t.Fatal("EnsureServable does not start the model")
	}
	poll.Until(t, "the program has run", b.launched)
	one.die()
	two.reap(one)
	two.wantState(fleet.Failed)
	b.wantCommands("started")
	if _, ok := errors.AsType[*fleet.BootFailedError](two.model().EnsureServable(fleet.Caller{})); !ok {
		t.Error("want *fleet.BootFailedError during the cooldown")
	}
	poll.Until(t, "the failure is published", func() (published bool) {
		row := two.db.Read().QueryRowContext(t.Context(), `SELECT backends LIKE '%"failed"%' FROM fleet_leader`)
		return row.Scan(&published) == nil && published
	})
	three := c.join("three", limited)
	two.Close() // and the gateway that has only heard of the failure leads
	if _, ok := errors.AsType[*fleet.BootFailedError](three.model().EnsureServable(fleet.Caller{})); !ok {
		t.Error("after the next takeover: want *fleet.BootFailedError during the cooldown")
	}
	b.wantCommands("started")
}

func TestFailedLaunchIsKnownToEveryGateway(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.script("start", "echo started >> $0.log; sleep 1; echo no such image; exit 3")
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	if err := one.model().EnsureServable(fleet.Caller{}); err == nil {
		t.Fatal("EnsureServable does not start the model")
	}
	err := two.model().AwaitBoot(t.Context(), fleet.Caller{})
	if failed, ok := errors.AsType[*fleet.BootFailedError](err); !ok || !strings.Contains(failed.Reason, "no such image") {
		t.Errorf("got %v, want *fleet.BootFailedError with the program's output", err)
	}
	one.wantState(fleet.Failed)
	if got := b.commands(); len(got) != 1 {
		t.Errorf("got commands %q, want one start", got)
	}
	events := append(one.kinds(), two.kinds()...)
	if !slices.Equal(events, []fleet.EventKind{fleet.BootBegun, fleet.BootFailed}) {
		t.Errorf("got events %v, want a begin and a failure of the boot", events)
	}
}

// A gateway that stops in the middle of a boot ends its program, so another one need not wait for it.
func TestBootOfAGatewayThatStopsIsBegunAgainAtOnce(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.script("start", "echo started $BASEGATE_FENCE >> $0.log; while [ ! -e $0.continue ]; do sleep 0.1; done; touch $0.up")
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	if err := one.model().EnsureServable(fleet.Caller{}); err == nil {
		t.Fatal("EnsureServable does not start the model")
	}
	poll.Until(t, "the program runs", func() bool { return len(b.commands()) > 0 })
	two.wantState(fleet.Starting)
	waiting := make(chan error)
	go func() { waiting <- two.model().AwaitBoot(t.Context(), fleet.Caller{}) }()
	one.Close()
	b.mark("start.continue")
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	b.wantCommands("started", "started")
}

func TestIdleStopWaitsForTheRequestsOfAllGateways(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	idle := b.model(func(m *config.Model) { m.Backends[0].Launch.IdleAfter = 3 * time.Second })
	one, two := c.join("one", idle), c.join("two", idle)
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Ready)
	running := acquire(t, two.model()) // gateway one has had no request since
	for began := time.Now(); time.Since(began) < 7*time.Second; {
		if !b.up() {
			t.Fatal("the backend was stopped during a request of another gateway")
		}
		wait := time.NewTimer(50 * time.Millisecond)
		<-wait.C
	}
	running.Release()
	for range 70 { // short requests, each sooner than the backend is idle
		l, err := two.model().Acquire(nil, fleet.Caller{}, fleet.Prefix{})
		if err != nil {
			t.Fatalf("a request at gateway two: %v", err)
		}
		l.Release()
		wait := time.NewTimer(100 * time.Millisecond)
		<-wait.C
	}
	one.wantState(fleet.Stopped)
	two.wantState(fleet.Stopped)
	b.wantCommands("started", "stopped")
}

func TestBackendThatHasBecomeReadyIsNotLaunched(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one := c.join("one", b.model(nil))
	one.wantState(fleet.Stopped)
	b.mark("start.up") // as if another gateway had launched it since the last probe
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	b.wantCommands()
}

// Whatever requests come at both gateways, no program stops the backend while one runs.
func TestIdleStopsOfTwoGatewaysInterruptNoRequest(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	idle := b.model(func(m *config.Model) { m.Backends[0].Launch.IdleAfter = time.Millisecond })
	members := []*member{c.join("one", idle), c.join("two", idle)}
	began := time.Now()
	goesOn := func() bool {
		took := time.Since(began)
		return took < 8*time.Second || len(b.commands()) < 2*3 && took < time.Minute // with the fence of each
	}
	var all sync.WaitGroup
	var served atomic.Int64
	for i := range 4 {
		m := members[i%2].model()
		all.Go(func() {
			for goesOn() {
				if err := m.AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
					t.Errorf("the model does not start again: %v", err)
					return
				}
				l, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{})
				if err != nil {
					continue
				}
				for range 3 {
					if !b.up() {
						t.Error("the backend was stopped during a request")
					}
				}
				l.Release()
				served.Add(1)
				pause := time.NewTimer(time.Duration(300+400*i) * time.Millisecond)
				<-pause.C
			}
		})
	}
	all.Wait()
	var words []string
	for i, word := range b.commands() {
		if i%2 == 0 {
			words = append(words, word)
		}
	}
	t.Logf("%d requests, programs %q", served.Load(), words)
	for i, word := range words {
		if word != []string{"started", "stopped"}[i%2] {
			t.Fatalf("got programs %q, want starts and stops in turn", words)
		}
	}
	if len(words) < 3 {
		t.Error("the backend was not stopped in between, so the test is void")
	}
}

func TestOrdersAreExecutedOnceAndByTheLeader(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	order := func(o fleet.Command) {
		t.Helper()
		if err := fleet.Enqueue(t.Context(), two.db, "m", o); err != nil {
			t.Fatal(err)
		}
	}
	order(fleet.CommandWarm)
	one.wantState(fleet.Ready)
	two.wantState(fleet.Ready)
	order(fleet.CommandStop)
	one.wantState(fleet.Stopped)
	two.wantState(fleet.Stopped)
	b.wantCommands("started", "stopped")

	// A stop that is given at one gateway aborts the boot of the other.
	b.unhealthy.Store(true)
	if err := one.model().EnsureServable(fleet.Caller{}); err == nil {
		t.Fatal("EnsureServable does not start the model")
	}
	two.wantState(fleet.Starting)
	poll.Until(t, "the program has run", b.launched)
	if err := two.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	one.wantState(fleet.Stopped)
	two.wantState(fleet.Stopped)
	b.wantCommands("started", "stopped", "started", "stopped")
}

func TestModelThatAnOperatorHasStoppedIsNotWarmedByAnotherGateway(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	now := time.Now()
	if _, err := fleet.AddWindow(t.Context(), one.db, fleet.BookedWindow{Model: "m", From: now, To: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{one, two} { // a stop that is ordered before the window is known ends with its begin
		m.wantState(fleet.Ready)
		poll.Until(t, "the gateway knows the window", func() bool { return len(m.BookedWindows("m")) == 1 })
	}
	if err := one.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Stopped)
	three := c.join("three", b.model(nil)) // also one that starts later
	wait := time.NewTimer(1500 * time.Millisecond)
	<-wait.C
	for _, m := range []*member{one, two, three} {
		if state, _ := m.backend().State(); state != fleet.Stopped {
			t.Errorf("gateway %s: got %s, want %s", m.name, state, fleet.Stopped)
		}
	}
	b.wantCommands("started", "stopped")
}

// A boot that is requested may wait for the database until a probe finds that the backend is up anyway.
func TestBootThatIsNotNeededAnyMoreDoesNotCancelAStop(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	two.gate.Store(&gate)
	if err := two.model().EnsureServable(fleet.Caller{}); err == nil {
		t.Fatal("EnsureServable does not start the model")
	}
	b.mark("start.up") // somebody else starts it
	one.wantState(fleet.Ready)
	two.wantState(fleet.Ready)
	if err := one.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	one.wantState(fleet.Draining)
	open()
	one.wantState(fleet.Stopped)
	two.wantState(fleet.Stopped)
	b.wantCommands("stopped")
}

// The stop is ordered outside of any window, so the window that is booked while it runs starts the model.
func TestWindowThatIsBookedDuringAStopWarmsTheModel(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	b.script("stop", "touch $0.begun; until test -e $0.go; do sleep 0.02; done; rm -f ${0%stop}start.up; echo stopped $BASEGATE_FENCE >> ${0%stop}start.log")
	one := c.join("one", b.model(nil))
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	if err := fleet.Enqueue(t.Context(), one.db, "m", fleet.CommandStop); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the stop program runs", func() bool {
		_, err := os.Stat(filepath.Join(b.dir, "stop.begun"))
		return err == nil
	})
	now := time.Now()
	if _, err := fleet.AddWindow(t.Context(), one.db, fleet.BookedWindow{Model: "m", From: now, To: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the gateway knows the window", func() bool { return len(one.BookedWindows("m")) == 1 })
	b.script("stop.go", "")
	one.wantState(fleet.Ready)
	b.wantCommands("started", "stopped", "started")
}

func TestModelThatOneGatewayPutsToSleepIsWokenByAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/M"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	sleeps := modelConfig(t, "m", mock.URL())
	sleeps.Backends[0].Sleep = &config.Sleep{Level: 1}
	one, two := c.join("one", sleeps), c.join("two", sleeps)
	if err := one.model().Sleep("the operator puts it to sleep"); err != nil {
		t.Fatal(err)
	}
	one.wantState(fleet.Asleep)
	two.wantState(fleet.Asleep)
	if err := two.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	one.wantState(fleet.Ready)
	acquire(t, one.model()).Release()
}

// A drain waits for the requests of the other gateway, and a request there cancels it.
func TestStopWaitsForTheRequestsOfAnotherGateway(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Ready)
	running := acquire(t, two.model())
	if err := one.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Draining)
	if err := two.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil { // cancels the drain
		t.Fatal(err)
	}
	one.wantState(fleet.Ready)
	b.wantCommands("started")
	if err := one.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Draining)
	wait := time.NewTimer(500 * time.Millisecond)
	<-wait.C
	b.wantCommands("started")
	running.Release()
	one.wantState(fleet.Stopped)
	two.wantState(fleet.Stopped)
	b.wantCommands("started", "stopped")
}

// A gateway whose epoch has ended while it drained a backend does not stop it: another one does, or it with a new epoch.
func TestGatewayWithoutItsEpochStopsNothing(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Ready)
	running := acquire(t, one.model())
	if err := one.model().Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	two.wantState(fleet.Draining)
	two.reap(one) // two takes the drain over, and does not wait for a gateway that is dead
	two.wantState(fleet.Stopped)
	running.Release()
	one.rejoin()
	one.wantState(fleet.Stopped)
	b.wantCommands("started", "stopped")
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	b.wantCommands("started", "stopped", "started")
}

// Without a database nothing is launched, since another gateway may be launching.
func TestNothingIsLaunchedWithoutALeader(t *testing.T) {
	t.Parallel()
	c, b := newCluster(t), newManagedServer(t, 0)
	b.recordFences()
	one, two := c.join("one", b.model(nil)), c.join("two", b.model(nil))
	two.reap(one)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, ok := errors.AsType[*fleet.BootingError](one.model().AwaitBoot(ctx, fleet.Caller{})); !ok {
		t.Error("want *fleet.BootingError while the gateway has no epoch")
	}
	b.wantCommands()
	one.rejoin()
	if err := one.model().AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	b.wantCommands("started")
}
