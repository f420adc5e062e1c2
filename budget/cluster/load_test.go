package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/postgrestest"
)

// load is many clients of several gateways, on keys and accounts with small caps and few slots.
type load struct {
	db       *testDatabase
	ledgers  []*cluster.Ledger
	keys     []budget.Payer
	requests int // of each client

	charged  sync.Map // request id → tokens that Settle or Release was called with
	outcomes sync.Map // kind → *atomic.Int64
}

const loadSlots = 3

func newLoad(t *testing.T, db *testDatabase, urls []string, requests int) *load {
	t.Helper()
	l := &load{db: db, requests: requests}
	for i, url := range urls {
		opened := open(t, url)
		t.Cleanup(opened.Close)
		ledger := cluster.New(opened, zap.NewNop(), cluster.Settings{
			Name: fmt.Sprint("gateway", i), Lanes: 2, Beat: 200 * time.Millisecond, Dead: time.Hour, AdmitTimeout: time.Minute,
		})
		must(t, ledger.Start(t.Context()))
		t.Cleanup(ledger.Close)
		l.ledgers = append(l.ledgers, ledger)
	}
	var owners []cluster.Owner
	for a := range 3 {
		account := fmt.Sprint("acc", a)
		owners = append(owners, cluster.Owner{ID: account, Enabled: true, Caps: quota.Caps{
			quota.MonthTotal: quota.Limit(12_000), quota.DayTotal: quota.Limit(10_000), quota.MonthOutput: quota.Limit(6000),
		}})
		for k := range 2 {
			key := fmt.Sprintf("key%d_%d", a, k)
			owners = append(owners, cluster.Owner{
				ID: key, Account: account, Enabled: true, Slots: loadSlots, Caps: quota.Caps{quota.MonthTotal: quota.Limit(7000)},
			})
			l.keys = append(l.keys, budget.Payer{Key: key, Account: account})
		}
	}
	must(t, l.ledgers[0].SetOwners(t.Context(), owners))
	return l
}

func (l *load) count(kind string) {
	counter, _ := l.outcomes.LoadOrStore(kind, new(atomic.Int64))
	counter.(*atomic.Int64).Add(1)
}

// run runs the clients, and meanwhile the disturbance, if it is not nil, again and again.
func (l *load) run(t *testing.T, clients int, disturb func()) {
	t.Helper()
	done := make(chan struct{})
	var observers, group sync.WaitGroup
	observers.Go(func() { l.observe(t, done) })
	if disturb != nil {
		observers.Go(func() { every(50*time.Millisecond, done, disturb) })
	}
	for i := range clients {
		group.Go(func() { l.client(t, rand.New(rand.NewPCG(7, uint64(i))), l.ledgers[i%len(l.ledgers)]) })
	}
	group.Wait()
	close(done)
	observers.Wait()
}

// every calls do with pauses until done is closed.
func every(pause time.Duration, done <-chan struct{}, do func()) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			do()
		}
	}
}

func (l *load) client(t *testing.T, rng *rand.Rand, ledger *cluster.Ledger) {
	t.Helper()
	for range l.requests {
		p := l.keys[rng.IntN(len(l.keys))]
		ctx, cancel := context.WithCancel(t.Context())
		if rng.IntN(10) == 0 { // a client that disconnects soon
			timer := time.AfterFunc(time.Duration(rng.IntN(20))*time.Millisecond, cancel)
			defer timer.Stop()
		}
		r := newRequest()
		d := demand(rng.Int64N(20), 1+rng.Int64N(60))
		reservation, err := ledger.Reserve(ctx, p, r, d, nil)
		cancel()
		var exceeded *budget.Exceeded
		switch {
		case errors.As(err, &exceeded):
			l.count("refused")
			continue
		case errors.Is(err, context.Canceled):
			l.count("canceled")
			continue
		case errors.Is(err, database.ErrUnavailable):
			l.count("unavailable")
			continue
		case err != nil:
			t.Error(err)
			return
		}
		o := budget.Outcome{Prompt: rng.Int64N(d.PromptTokens + 1), Completion: rng.Int64N(reservation.MaxTokens() + 1), Status: 200}
		l.charged.Store(r.ID, o.Prompt+o.Completion)
		if rng.IntN(10) == 0 {
			reservation.SetPromptTokens(o.Prompt)
			reservation.SetProgress(o.Completion)
			reservation.Release()
			l.count("released")
			continue
		}
		if err := reservation.Settle(t.Context(), o); err != nil {
			t.Errorf("settle: %v", err)
		}
		l.count("settled")
	}
}

// invariants counts the owners that break a cap or a limit of slots. Each statement has one snapshot.
const invariants = `
	SELECT count(*) FROM owner WHERE running > slots OR running < 0 OR waiting < 0 OR reserved_month_in < 0 OR reserved_month_out < 0
		OR reserved_day_in < 0 OR reserved_day_out < 0
		OR month_in + month_out + reserved_month_in + reserved_month_out > (caps ->> 'month_total')::bigint
		OR day_in + day_out + reserved_day_in + reserved_day_out > (caps ->> 'day_total')::bigint
		OR month_out + reserved_month_out > (caps ->> 'month_output')::bigint
		OR running <> (SELECT count(*) FROM inflight WHERE key = owner.id OR account = owner.id)
		OR waiting <> (SELECT count(*) FROM waiter WHERE key = owner.id OR account = owner.id)`

// observe checks the caps and slots until done is closed.
func (l *load) observe(t *testing.T, done <-chan struct{}) {
	t.Helper()
	var conn *pgx.Conn
	observed := 0
	every(5*time.Millisecond, done, func() {
		var err error
		if conn == nil || conn.IsClosed() {
			if conn, err = pgx.Connect(t.Context(), l.db.url+"&search_path=basegate"); err != nil {
				return // the server restarts
			}
		}
		var broken int
		if err := conn.QueryRow(t.Context(), invariants).Scan(&broken); err != nil {
			return
		}
		observed++
		if broken > 0 {
			t.Errorf("%d owners exceed a cap or their slots", broken)
		}
	})
	if conn != nil {
		conn.Close(t.Context())
	}
	t.Log("observations:", observed)
}

// check compares counters, rows and what the clients have charged, when nothing is in flight.
func (l *load) check(t *testing.T) {
	t.Helper()
	for _, ledger := range l.ledgers {
		for _, p := range l.keys {
			ledger.Sync(t, p.Account)
		}
	}
	db := connect(t, l.db.url)
	var broken, running, waiting, unequal int
	db.query(t, invariants, nil, &broken)
	db.query(t, `SELECT sum(running), sum(waiting) FROM owner`, nil, &running, &waiting)
	db.query(t, `
		SELECT count(*) FROM owner o, LATERAL (
			SELECT coalesce(sum(prompt_tokens), 0) AS prompt, coalesce(sum(completion_tokens), 0) AS completion FROM requests
			WHERE key_id = o.id OR account_id = o.id) r
		WHERE month_in <> prompt OR month_out <> completion OR reserved_month_in + reserved_month_out + reserved_day_in + reserved_day_out <> 0`, nil, &unequal)
	if broken+running+waiting+unequal > 0 {
		t.Errorf("got %d owners over a limit, %d running, %d waiting, %d unequal to their rows, want none",
			broken, running, waiting, unequal)
	}
	charged := map[string]int64{}
	rows, err := db.conn.Query(t.Context(), `SELECT request_id, prompt_tokens + completion_tokens FROM requests`)
	must(t, err)
	var (
		id     string
		tokens int64
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &tokens}, func() error {
		if _, twice := charged[id]; twice {
			t.Errorf("request %s has two rows", id)
		}
		charged[id] = tokens
		return nil
	})
	must(t, err)
	l.charged.Range(func(id, want any) bool {
		if got, ok := charged[id.(string)]; !ok || got != want.(int64) {
			t.Errorf("request %s is charged %d tokens (%v), want %d", id, got, ok, want)
		}
		delete(charged, id.(string))
		return true
	})
	for id := range charged {
		t.Errorf("request %s is charged, although its client got no reservation", id)
	}
	var kinds []string
	l.outcomes.Range(func(kind, n any) bool {
		kinds = append(kinds, fmt.Sprint(kind, " ", n.(*atomic.Int64).Load()))
		return true
	})
	var stats []string
	for _, ledger := range l.ledgers {
		stats = append(stats, fmt.Sprint(ledger.Values(t)))
	}
	t.Log(strings.Join(kinds, ", "), strings.Join(stats, " "))
}

func loadRequests() int {
	if testing.Short() {
		return 10
	}
	return 40
}

func TestCapsAndSlotsHoldUnderABurstFromSeveralGateways(t *testing.T) {
	db := newDatabase(t)
	l := newLoad(t, db, []string{db.url, db.url, db.url}, loadRequests())
	l.run(t, 60, nil)
	l.check(t)
}

func TestLostRepliesChargeEveryRequestOnce(t *testing.T) {
	db := newDatabase(t)
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	url := through(t, proxy, db)
	l := newLoad(t, db, []string{url, url}, loadRequests())
	rng := rand.New(rand.NewPCG(7, 0))
	proxy.Cut(func(r postgrestest.Reply) (after int, cut bool) {
		return rng.IntN(len(r.Text) + 1), isCall(r) && rng.IntN(5) == 0
	})
	l.run(t, 40, nil)
	proxy.Cut(nil)
	l.check(t)
	if proxy.Cuts() == 0 {
		t.Error("no reply was lost")
	}
}

func TestTerminatedBackendsChargeEveryRequestOnce(t *testing.T) {
	db := newDatabase(t)
	l := newLoad(t, db, []string{db.url, db.url}, loadRequests())
	conn := connect(t, strings.Replace(db.url, "?", "?application_name=killer&", 1)).conn
	terminated := 0
	l.run(t, 40, func() {
		var n int
		err := conn.QueryRow(t.Context(), `
			SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name LIKE 'basegate%' AND datname = current_database() AND random() < 0.2`).Scan(&n)
		if err != nil {
			t.Error(err)
		}
		terminated += n
	})
	l.check(t)
	if terminated == 0 {
		t.Error("no backend was terminated")
	}
}

func TestRestartsOfPostgreSQLChargeEveryRequestOnce(t *testing.T) {
	server := postgrestest.Start(t)
	empty := open(t, server.URL("postgres"))
	_, err := empty.Migrate(t.Context())
	must(t, err)
	empty.Close()
	db := &testDatabase{url: server.URL("postgres")}
	l := newLoad(t, db, []string{db.url, db.url}, loadRequests())
	restarts := 0
	l.run(t, 40, func() {
		if restarts < 3 {
			server.Stop(t)
			server.Run(t)
			restarts++
		}
	})
	l.check(t)
	if restarts == 0 {
		t.Error("the server was not restarted")
	}
}
