package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// leaseGateway is a gateway that calls the leases of one backend in any order.
type leaseGateway struct {
	leases

	number   int32
	epoch    int64
	fence    int64 // of the lease that it believes it holds; 0: none
	inFlight int64
	seen     int64
}

// leaseWorld is a database with three such gateways.
type leaseWorld struct {
	t        *testing.T
	db       *database.DB
	gateways []*leaseGateway
	highest  int64 // fence so far
}

// newLeaseWorld creates a database. The gateways reach it by the address that url returns for its name; nil: directly.
func newLeaseWorld(t *testing.T, url func(database string) string) *leaseWorld {
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
	w := &leaseWorld{t: t, db: db}
	for range 3 {
		g := new(leaseGateway)
		g.leases = leases{db, func() (int32, int64, bool) { return g.number, g.epoch, true }}
		w.gateways = append(w.gateways, g)
		w.join(g)
	}
	return w
}

// join begins a new epoch of a gateway.
func (w *leaseWorld) join(g *leaseGateway) {
	w.t.Helper()
	name := fmt.Sprintf("%p", g)
	w.must(w.db.WriteExclusive(w.t.Context(), func(tx database.Tx) error {
		return tx.QueryRowContext(w.t.Context(), `SELECT gateway, epoch FROM ledger_join_v1($1, 'test', 1)`, name).Scan(&g.number, &g.epoch)
	}))
	g.fence, g.inFlight, g.seen = 0, 0, 0
}

// reap ends the epoch of a gateway, which does not know it.
func (w *leaseWorld) reap(g *leaseGateway) {
	w.t.Helper()
	w.must(w.db.WriteExclusive(w.t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(w.t.Context(), `SELECT ledger_leave_v1($1, $2)`, g.number, g.epoch)
		return err
	}))
}

func (w *leaseWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// row returns the row of the backend, as a gateway sees it.
func (w *leaseWorld) row(g *leaseGateway) lease {
	w.t.Helper()
	rows, err := g.read(w.t.Context())
	w.must(err)
	if len(rows) == 0 {
		return lease{}
	}
	return rows[0]
}

// gained records that a gateway has got a lease, whose fence must be the highest so far.
func (w *leaseWorld) gained(g *leaseGateway, fence int64) {
	w.t.Helper()
	if fence < w.highest || fence == w.highest && g.fence != fence {
		w.t.Fatalf("got fence %d after %d", fence, w.highest)
	}
	w.highest, g.fence = fence, fence
}

// wantOneHolder checks that the database confirms at most one lease, and that of a gateway whose epoch has not ended.
func (w *leaseWorld) wantOneHolder() {
	w.t.Helper()
	holders := 0
	for _, g := range w.gateways {
		holds, err := g.holds(w.t.Context(), backendID{"m", "b"}, g.fence)
		w.must(err)
		if !holds {
			continue
		}
		holders++
		if r := w.row(g); r.fence != g.fence || !r.mine || !r.alive {
			w.t.Fatalf("a gateway holds fence %d, and the row is %+v", g.fence, r)
		}
	}
	if holders > 1 {
		w.t.Fatalf("%d gateways hold the lease", holders)
	}
}

// In random sequences of calls of three gateways, whose epochs end and begin at any time, at most one holds the lease,
// fences rise, a boot replaces no other gateway's operation, and a stop is committed only when no gateway that is alive
// has requests in flight or does not know of it.
func TestRandomCallsKeepTheInvariantsOfLeases(t *testing.T) {
	w := newLeaseWorld(t, nil)
	id := backendID{"m", "b"}
	steps := 1500
	if testing.Short() {
		steps = 300
	}
	done := map[string]int{}
	void := func() bool {
		return done["take over"] == 0 || done[fmt.Sprint("commit ", granted, true)] == 0 || done["end"] == 0
	}
	for i := 0; i < steps || void() && i < 10*steps; i++ {
		g := w.gateways[rand.IntN(len(w.gateways))]
		before := w.row(g)
		member := w.isMember(g)
		switch rand.IntN(8) {
		case 0, 1:
			operations := []operation{opLaunch, opWake, opStop, opSleep}
			q := claimRequest{operation: operations[rand.IntN(4)], limit: time.Minute, idle: time.Duration(rand.IntN(2)) * time.Nanosecond}
			r, v, err := g.begin(t.Context(), id, q)
			switch {
			case errors.Is(err, errNotMember) && !member:
			case err != nil || !member:
				t.Fatalf("begin: got %v, member: %t", err, member)
			case v == granted:
				if before.operation != opNone && !before.mine {
					t.Fatalf("%s was granted while another gateway had %+v", q.operation, before)
				}
				w.gained(g, r.fence)
			case v == cancelled && before.committed:
				t.Fatalf("a committed stop was cancelled: %+v", before)
			}
			done[fmt.Sprint("begin ", v)]++
		case 2:
			v, err := g.commitStop(t.Context(), id, g.fence, time.Minute)
			if err == nil && v == granted {
				if before.fence != g.fence || !before.mine || before.operation.boots() || !member || !before.committed && w.othersBusy(g) {
					t.Fatalf("a stop was committed: row %+v, fence %d, others busy: %t", before, g.fence, w.othersBusy(g))
				}
			}
			done[fmt.Sprint("commit ", v, err == nil)]++
		case 3:
			r, err := g.takeOver(t.Context(), id, before.fence)
			if err == nil && r != nil {
				if before.alive && !before.mine || before.operation != r.operation || !member {
					t.Fatalf("taken over: %+v, was %+v", r, before)
				}
				w.gained(g, r.fence)
				done["take over"]++
			}
		case 4:
			if err := g.end(t.Context(), id, g.fence, outcomeAbandoned, ""); err == nil && w.row(g).operation == opNone && before.mine {
				done["end"]++
			}
			w.highest = max(w.highest, w.row(g).fence)
		case 5, 6:
			g.seen, g.inFlight = w.row(g).fence, int64(rand.IntN(3)/2)
			if err := g.reportUses(t.Context(), map[backendID]use{id: {inFlight: g.inFlight > 0, seen: g.seen}}); err != nil && member {
				t.Fatal(err)
			}
		case 7:
			switch {
			case !member:
				w.join(g)
			case rand.IntN(3) == 0:
				w.reap(g)
			}
		}
		w.highest = max(w.highest, w.row(g).fence)
		w.wantOneHolder()
	}
	t.Log(done)
	if void() {
		t.Errorf("the sequence is void: %v", done)
	}
}

func (w *leaseWorld) isMember(g *leaseGateway) (member bool) {
	w.t.Helper()
	row := w.db.Read().QueryRowContext(w.t.Context(), `SELECT EXISTS (SELECT FROM gateway WHERE id = $1 AND epoch = $2 AND alive)`, g.number, g.epoch)
	w.must(row.Scan(&member))
	return member
}

// othersBusy reports whether another gateway that is alive has requests in flight, or does not know the lease.
func (w *leaseWorld) othersBusy(g *leaseGateway) bool {
	w.t.Helper()
	for _, other := range w.gateways {
		if other != g && w.isMember(other) && (other.inFlight > 0 || other.seen < g.fence) {
			return true
		}
	}
	return false
}

// A commit whose reply is lost may have been made: the call is repeated, and has the answer that was lost.
func TestLeaseCallWhoseReplyIsLostHasTheSameAnswerAgain(t *testing.T) {
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	w := newLeaseWorld(t, proxy.URL)
	id := backendID{"m", "b"}
	first, second, third := w.gateways[0], w.gateways[1], w.gateways[2]
	// lose makes a call whose commit is executed and whose reply is lost, and repeats it.
	lose := func(what string, call func() error) {
		t.Helper()
		lost := false
		proxy.Cut(func(r postgrestest.Reply) (after int, cut bool) {
			cut = !lost && r.Executed && r.Statement == "COMMIT"
			lost = lost || cut
			return 0, cut
		})
		if err := call(); !errors.Is(err, database.ErrUnavailable) {
			t.Fatalf("%s: got %v, want ErrUnavailable, as the reply is lost", what, err)
		}
		proxy.Cut(nil)
		poll.Until(t, what, func() bool { return call() == nil })
	}
	begin := func(g *leaseGateway, o operation) func() error {
		return func() error {
			r, v, err := g.begin(t.Context(), id, claimRequest{operation: o, limit: time.Minute})
			if err == nil && v != granted {
				t.Fatalf("%s: got %v, want granted", o, v)
			}
			g.fence = r.fence
			return err
		}
	}
	holds := func(g *leaseGateway) {
		t.Helper()
		if held, err := g.holds(t.Context(), id, g.fence); err != nil || !held {
			t.Fatalf("holds the lease: %t, %v", held, err)
		}
	}
	lose("launch", begin(first, opLaunch))
	holds(first)
	lose("end", func() error { return first.end(t.Context(), id, first.fence, outcomeReady, "") })
	if row := w.row(first); row.operation != opNone || row.outcome != outcomeReady {
		t.Errorf("got %+v after the end", row)
	}
	lose("stop", begin(first, opStop))
	for _, g := range []*leaseGateway{second, third} {
		lose("report uses", func() error { return g.reportUses(t.Context(), map[backendID]use{id: {seen: first.fence}}) })
	}
	lose("commit of the stop", func() error {
		v, err := first.commitStop(t.Context(), id, first.fence, time.Minute)
		if err == nil && v != granted {
			t.Fatalf("commit of the stop: got %v, want granted", v)
		}
		return err
	})
	holds(first)
	w.reap(first)
	fence := first.fence
	lose("takeover", func() error {
		r, err := second.takeOver(t.Context(), id, fence)
		switch {
		case err != nil:
			return err
		case r == nil:
			t.Fatal("takeover: the lease is not taken")
		}
		second.fence = r.fence
		return nil
	})
	holds(second)
}

// An order that was taken by a commit whose reply is lost is executed, and one that was not taken is taken again.
func TestOrderThatIsTakenByALostReplyIsExecuted(t *testing.T) {
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	w := newLeaseWorld(t, proxy.URL)
	f := &Fleet{db: w.db, leases: &w.gateways[0].leases}
	give := func(o operation) {
		t.Helper()
		w.must(w.db.WriteExclusive(t.Context(), func(tx database.Tx) error { return addOrder(t.Context(), tx, backendID{"m", "b"}, o) }))
	}
	for _, made := range []bool{true, false} {
		give(opStop)
		give(opSleep)
		before := proxy.Cuts()
		lost := false
		proxy.Cut(func(r postgrestest.Reply) (after int, cut bool) {
			cut = !lost && r.Executed && (made && r.Statement == "COMMIT" || !made && strings.Contains(r.Statement, "DELETE FROM model_orders"))
			lost = lost || cut
			return 0, cut
		})
		got, err := f.takeCommands(t.Context())
		proxy.Cut(nil)
		if err == nil || proxy.Cuts() != before+1 {
			t.Fatalf("got %v, want an error, as the reply is lost", got)
		}
		if !made {
			poll.Until(t, "the orders are taken", func() bool {
				got, err = f.takeCommands(t.Context())
				return err == nil
			})
		}
		if len(got) != 2 || got[0].command != Command(opStop) || got[1].command != Command(opSleep) {
			t.Errorf("commit was made: %t: got %+v, want the stop and the sleep", made, got)
		}
		poll.Until(t, "no more orders are taken", func() bool {
			again, err := f.takeCommands(t.Context())
			if len(again) > 0 {
				t.Errorf("got %+v, want no more orders", again)
			}
			return err == nil
		})
	}
}
