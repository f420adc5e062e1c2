package fleet

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/gateway/config"
)

// site is where a launch script starts the replicas of a model, and the transport by which a fleet reaches them.
type site struct {
	t   *testing.T
	dir string
	f   *Fleet
	m   *Model

	mu   sync.Mutex
	load map[string][2]int // the requests that a replica runs, and those that wait there, by its host
}

// replica n is up while the file n exists, and its start fails while the file broken-n does.
const replicaScript = `#!/bin/sh
cd ${0%/*} && echo $1$BASEGATE_REPLICA >>log
[ $1 = start ] || exec rm -f $BASEGATE_REPLICA
[ ! -e broken-$BASEGATE_REPLICA ] || { echo no node is free; exit 1; }
touch $BASEGATE_REPLICA
`

// newSite starts a fleet with a model of up to three replicas, whose launch prints where they are if told is set.
func newSite(t *testing.T, replicas config.Replicas, told bool) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), load: map[string][2]int{}}
	script, text := filepath.Join(s.dir, "launch"), replicaScript
	if told {
		text += "echo url=http://$BASEGATE_REPLICA\n"
	}
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	s.f = New(s.models(&replicas), siteSettings, s, nil, zap.NewNop())
	if err := s.f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.f.Close)
	s.m, _ = s.f.Model("m")
	return s
}

var siteSettings = Settings{
	Breaker:       breaker.Settings{ConsecutiveFailures: 2, OpenFor: time.Minute, HalfOpenRequests: 1},
	ProbeInterval: 5 * time.Second, ProbeTimeout: 2 * time.Second,
}

// models returns the configuration of the model.
func (s *site) models(replicas *config.Replicas) []config.Model {
	script := filepath.Join(s.dir, "launch")
	launch := &config.Launch{
		Start: []string{script, "start"}, Stop: []string{script, "stop"},
		IdleAfter: 10 * time.Minute, BootEstimate: time.Minute, BootTimeout: 5 * time.Minute,
	}
	return []config.Model{{ID: "m", Checkpoint: "org/M", Balance: config.BalancePrefix, Backends: []config.Backend{
		{Name: "gpu", URL: &url.URL{Scheme: "http", Host: "1"}, Launch: launch, Replicas: replicas},
	}}}
}

func (s *site) reload(replicas *config.Replicas) {
	s.f.Reload(s.models(replicas), siteSettings)
	s.m, _ = s.f.Model("m")
}

var errNoServer = errors.New("no server")

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, err := os.Stat(filepath.Join(s.dir, r.URL.Host)); err != nil {
		return nil, errNoServer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	load := s.load[r.URL.Host]
	body, known := map[string]string{
		"/health":    "",
		"/version":   `{"version":"0.33.0"}`,
		"/v1/models": `{"data":[{"id":"org/M","max_model_len":100}]}`,
		"/metrics":   fmt.Sprintf("vllm:num_requests_running %d\nvllm:num_requests_waiting %d\n", load[0], load[1]),
	}[r.URL.Path]
	status := http.StatusOK
	if !known {
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// set sets the requests that a replica runs, and those that wait there.
func (s *site) set(replica string, running, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load[replica] = [2]int{running, waiting}
}

// breakStart makes the starts of the second replica fail, or not any more.
func (s *site) breakStart(broken bool) {
	s.t.Helper()
	file := filepath.Join(s.dir, "broken-2")
	err := os.WriteFile(file, nil, 0o600)
	if !broken {
		err = os.Remove(file)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// after lets a time pass, and checks the states of the replicas and which programs have been run since the last call.
func (s *site) after(d time.Duration, states, programs string) {
	s.t.Helper()
	<-time.After(d)
	synctest.Wait()
	var got []string
	for _, b := range s.m.backends {
		state, _ := b.State()
		got = append(got, string(state))
	}
	log := filepath.Join(s.dir, "log")
	ran, _ := os.ReadFile(log)
	os.Remove(log)
	if all, text := strings.Join(got, " "), strings.Join(slices.Sorted(strings.FieldsSeq(string(ran))), " "); all != states || text != programs {
		s.t.Fatalf("got the states %q after %q, want %q after %q", all, text, states, programs)
	}
}

func TestReplicasFollowTheRequestsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, config.Replicas{Min: 1, Max: 3, Queue: 8}, true)
		s.after(2*time.Second, "ready stopped stopped", "start1")
		if got := s.m.backends[2].Version(); got != "0.33.0" || s.m.MaxModelLen() != 100 {
			t.Errorf("a replica that has never run has the version %q, want that of the first", got)
		}
		s.set("1", 4, 8)
		s.after(5*time.Minute, "ready stopped stopped", "")
		s.set("1", 4, 20)
		s.after(58*time.Second, "ready stopped stopped", "")
		s.breakStart(true)
		s.after(6*time.Second, "ready failed ready", "start2 start3")
		s.breakStart(false)
		s.after(50*time.Second, "ready failed ready", "")
		s.after(15*time.Second, "ready ready ready", "start2")
		s.after(5*time.Minute, "ready ready ready", "")

		// Two could run the twelve, so the last one is not needed, although it has a request.
		s.set("1", 5, 0)
		s.set("2", 5, 0)
		s.set("3", 2, 0)
		last := s.m.backends[2]
		if _, ok := last.acquire(); !ok {
			t.Fatal("a ready replica takes no request")
		}
		s.after(9*time.Minute+50*time.Second, "ready ready ready", "")
		s.after(15*time.Second, "ready ready draining", "")
		if _, reason := last.State(); reason != "not needed for 10m0s" {
			t.Errorf("it drains because it is %q", reason)
		}
		for range 5 {
			l, err := s.m.Acquire(nil, Caller{}, Prefix{})
			if err != nil || l.Backend == last {
				t.Fatalf("got %v, %v, want a lease of another replica", l, err)
			}
			defer l.Release()
		}
		s.after(time.Hour, "ready ready draining", "")
		last.release()
		s.after(time.Second, "ready ready stopped", "stop3")
	})
}

func TestReplicasThatAreKeptRunUntilAnOperatorStopsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, config.Replicas{Min: 2, Max: 3, Queue: 1}, true)
		s.after(2*time.Second, "ready ready stopped", "start1 start2")
		s.after(time.Hour, "ready ready stopped", "")
		if err := os.Remove(filepath.Join(s.dir, "2")); err != nil {
			t.Fatal(err)
		}
		s.after(10*time.Second, "ready unreachable ready", "start3") // it has died
		if err := s.m.Stop("test"); err != nil {
			t.Fatal(err)
		}
		s.after(time.Hour, "stopped stopped stopped", "stop1 stop2 stop3")
		if err := s.m.Warm("test"); err != nil {
			t.Fatal(err)
		}
		s.after(3*time.Second, "ready ready stopped", "start1 start2")
		// Another gateway has requests that its engines have no room for.
		first := s.m.backends[0]
		first.observeOthers([]report{{alive: true, current: true, uses: map[string]use{first.String(): {Held: 3}}}}, new(leaderRow))
		s.after(time.Minute+3*time.Second, "ready ready ready", "start3")
	})
}

func TestModelWithReplicasStopsWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, config.Replicas{Max: 3, Queue: 2}, true)
		s.after(time.Hour, "stopped stopped stopped", "")
		if _, booting := errors.AsType[*BootingError](s.m.EnsureServable(Caller{})); !booting {
			t.Error("a request does not start the model")
		}
		s.after(2*time.Second, "ready stopped stopped", "start1")
		s.set("1", 5, 3)
		s.after(63*time.Second, "ready ready stopped", "start2")
		s.set("1", 0, 0)
		s.after(9*time.Minute+50*time.Second, "ready ready stopped", "")
		for range 3 { // short ones, which the looks at the engine do not see
			l, err := s.m.Acquire(nil, Caller{}, Prefix{})
			if err != nil {
				t.Fatal(err)
			}
			l.Release()
		}
		s.after(30*time.Second, "ready stopped stopped", "stop2")
		s.after(20*time.Minute, "stopped stopped stopped", "stop1")
	})
}

// Where the second replica is only its launch knows.
func TestLaunchOfAReplicaMustSayWhereItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, config.Replicas{Min: 2, Max: 2, Queue: 8}, false)
		s.after(2*time.Second, "ready failed", "start1 start2")
		if _, reason := s.m.backends[1].State(); reason != "launch: "+errNoAddress.Error() {
			t.Errorf("it has failed for the reason %q", reason)
		}
	})
}

func TestReloadChangesTheNumberOfReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, config.Replicas{Min: 1, Max: 1, Queue: 2}, true)
		s.after(2*time.Second, "ready", "start1")
		s.set("1", 4, 9)
		s.after(2*time.Minute, "ready", "")
		first := s.m.backends[0]
		s.reload(&config.Replicas{Min: 1, Max: 3, Queue: 2})
		if s.m.backends[0] != first {
			t.Error("the first replica is another backend")
		}
		s.after(2*time.Second, "ready stopped stopped", "")
		s.after(62*time.Second, "ready ready stopped", "start2")
		s.set("1", 0, 0)
		s.after(11*time.Minute, "ready stopped stopped", "stop2")
		s.reload(nil)
		s.after(9*time.Minute, "ready", "stop") // at once, by its idle time; it is up again, since the program knows no number
	})
}

func TestNextReplicaIsNotOneThatIsBeingStopped(t *testing.T) {
	s := &site{t: t, dir: t.TempDir()}
	f := New(s.models(&config.Replicas{Max: 2, Queue: 8}), siteSettings, s, nil, zap.NewNop()) // not started, so it runs no program
	m, _ := f.Model("m")
	first, second := m.backends[0], m.backends[1]
	first.apply(eventAnswered, "")
	first.requestStop("an operator")
	m.replicas[0].startNext("a test")
	if !first.life.stopping || first.life.wanted || !second.is(Starting) {
		t.Errorf("stopping: %t, to be started again: %t; the other one starts: %t; want true, false, true",
			first.life.stopping, first.life.wanted, second.is(Starting))
	}
}
