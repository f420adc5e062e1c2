package fleet

import (
	"errors"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/config"
)

var states = []State{Ready, Starting, Stopped, Asleep, Draining, Unreachable, Failed}

func TestTheTableKnowsEveryStateAndLeadsOnlyToStates(t *testing.T) {
	if len(machine) != len(states) {
		t.Errorf("%d states in the table", len(machine))
	}
	for from, row := range machine {
		for e, to := range row {
			if machine[to] == nil || e >= events || to == from {
				t.Errorf("%s, event %d: to %s", from, e, to)
			}
		}
	}
	for _, to := range states { // none is a dead end, and each can be reached
		reached := false
		for _, row := range machine {
			for _, next := range row {
				reached = reached || next == to
			}
		}
		if !reached && to != Stopped || len(machine[to]) == 0 {
			t.Errorf("%s cannot be reached or left", to)
		}
	}
	for from, row := range machine {
		if to, ok := row[answered]; from != Draining && from != Ready && (!ok || to != Ready) {
			t.Errorf("a backend that answers stays %s", from)
		}
	}
}

// driven is a backend whose commands are never run: the test says how they end.
func driven(launch *config.Launch, sleep *config.Sleep, now *time.Time) *Backend {
	f := &Fleet{log: zap.NewNop(), measured: map[string]*boots{}, settings: Settings{
		Breaker: breaker.Settings{ConsecutiveFailures: 5, OpenFor: time.Minute, HalfOpenRequests: 1},
	}}
	b := f.newBackend(config.Model{ID: "m", Checkpoint: "c"}, config.Backend{Name: "b", URL: &url.URL{Host: "x"}, Launch: launch, Sleep: sleep})
	b.clock = func() time.Time { return *now }
	b.boots.keep = func(time.Duration) {}
	return b
}

// A million things happen, in any order: the backend only moves along the table, nothing is routed to it unless it is
// ready, or nobody here can start it and it is not being left alone, and nothing is stopped under a request.
func TestWhateverHappensNothingIsRoutedToABackendThatIsOursToStart(t *testing.T) {
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
			b := driven(kind.launch, kind.sleep, &now)
			var leases int64
			seen := map[State]int{}
			var drained State // the state that the last drain began in
			for step := range steps {
				now = now.Add(time.Duration(rand.IntN(20)) * time.Second)
				before := b.life.state
				alone := before == Failed && now.Sub(b.life.begun) < failedFor
				switch rand.IntN(10) {
				case 0:
					b.happen(answered, "")
				case 1:
					if kind.sleep != nil {
						b.happen(sleeping, "")
					}
				case 2:
					b.happen(silent, "")
				case 3:
					b.want("")
				case 4:
					b.retire(rand.IntN(2) == 0, "")
				case 5:
					routed := b.hold()
					if routed {
						leases++
					}
					if want := before == Ready || kind.launch == nil && !alone && (before == Unreachable || before == Failed); routed != want {
						t.Fatalf("step %d: routed %t while %s", step, routed, before)
					}
				case 6:
					if leases > 0 {
						leases--
						b.letGo()
					}
				case 7:
					b.tend(rand.IntN(4) == 0)
				case 8:
					if b.life.halting { // the command ends
						b.life.halting = false
						e := halted
						if b.life.doze {
							e = dozed
						}
						if rand.IntN(3) == 0 {
							e = spoiled
						}
						b.pass(e, "")
					} else if b.life.state == Starting && rand.IntN(4) == 0 {
						b.miscarry(b.life.boot, "")
					}
				case 9:
					b.stop("")
					if before == Starting && b.life.state != Draining {
						t.Fatalf("step %d: a stop during a boot is lost", step)
					}
				}
				if before != Draining && b.life.state == Draining {
					drained = before
				}
				if before == Draining && b.life.state == Ready && drained != Ready {
					t.Fatalf("step %d: back to ready though it was %s", step, drained)
				}
				seen[b.life.state]++
				if b.life.halting && (leases > 0 || b.life.state != Draining) {
					t.Fatalf("step %d: it is being stopped while %s with %d requests", step, b.life.state, leases)
				}
				if b.inFlight != leases {
					t.Fatalf("step %d: %d in flight, %d leases", step, b.inFlight, leases)
				}
			}
			for change := range b.moves.all() {
				allowed := false
				for _, to := range machine[change.from] {
					allowed = allowed || to == change.to
				}
				if !allowed {
					t.Errorf("it went from %s to %s", change.from, change.to)
				}
			}
			for _, s := range states {
				possible := s != Asleep || kind.sleep != nil
				if s == Stopped {
					possible = kind.launch != nil
				}
				if (seen[s] > 0) != possible && s != Asleep {
					t.Errorf("%s: %d times", s, seen[s])
				}
			}
		})
	}
}

func TestAFailedLaunchIsLeftAloneForAWhile(t *testing.T) {
	now := time.Unix(0, 0)
	b := driven(&config.Launch{Start: []string{"start"}, BootTimeout: time.Minute}, nil, &now)
	b.want("somebody")
	b.happen(spoiled, "no such image")
	for _, after := range []time.Duration{0, failedFor - time.Second} {
		now = time.Unix(0, 0).Add(after)
		b.want("somebody")
		if e := b.refused(); b.life.state != Failed || e == nil || e.Reason != "no such image" || e.RetryIn != failedFor-after {
			t.Errorf("after %v: %s, %+v", after, b.life.state, e)
		}
	}
	now = time.Unix(0, 0).Add(failedFor)
	b.want("somebody")
	if b.life.state != Starting {
		t.Errorf("it is %s", b.life.state)
	}
	now = now.Add(time.Minute + 1)
	b.tend(false)
	if state, reason := b.State(); state != Failed || reason != "it did not answer within 1m0s" {
		t.Errorf("%s: %s", state, reason)
	}
}

func TestAFailedWakeIsLeftAloneForAWhileAndThenAttempted(t *testing.T) {
	now := time.Unix(0, 0)
	b := driven(nil, &config.Sleep{Level: 1}, &now)
	m := &Model{backends: []*Backend{b}, moves: b.moves}
	b.happen(sleeping, "")
	b.want("somebody")
	b.miscarry(b.life.boot, "no wake today")
	now = now.Add(failedFor - time.Second)
	for range 2 {
		_, err := m.Acquire(nil)
		failed, ok := errors.AsType[*BootFailedError](err)
		if !ok || failed.Reason != "no wake today" || failed.RetryIn != time.Second {
			t.Errorf("got %v", err)
		}
	}
	now = now.Add(time.Second)
	if err := m.EnsureServable(); err != nil {
		t.Error(err)
	}
	l, err := m.Acquire(nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
}

// What a boot that is over has left running says nothing of the one that follows, or of a stop.
func TestOnlyTheBootThatIsUnderWayCanFail(t *testing.T) {
	now := time.Unix(0, 0)
	b := driven(&config.Launch{Start: []string{"start"}, Stop: []string{"stop"}, BootTimeout: time.Minute}, nil, &now)
	b.want("somebody")
	first := b.life.boot
	b.stop("the operator")
	b.miscarry(first, "terminated")
	if b.life.state != Draining || !b.life.halting || !b.life.held {
		t.Errorf("it is %s: %+v", b.life.state, b.life)
	}
	b.life.halting = false
	b.happen(halted, "")
	b.want("somebody")
	b.miscarry(first, "terminated")
	if b.life.state != Starting {
		t.Errorf("it is %s", b.life.state)
	}
	b.retire(false, "nobody has used it")
	if b.life.state != Starting {
		t.Errorf("idle while it boots, it is %s", b.life.state)
	}
}

func clock(hour, minute int) time.Duration {
	return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute
}

func location(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// opened is every minute at which a window opens or closes between two moments, in UTC.
func opened(w config.Window, from, to time.Time) (all []string) {
	was := inside(w, from.Add(-time.Minute))
	for at := from; at.Before(to); at = at.Add(time.Minute) {
		if now := inside(w, at); now != was {
			all = append(all, at.UTC().Format("01-02 15:04"))
			was = now
		}
	}
	return all
}

func TestAWindowHoldsToTheMinuteWhenTheClocksChange(t *testing.T) {
	days := func(text string) config.Days {
		d, err := config.ParseDays(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	prague, sydney := location(t, "Europe/Prague"), location(t, "Australia/Sydney")
	for _, c := range []struct {
		name string
		w    config.Window
		day  string // the first of two, UTC
		want []string
	}{
		{"a working day, winter", config.Window{Days: days("mon-fri"), From: clock(9, 0), To: clock(18, 0), Location: prague}, "2026-03-27", []string{"03-27 08:00", "03-27 17:00"}},
		{"a working day, summer", config.Window{Days: days("mon-fri"), From: clock(9, 0), To: clock(18, 0), Location: prague}, "2026-03-30", []string{"03-30 07:00", "03-30 16:00", "03-31 07:00", "03-31 16:00"}},
		{"over the night that loses an hour", config.Window{Days: days("sat"), From: clock(22, 0), To: clock(6, 0), Location: prague}, "2026-03-28", []string{"03-28 21:00", "03-29 04:00"}},
		{"over the night that gains an hour", config.Window{Days: days("sat"), From: clock(22, 0), To: clock(6, 0), Location: prague}, "2026-10-24", []string{"10-24 20:00", "10-25 05:00"}},
		{"begins in the hour that is lost", config.Window{Days: days("sun"), From: clock(2, 30), To: clock(4, 0), Location: prague}, "2026-03-29", []string{"03-29 01:00", "03-29 02:00"}},
		{"is the hour that is lost", config.Window{Days: days("sun"), From: clock(2, 0), To: clock(3, 0), Location: prague}, "2026-03-29", nil},
		{"is the hour that comes twice", config.Window{Days: days("sun"), From: clock(2, 0), To: clock(3, 0), Location: prague}, "2026-10-25", []string{"10-25 00:00", "10-25 02:00"}},
		{"a southern autumn", config.Window{Days: days("sun"), From: clock(1, 0), To: clock(5, 0), Location: sydney}, "2026-04-04", []string{"04-04 14:00", "04-04 19:00"}},
		{"a southern spring", config.Window{Days: days("sun"), From: clock(1, 0), To: clock(5, 0), Location: sydney}, "2026-10-03", []string{"10-03 15:00", "10-03 18:00"}},
		{"the whole day", config.Window{Days: days("wed"), From: 0, To: clock(24, 0), Location: time.UTC}, "2026-11-17", []string{"11-18 00:00"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, err := time.Parse(time.DateOnly, c.day)
			if err != nil {
				t.Fatal(err)
			}
			got := opened(c.w, from, from.Add(48*time.Hour))
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
}
