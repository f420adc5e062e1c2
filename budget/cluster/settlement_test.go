package cluster_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/poll"
)

// openStore opens the database as package batch uses it.
func openStore(tb testing.TB, db *testDatabase) *database.DB {
	tb.Helper()
	store, err := database.Open(tb.Context(), database.Settings{URL: db.url}, zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() { must(tb, store.Close()) })
	return store
}

// prepareLines reserves lines of a batch and ends them.
func prepareLines(tb testing.TB, l *cluster.Ledger, n int) (all []budget.Settlement) {
	tb.Helper()
	for range n {
		q := newRequest()
		q.Batch = "batch_1"
		r, err := l.TryReserve(tb.Context(), payer, q, demand(10, 10), nil)
		must(tb, err)
		all = append(all, r.Prepare(budget.Outcome{Prompt: 10, Completion: 5, Status: 200}))
		if r.Prepare(budget.Outcome{}) != nil {
			tb.Error("a reservation was prepared twice")
		}
	}
	return all
}

func write(tb testing.TB, store *database.DB, all []budget.Settlement, fail error) error {
	tb.Helper()
	return store.WriteExclusive(tb.Context(), func(tx database.Tx) error {
		if err := budget.WriteSettlements(tb.Context(), tx, all); err != nil {
			return err
		}
		return fail
	})
}

// checkUsed compares the counters of the key and the rows of requests.
func checkUsed(tb testing.TB, db *testDatabase, used, reserved, rows int64) {
	tb.Helper()
	var gotUsed, gotReserved, gotRows int64
	db.query(tb, `SELECT month_in + month_out, reserved_month_in + reserved_month_out, (SELECT count(*) FROM requests) FROM owner WHERE id = 'key'`,
		nil, &gotUsed, &gotReserved, &gotRows)
	if gotUsed != used || gotReserved != reserved || gotRows != rows {
		tb.Errorf("got %d used, %d reserved tokens and %d rows, want %d, %d and %d", gotUsed, gotReserved, gotRows, used, reserved, rows)
	}
}

func TestLinesAreSettledByTheCommitOfTheTransactionThatRecordsThem(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	store := openStore(t, db)
	setOwners(t, l, 1, quota.Caps{quota.MonthTotal: quota.Limit(100)})
	live := reserve(t, l, demand(1, 1)) // has the only slot, of which lines need none
	all := prepareLines(t, l, 3)
	checkUsed(t, db, 0, 62, 0)
	failed := errors.New("the transaction fails")
	if err := write(t, store, all, failed); !errors.Is(err, failed) {
		t.Fatalf("got %v, want the error of the transaction", err)
	}
	checkUsed(t, db, 0, 62, 0)
	must(t, write(t, store, all, nil))
	must(t, write(t, store, all, nil)) // as after a commit of unknown outcome
	for _, s := range all {
		s.Commit()
	}
	checkUsed(t, db, 45, 2, 3)
	settle(t, live, 1, 1)
	var running int
	db.query(t, `SELECT sum(running) FROM owner`, nil, &running)
	if running != 0 {
		t.Errorf("got %d running, want 0", running)
	}
}

func TestLineThatIsAbandonedCostsNothing(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{})
	prepareLines(t, l, 1)[0].Abandon()
	l.Sync(t, "acc")
	checkUsed(t, db, 0, 0, 1)
	var state string
	db.query(t, `SELECT state FROM requests`, nil, &state)
	if state != "interrupted" {
		t.Errorf("got the state %s, want interrupted", state)
	}
}

func TestLineOfAnEndedEpochIsNotSettled(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Beat: time.Hour})
	store := openStore(t, db)
	setOwners(t, l, 0, quota.Caps{})
	all := prepareLines(t, l, 2)
	gateway, epoch := l.Identity()
	db.exec(t, `SELECT ledger_leave_v1($1, $2)`, gateway, epoch) // as a reaper does
	if err := write(t, store, all, nil); !errors.Is(err, budget.ErrNotReserved) {
		t.Errorf("got %v, want ErrNotReserved", err)
	}
	start(t, db, cluster.Settings{Name: "other", Beat: 20 * time.Millisecond}) // ends what the epoch has left
	poll.Until(t, "nothing is left", func() (left bool) {
		db.query(t, `SELECT "left" FROM gateway WHERE id = $1`, []any{gateway}, &left)
		return !left
	})
	checkUsed(t, db, 0, 0, 2)
}

// A settlement in a client's transaction locks its account until the commit, and no other one, although it has the same lane.
func TestOpenTransactionOfABatchDelaysNoOtherAccount(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1})
	store := openStore(t, db)
	setOwners(t, l, 0, quota.Caps{})
	must(t, l.SetOwners(t.Context(), []cluster.Owner{{ID: "other", Enabled: true}, {ID: "its", Account: "other", Enabled: true}}))
	all := prepareLines(t, l, 1)
	locked := budget.Payer{Key: "key", Account: "acc"}
	var delayed budget.Reservation
	reserved := make(chan error, 1)
	var others int64
	must(t, store.WriteExclusive(t.Context(), func(tx database.Tx) error {
		err := all[0].Write(t.Context(), tx)
		go func() {
			var err error
			delayed, err = l.Reserve(t.Context(), locked, newRequest(), demand(1, 1), nil)
			reserved <- err
		}()
		for began := time.Now(); others < 20 && (others == 0 || time.Since(began) < time.Second); others++ { // the ledger ends silent sessions after three
			r, err := l.Reserve(t.Context(), budget.Payer{Key: "its", Account: "other"}, newRequest(), demand(1, 1), nil)
			must(t, err)
			settle(t, r, 1, 1)
		}
		return err
	}))
	must(t, <-reserved)
	settle(t, delayed, 1, 1)
	var used, rows int64
	db.query(t, `SELECT (SELECT month_in + month_out FROM owner WHERE id = 'acc'), (SELECT count(*) FROM requests)`, nil, &used, &rows)
	if used != 17 || rows != others+2 {
		t.Errorf("got %d used tokens and %d rows, want 17 and %d", used, rows, others+2)
	}
}

func TestChainIDAndReceiptAreRecordedWithTheSettlement(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{})
	leaf, nonce := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	for _, interrupt := range []bool{false, true} {
		q := newRequest()
		q.ChainID = "8453"
		r, err := l.Reserve(t.Context(), payer, q, demand(1, 1), nil)
		must(t, err)
		if interrupt {
			gateway, epoch := l.Identity()
			db.exec(t, `SELECT ledger_leave_v1($1, $2)`, gateway, epoch)
			poll.Until(t, "the request is ended", func() (ended bool) {
				db.query(t, `SELECT EXISTS (SELECT FROM requests WHERE request_id = $1)`, []any{q.ID}, &ended)
				return ended
			})
		} else {
			must(t, r.Settle(t.Context(), budget.Outcome{Receipt: slices.Concat(leaf, nonce, []byte{0, 1, 255})}))
		}
		var attempts string
		db.query(t, `SELECT attempts FROM requests WHERE request_id = $1`, []any{q.ID}, &attempts)
		if want := `{"chain_id":"8453","attempts":[]}`; attempts != want {
			t.Errorf("interrupted %v: got %s, want %s", interrupt, attempts, want)
		}
	}
	var gotLeaf, gotNonce, entry []byte
	var key string
	db.query(t, `SELECT leaf_hash, nonce, entry, key_id FROM receipts WHERE seq IS NULL`, nil, &gotLeaf, &gotNonce, &entry, &key)
	if !bytes.Equal(gotLeaf, leaf) || !bytes.Equal(gotNonce, nonce) || string(entry) != "\x00\x01\xff" || key != "key" {
		t.Errorf("got the receipt %x %x %x of %s", gotLeaf, gotNonce, entry, key)
	}
}

// After a failover to a standby that was behind, what the database had acknowledged in the last minute is written again: each
// settlement once, whether its request is in flight there, unknown there, or settled there.
func TestSettlementsThatTheDatabaseHasLostAreWrittenAgain(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1, Beat: 20 * time.Millisecond})
	setOwners(t, l, 2, quota.Caps{})
	settle(t, reserve(t, l, demand(1, 1)), 1, 1) // kept
	leased := reserve(t, l, demand(10, 10))
	tables := []string{"owner", "inflight", "lane", "requests"}
	for _, table := range tables {
		db.exec(t, `CREATE TABLE public.standby_`+table+` AS SELECT * FROM `+table)
	}
	settle(t, leased, 10, 9)
	settle(t, reserve(t, l, demand(100, 100)), 100, 90)
	checkUsed(t, db, 211, 0, 3)
	_, epoch := l.Identity()
	_, err := db.conn.Exec(t.Context(), `BEGIN`)
	must(t, err)
	for _, table := range tables {
		db.exec(t, `DELETE FROM `+table)
		db.exec(t, `INSERT INTO `+table+` SELECT * FROM public.standby_`+table)
	}
	db.exec(t, `COMMIT`)
	checkUsed(t, db, 2, 20, 1)
	r, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil)
	if err == nil { // the gateway has noticed it before, and has begun another epoch
		r.Drop()
		l.Sync(t, "acc")
	} else if !errors.Is(err, cluster.ErrLostCommits) {
		t.Errorf("got %v, want ErrLostCommits", err)
	}
	poll.Until(t, "the gateway begins another epoch", func() bool { return l.Rejoined(epoch) })
	checkUsed(t, db, 211, 0, 3)
	if got := l.Values(t)["replayed_settlements_total"]; got != 2 {
		t.Errorf("got %v settlements written again, want 2", got)
	}
	var running int
	db.query(t, `SELECT sum(running) FROM owner`, nil, &running)
	if running != 0 {
		t.Errorf("got %d running, want 0", running)
	}
}
