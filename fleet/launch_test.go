package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/database"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// managedServer is a vLLM server with launch commands: scripts that append to a log. It responds once the start script
// has created a file and the boot time has passed.
type managedServer struct {
	*httptest.Server
	t         *testing.T
	dir       string
	boot      time.Duration
	unhealthy atomic.Bool // it never responds

	probes  atomic.Int64
	onProbe atomic.Pointer[func()] // called once, before the response to the next probe
}

func newManagedServer(t *testing.T, boot time.Duration) *managedServer {
	t.Helper()
	b := &managedServer{t: t, dir: t.TempDir(), boot: boot}
	b.script("start", "echo pulling the image; echo started >> $0.log; touch $0.up")
	b.script("stop", "rm -f ${0%stop}start.up; echo stopped >> ${0%stop}start.log")
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			b.probes.Add(1)
		}
		if !b.up() {
			panic(http.ErrAbortHandler) // closes the connection without a response
		}
		if r.URL.Path == "/version" {
			io.WriteString(w, `{"version":"0.9.2"}`)
		}
		if r.URL.Path == "/tokenize" { // two special tokens
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, `{"count":%d}`, 1+2*strings.Count(string(body), "true"))
		}
		if r.URL.Path == "/v1/models" {
			if wait := b.onProbe.Swap(nil); wait != nil {
				(*wait)()
			}
			io.WriteString(w, `{"data":[{"id":"org/M","max_model_len":100}]}`)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

// up reports whether the server responds.
func (b *managedServer) up() bool {
	info, err := os.Stat(filepath.Join(b.dir, "start.up"))
	return err == nil && !b.unhealthy.Load() && time.Since(info.ModTime()) >= b.boot
}

func (b *managedServer) script(name, text string) {
	b.t.Helper()
	syscall.ForkLock.RLock() // a program of another test that is started now would keep the script open, so that it cannot run yet
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		b.t.Fatal(err)
	}
}

// mark makes a file that a script waits for.
func (b *managedServer) mark(name string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// commands returns the log of the scripts: "started" and "stopped", in order.
func (b *managedServer) commands() []string {
	text, err := os.ReadFile(filepath.Join(b.dir, "start.log"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

func (b *managedServer) launch() *config.Launch {
	return &config.Launch{
		Start: []string{filepath.Join(b.dir, "start")}, Stop: []string{filepath.Join(b.dir, "stop")},
		BootEstimate: time.Minute, BootTimeout: time.Minute,
	}
}

// model returns the configuration of a model with this server as its backend. change may be nil.
func (b *managedServer) model(change func(*config.Model)) config.Model {
	b.t.Helper()
	m := modelConfig(b.t, "m", b.URL)
	m.Backends[0].Launch = b.launch()
	if change != nil {
		change(&m)
	}
	return m
}

func openDatabase(t *testing.T) *database.DB {
	t.Helper()
	db, err := database.Open(t.Context(), databasetest.Settings(t, filepath.Join(t.TempDir(), "base.db")), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// startFleetWith starts a fleet with a database, which may be nil, and a log.
func startFleetWith(t *testing.T, db *database.DB, log *zap.Logger, models ...config.Model) *fleet.Fleet {
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
	poll.Until(t, fmt.Sprintf("the backend is %s", want), func() bool { state, _ := b.State(); return state == want })
}

func TestConcurrentRequestsLaunchAStoppedModelOnce(t *testing.T) {
	b := newManagedServer(t, 0)
	b.unhealthy.Store(true)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	if m.Status() != fleet.StatusCold {
		t.Errorf("before the launch: got status %s, want %s", m.Status(), fleet.StatusCold)
	}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			err := m.EnsureServable(fleet.Caller{})
			booting, ok := errors.AsType[*fleet.BootingError](err)
			if !ok || booting.Estimate != time.Minute || booting.Elapsed > time.Minute || booting.RetryIn != booting.Estimate-booting.Elapsed {
				t.Errorf("got %v %+v", err, booting)
			}
			if _, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{}); err == nil {
				t.Error("Acquire leased a backend that is starting")
			}
		})
	}
	all.Wait()
	if m.Status() != fleet.StatusStarting {
		t.Errorf("during the boot: got status %s, want %s", m.Status(), fleet.StatusStarting)
	}
	b.unhealthy.Store(false)
	poll.Until(t, "the model is warm", func() bool { return m.Status() == fleet.StatusWarm })
	if err := m.EnsureServable(fleet.Caller{}); err != nil {
		t.Error(err)
	}
	acquire(t, m).Release()
	if got := b.commands(); len(got) != 1 || got[0] != "started" {
		t.Errorf("got commands %q, want one start", got)
	}
}

func TestRunningBackendIsNotLaunchedAtStart(t *testing.T) {
	b := newManagedServer(t, 0)
	b.mark("start.up")
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	if m.Status() != fleet.StatusWarm || len(b.commands()) != 0 {
		t.Errorf("got status %s and commands %q, want %s and none", m.Status(), b.commands(), fleet.StatusWarm)
	}
}

// The estimate is the median of the measured boots, and survives a restart of the gateway.
func TestBootEstimateIsTheMedianOfMeasuredBoots(t *testing.T) {
	t.Parallel() // it waits
	const shortest = 700 * time.Millisecond
	b, db := newManagedServer(t, shortest+20*time.Millisecond), openDatabase(t) // the time of a file may be a little early
	boot := func() (estimated, took time.Duration) {
		m := getModel(t, startFleetWith(t, db, zap.NewNop(), b.model(nil)), "m")
		began := time.Now()
		booting, ok := errors.AsType[*fleet.BootingError](m.EnsureServable(fleet.Caller{}))
		if !ok {
			t.Fatal("EnsureServable does not start the model")
		}
		poll.Until(t, "the model is warm", func() bool { return m.Status() == fleet.StatusWarm })
		took = time.Since(began)
		if err := m.Stop("the test stops it"); err != nil {
			t.Fatal(err)
		}
		wantState(t, m.Backends()[0], fleet.Stopped)
		return booting.Estimate, took
	}
	_, first := boot()
	_, second := boot()
	estimated, _ := boot()
	t.Logf("estimate %v, the boots took %v and %v", estimated, first, second)
	if estimated < shortest || estimated > max(first, second) { // the test sees the end of a boot late
		t.Errorf("estimate %v, the boots took %v and %v", estimated, first, second)
	}
}

func TestIdleStopDoesNotInterruptRequests(t *testing.T) {
	t.Parallel() // it waits
	b := newManagedServer(t, 0)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(func(m *config.Model) { m.Backends[0].Launch.IdleAfter = time.Millisecond })), "m")
	began := time.Now()
	var all sync.WaitGroup
	var served atomic.Int64
	starts := func() int { return strings.Count(strings.Join(b.commands(), " "), "started") }
	goesOn := func() bool {
		took := time.Since(began)
		return took < 3*time.Second || (starts() < 2 || served.Load() < 4) && took < time.Minute
	}
	for range 4 {
		all.Go(func() {
			for goesOn() {
				if err := m.AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
					t.Errorf("the model does not start again: %v", err)
					return
				}
				l, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{})
				if err != nil {
					continue // it has been stopped since and is starting again
				}
				for range 3 {
					if !b.up() {
						t.Error("the backend was stopped during a request")
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
	t.Logf("%d requests over %d starts", served.Load(), starts())
	if starts() < 2 || served.Load() < 4 {
		t.Error("the backend was not stopped in between, so the test is void")
	}
}

func TestStopWaitsForInFlightRequests(t *testing.T) {
	b := newManagedServer(t, 0)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	if err := m.AwaitBoot(t.Context(), fleet.Caller{}); err != nil {
		t.Fatal(err)
	}
	running := acquire(t, m)
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Acquire([]fleet.FailedAttempt{}, fleet.Caller{}, fleet.Prefix{}); err != nil {
		// A request during the drain cancels it, since nothing has been stopped yet.
		t.Logf("during the drain: %v", err)
	}
	wantState(t, m.Backends()[0], fleet.Ready)
	if err := m.Stop("the operator stops it"); err != nil {
		t.Fatal(err)
	}
	if state, _ := m.Backends()[0].State(); state != fleet.Draining || len(b.commands()) != 1 {
		t.Errorf("got %s and commands %q, want %s and one command", state, b.commands(), fleet.Draining)
	}
	running.Release()
	wantState(t, m.Backends()[0], fleet.Stopped)
}

func TestFailedLaunchReportsTheReasonAndStartsACooldown(t *testing.T) {
	b := newManagedServer(t, 0)
	b.script("start", "echo starting; echo 'no such image: vllm' >&2; echo started >> $0.log; exit 3")
	core, logged := observer.New(zap.InfoLevel)
	m := getModel(t, startFleetWith(t, nil, zap.New(core), b.model(nil)), "m")
	began := time.Now()
	if err := m.EnsureServable(fleet.Caller{}); err == nil {
		t.Error("EnsureServable: want an error")
	}
	wantState(t, m.Backends()[0], fleet.Failed)
	for range 3 {
		err := m.EnsureServable(fleet.Caller{})
		failed, ok := errors.AsType[*fleet.BootFailedError](err)
		if !ok || !strings.Contains(failed.Reason, "exit status 3: no such image: vllm") || failed.RetryIn < 30*time.Second-time.Since(began) {
			t.Errorf("got %v, want *fleet.BootFailedError with the last line of output", err)
		}
		wantBootFailure(t, m, "its start command failed")
	}
	if m.Status() != fleet.StatusUnavailable || len(b.commands()) != 1 {
		t.Errorf("got status %s and commands %q, want %s and one start", m.Status(), b.commands(), fleet.StatusUnavailable)
	}
	if logged.FilterMessage("command output").Len() != 2 {
		t.Errorf("want two lines of output in the log, got %v", logged.All())
	}
}

// wantBootFailure checks that a client is told this reason, and not what the operator runs.
func wantBootFailure(t *testing.T, m *fleet.Model, reason string) {
	t.Helper()
	err := m.APIError(m.EnsureServable(fleet.Caller{}))
	if got := apierr.From(err).Message; !strings.HasPrefix(got, "m could not be started: "+reason+"; ") {
		t.Errorf("the client reads %q, want the reason %q", got, reason)
	}
}

func TestAwaitBootReturnsWhenTheBootEnds(t *testing.T) {
	t.Parallel() // it waits
	b := newManagedServer(t, 300*time.Millisecond)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	if err := m.AwaitBoot(t.Context(), fleet.Caller{}); err != nil || m.Status() != fleet.StatusWarm {
		t.Errorf("got %v and status %s, want nil and %s", err, m.Status(), fleet.StatusWarm)
	}
	down := newManagedServer(t, 0)
	down.unhealthy.Store(true)
	m = getModel(t, startFleetWith(t, nil, zap.NewNop(), down.model(nil)), "m")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, ok := errors.AsType[*fleet.BootingError](m.AwaitBoot(ctx, fleet.Caller{})); !ok {
		t.Error("at the deadline: want *fleet.BootingError")
	}
	failing := newManagedServer(t, 0)
	failing.script("start", "exit 1")
	m = getModel(t, startFleetWith(t, nil, zap.NewNop(), failing.model(nil)), "m")
	if _, ok := errors.AsType[*fleet.BootFailedError](m.AwaitBoot(t.Context(), fleet.Caller{})); !ok {
		t.Error("after a failed boot: want *fleet.BootFailedError")
	}
}

func TestProbeResultFromBeforeAStopIsIgnored(t *testing.T) {
	b := newManagedServer(t, 0)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), b.model(nil)), "m")
	backend := m.Backends()[0]
	if err := m.Warm("a test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Ready)
	arrived, release := make(chan struct{}), make(chan struct{})
	wait := func() { close(arrived); <-release }
	b.onProbe.Store(&wait)
	<-arrived
	if err := m.Stop("a test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Stopped)
	close(release) // the probe succeeds, with the state from before the stop
	before := b.probes.Load()
	poll.Until(t, "the backend is probed again", func() bool { return b.probes.Load() > before+3 })
	if state, _ := backend.State(); state != fleet.Stopped {
		t.Errorf("got %s, want %s", state, fleet.Stopped)
	}
}

func TestIdleBackendSleepsAndARequestWakesIt(t *testing.T) {
	t.Parallel() // it waits
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/M"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	target, err := url.Parse(mock.URL())
	if err != nil {
		t.Fatal(err)
	}
	forward, wake := httputil.NewSingleHostReverseProxy(target), make(chan struct{})
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wake_up" {
			select {
			case <-wake:
			case <-r.Context().Done():
				return
			}
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(b.Close)
	c := modelConfig(t, "m", b.URL)
	c.Backends[0].Sleep = &config.Sleep{Level: 1, IdleAfter: 2 * time.Second}
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), c), "m")
	running := acquire(t, m)
	wait := time.NewTimer(2700 * time.Millisecond) // longer than that and than the interval at which idle times are checked
	<-wait.C
	if state, _ := m.Backends()[0].State(); state != fleet.Ready {
		t.Errorf("with a request in flight: got %s, want %s", state, fleet.Ready)
	}
	running.Release()
	wantState(t, m.Backends()[0], fleet.Asleep)
	if m.Status() != fleet.StatusCold {
		t.Errorf("asleep: got status %s, want %s", m.Status(), fleet.StatusCold)
	}
	if _, ok := errors.AsType[*fleet.BootingError](m.EnsureServable(fleet.Caller{})); !ok {
		t.Error("EnsureServable of a sleeping model: want *fleet.BootingError")
	}
	close(wake)
	poll.Until(t, "the model is warm", func() bool { return m.Status() == fleet.StatusWarm })
}

// While the booked windows cannot be read, the model of one looks like an idle one.
func TestNothingIsStoppedBeforeTheWindowsHaveBeenRead(t *testing.T) {
	t.Parallel() // it waits for polls
	b, db := newManagedServer(t, 0), openDatabase(t)
	b.mark("start.up")
	now := time.Now()
	if _, err := fleet.AddWindow(t.Context(), db, fleet.BookedWindow{Model: "m", From: now, To: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) {
		t.Helper()
		err := db.WriteExclusive(t.Context(), func(tx database.Tx) error {
			_, err := tx.ExecContext(t.Context(), "ALTER TABLE "+from+" RENAME TO "+to)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rename("model_windows", "renamed")
	core, logged := observer.New(zap.DebugLevel)
	f := startFleetWith(t, db, zap.New(core), b.model(func(m *config.Model) { m.Backends[0].Launch.IdleAfter = time.Millisecond }))
	poll.Until(t, "reading the windows has failed three times", func() bool { return logged.FilterMessage("read windows").Len() >= 3 })
	rename("renamed", "model_windows")
	poll.Until(t, "the windows have been read", func() bool { return len(f.BookedWindows("m")) == 1 })
	if state, _ := getModel(t, f, "m").Backends()[0].State(); state != fleet.Ready {
		t.Errorf("the backend is %s, want %s", state, fleet.Ready)
	}
	if ran := b.commands(); len(ran) > 0 {
		t.Errorf("the programs %q ran", ran)
	}
}

func TestQueuedCommandsAndBookedWindowsTakeEffect(t *testing.T) {
	t.Parallel() // it waits
	b, db := newManagedServer(t, 0), openDatabase(t)
	f := startFleetWith(t, db, zap.NewNop(), b.model(nil))
	backend := getModel(t, f, "m").Backends()[0]
	enqueue := func(c fleet.Command) {
		t.Helper()
		if err := fleet.Enqueue(t.Context(), db, "m", c); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	if _, err := fleet.AddWindow(t.Context(), db, fleet.BookedWindow{Model: "m", From: now, To: now}); !errors.Is(err, fleet.ErrEmptyWindow) {
		t.Errorf("empty window: got %v, want ErrEmptyWindow", err)
	}
	booked, err := fleet.AddWindow(t.Context(), db, fleet.BookedWindow{Model: "m", From: now.Add(50 * time.Second), To: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, backend, fleet.Ready) // before the window begins, by the estimate of a minute
	enqueue(fleet.CommandStop)
	wantState(t, backend, fleet.Stopped)
	wait := time.NewTimer(1200 * time.Millisecond)
	<-wait.C
	if state, _ := backend.State(); state != fleet.Stopped {
		t.Errorf("stopped by the operator inside a window: got %s, want %s", state, fleet.Stopped)
	}
	if err := fleet.RemoveWindow(t.Context(), db, booked.ID); err != nil {
		t.Fatal(err)
	}
	if err := fleet.RemoveWindow(t.Context(), db, booked.ID); !errors.Is(err, fleet.ErrNoWindow) {
		t.Errorf("window removed twice: got %v, want ErrNoWindow", err)
	}
	if all, err := fleet.Windows(t.Context(), db); err != nil || len(all) != 0 {
		t.Errorf("got windows %v and error %v, want neither", all, err)
	}
	enqueue(fleet.CommandWarm)
	wantState(t, backend, fleet.Ready)
	enqueue(fleet.CommandStop)
	wantState(t, backend, fleet.Stopped)
	if got := strings.Join(b.commands(), " "); got != "started stopped started stopped" {
		t.Errorf("got commands %q", got)
	}
}

func TestReloadChangesLaunchSettingsInPlace(t *testing.T) {
	b := newManagedServer(t, 0)
	c := b.model(nil)
	f := startFleetWith(t, nil, zap.NewNop(), c)
	kept := getModel(t, f, "m").Backends()[0]
	next := b.model(func(m *config.Model) { m.Backends[0].Launch.BootEstimate = time.Hour })
	f.Reload([]config.Model{next}, settings)
	m := getModel(t, f, "m")
	if m.Backends()[0] != kept || m.BootEstimate() != time.Hour {
		t.Errorf("backend kept: %t, boot estimate %v; want true and 1h", m.Backends()[0] == kept, m.BootEstimate())
	}
}

// The launch command may be the model itself and not return.
func TestLaunchCommandMayBeTheModelItself(t *testing.T) {
	t.Parallel() // it waits
	b := newManagedServer(t, 0)
	b.script("start", "echo $$ > $0.pid; touch $0.up; exec sleep 100")
	t.Cleanup(func() { // Close leaves the model running
		pid, err := os.ReadFile(filepath.Join(b.dir, "start.pid"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
			t.Errorf("the model does not run after Close: %v", err)
		}
	})
	c := b.model(func(m *config.Model) { m.Backends[0].Launch.BootTimeout = 10 * time.Second })
	f := startFleetWith(t, nil, zap.NewNop(), c)
	m := getModel(t, f, "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Ready)
	wait := time.NewTimer(11 * time.Second) // longer than the boot timeout
	<-wait.C
	if state, reason := m.Backends()[0].State(); state != fleet.Ready {
		t.Errorf("got %s (%s), want %s", state, reason, fleet.Ready)
	}
}

// Old versions of vLLM print every prompt.
func TestOutputOfARunningModelIsNotLogged(t *testing.T) {
	b := newManagedServer(t, 0)
	b.script("start", `echo loading; until [ -e $0.read ]; do sleep 0.01; done
touch $0.up; until [ -e $0.print ]; do sleep 0.01; done; echo 'prompt: a secret'; touch $0.printed`)
	core, logged := observer.New(zap.InfoLevel)
	m := getModel(t, startFleetWith(t, nil, zap.New(core), b.model(nil)), "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the first line is logged", func() bool { return logged.FilterMessage("command output").Len() == 1 })
	b.mark("start.read")
	wantState(t, m.Backends()[0], fleet.Ready)
	b.mark("start.print")
	poll.Until(t, "the script has printed the secret", func() bool {
		_, err := os.Stat(filepath.Join(b.dir, "start.printed"))
		return err == nil
	})
	if err := m.Stop("the test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Stopped)
	lines := logged.FilterMessage("command output")
	if lines.FilterField(zap.String("line", "loading")).Len() != 1 || lines.FilterField(zap.String("line", "prompt: a secret")).Len() != 0 {
		t.Errorf("want only the line from before the model was ready in the log, got %v", lines.All())
	}
}

func TestBootTimeoutAbortsTheLaunchCommand(t *testing.T) {
	t.Parallel() // it waits
	b := newManagedServer(t, 0)
	b.unhealthy.Store(true)
	b.script("start", "echo started >> $0.log; sleep 100; touch $0.survived")
	c := b.model(func(m *config.Model) { m.Backends[0].Launch.BootTimeout = 500 * time.Millisecond })
	f := startFleetWith(t, nil, zap.NewNop(), c)
	if err := getModel(t, f, "m").Warm("the test"); err != nil {
		t.Fatal(err)
	}
	backend := getModel(t, f, "m").Backends()[0]
	wantState(t, backend, fleet.Failed)
	if _, reason := backend.State(); reason != "it did not answer within 500ms" {
		t.Errorf("got reason %q", reason)
	}
	wantBootFailure(t, getModel(t, f, "m"), "it was not ready within its boot timeout")
	f.Close() // waits for the command
}

func TestCloseTerminatesARunningCommand(t *testing.T) {
	b := newManagedServer(t, 0)
	b.script("start", "echo started >> $0.log; exec sleep 1000")
	f := startFleetWith(t, nil, zap.NewNop(), b.model(nil))
	m := getModel(t, f, "m")
	if err := m.Warm("the test"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the launch command runs", func() bool { return len(b.commands()) == 1 })
	closed := make(chan struct{})
	go func() { f.Close(); close(closed) }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	select {
	case <-closed:
	case <-ctx.Done():
		t.Error("Close does not return while a command runs")
	}
}

// Some versions of vLLM print prompts, so what a command prints once the backend is ready is not kept.
func TestCommandLogHoldsTheLinesOfTheBootOnly(t *testing.T) {
	server := newManagedServer(t, 0)
	server.script("start", `echo loading weights; until [ -e $0.read ]; do sleep 0.01; done
touch $0.up; until [ -e $0.ready ]; do sleep 0.01; done; echo a prompt; touch $0.printed`)
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), server.model(nil)), "m")
	if err := m.Warm("a test"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the first line was read", func() bool {
		return slices.ContainsFunc(m.Backends()[0].CommandLog(), func(l fleet.CommandLine) bool { return l.Text == "loading weights" })
	})
	server.mark("start.read")
	wantState(t, m.Backends()[0], fleet.Ready)
	server.mark("start.ready")
	poll.Until(t, "the command has printed its last line", func() bool {
		_, err := os.Stat(filepath.Join(server.dir, "start.printed"))
		return err == nil
	})
	var text []string
	for _, line := range m.Backends()[0].CommandLog() {
		text = append(text, line.Text)
	}
	got := strings.Join(text, "\n")
	for _, want := range []string{"launch, a test: ", "loading weights", "starting → ready"} {
		if !strings.Contains(got, want) {
			t.Errorf("got the lines\n%s\nwant %q", got, want)
		}
	}
	if strings.Contains(got, "prompt") {
		t.Errorf("got the lines\n%s\nwant nothing that was printed after the boot", got)
	}
}

func TestCommandLogIsBounded(t *testing.T) {
	server := newManagedServer(t, 0)
	server.script("start", "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done; until [ -e $0.read ]; do sleep 0.01; done; touch $0.up")
	m := getModel(t, startFleetWith(t, nil, zap.NewNop(), server.model(nil)), "m")
	if err := m.Warm("a test"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the last line was read", func() bool {
		return slices.ContainsFunc(m.Backends()[0].CommandLog(), func(l fleet.CommandLine) bool { return l.Text == "line 299" })
	})
	server.mark("start.read")
	wantState(t, m.Backends()[0], fleet.Ready)
	if lines := m.Backends()[0].CommandLog(); len(lines) != 100 {
		t.Errorf("got %d lines, want the last 100", len(lines))
	}
}
