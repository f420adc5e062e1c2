package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// clusterGateway is a gateway that reads and writes the rows of a cluster in any order.
type clusterGateway struct {
	cluster

	number int32
	epoch  int64
}

// clusterWorld is a database with three such gateways.
type clusterWorld struct {
	t        *testing.T
	db       *database.DB
	versions versions
	gateways []*clusterGateway
}

// newClusterWorld creates a database. The gateways reach it by the address that url returns for its name; nil: directly.
func newClusterWorld(t *testing.T, url func(database string) string) *clusterWorld {
	t.Helper()
	server := postgrestest.Shared(t)
	if url == nil {
		url = server.URL
	}
	name := server.Create(t, "")
	t.Cleanup(func() { server.Exec(t, "postgres", "DROP DATABASE "+name+" WITH (FORCE)") })
	db, err := database.Open(t.Context(), database.Settings{URL: url(name)}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	w := &clusterWorld{t: t, db: db}
	for range 3 {
		g := new(clusterGateway)
		g.db, g.cluster.epoch = db, func() (int32, int64, bool) { return g.number, g.epoch, true }
		w.gateways = append(w.gateways, g)
		w.join(g)
	}
	return w
}

// join begins a new epoch of a gateway.
func (w *clusterWorld) join(g *clusterGateway) {
	w.t.Helper()
	name := fmt.Sprintf("%p", g)
	w.must(w.db.WriteExclusive(w.t.Context(), func(tx database.Tx) error {
		return tx.QueryRowContext(w.t.Context(), `SELECT gateway, epoch FROM ledger_join_v1($1, 'test', 1)`, name).Scan(&g.number, &g.epoch)
	}))
}

// end ends the epoch of a gateway, which does not know it.
func (w *clusterWorld) end(g *clusterGateway) {
	w.t.Helper()
	w.must(w.db.WriteExclusive(w.t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(w.t.Context(), `SELECT ledger_leave_v1($1, $2)`, g.number, g.epoch)
		return err
	}))
}

func (w *clusterWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// row returns the leader's row, as a gateway reads it.
func (w *clusterWorld) row(g *clusterGateway) leaderRow {
	w.t.Helper()
	w.must(g.read(w.t.Context(), g.number, g.epoch))
	return g.row
}

// queued returns how many commands are in the queue.
func (w *clusterWorld) queued() (n int) {
	w.t.Helper()
	w.must(w.db.Read().QueryRowContext(w.t.Context(), `SELECT count(*) FROM model_orders`).Scan(&n))
	return n
}

func (w *clusterWorld) isMember(g *clusterGateway) (member bool) {
	w.t.Helper()
	row := w.db.Read().QueryRowContext(w.t.Context(), `SELECT EXISTS (SELECT FROM gateway WHERE id = $1 AND epoch = $2 AND alive)`, g.number, g.epoch)
	w.must(row.Scan(&member))
	return member
}

func (g *clusterGateway) publishes(w *clusterWorld, heir int32) error {
	return g.publish(w.t.Context(), g.number, g.epoch, w.versions.next(), map[string]entry{"m/b": {Changes: int64(g.number)}}, heir)
}

// In random sequences of calls of three gateways, whose epochs end and begin at any time, at most one leads; only it
// publishes and executes commands; and no gateway takes the lead of one that is alive.
func TestRandomCallsKeepOneLeader(t *testing.T) {
	w := newClusterWorld(t, nil)
	steps, done := 1500, map[string]int{}
	if testing.Short() {
		steps = 300
	}
	for range steps {
		g := w.gateways[rand.IntN(len(w.gateways))]
		before, member, queued := w.row(g), w.isMember(g), w.queued()
		if g.leads.Store(before.mine); !before.mine {
			g.executed = 0
		}
		if before.mine && !member {
			t.Fatal("a gateway without an epoch leads")
		}
		switch rand.IntN(6) {
		case 0, 1:
			w.must(g.elect(t.Context(), g.number, g.epoch))
			after := w.row(g)
			if after.mine != (before.mine || before.vacant && member) {
				t.Fatalf("after the election: leads %t, before it %+v, member: %t", after.mine, before, member)
			}
			if after.mine && !before.mine {
				done["elected"]++
			}
		case 2, 3:
			heir := g.number
			if rand.IntN(4) == 0 {
				heir = 0
			}
			executed := g.executed
			err := g.publishes(w, heir)
			if (err == nil) != before.mine || err != nil && !errors.Is(err, errNotLeader) {
				t.Fatalf("publish: got %v, leads: %t", err, before.mine)
			}
			after := w.row(g)
			if err == nil && (after.version <= before.version || after.mine != (heir != 0) || after.backends["m/b"].Changes != int64(g.number)) {
				t.Fatalf("published with heir %d: got %+v after %+v", heir, after, before)
			}
			if err != nil && after.version != before.version {
				t.Fatal("a gateway that does not lead has published")
			}
			if left := w.queued(); err == nil && g.executed == 0 && executed > 0 && left >= queued || err != nil && left != queued {
				t.Fatalf("publish: got %v, and %d of %d commands left", err, left, queued)
			}
			done[fmt.Sprint("published ", err)]++
		case 4:
			w.must(Enqueue(t.Context(), w.db, "m", CommandStop))
			found, err := g.commands(t.Context())
			w.must(err)
			if (len(found) > 0) != before.mine {
				t.Fatalf("got commands %+v, leads: %t", found, before.mine)
			}
		case 5:
			switch {
			case !member:
				w.join(g)
			case rand.IntN(3) == 0:
				w.end(g)
			}
		}
		leaders := 0
		for _, g := range w.gateways {
			if w.row(g).mine {
				leaders++
			}
		}
		if leaders > 1 {
			t.Fatalf("%d gateways lead", leaders)
		}
	}
	t.Log(done)
	if done["elected"] < 5 || len(done) < 3 {
		t.Errorf("the sequence is void: %v", done)
	}
}

// A commit whose reply is lost may have been made: the write is repeated, and changes nothing more.
func TestClusterWriteWhoseReplyIsLostIsRepeated(t *testing.T) {
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	w := newClusterWorld(t, proxy.URL)
	first, second := w.gateways[0], w.gateways[1]
	// lose makes a write whose commit is executed and whose reply is lost, and repeats it.
	lose := func(what string, write func() error) {
		t.Helper()
		lost := false
		proxy.Cut(func(r postgrestest.Reply) (after int, cut bool) {
			cut = !lost && r.Executed && r.Statement == "COMMIT"
			lost = lost || cut
			return 0, cut
		})
		if err := write(); !errors.Is(err, database.ErrUnavailable) {
			t.Fatalf("%s: got %v, want ErrUnavailable, as the reply is lost", what, err)
		}
		proxy.Cut(nil)
		poll.Until(t, what, func() bool { return write() == nil })
	}
	lose("election", func() error { return first.elect(t.Context(), first.number, first.epoch) })
	lose("publication", func() error { return first.publishes(w, first.number) })
	if row := w.row(first); !row.mine || row.backends["m/b"].Changes != int64(first.number) {
		t.Errorf("got %+v, want what the first gateway has published", row)
	}
	now := time.Now()
	b := newIsolatedBackend(nil, nil, &now)
	b.life.requested = now.Add(-time.Minute)
	b.fleet.catalogue.Store(&catalogue{base: []*Model{{backends: []*Backend{b}}}})
	b.fleet.cluster = &second.cluster
	version := w.row(second).version
	lose("report", func() error { return b.fleet.report(t.Context(), second.number, second.epoch) })
	all, err := first.reports(t.Context(), first.number)
	w.must(err)
	row := w.row(first)
	reported := 0
	for _, r := range all {
		if u, found := r.uses["m/b"]; found {
			reported++
			if age := row.age(u.Requested); !r.alive || !r.current || r.seen != version || age < time.Minute || age > 2*time.Minute {
				t.Errorf("got %+v, used %v ago, want version %d and a minute", r, age, version)
			}
		}
	}
	if len(all) != 2 || reported != 1 {
		t.Errorf("got %+v, want two gateways with one report", all)
	}
}

// A command stays in the queue until what it has changed is published, so that of a leader that ends before then the next one
// executes it.
func TestCommandIsQueuedUntilItsEffectIsPublished(t *testing.T) {
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	w := newClusterWorld(t, proxy.URL)
	executes := func(g *clusterGateway, want ...Command) {
		t.Helper()
		found, err := g.commands(t.Context())
		w.must(err)
		var got []Command
		for _, c := range found {
			got = append(got, c.command)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got commands %q, want %q", got, want)
		}
	}
	lead := func(g *clusterGateway) {
		t.Helper()
		w.must(g.elect(t.Context(), g.number, g.epoch))
		g.leads.Store(true)
	}
	first, second := w.gateways[0], w.gateways[1]
	lead(first)
	for made, left := range map[bool]int{true: 0, false: 2} {
		for _, c := range []Command{CommandStop, commandSleep} {
			w.must(Enqueue(t.Context(), w.db, "m", c))
		}
		executes(first, CommandStop, commandSleep)
		executes(first)
		lost := false
		proxy.Cut(func(r postgrestest.Reply) (after int, cut bool) {
			cut = !lost && r.Executed && (made && r.Statement == "COMMIT" || !made && strings.Contains(r.Statement, "DELETE FROM model_orders"))
			lost = lost || cut
			return 0, cut
		})
		err := first.publishes(w, first.number)
		proxy.Cut(nil)
		if !errors.Is(err, database.ErrUnavailable) {
			t.Fatalf("got %v, want ErrUnavailable, as the reply is lost", err)
		}
		poll.Until(t, "the session has ended", func() bool { return w.queued() == left })
		poll.Until(t, "the effect is published", func() bool { return first.publishes(w, first.number) == nil })
		if n := w.queued(); n != 0 {
			t.Errorf("commit was made: %t: got %d commands in the queue after the publication", made, n)
		}
	}
	w.must(Enqueue(t.Context(), w.db, "m", CommandStop))
	executes(first, CommandStop)
	w.end(first)
	if err := first.publishes(w, first.number); !errors.Is(err, errNotLeader) {
		t.Fatalf("got %v, want errNotLeader", err)
	}
	executes(second)
	lead(second)
	executes(second, CommandStop)
}

// newSharedBackend returns an isolated backend that other gateways use too.
func newSharedBackend(leads bool, now *time.Time) *Backend {
	b := newIsolatedBackend(&config.Launch{Start: []string{"start"}, Stop: []string{"stop"}, IdleAfter: time.Minute, BootTimeout: time.Minute}, nil, now)
	b.fleet.cluster = &cluster{wake: make(chan struct{}, 1)}
	b.fleet.cluster.leads.Store(leads)
	return b
}

// Whatever other gateways report, a backend is stopped only when each that is alive knows that it drains and has no request in
// flight; the drain of an idle one is cancelled if it was used; and a gateway that does not know of the drain does not end it.
func TestDrainEndsWhenNoOtherGatewayUsesTheBackend(t *testing.T) {
	const version, idle = 100, time.Minute
	stopped, cancelled := 0, 0
	for range 10_000 {
		now := time.Unix(1000, 0)
		b := newSharedBackend(true, &now)
		b.apply(eventAnswered, "")
		now = now.Add(time.Hour)
		operator := rand.IntN(2) == 0
		if operator {
			b.requestStop("an operator")
		} else {
			b.drainIdle(false, "idle", idle)
		}
		published, _ := b.nextEntry(version, 0)
		b.setPublished(published)
		row := &leaderRow{now: time.Hour.Microseconds()}
		var reports []report
		ready, used, wanted := true, false, false
		for range rand.IntN(4) {
			age := time.Duration(rand.IntN(int(5 * idle)))
			r := report{gateway: "other", alive: rand.IntN(4) > 0, current: rand.IntN(4) > 0, seen: version - int64(rand.IntN(4)/3), uses: map[string]use{
				b.String(): {Requested: row.now - age.Microseconds(), Busy: rand.IntN(4) == 0, Wanted: rand.IntN(8) == 0},
			}}
			reports = append(reports, r)
			u, informed := r.uses[b.String()], r.current && r.seen == version
			ready = ready && (!r.alive || informed && !u.Busy)
			used = used || age < idle || r.alive && r.current && u.Busy
			wanted = wanted || r.alive && informed && u.Wanted
		}
		b.observeOthers(reports, row)
		want := Draining
		if used && !operator || wanted && !ready {
			want = Ready
			cancelled++
		}
		stops := ready && (operator || !used)
		if stops {
			want = Draining
			stopped++
		}
		if b.life.state != want || b.life.stopping != stops {
			t.Fatalf("operator: %t, reports %+v: got %s, stopping: %t, want %s, %t", operator, reports, b.life.state, b.life.stopping, want, stops)
		}
	}
	if stopped < 100 || cancelled < 100 {
		t.Errorf("the test is void: %d drains ended, %d were cancelled", stopped, cancelled)
	}
}

// An operator's stop waits for the requests of other gateways, also if the leader, this one or the one before, has drained the
// backend for idleness.
func TestUseAtAnotherGatewayDoesNotCancelAnOperatorsStop(t *testing.T) {
	for name, stop := range map[string]func(b *Backend){
		"ordered while it drains for idleness": func(b *Backend) {
			b.drainIdle(false, "idle", time.Hour)
			b.requestStop("an operator")
		},
		"taken over after a drain for idleness": func(b *Backend) {
			b.drainIdle(false, "idle", time.Hour)
			b.mu.Lock()
			b.undrain("it is used")
			b.mu.Unlock()
			b.fleet.cluster.leads.Store(false)
			row := &leaderRow{backends: map[string]entry{b.String(): {Version: 99, State: Draining, Held: true}}}
			b.follow(row)
			b.fleet.cluster.leads.Store(true)
			b.takeOver(row)
		},
	} {
		now := time.Unix(10_000, 0)
		b := newSharedBackend(true, &now)
		b.apply(eventAnswered, "")
		stop(b)
		published, _ := b.nextEntry(100, 0)
		b.setPublished(published)
		busy := report{gateway: "other", alive: true, current: true, seen: 100, uses: map[string]use{b.String(): {Busy: true}}}
		b.observeOthers([]report{busy}, &leaderRow{})
		if b.life.state != Draining || b.life.stopping {
			t.Errorf("%s, and another gateway has a request in flight: got %s, stopping: %t", name, b.life.state, b.life.stopping)
		}
	}
}

// A start that another gateway wants in ignorance of a stop is not one that follows it.
func TestStartWantedBeforeAStopDoesNotUndoIt(t *testing.T) {
	now := time.Unix(1000, 0)
	b := newSharedBackend(true, &now)
	b.apply(eventAnswered, "")
	ready, _ := b.nextEntry(99, 0)
	b.setPublished(ready)
	wants := report{gateway: "other", alive: true, current: true, seen: 99, uses: map[string]use{b.String(): {Wanted: true, Busy: true}}}
	b.requestStop("an operator")
	want := func(when string, row *leaderRow, state State, held bool) {
		t.Helper()
		b.observeOthers([]report{wants}, row)
		if b.life.state != state || b.life.stoppedByOperator != held {
			t.Errorf("wanted %s: got %s, stopped by the operator: %t, want %s, %t", when, b.life.state, b.life.stoppedByOperator, state, held)
		}
	}
	want("before the stop, which is not published yet", &leaderRow{}, Draining, true)
	stopping, _ := b.nextEntry(100, 0)
	b.setPublished(stopping)
	want("before the stop", &leaderRow{}, Draining, true)
	b.apply(eventStopped, "")
	row := &leaderRow{backends: map[string]entry{b.String(): {Version: 101, State: Stopped, Held: true}}}
	b.follow(row)
	b.takeOver(row)
	wants.seen = 100
	want("before the stop had ended, when the lead was taken over", row, Stopped, true)
	wants.seen = 101
	want("since", row, Starting, false)
}

// A gateway cannot know in time that an operator has stopped the backend again.
func TestStartWantedElsewhereFollowsAStopUnlessAnOperatorOrdersIt(t *testing.T) {
	now := time.Unix(1000, 0)
	b := newSharedBackend(true, &now)
	b.apply(eventAnswered, "")
	b.drainIdle(false, "idle", time.Minute)
	b.life.stopping = true
	stopping, _ := b.nextEntry(100, 0)
	b.setPublished(stopping)
	wants := report{gateway: "other", alive: true, current: true, seen: 100, uses: map[string]use{b.String(): {Wanted: true}}}
	observe := func(want bool) {
		t.Helper()
		b.observeOthers([]report{wants}, &leaderRow{})
		if b.life.state != Draining || b.life.wanted != want {
			t.Errorf("got %s and a start wanted: %t, want %s, %t", b.life.state, b.life.wanted, Draining, want)
		}
	}
	observe(true)
	b.requestStop("an operator")
	observe(false)
}

// A start that a gateway is about to want stays so if another one takes over the lead meanwhile.
func TestTakeoverWithoutAChangeKeepsTheVersion(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, state := range []State{Stopped, Ready, Asleep, Unreachable, Failed} {
		b := newSharedBackend(false, &now)
		row := &leaderRow{backends: map[string]entry{b.String(): {Version: 7, State: state, Since: 5}}, version: 9}
		b.life.state = state
		b.follow(row)
		b.fleet.cluster.leads.Store(true)
		b.takeOver(row)
		if e, differs := b.nextEntry(10, 0); differs || e.Version != 7 || e.Since != 5 {
			t.Errorf("%s: got %+v, differs: %t", state, e, differs)
		}
	}
	b := newSharedBackend(false, &now)
	row := &leaderRow{backends: map[string]entry{b.String(): {Version: 7, State: Starting}}, version: 9}
	b.follow(row)
	b.fleet.cluster.leads.Store(true)
	b.takeOver(row)
	if e, differs := b.nextEntry(10, 0); !differs || e.Version != 10 {
		t.Errorf("%s: got %+v, differs: %t, want what this gateway continues", Starting, e, differs)
	}
}

func TestGatewayFollowsTheLeader(t *testing.T) {
	const pending = "pending" // a boot that the gateway has requested
	leader := []State{Ready, Starting, Stopped, Asleep, Draining, Unreachable, Failed}
	for from, want := range map[State][]State{
		Ready:       {Ready, Ready, Ready, Ready, Draining, Ready, Ready},
		Starting:    {Starting, Starting, Unreachable, Unreachable, Draining, Unreachable, Failed},
		pending:     {Starting, Starting, Unreachable, Unreachable, Draining, Unreachable, Failed},
		Stopped:     {Stopped, Starting, Stopped, Stopped, Stopped, Stopped, Failed},
		Asleep:      {Asleep, Starting, Asleep, Asleep, Draining, Asleep, Asleep},
		Draining:    {Ready, Starting, Stopped, Asleep, Draining, Unreachable, Unreachable},
		Unreachable: {Unreachable, Starting, Unreachable, Unreachable, Draining, Unreachable, Failed},
		Failed:      {Failed, Starting, Failed, Failed, Draining, Failed, Failed},
	} {
		var got, unknown []State
		for _, s := range leader {
			now := time.Unix(1000, 0)
			b := newSharedBackend(false, &now)
			follow := func(s State, version, age int64) State {
				e := entry{Version: version, State: s, Since: -age * time.Second.Microseconds()}
				b.follow(&leaderRow{backends: map[string]entry{b.String(): e}, leader: "other"})
				return b.life.state
			}
			switch from {
			case Starting, Failed:
				follow(Starting, 1, 0)
			case Draining:
				b.apply(eventAnswered, "")
				follow(Draining, 1, 0)
			case pending:
				follow(Stopped, 1, 0)
				b.requestStart("a client")
				unknown = append(unknown, follow(s, 1, 3600)) // published before the gateway has requested the start
				if s == Draining {
					continue
				}
			case Ready:
				b.apply(eventAnswered, "")
			case Asleep:
				b.apply(eventSleeping, "")
			case Unreachable:
				b.apply(eventAnswered, "")
				b.apply(eventUnreachable, "")
			case Stopped: // it is at first
			}
			if from == Failed {
				b.apply(eventFailed, "")
			}
			got = append(got, follow(s, 2, 5))
			if s == Starting && b.life.state == Starting && (b.life.boot.pending || now.Sub(b.life.since) != 5*time.Second) {
				t.Errorf("%s: got a boot that is pending: %t, for %v, want the leader's", from, b.life.boot.pending, now.Sub(b.life.since))
			}
		}
		if from == pending {
			want = append(want[:4:4], want[5:]...)
			for i, s := range unknown {
				if s != Starting {
					t.Errorf("pending, and the leader had been %s: got %s", leader[i], s)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, while the leader's states are %v (-want +got):\n%s", from, leader, diff)
		}
	}
}
