package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/config"
	"basegate/database"
	"basegate/fleet"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// box is a machine with one model on it. Its launch commands are scripts that write down what they were told; a backend
// that has been started answers after a while.
type box struct {
	*httptest.Server
	t    *testing.T
	dir  string
	boot time.Duration
	ill  atomic.Bool // it does not come up

	asked atomic.Int64           // how often it was probed
	held  atomic.Pointer[func()] // called by the next answer to a probe, which it delays
}

func newBox(t *testing.T, boot time.Duration) *box {
	t.Helper()
	b := &box{t: t, dir: t.TempDir(), boot: boot}
	b.script("start", "echo pulling the image; echo started >> $0.log; touch $0.up")
	b.script("stop", "rm -f ${0%stop}start.up; echo stopped >> ${0%stop}start.log")
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			b.asked.Add(1)
		}
		if !b.up() {
			panic(http.ErrAbortHandler) // as good as refused
		}
		if r.URL.Path == "/v1/models" {
			if wait := b.held.Swap(nil); wait != nil {
				(*wait)()
			}
			io.WriteString(w, `{"data":[{"id":"org/M","max_model_len":100}]}`)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

// up tells whether it has been started long enough ago.
func (b *box) up() bool {
	info, err := os.Stat(filepath.Join(b.dir, "start.up"))
	return err == nil && !b.ill.Load() && time.Since(info.ModTime()) >= b.boot
}

func (b *box) script(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		b.t.Fatal(err)
	}
}

// commands are those that were run, in order.
func (b *box) commands() []string {
	text, err := os.ReadFile(filepath.Join(b.dir, "start.log"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

func (b *box) launch() *config.Launch {
	return &config.Launch{
		Start: []string{filepath.Join(b.dir, "start")}, Stop: []string{filepath.Join(b.dir, "stop")},
		BootEstimate: time.Minute, BootTimeout: time.Minute,
	}
}

// model is a model on the box.
func (b *box) model(change func(*config.Model)) config.Model {
	b.t.Helper()
	m := model(b.t, "m", b.URL)
	m.Backends[0].Launch = b.launch()
	if change != nil {
		change(&m)
	}
	return m
}

func openDatabase(t *testing.T) *database.DB {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: filepath.Join(t.TempDir(), "base.db")}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// startedOn is a running fleet of one model, with a database.
func startedOn(t *testing.T, db *database.DB, log *zap.Logger, models ...config.Model) *fleet.Fleet {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	f := fleet.New(models, settings, transport, db, log)
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func wantState(t *testing.T, b *fleet.Backend, want fleet.State) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("it is %s", want), func() bool { state, _ := b.State(); return state == want })
}

func TestTwelveAskForAStoppedModelAndItIsLaunchedOnce(t *testing.T) {
	b := newBox(t, 300*time.Millisecond)
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(nil)), "m")
	if m.Status() != fleet.StatusCold {
		t.Errorf("before: %s", m.Status())
	}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			err := m.EnsureServable()
			booting, ok := errors.AsType[*fleet.BootingError](err)
			if !ok || booting.Estimate != time.Minute || booting.Elapsed > 10*time.Second || booting.RetryIn != booting.Estimate-booting.Elapsed {
				t.Errorf("got %v %+v", err, booting)
			}
			if _, err := m.Acquire(nil); err == nil {
				t.Error("a request was routed to it")
			}
		})
	}
	all.Wait()
	if m.Status() != fleet.StatusStarting {
		t.Errorf("meanwhile: %s", m.Status())
	}
	poll.Until(t, "it is warm", func() bool { return m.Status() == fleet.StatusWarm })
	if err := m.EnsureServable(); err != nil {
		t.Error(err)
	}
	acquire(t, m).Release()
	if got := b.commands(); len(got) != 1 || got[0] != "started" {
		t.Errorf("%q was run", got)
	}
}

func TestWhatRunsAlreadyIsAdopted(t *testing.T) {
	b := newBox(t, 0)
	if err := os.WriteFile(filepath.Join(b.dir, "start.up"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(nil)), "m")
	if m.Status() != fleet.StatusWarm || len(b.commands()) != 0 {
		t.Errorf("%s, %q", m.Status(), b.commands())
	}
}

// The estimate is the median of the boots that were measured, and outlives the gateway.
func TestTheEstimateIsWhatBootsHaveTaken(t *testing.T) {
	b, db := newBox(t, 700*time.Millisecond), openDatabase(t)
	boot := func() (estimated, took time.Duration) {
		m := find(t, startedOn(t, db, zap.NewNop(), b.model(nil)), "m")
		began := time.Now()
		booting, ok := errors.AsType[*fleet.BootingError](m.EnsureServable())
		if !ok {
			t.Fatal("it does not boot")
		}
		poll.Until(t, "it is warm", func() bool { return m.Status() == fleet.StatusWarm })
		took = time.Since(began)
		if err := m.Stop("the test stops it"); err != nil {
			t.Fatal(err)
		}
		wantState(t, m.Backends()[0], fleet.Stopped)
		return booting.RetryIn, took
	}
	boot()
	boot()
	estimated, took := boot()
	t.Logf("estimated %v, took %v", estimated, took)
	if estimated < took/2 || estimated > 2*took { // the machine is noisy; a minute would be the configured one
		t.Errorf("estimated %v, took %v", estimated, took)
	}
}

func TestAModelIdlesOutAndNoRequestUnderWayFails(t *testing.T) {
	b := newBox(t, 0)
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(func(m *config.Model) { m.Backends[0].Launch.IdleAfter = time.Millisecond })), "m")
	deadline := time.Now().Add(3 * time.Second)
	var all sync.WaitGroup
	var served atomic.Int64
	for range 4 {
		all.Go(func() {
			for time.Now().Before(deadline) {
				if err := m.AwaitBoot(t.Context()); err != nil {
					t.Errorf("it is not started again: %v", err)
					return
				}
				l, err := m.Acquire(nil)
				if err != nil {
					continue // it has been stopped in between, and is being started again
				}
				for range 3 {
					if !b.up() {
						t.Error("it was stopped under a request")
					}
				}
				l.Release()
				served.Add(1)
				idle := time.NewTimer(300 * time.Millisecond)
				<-idle.C
			}
		})
	}
	all.Wait()
	starts := strings.Count(strings.Join(b.commands(), " "), "started")
	t.Logf("%d requests over %d starts", served.Load(), starts)
	if starts < 2 || served.Load() < 4 {
		t.Error("it did not idle out, so this has shown nothing")
	}
}

func TestAStopWaitsForTheRequestsUnderWay(t *testing.T) {
	b := newBox(t, 0)
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(nil)), "m")
	if err := m.AwaitBoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	running := acquire(t, m)
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Acquire([]fleet.FailedAttempt{}); err != nil {
		// A request that comes during the drain calls it off, as nothing has been stopped yet.
		t.Logf("during the drain: %v", err)
	}
	wantState(t, m.Backends()[0], fleet.Ready)
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	if state, _ := m.Backends()[0].State(); state != fleet.Draining || len(b.commands()) != 1 {
		t.Errorf("%s, %q", state, b.commands())
	}
	running.Release()
	wantState(t, m.Backends()[0], fleet.Stopped)
}

func TestALaunchThatFailsTellsWhyAndIsNotRepeatedAtOnce(t *testing.T) {
	b := newBox(t, 0)
	b.script("start", "echo starting; echo 'no such image: vllm' >&2; echo started >> $0.log; exit 3")
	core, logged := observer.New(zap.InfoLevel)
	m := find(t, startedOn(t, nil, zap.New(core), b.model(nil)), "m")
	if err := m.EnsureServable(); err == nil {
		t.Error("it is servable")
	}
	wantState(t, m.Backends()[0], fleet.Failed)
	for range 3 {
		err := m.EnsureServable()
		failed, ok := errors.AsType[*fleet.BootFailedError](err)
		if !ok || !strings.Contains(failed.Reason, "exit status 3: no such image: vllm") || failed.RetryIn <= 20*time.Second {
			t.Errorf("got %v", err)
		}
	}
	if m.Status() != fleet.StatusUnavailable || len(b.commands()) != 1 {
		t.Errorf("%s, %q", m.Status(), b.commands())
	}
	if logged.FilterMessage("command says").Len() != 2 {
		t.Errorf("the log: %v", logged.All())
	}
}

func TestWhoWaitsForABootIsToldWhenItIsOver(t *testing.T) {
	b := newBox(t, 300*time.Millisecond)
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(nil)), "m")
	if err := m.AwaitBoot(t.Context()); err != nil || m.Status() != fleet.StatusWarm {
		t.Errorf("%v, %s", err, m.Status())
	}
	ill := newBox(t, 0)
	ill.ill.Store(true)
	m = find(t, startedOn(t, nil, zap.NewNop(), ill.model(nil)), "m")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, ok := errors.AsType[*fleet.BootingError](m.AwaitBoot(ctx)); !ok {
		t.Error("it waits for ever, or not at all")
	}
	failing := newBox(t, 0)
	failing.script("start", "exit 1")
	m = find(t, startedOn(t, nil, zap.NewNop(), failing.model(nil)), "m")
	if _, ok := errors.AsType[*fleet.BootFailedError](m.AwaitBoot(t.Context())); !ok {
		t.Error("a boot that has failed is waited for")
	}
}

func TestAProbeThatBeganBeforeAStopDoesNotUndoIt(t *testing.T) {
	b := newBox(t, 0)
	m := find(t, startedOn(t, nil, zap.NewNop(), b.model(nil)), "m")
	backend := m.Backends()[0]
	if err := m.Warm("a test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Ready)
	arrived, release := make(chan struct{}), make(chan struct{})
	wait := func() { close(arrived); <-release }
	b.held.Store(&wait)
	<-arrived
	if err := m.Stop("a test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Stopped)
	close(release) // it says that the backend answers, as it did when it was asked
	before := b.asked.Load()
	poll.Until(t, "it is probed again", func() bool { return b.asked.Load() > before+3 })
	if state, _ := backend.State(); state != fleet.Stopped {
		t.Errorf("it is %s", state)
	}
}

func TestAnIdleBackendSleepsAndWakes(t *testing.T) {
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/M"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	c := model(t, "m", mock.URL())
	c.Backends[0].Sleep = &config.Sleep{Level: 1, IdleAfter: 50 * time.Millisecond}
	m := find(t, startedOn(t, nil, zap.NewNop(), c), "m")
	running := acquire(t, m)
	wait := time.NewTimer(700 * time.Millisecond) // longer than a look at idle times takes to come
	<-wait.C
	if state, _ := m.Backends()[0].State(); state != fleet.Ready {
		t.Errorf("with a request it is %s", state)
	}
	running.Release()
	wantState(t, m.Backends()[0], fleet.Asleep)
	if m.Status() != fleet.StatusCold {
		t.Errorf("asleep it is %s", m.Status())
	}
	if _, ok := errors.AsType[*fleet.BootingError](m.EnsureServable()); !ok {
		t.Error("who asks is not told of the wake")
	}
	poll.Until(t, "it is warm", func() bool { return m.Status() == fleet.StatusWarm })
}

func TestOrdersAndBookingsOfAnotherProcessAreObeyed(t *testing.T) {
	b, db := newBox(t, 0), openDatabase(t)
	f := startedOn(t, db, zap.NewNop(), b.model(nil))
	backend := find(t, f, "m").Backends()[0]
	give := func(o fleet.Command) {
		t.Helper()
		if err := fleet.Enqueue(t.Context(), db, "m", o); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	if _, err := fleet.AddWindow(t.Context(), db, fleet.BookedWindow{Model: "m", From: now, To: now}); !errors.Is(err, fleet.ErrEmptyWindow) {
		t.Errorf("an empty window: %v", err)
	}
	booked, err := fleet.AddWindow(t.Context(), db, fleet.BookedWindow{Model: "m", From: now.Add(50 * time.Second), To: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Ready) // early by the estimate of a minute
	give(fleet.CommandStop)
	wantState(t, backend, fleet.Stopped)
	wait := time.NewTimer(1200 * time.Millisecond)
	<-wait.C
	if state, _ := backend.State(); state != fleet.Stopped {
		t.Errorf("the window overrules the operator: %s", state)
	}
	if err := fleet.RemoveWindow(t.Context(), db, booked.ID); err != nil {
		t.Fatal(err)
	}
	if err := fleet.RemoveWindow(t.Context(), db, booked.ID); !errors.Is(err, fleet.ErrNoWindow) {
		t.Errorf("a window that is gone: %v", err)
	}
	if all, err := fleet.Windows(t.Context(), db); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
	give(fleet.CommandWarm)
	wantState(t, backend, fleet.Ready)
	give(fleet.CommandStop)
	wantState(t, backend, fleet.Stopped)
	if got := strings.Join(b.commands(), " "); got != "started stopped started stopped" {
		t.Errorf("%s", got)
	}
}

func TestAReloadMayChangeHowABackendIsLaunched(t *testing.T) {
	b := newBox(t, 0)
	c := b.model(nil)
	f := startedOn(t, nil, zap.NewNop(), c)
	kept := find(t, f, "m").Backends()[0]
	next := b.model(func(m *config.Model) { m.Backends[0].Launch.BootEstimate = time.Hour })
	f.Reload([]config.Model{next}, settings)
	m := find(t, f, "m")
	if m.Backends()[0] != kept || m.BootEstimate() != time.Hour {
		t.Errorf("%v, %v", m.Backends()[0] == kept, m.BootEstimate())
	}
}

// A launch command may be the model itself, which does not return.
func TestACommandThatDoesNotReturnMayBeTheModel(t *testing.T) {
	b := newBox(t, 0)
	b.script("start", "echo $$ > $0.pid; touch $0.up; exec sleep 100")
	t.Cleanup(func() { // the fleet leaves it running
		pid, err := os.ReadFile(filepath.Join(b.dir, "start.pid"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
			t.Errorf("the model was ended with the fleet: %v", err)
		}
	})
	c := b.model(func(m *config.Model) { m.Backends[0].Launch.BootTimeout = 2 * time.Second })
	f := startedOn(t, nil, zap.NewNop(), c)
	m := find(t, f, "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Ready)
	wait := time.NewTimer(3 * time.Second) // longer than the boot may take
	<-wait.C
	if state, reason := m.Backends()[0].State(); state != fleet.Ready {
		t.Errorf("it is %s: %s", state, reason)
	}
}

// Old versions of vLLM print every prompt.
func TestWhatAModelSaysOnceItIsUpIsNotLogged(t *testing.T) {
	b := newBox(t, 0)
	b.script("start", "echo loading; touch $0.up; while [ ! -e $0.asked ]; do sleep 0.01; done; echo 'prompt: a secret'; touch $0.said")
	core, logged := observer.New(zap.InfoLevel)
	m := find(t, startedOn(t, nil, zap.New(core), b.model(nil)), "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Ready)
	if err := os.WriteFile(filepath.Join(b.dir, "start.asked"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "it has said it", func() bool {
		_, err := os.Stat(filepath.Join(b.dir, "start.said"))
		return err == nil
	})
	if err := m.Stop("the test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Stopped)
	said := logged.FilterMessage("command says")
	if said.FilterField(zap.String("line", "loading")).Len() != 1 || said.FilterField(zap.String("line", "prompt: a secret")).Len() != 0 {
		t.Errorf("the log: %v", said.All())
	}
}

func TestABootThatTakesTooLongIsEnded(t *testing.T) {
	b := newBox(t, 0)
	b.ill.Store(true)
	b.script("start", "echo started >> $0.log; sleep 100; touch $0.survived")
	c := b.model(func(m *config.Model) { m.Backends[0].Launch.BootTimeout = 500 * time.Millisecond })
	f := startedOn(t, nil, zap.NewNop(), c)
	if err := find(t, f, "m").Warm("the test"); err != nil {
		t.Fatal(err)
	}
	backend := find(t, f, "m").Backends()[0]
	wantState(t, backend, fleet.Failed)
	if _, reason := backend.State(); reason != "it did not answer within 500ms" {
		t.Errorf("%s", reason)
	}
	f.Close() // waits for the command
}

func TestCloseEndsACommandThatStillRuns(t *testing.T) {
	b := newBox(t, 0)
	b.script("start", "echo started >> $0.log; exec sleep 1000")
	f := startedOn(t, nil, zap.NewNop(), b.model(nil))
	m := find(t, f, "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the command runs", func() bool { return len(b.commands()) == 1 })
	closed := make(chan struct{})
	go func() { f.Close(); close(closed) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case <-closed:
	case <-ctx.Done():
		t.Error("it waits for the command")
	}
}
