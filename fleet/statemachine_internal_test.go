package fleet

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/breaker"
	apierr "basegate/errors"
	"basegate/gateway/config"
)

// apply locks b.mu and applies an event.
func (b *Backend) apply(e event, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.transition(e, reason)
}

var states = []State{Ready, Starting, Stopped, Asleep, Draining, Unreachable, Failed}

func TestTransitionTableIsComplete(t *testing.T) {
	if len(transitionTable) != len(states) {
		t.Errorf("the table has %d states, want %d", len(transitionTable), len(states))
	}
	for from, row := range transitionTable {
		for e, to := range row {
			if transitionTable[to] == nil || e >= eventCount || to == from {
				t.Errorf("%s: invalid event %d or target %s", from, e, to)
			}
		}
	}
	for _, to := range states { // every state can be reached and left
		reached := false
		for _, row := range transitionTable {
			for _, next := range row {
				reached = reached || next == to
			}
		}
		if !reached && to != Stopped || len(transitionTable[to]) == 0 {
			t.Errorf("%s cannot be reached or left", to)
		}
	}
	for from, row := range transitionTable {
		if to, ok := row[eventAnswered]; from != Draining && from != Ready && (!ok || to != Ready) {
			t.Errorf("a backend that responds stays %s, want %s", from, Ready)
		}
	}
}

// newIsolatedBackend returns a backend of a fleet that is not started, so its commands are never run: the test decides
// how they end.
func newIsolatedBackend(launch *config.Launch, sleep *config.Sleep, now *time.Time) *Backend {
	f := &Fleet{log: zap.NewNop(), bootTimes: map[backendID]*bootTimes{}, transitions: newTransitions(), settings: Settings{
		Breaker: breaker.Settings{ConsecutiveFailures: 5, OpenFor: time.Minute, HalfOpenRequests: 1},
	}}
	b := f.newBackend(config.Model{ID: "m", Checkpoint: "c"}, config.Backend{Name: "b", URL: &url.URL{Host: "x"}, Launch: launch, Sleep: sleep})
	b.clock = func() time.Time { return *now }
	return b
}

// In a random sequence of a million events and calls, the backend makes only the transitions of the table, is acquired
// only if it is ready, or if it cannot be launched and is not in cooldown, and is never stopped with a request in
// flight.
func TestRandomEventsKeepTheLifecycleInvariants(t *testing.T) {
	steps := 1_000_000
	if testing.Short() {
		steps = 100_000
	}
	for name, kind := range map[string]struct {
		launch *config.Launch
		sleep  *config.Sleep
	}{
		"launched":           {launch: &config.Launch{Start: []string{"start"}, Stop: []string{"stop"}, IdleAfter: time.Minute, BootTimeout: time.Minute}},
		"put to sleep":       {sleep: &config.Sleep{Level: 1, IdleAfter: time.Minute}},
		"launched and sleep": {launch: &config.Launch{Start: []string{"start"}, Stop: []string{"stop"}, IdleAfter: time.Hour, BootTimeout: time.Minute}, sleep: &config.Sleep{Level: 1, IdleAfter: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(0, 0)
			b := newIsolatedBackend(kind.launch, kind.sleep, &now)
			var leases int64
			seen := map[State]int{}
			var drainedFrom State // the state before the last drain
			for step := range steps {
				now = now.Add(time.Duration(rand.IntN(20)) * time.Second)
				before := b.life.state
				inCooldown := before == Failed && now.Sub(b.life.since) < failureCooldown
				switch rand.IntN(10) {
				case 0:
					b.apply(eventAnswered, "")
				case 1:
					if kind.sleep != nil {
						b.apply(eventSleeping, "")
					}
				case 2:
					b.apply(eventUnreachable, "")
				case 3:
					b.requestStart("")
				case 4:
					b.drainIdle(rand.IntN(2) == 0, "", time.Minute)
				case 5:
					_, acquired := b.acquire()
					if acquired {
						leases++
					}
					if want := before == Ready || kind.launch == nil && !inCooldown && (before == Unreachable || before == Failed); acquired != want {
						t.Fatalf("step %d: acquire returned %t in state %s, want %t", step, acquired, before, want)
					}
				case 6:
					if leases > 0 {
						leases--
						b.release()
					}
				case 7:
					b.reconcile(rand.IntN(4) == 0)
				case 8:
					if b.life.stopping { // the command ends
						b.life.stopping = false
						e := eventStopped
						if b.life.drainToSleep {
							e = eventSlept
						}
						if rand.IntN(3) == 0 {
							e = eventFailed
						}
						b.transition(e, "")
					} else if b.life.state == Starting && rand.IntN(4) == 0 {
						b.failBoot(b.life.boot, "")
					}
				case 9:
					b.requestStop("")
					if before == Starting && b.life.state != Draining {
						t.Fatalf("step %d: a stop during a boot has no effect", step)
					}
				}
				if before != Draining && b.life.state == Draining {
					drainedFrom = before
				}
				if before == Draining && b.life.state == Ready && drainedFrom != Ready {
					t.Fatalf("step %d: a cancelled drain led to ready, but began in %s", step, drainedFrom)
				}
				seen[b.life.state]++
				if b.life.stopping && (leases > 0 || b.life.state != Draining) {
					t.Fatalf("step %d: stopping in state %s with %d requests in flight", step, b.life.state, leases)
				}
				if b.inFlight != leases {
					t.Fatalf("step %d: got %d in flight, want %d", step, b.inFlight, leases)
				}
			}
			for _, s := range states {
				allowed := slices.Collect(maps.Values(transitionTable[s]))
				for _, to := range states {
					if n := testutil.ToFloat64(b.fleet.transitions.counts.WithLabelValues(string(s), string(to))); n > 0 && !slices.Contains(allowed, to) {
						t.Errorf("transition from %s to %s is not in the table", s, to)
					}
				}
				possible := s != Asleep || kind.sleep != nil
				if s == Stopped {
					possible = kind.launch != nil
				}
				if (seen[s] > 0) != possible && s != Asleep {
					t.Errorf("%s was reached %d times, want possible: %t", s, seen[s], possible)
				}
			}
		})
	}
}

func TestFailedLaunchIsNotRepeatedDuringTheCooldown(t *testing.T) {
	now := time.Unix(0, 0)
	b := newIsolatedBackend(&config.Launch{Start: []string{"start"}, BootTimeout: time.Minute}, nil, &now)
	b.requestStart("a request")
	b.apply(eventFailed, "no such image")
	for _, after := range []time.Duration{0, failureCooldown - time.Second} {
		now = time.Unix(0, 0).Add(after)
		b.requestStart("a request")
		if e := b.cooldownError(); b.life.state != Failed || e == nil || e.Reason != "no such image" || e.RetryIn != failureCooldown-after {
			t.Errorf("after %v: got %s and %+v", after, b.life.state, e)
		}
	}
	now = time.Unix(0, 0).Add(failureCooldown)
	b.requestStart("a request")
	if b.life.state != Starting {
		t.Errorf("after the cooldown: got %s, want %s", b.life.state, Starting)
	}
	now = now.Add(time.Minute + 1)
	b.reconcile(false)
	if state, reason := b.State(); state != Failed || reason != "it did not answer within 1m0s" {
		t.Errorf("after the boot timeout: got %s (%s)", state, reason)
	}
}

func TestFailedWakeIsAttemptedAfterTheCooldown(t *testing.T) {
	now := time.Unix(0, 0)
	b := newIsolatedBackend(nil, &config.Sleep{Level: 1}, &now)
	m := &Model{backends: []*Backend{b}, fleet: b.fleet}
	b.apply(eventSleeping, "")
	b.requestStart("a request")
	b.failBoot(b.life.boot, "wake failed")
	now = now.Add(failureCooldown - time.Second)
	for range 2 {
		_, err := m.Acquire(nil, Caller{}, Prefix{})
		failed, ok := errors.AsType[*BootFailedError](err)
		if !ok || failed.Reason != "wake failed" || failed.RetryIn != time.Second {
			t.Errorf("got %v, want *BootFailedError", err)
		}
	}
	now = now.Add(time.Second)
	if err := m.EnsureServable(Caller{}); err != nil {
		t.Error(err)
	}
	l, err := m.Acquire(nil, Caller{}, Prefix{})
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
}

// The whole reason may name what the operator runs.
func TestClientIsToldTheKindOfABootFailureOnly(t *testing.T) {
	now := time.Unix(0, 0)
	b := newIsolatedBackend(&config.Launch{Start: []string{"start"}}, nil, &now)
	b.root = "/models/m"
	unlisted, _ := b.compareServed(gjson.Parse(`[{"id":"secret"}]`))
	elsewhere, _ := b.compareServed(gjson.Parse(`[{"id":"c","root":"/secret"}]`))
	for reason, want := range map[string]string{
		launchFailed + "/secret: exit status 3": "m could not be started: its start command failed; ",
		wakeFailed + "/secret answered 500":     "m could not be started: it could not be woken; ",
		bootTooLong + "1m0s":                    "m could not be started: it was not ready within its boot timeout; ",
		unlisted:                                "m could not be started: its server serves another model; ",
		elsewhere:                               "m could not be started: its server serves another model; ",
		"a secret of another version":           "m could not be started; ",
	} {
		m := &Model{config: config.Model{ID: "m"}}
		got := apierr.From(m.APIError(&BootFailedError{Reason: reason})).Message
		if !strings.HasPrefix(got, want) || strings.Contains(got, "secret") {
			t.Errorf("%s: the client reads %q, want %q", reason, got, want)
		}
	}
}

// The command of an earlier boot may still run when the backend is stopped or booted again.
func TestFailureOfAnEarlierBootIsIgnored(t *testing.T) {
	now := time.Unix(0, 0)
	b := newIsolatedBackend(&config.Launch{Start: []string{"start"}, Stop: []string{"stop"}, BootTimeout: time.Minute}, nil, &now)
	b.requestStart("a request")
	first := b.life.boot
	b.requestStop("the operator")
	b.failBoot(first, "terminated")
	if b.life.state != Draining || !b.life.stopping || !b.life.stoppedByOperator {
		t.Errorf("during the stop: got %s: %+v", b.life.state, b.life)
	}
	b.life.stopping = false
	b.apply(eventStopped, "")
	b.requestStart("a request")
	b.failBoot(first, "terminated")
	if b.life.state != Starting {
		t.Errorf("during the second boot: got %s, want %s", b.life.state, Starting)
	}
	b.drainIdle(false, "idle", time.Minute)
	if b.life.state != Starting {
		t.Errorf("after an idle timeout during the boot: got %s, want %s", b.life.state, Starting)
	}
}
