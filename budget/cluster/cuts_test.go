package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// Indexes of the arguments of ledger_write_v1.
const (
	argumentEpoch      = 1
	argumentOpen       = 10
	argumentSettle     = 11
	argumentCheckpoint = 12
	argumentWait       = 13
	argumentGone       = 14
	argumentCollect    = 16
)

// isCall reports whether a reply is that to a call of ledger_write_v1.
func isCall(r postgrestest.Reply) bool {
	return r.Executed && strings.Contains(r.Statement, "ledger_write_v1(")
}

// replays matches the reply to the write of a gateway that has no epoch.
func replays(r postgrestest.Reply) bool { return isCall(r) && r.Arguments[argumentEpoch] == nil }

// call matches a reply to a call of which an argument contains a text.
func call(argument int, text string) func(postgrestest.Reply) bool {
	return func(r postgrestest.Reply) bool {
		return isCall(r) && r.Arguments[argument] != nil && bytes.Contains(r.Arguments[argument], []byte(text))
	}
}

// decides matches a reply that has decisions on waiters.
func decides(r postgrestest.Reply) bool {
	return isCall(r) && bytes.Contains(r.Text, []byte(`"decided" : [`))
}

func collects(r postgrestest.Reply) bool {
	return decides(r) && bytes.Equal(r.Arguments[argumentCollect], []byte{1})
}

// parses matches the reply to the preparation of ledger_write_v1 on a new connection.
func parses(r postgrestest.Reply) bool {
	return !r.Executed && strings.Contains(r.Statement, "ledger_write_v1(")
}

func startup(r postgrestest.Reply) bool { return r.Statement == "" }

// statement matches a reply to a statement that contains a text.
func statement(text string) func(postgrestest.Reply) bool {
	return func(r postgrestest.Reply) bool { return r.Executed && strings.Contains(r.Statement, text) }
}

// replyCuts cuts one reply of each kind in turn: the last one at a place, those before it in front of their first byte.
type replyCuts struct {
	kinds  []func(postgrestest.Reply) bool // of the cuts that are left
	place  int                             // index
	places int                             // of the last kind
}

func (c *replyCuts) decide(r postgrestest.Reply) (after int, cut bool) {
	if len(c.kinds) == 0 || !c.kinds[0](r) {
		return 0, false
	}
	if c.kinds = c.kinds[1:]; len(c.kinds) > 0 {
		return 0, true
	}
	all := placesOf(r)
	c.places = len(all)
	return all[min(c.place, len(all)-1)], true
}

// placesOf returns after how many bytes of a reply it is cut: none, one, in its middle, at the end of each message, and before
// its last byte. At the end of the last message the client has the whole reply, and then loses the connection. The reply to a
// startup has many messages, whose ends are left out.
func placesOf(r postgrestest.Reply) []int {
	all := []int{0, 1, len(r.Text) / 2, len(r.Text) - 1}
	if !testing.Short() && r.Statement != "" {
		all = append(all, r.Ends...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// cutEach repeats the script, with the last kind of reply cut at each place in turn.
func cutEach(t *testing.T, proxy *postgrestest.Proxy, kinds []func(postgrestest.Reply) bool, script func(t *testing.T)) {
	t.Helper()
	for cuts := (&replyCuts{places: 1}); cuts.place < cuts.places; cuts.place++ {
		cuts.kinds = kinds
		before := proxy.Cuts()
		proxy.Cut(cuts.decide)
		script(t)
		poll.Until(t, "the replies are cut", func() bool { return proxy.Cuts() == before+len(kinds) })
		proxy.Cut(nil)
		if t.Failed() {
			t.Fatalf("the first failure is with the cut at place %d", cuts.place)
		}
	}
}

// callScript makes calls of each kind. Its gateway reaches the database through a proxy, and another one directly.
type callScript struct {
	db             *testDatabase
	proxy          *postgrestest.Proxy
	gateway, other *cluster.Ledger
	store          *database.DB // of the gateway
	runs           int64
}

func newCallScript(t *testing.T) *callScript {
	t.Helper()
	s := &callScript{db: newDatabase(t), proxy: postgrestest.NewProxy(t, postgrestest.Shared(t))}
	proxied := &testDatabase{url: through(t, s.proxy, s.db)}
	settings := cluster.Settings{Name: "gateway", Lanes: 1, Beat: 50 * time.Millisecond, AdmitTimeout: time.Minute}
	s.gateway = start(t, proxied, settings)
	settings.Name = "other"
	s.other = start(t, s.db, settings)
	s.store = openStore(t, proxied)
	setOwners(t, s.gateway, 1, quota.Caps{})
	return s
}

// named returns a request whose model is a name, by which the calls with its admission are found.
func named(name string) budget.Request {
	q := newRequest()
	q.Model = name
	return q
}

// submit submits a request that has to wait.
func submit(t *testing.T, l *cluster.Ledger, name string) *cluster.Admission {
	t.Helper()
	a, kind, _, err := l.Submit(t, payer, named(name), demand(10, 10))
	if kind != "wait" {
		t.Fatalf("%s: got %s, %v, want wait", name, kind, err)
	}
	return a
}

// await waits until a request is granted that waits.
func await(t *testing.T, name string, a *cluster.Admission) (granted budget.Reservation) {
	t.Helper()
	poll.Until(t, name+" is granted", func() bool {
		_, r, err, decided := a.Decided()
		must(t, err)
		granted = r
		return decided
	})
	return granted
}

// Tokens that a run of the script charges: five requests, and two lines of a batch.
const (
	scriptTokens = 5*(10+7) + 2*(10+5)
	scriptRows   = 7
)

// run makes the calls and compares the sums.
func (s *callScript) run(t *testing.T) {
	t.Helper()
	end := func(r budget.Reservation, code string) {
		t.Helper()
		must(t, r.Settle(t.Context(), budget.Outcome{Prompt: 10, Completion: 7, Status: 200, Code: code}))
	}
	running, err := s.gateway.Reserve(t.Context(), payer, named("admitted"), demand(10, 10), nil)
	must(t, err)
	running.SetPromptTokens(10)
	running.SetProgress(3)
	s.gateway.Checkpoint(t, running)
	var checkpoint int64
	s.db.query(t, `SELECT completion_tokens FROM inflight`, nil, &checkpoint)
	if checkpoint != 3 {
		t.Errorf("got a checkpoint of %d tokens, want 3", checkpoint)
	}
	own, remote, canceled := submit(t, s.gateway, "waits"), submit(t, s.other, "other"), submit(t, s.gateway, "canceled")
	canceled.Cancel()
	end(running, "grants")
	end(await(t, "the waiter of the gateway", own), "notifies")
	running = await(t, "the waiter of the other gateway", remote)
	collected := submit(t, s.gateway, "collected")
	end(running, "other")
	released := await(t, "the waiter that the other gateway's settlement grants", collected)
	released.SetPromptTokens(10)
	released.SetProgress(7)
	next := submit(t, s.gateway, "follows")
	released.Release()
	end(await(t, "the waiter after a release", next), "last")

	lines := prepareLines(t, s.gateway, 2)
	poll.Until(t, "the lines are settled", func() bool {
		err := write(t, s.store, lines, nil) // again and again, as package batch does
		if err != nil && !errors.Is(err, database.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	for _, line := range lines {
		line.Commit()
	}
	s.runs++
	s.check(t)
}

// check compares the counters with what the runs have charged.
func (s *callScript) check(t *testing.T) {
	t.Helper()
	checkUsed(t, s.db, s.runs*scriptTokens, 0, s.runs*scriptRows)
	var requests, left int64
	s.db.query(t, `SELECT (SELECT count(DISTINCT request_id) FROM requests), (SELECT sum(running + waiting) FROM owner)
		+ (SELECT count(*) FROM inflight) + (SELECT count(*) FROM waiter) + (SELECT count(*) FROM decided)`,
		nil, &requests, &left)
	if requests != s.runs*scriptRows || left != 0 {
		t.Errorf("got rows of %d requests, and %d that are left of leases and waits; want %d and none", requests, left, s.runs*scriptRows)
	}
	for name, l := range map[string]*cluster.Ledger{"the gateway": s.gateway, "the other gateway": s.other} {
		if got := l.Values(t); got["fenced_total"]+got["reaped_gateways_total"]+got["split_calls_total"] > 0 {
			t.Errorf("%s: got %v, want no epoch that has ended and no call that was split", name, got)
		}
	}
}

// Each kind of call is executed, and its reply is lost at each place of it in turn.
func TestCutReplyOfEachCallTakesEffectOnce(t *testing.T) {
	s := newCallScript(t)
	admission := call(argumentOpen, `"model":"admitted"`)
	for _, c := range []struct {
		name  string
		kinds []func(postgrestest.Reply) bool
	}{
		{"admission", []func(postgrestest.Reply) bool{admission}},
		{"admission, and the look at its outcome", []func(postgrestest.Reply) bool{admission, statement("ledger_read_v1")}},
		{"admission, and the start of the next connection", []func(postgrestest.Reply) bool{admission, startup}},
		{"admission, and the preparation on the next connection", []func(postgrestest.Reply) bool{admission, parses}},
		{"admission of a request that waits", []func(postgrestest.Reply) bool{call(argumentWait, `"model":"waits"`)}},
		{"checkpoint", []func(postgrestest.Reply) bool{call(argumentCheckpoint, "{")}},
		{"cancellation", []func(postgrestest.Reply) bool{call(argumentGone, "{")}},
		{"settlement that grants", []func(postgrestest.Reply) bool{call(argumentSettle, `"code":"grants"`)}},
		{"settlement that notifies", []func(postgrestest.Reply) bool{call(argumentSettle, `"code":"notifies"`)}},
		{"settlement of a release", []func(postgrestest.Reply) bool{call(argumentSettle, `"state":"interrupted"`)}},
		{"collected grant", []func(postgrestest.Reply) bool{collects}},
		{"collected grant, and the look at its outcome", []func(postgrestest.Reply) bool{collects, statement("ledger_")}},
		{"heartbeat", []func(postgrestest.Reply) bool{statement("ledger_beat_v1")}},
		{"beginning of a batch's transaction", []func(postgrestest.Reply) bool{statement("BEGIN;")}},
		{"lock of accounts", []func(postgrestest.Reply) bool{statement("ledger_read_v1")}},
		{"beginning of a lane's transaction", []func(postgrestest.Reply) bool{statement("BEGIN")}},
		{"commit of a batch settlement", []func(postgrestest.Reply) bool{statement("COMMIT")}},
		{"commit of a batch settlement, twice", []func(postgrestest.Reply) bool{statement("COMMIT"), statement("COMMIT")}},
	} {
		t.Run(c.name, func(t *testing.T) { cutEach(t, s.proxy, c.kinds, s.run) })
	}
	s.gateway.Sync(t, payer.Account)
	if got := s.gateway.Values(t); got["resent_calls_total"] == 0 {
		t.Errorf("got %v, want calls that were sent again", got)
	}
	t.Logf("%d runs, %d cuts", s.runs, s.proxy.Cuts())
}

// A grant to a gateway whose listener cannot listen again is collected by its poll.
func TestCutRepliesOfTheListenerDelayGrantsOnly(t *testing.T) {
	s := newCallScript(t)
	listens := []func(postgrestest.Reply) bool{statement("LISTEN")}
	cutEach(t, s.proxy, listens, func(t *testing.T) {
		t.Helper()
		before := s.proxy.Cuts()
		s.proxy.CutAll()
		poll.Until(t, "the listener's reply is cut", func() bool { return s.proxy.Cuts() > before })
		s.run(t)
	})
}

// progressing returns a request of which 13 tokens are on disk.
func progressing(t *testing.T, l *cluster.Ledger) budget.Reservation {
	t.Helper()
	r := reserve(t, l, demand(10, 10))
	r.SetPromptTokens(10)
	r.SetProgress(3)
	l.Checkpoint(t, r)
	return r
}

// awaitRows waits until so many requests have ended.
func awaitRows(t *testing.T, db *testDatabase, want int64) {
	t.Helper()
	poll.Until(t, "the requests have ended", func() bool {
		var rows int64
		db.query(t, `SELECT count(*) FROM requests`, nil, &rows)
		return rows == want
	})
}

// The end of a dead gateway's epoch charges its requests once, if the reply is lost at any place of it.
func TestCutReplyOfAReapInterruptsRequestsOnce(t *testing.T) {
	db := newDatabase(t)
	deadProxy, proxy := postgrestest.NewProxy(t, postgrestest.Shared(t)), postgrestest.NewProxy(t, postgrestest.Shared(t))
	dead := start(t, &testDatabase{url: through(t, deadProxy, db)}, cluster.Settings{Name: "dead", Beat: 20 * time.Millisecond, Dead: time.Hour})
	other := start(t, &testDatabase{url: through(t, proxy, db)}, cluster.Settings{Name: "other", Beat: 20 * time.Millisecond, Dead: 2 * time.Second})
	setOwners(t, other, 1, quota.Caps{})
	t.Cleanup(deadProxy.Resume)
	var runs int64
	cutEach(t, proxy, []func(postgrestest.Reply) bool{statement("ledger_reap_v1")}, func(t *testing.T) {
		t.Helper()
		gateway, epoch := dead.Identity()
		lost := progressing(t, dead)
		deadProxy.Pause()
		runs++
		poll.Until(t, "the dead gateway's epoch has ended", func() (ended bool) {
			db.query(t, `SELECT NOT (alive AND epoch = $2) FROM gateway WHERE id = $1`, []any{gateway, epoch}, &ended)
			return ended
		})
		awaitRows(t, db, runs)
		checkUsed(t, db, runs*13, 0, runs)
		deadProxy.Resume()
		poll.Until(t, "the gateway begins another epoch", func() bool { return dead.Rejoined(epoch) })
		lost.Release() // the other gateway has charged it
	})
	other.Sync(t, payer.Account)
	checkUsed(t, db, runs*13, 0, runs)
}

// The end of a gateway's own epoch charges its requests once, if the reply is lost at any place of it.
func TestCutReplyOfALeaveInterruptsRequestsOnce(t *testing.T) {
	db := newDatabase(t)
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	setOwners(t, start(t, db, cluster.Settings{Name: "other", Beat: 20 * time.Millisecond}), 1, quota.Caps{})
	var runs int64
	cutEach(t, proxy, []func(postgrestest.Reply) bool{statement("ledger_leave_v1")}, func(t *testing.T) {
		t.Helper()
		l := start(t, &testDatabase{url: through(t, proxy, db)}, cluster.Settings{Name: "leaves"})
		gateway, epoch := l.Identity()
		progressing(t, l)
		l.Close()
		runs++
		awaitRows(t, db, runs) // the other gateway ends what this one has left
		checkUsed(t, db, runs*13, 0, runs)
		var alive bool
		db.query(t, `SELECT alive AND epoch = $2 FROM gateway WHERE id = $1`, []any{gateway, epoch}, &alive)
		if alive {
			t.Error("the epoch has not ended")
		}
	})
}

// A gateway whose epoch has ended by lost commits writes its settlements again and begins another epoch, and the reply to each
// step of that is lost at each place of it in turn.
func TestCutRepliesOfANewEpochLoseNoSettlement(t *testing.T) {
	db := newDatabase(t)
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	l := start(t, &testDatabase{url: through(t, proxy, db)}, cluster.Settings{Name: "gateway", Lanes: 1, Beat: 20 * time.Millisecond})
	setOwners(t, l, 1, quota.Caps{})
	var runs, rows int64
	for name, kind := range map[string]func(postgrestest.Reply) bool{
		"look at the epoch": statement("SELECT alive"), "replay": replays, "join": statement("ledger_join_v1"),
	} {
		t.Run(name, func(t *testing.T) {
			cutEach(t, proxy, []func(postgrestest.Reply) bool{kind}, func(t *testing.T) {
				t.Helper()
				_, epoch := l.Identity()
				first := reserve(t, l, demand(10, 10))
				loseCommits(t, db, func() {
					settle(t, first, 10, 7)
					settle(t, reserve(t, l, demand(10, 10)), 10, 5)
				})
				r, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil)
				switch {
				case err == nil: // the listener's call has found it before
					settle(t, r, 0, 0)
					rows++
				case !errors.Is(err, cluster.ErrLostCommits):
					t.Errorf("got %v, want ErrLostCommits", err)
				}
				poll.Until(t, "the gateway begins another epoch", func() bool { return l.Rejoined(epoch) })
				runs, rows = runs+1, rows+2
				checkUsed(t, db, runs*(17+15), 0, rows)
			})
		})
	}
}

// loseCommits makes the database forget what do has changed, as after a failover to a standby that was behind.
func loseCommits(t *testing.T, db *testDatabase, do func()) {
	t.Helper()
	for _, table := range []string{"owner", "inflight", "requests", "lane"} {
		db.exec(t, fmt.Sprintf(`DROP TABLE IF EXISTS public.standby_%[1]s`, table))
		db.exec(t, fmt.Sprintf(`CREATE TABLE public.standby_%[1]s AS SELECT * FROM %[1]s`, table))
	}
	do()
	db.exec(t, `BEGIN`)
	for _, table := range []string{"owner", "inflight", "requests"} {
		db.exec(t, `DELETE FROM `+table)
		db.exec(t, fmt.Sprintf(`INSERT INTO %[1]s SELECT * FROM public.standby_%[1]s`, table))
	}
	db.exec(t, `UPDATE lane SET seq = s.seq, reply = s.reply FROM public.standby_lane s WHERE (lane.gateway, lane.n) = (s.gateway, s.n)`)
	db.exec(t, `COMMIT`)
}
