package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/internal/wait"
)

// stopStride returns the distance of the places inside a message: BASEGATE_STOP_STRIDE, or a default.
func stopStride(tb testing.TB) int {
	tb.Helper()
	text := os.Getenv("BASEGATE_STOP_STRIDE")
	if text == "" {
		return 400
	}
	stride, err := strconv.Atoi(text)
	must(tb, err)
	return max(stride, 1)
}

// stopsOf returns after how many bytes of a request a gateway stops: none, all, at the end of each message, one byte before and after
// it, and inside of messages.
func stopsOf(r postgrestest.Request, stride int) []int {
	all := []int{0, 1}
	for _, end := range r.Ends {
		all = append(all, end-1, end, min(end+1, len(r.Text)))
	}
	for at := stride; at < len(r.Text); at += stride {
		all = append(all, at)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// stopKind is a kind of call in which a gateway stops.
type stopKind struct {
	name string
	// prepare does what the gateway and another one do before.
	prepare func(t *testing.T, s *stopScript, p budget.Payer) (call func())
	matches func(postgrestest.Request) bool
	charged int64 // tokens, by prepare, the call, and what follows it in the gateway
	sparse  int   // factor of the stride: between the steps of a batch's transaction every place holds locks for seconds
}

// stopAdmitTimeout is longer than a session lasts that holds locks in silence, also on a machine that stalls.
const stopAdmitTimeout = 5 * time.Minute

// reads matches a request that begins a transaction of two steps, writes one of a single step, and commits the second of two.
func reads(r postgrestest.Request) bool {
	return r.Executed && strings.Contains(r.Statement, "BEGIN; ") && strings.Contains(r.Statement, "ledger_read_v1(")
}

func writes(r postgrestest.Request) bool {
	return r.Executed && strings.Contains(r.Statement, "ledger_write_v1(") && !strings.Contains(r.Statement, "COMMIT")
}

func commits(r postgrestest.Request) bool {
	return r.Executed && strings.Contains(r.Statement, "ledger_write_v1(") && strings.Contains(r.Statement, "; COMMIT")
}

func requests(text string) func(postgrestest.Request) bool {
	return func(r postgrestest.Request) bool { return r.Executed && strings.Contains(r.Statement, text) }
}

// Tokens of a request of this test, and of a line.
const stopTokens, stopLineTokens = 10 + 7, 10 + 5

var stopKinds = []stopKind{
	{"first step of an admission", admission, reads, stopTokens, 1},
	{"second step of an admission", admission, commits, stopTokens, 1},
	{"admission", admissionOnHeldRow, writes, 2 * stopTokens, 1},
	{"settlement", settlementOnHeldRow, writes, stopTokens, 1},
	{"first step of a settlement", settlementOnChangedRow, reads, 2 * stopTokens, 1},
	{"second step of a settlement", settlementOnChangedRow, commits, 2 * stopTokens, 1},
	{"lock of a batch's settlement", settlementOfLine, requests("ledger_read_v1("), stopLineTokens, 16},
	{"write of a batch's settlement", settlementOfLine, writes, stopLineTokens, 16},
	{"commit of a batch's settlement", settlementOfLine, requests("COMMIT"), stopLineTokens, 16},
}

func admission(t *testing.T, s *stopScript, p budget.Payer) func() {
	t.Helper()
	return func() { s.spend(t, s.gateway, p) }
}

func admissionOnHeldRow(t *testing.T, s *stopScript, p budget.Payer) func() {
	t.Helper()
	s.spend(t, s.gateway, p)
	return admission(t, s, p)
}

func settlementOnHeldRow(t *testing.T, s *stopScript, p budget.Payer) func() {
	t.Helper()
	r := s.reserve(t, s.gateway, p)
	return func() { settle(t, r, 10, 7) }
}

func settlementOnChangedRow(t *testing.T, s *stopScript, p budget.Payer) func() {
	t.Helper()
	r := s.reserve(t, s.gateway, p)
	s.spend(t, s.other, p)
	return func() { settle(t, r, 10, 7) }
}

func settlementOfLine(t *testing.T, s *stopScript, p budget.Payer) func() {
	t.Helper()
	q := newRequest()
	q.Batch = "batch_1"
	r, err := s.gateway.TryReserve(t.Context(), p, q, demand(10, 10), nil)
	must(t, err)
	line := r.Prepare(budget.Outcome{Prompt: 10, Completion: 5, Status: 200})
	return func() {
		for write(t, s.store, []budget.Settlement{line}, nil) != nil && wait.For(t.Context(), 10*time.Millisecond) { // as package batch does
		}
		line.Commit()
	}
}

// stopScript stops one gateway, which reaches the database through a proxy, again and again. Another one uses the same accounts.
type stopScript struct {
	db       *testDatabase
	proxy    *postgrestest.Proxy
	gateway  *cluster.Ledger
	store    *database.DB // of the gateway
	other    *cluster.Ledger
	third    *cluster.Ledger
	accounts int // that were used
}

func (*stopScript) reserve(t *testing.T, l *cluster.Ledger, p budget.Payer) budget.Reservation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stopAdmitTimeout)
	defer cancel()
	r, err := l.Reserve(ctx, p, newRequest(), demand(10, 10), nil)
	must(t, err)
	return r
}

func (s *stopScript) spend(t *testing.T, l *cluster.Ledger, p budget.Payer) {
	t.Helper()
	settle(t, s.reserve(t, l, p), 10, 7)
}

// newStopScript starts three gateways on a database of their own: the one that is stopped, another one on its accounts, and a third.
func newStopScript(t *testing.T) *stopScript {
	t.Helper()
	db := newDatabase(t)
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	proxied := &testDatabase{url: through(t, proxy, db)}
	begin := func(d *testDatabase, name string) *cluster.Ledger {
		return start(t, d, cluster.Settings{Name: name, Lanes: 1, Dead: time.Hour, AdmitTimeout: stopAdmitTimeout, CutOff: time.Hour})
	}
	s := &stopScript{
		db: db, proxy: proxy, gateway: begin(proxied, "stopped"), other: begin(db, "other"), third: begin(db, "third"),
		store: openStore(t, proxied),
	}
	t.Cleanup(proxy.Resume)
	setOwners(t, s.third, 1, quota.Caps{})
	s.spend(t, s.third, payer)
	return s
}

// run makes a call of a kind on an account of its own, in which the gateway stops at a place. Meanwhile the other gateway uses the
// account. It returns how long that took, and the number of places. On a machine that stalls, a call may take other steps than
// those of its kind, and is then made again.
func (s *stopScript) run(t *testing.T, kind *stopKind, place int) (delay time.Duration, places int) {
	t.Helper()
	for range 5 {
		if delay, places, stopped := s.try(t, kind, place); stopped {
			return delay, places
		}
	}
	t.Fatalf("%s: five calls have ended before the gateway was stopped in them", kind.name)
	return 0, 0
}

// try is run, or reports that the call has ended before the gateway was stopped in it.
func (s *stopScript) try(t *testing.T, kind *stopKind, place int) (delay time.Duration, places int, isStopped bool) {
	t.Helper()
	s.accounts++
	p := budget.Payer{Key: fmt.Sprint("key", s.accounts), Account: fmt.Sprint("acc", s.accounts)}
	must(t, s.other.SetOwners(t.Context(), []cluster.Owner{
		{ID: p.Account, Enabled: true}, {ID: p.Key, Account: p.Account, Enabled: true, Slots: 8},
	}))
	s.spend(t, s.other, p)
	call := kind.prepare(t, s, p)
	stopped, done := make(chan int, 1), make(chan struct{})
	s.proxy.Stop(func(r postgrestest.Request) (after int, stop bool) {
		if !kind.matches(r) || len(stopped) > 0 {
			return 0, false
		}
		all := stopsOf(r, stopStride(t)*kind.sparse)
		stopped <- len(all)
		return all[min(place, len(all)-1)], true
	})
	go func() {
		defer close(done)
		call()
	}()
	select {
	case places = <-stopped:
	case <-done:
		s.proxy.Stop(nil)
		return 0, 0, false
	}
	s.proxy.Stop(nil)
	wait.For(t.Context(), 25*time.Millisecond) // the server reads what it has got
	began := time.Now()
	s.spend(t, s.other, p)
	delay = time.Since(began)
	s.proxy.Resume()
	<-done
	var used, reserved, rows int64
	s.db.query(t, `SELECT month_in + month_out, reserved_life_in + reserved_life_out + running, (SELECT sum(prompt_tokens + completion_tokens)
		FROM requests WHERE key_id = $1) FROM owner WHERE id = $1`, []any{p.Key}, &used, &reserved, &rows)
	if want := kind.charged + 2*stopTokens; used != want || rows != want || reserved != 0 {
		t.Errorf("%s, stopped at place %d: got %d used tokens, %d of rows and %d reserved, want %d, as many and none",
			kind.name, place, used, rows, reserved, want)
	}
	return delay, places, true
}

// besides has the third gateway use its account meanwhile. Each of its operations is one call if nobody holds or changes that, and if
// the machine does not stall: then a call is sent again.
func (s *stopScript) besides(t *testing.T, do func()) {
	t.Helper()
	before, operations, longest, finished := s.third.Values(t), 0, time.Duration(0), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		every(20*time.Millisecond, finished, func() {
			began := time.Now()
			s.spend(t, s.third, payer)
			operations, longest = operations+2, max(longest, time.Since(began))
		})
	})
	do()
	close(finished)
	group.Wait()
	if longest > time.Second {
		t.Logf("the third gateway's calls are not counted: one took %v", longest)
		return
	}
	after := s.third.Values(t)
	since := func(name string) float64 { return after[name] - before[name] }
	if calls, resent, conflicts := since("calls_total"), since("resent_calls_total"), since("conflicts_total"); calls != float64(operations) || resent+conflicts > 0 {
		t.Errorf("the third gateway: got %v calls for %d operations, %v resent, %v conflicts; want one each, and none", calls, operations, resent, conflicts)
	}
}

// A gateway that is stopped in what it sends, at the end of a message or inside of it, delays others that use the same account until its
// session is ended, and nobody else. What it sends when it continues is charged once.
func TestGatewayStoppedInACallDelaysOthersOnItsAccountsOnly(t *testing.T) {
	type job struct {
		kind  *stopKind
		place int
	}
	scripts := make([]*stopScript, 8) // at the same time, since most of it is waiting
	for i := range scripts {
		scripts[i] = newStopScript(t)
	}
	var mu sync.Mutex // guards the variables below
	var jobs []job
	places, held, longest := map[*stopKind]int{}, map[*stopKind]int{}, map[*stopKind]time.Duration{}
	work := func(s *stopScript, j job) {
		delay, all := s.run(t, j.kind, j.place)
		mu.Lock()
		defer mu.Unlock()
		places[j.kind], longest[j.kind] = all, max(longest[j.kind], delay)
		if delay > time.Second {
			held[j.kind]++
		}
	}
	for i := range stopKinds {
		kind := &stopKinds[i]
		work(scripts[0], job{kind, 0})
		for place := range places[kind] {
			if place > 0 {
				jobs = append(jobs, job{kind, place})
			}
		}
	}
	rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] }) // so that all scripts wait about as often
	next := func() (j job, found bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(jobs) == 0 || t.Failed() {
			return j, false
		}
		j, jobs = jobs[0], jobs[1:]
		return j, true
	}
	var workers sync.WaitGroup
	for _, s := range scripts {
		workers.Go(func() {
			s.besides(t, func() {
				for j, found := next(); found; j, found = next() {
					work(s, j)
				}
			})
		})
	}
	workers.Wait()
	all := 0 // places where others were delayed; of a transaction's first call they depend on how fast the server reads
	for i := range stopKinds {
		kind := &stopKinds[i]
		t.Logf("%s: %d places, of which %d delayed others for more than a second, the longest %v",
			kind.name, places[kind], held[kind], longest[kind].Round(time.Millisecond))
		all += held[kind]
	}
	if all == 0 {
		t.Error("no place has delayed others: the test has not tested enough")
	}
}

// A gateway that is stopped in a heartbeat is reaped, also if the server has executed it and waits for the end of the transaction.
func TestGatewayStoppedInAHeartbeatIsReaped(t *testing.T) {
	db := newDatabase(t)
	start(t, db, cluster.Settings{Name: "other", Beat: 50 * time.Millisecond, Dead: time.Second})
	const together = 12 // for the server's limit of connections
	for first, places := 0, 1; first < places; first += together {
		t.Run(fmt.Sprint("from place ", first), func(t *testing.T) {
			for place := first; place < min(first+together, places); place++ {
				places = stopInAHeartbeat(t, db, place)
			}
			poll.Until(t, "the stopped gateways are reaped", func() (reaped bool) {
				db.query(t, `SELECT count(*) = 1 FROM gateway WHERE alive`, nil, &reaped)
				return reaped
			})
		})
	}
}

// stopInAHeartbeat starts a gateway that stops at a place of a heartbeat, until the end of the test, and returns the number of places.
func stopInAHeartbeat(t *testing.T, db *testDatabase, place int) (places int) {
	t.Helper()
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	stopped := make(chan int, 1)
	proxy.Stop(func(r postgrestest.Request) (after int, stop bool) {
		if !r.Executed || !strings.Contains(r.Statement, "ledger_beat_v1(") || len(stopped) > 0 {
			return 0, false
		}
		all := stopsOf(r, stopStride(t))
		stopped <- len(all)
		return all[min(place, len(all)-1)], true
	})
	start(t, &testDatabase{url: through(t, proxy, db)}, cluster.Settings{
		Name: fmt.Sprint("stopped", place), Lanes: 1, Beat: 50 * time.Millisecond, Dead: time.Hour,
	})
	t.Cleanup(proxy.Resume)
	return <-stopped
}
