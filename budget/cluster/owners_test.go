package cluster_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/internal/poll"
)

// insertKey inserts the account and the key of payer into their tables, as package identity does.
func insertKey(tb testing.TB, db *testDatabase) {
	tb.Helper()
	db.exec(tb, `INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ('acc', 'a@b.c', '', false, 'active', 0)`)
	db.exec(tb, `INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at)
		VALUES ('key', 'acc', 'k', 'p', '\x00', 'active', 0)`)
}

func TestOwnersFollowKeysAndAccountsAtTheCommitOfTheChange(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	insertKey(t, db)
	key := func() (slots int, enabled bool, cap *int64) {
		db.query(t, `SELECT slots, enabled, (caps ->> 'day_total')::bigint FROM owner WHERE id = 'key'`, nil, &slots, &enabled, &cap)
		return slots, enabled, cap
	}
	for _, c := range []struct {
		change  string
		slots   int
		enabled bool
	}{
		{`SELECT 1`, 8, true},
		{`UPDATE keys SET concurrency = 20`, 8, true}, // above what the account allows
		{`UPDATE accounts SET concurrency = 12`, 12, true},
		{`UPDATE keys SET operator_concurrency = 20`, 20, true},
		{`UPDATE keys SET operator_concurrency = NULL, concurrency = NULL, caps = '{"day_total": 5}'`, 8, true},
		{`UPDATE keys SET state = 'paused'`, 8, false},
		{`BEGIN; SAVEPOINT one; UPDATE keys SET state = 'active', concurrency = 2; ROLLBACK TO one; COMMIT`, 8, false},
		{`UPDATE keys SET state = 'active'`, 8, true},
	} {
		_, err := db.conn.PgConn().Exec(t.Context(), c.change).ReadAll()
		must(t, err)
		if slots, enabled, _ := key(); slots != c.slots || enabled != c.enabled {
			t.Errorf("%s: got %d slots, enabled %v, want %d, %v", c.change, slots, enabled, c.slots, c.enabled)
		}
	}
	if _, _, limit := key(); limit == nil || *limit != 5 {
		t.Errorf("got the cap %v, want 5", limit)
	}
	for range 2 { // the second changes nothing
		must(t, l.SetConcurrency(t.Context(), 3, 12))
		if slots, _, _ := key(); slots != 3 {
			t.Errorf("got %d slots after a change of the default, want 3", slots)
		}
	}
	ofAccount := func(change string, want int) {
		t.Helper()
		db.exec(t, change)
		var slots int
		if db.query(t, `SELECT slots FROM owner WHERE id = 'acc'`, nil, &slots); slots != want {
			t.Errorf("%s: got %d slots of the account, want %d", change, slots, want)
		}
	}
	ofAccount(`SELECT 1`, 12)
	ofAccount(`UPDATE keys SET concurrency = 20`, 12) // by the holder
	ofAccount(`UPDATE keys SET operator_concurrency = 20`, 20)
	ofAccount(`UPDATE keys SET state = 'paused'`, 12)
	ofAccount(`UPDATE keys SET state = 'active', operator_concurrency = NULL`, 12)
	ofAccount(`UPDATE accounts SET concurrency = 13`, 13)
	db.exec(t, `UPDATE accounts SET state = 'disabled'`)
	if _, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); !errors.Is(err, budget.ErrKeyDisabled) {
		t.Errorf("a disabled account: got %v, want ErrKeyDisabled", err)
	}
}

func TestChangedKeyDecidesOnTheWaitersOfAllGateways(t *testing.T) {
	db := newDatabase(t)
	first, second := start(t, db, cluster.Settings{Name: "first"}), start(t, db, cluster.Settings{Name: "second"})
	insertKey(t, db)
	db.exec(t, `UPDATE keys SET concurrency = 1`)
	reserve(t, first, demand(1, 1))
	granted, _, _, _ := second.Submit(t, payer, newRequest(), demand(1, 1))
	refused, _, _, _ := second.Submit(t, payer, newRequest(), demand(1, 1))
	db.exec(t, `UPDATE keys SET concurrency = 2`)
	poll.Until(t, "the first waiter is granted", func() bool {
		_, r, err, ok := granted.Decided()
		must(t, err)
		return ok && r != nil
	})
	db.exec(t, `UPDATE keys SET state = 'paused'`)
	poll.Until(t, "the second waiter is refused", func() bool {
		_, _, err, ok := refused.Decided()
		if ok && !errors.Is(err, budget.ErrKeyDisabled) {
			t.Fatalf("got %v, want ErrKeyDisabled", err)
		}
		return ok
	})
}

func TestLoweredCapRefusesAtOnceWhatWaitsBehindABlockedRequest(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	insertKey(t, db)
	db.exec(t, `UPDATE keys SET concurrency = 1`)
	running := reserve(t, l, demand(1, 1))
	small, _, _, _ := l.Submit(t, payer, newRequest(), demand(1, 1))
	large, _, _, _ := l.Submit(t, payer, newRequest(), demand(100, 1))
	db.exec(t, `UPDATE keys SET caps = '{"day_total": 50}'`)
	poll.Until(t, "the large request is refused", func() bool {
		_, _, err, ok := large.Decided()
		if _, refused := errors.AsType[*budget.Exceeded](err); ok && !refused {
			t.Fatalf("got %v, want Exceeded", err)
		}
		return ok
	})
	if kind, _, _, ok := small.Decided(); ok {
		t.Fatalf("the small request is decided (%s) while no slot is free", kind)
	}
	settle(t, running, 1, 1)
	poll.Until(t, "the small request is granted", func() bool { _, r, _, ok := small.Decided(); return ok && r != nil })
}

func TestKeyIsRefusedWithItsParent(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	insertKey(t, db)
	db.exec(t, `INSERT INTO keys (id, account_id, parent, name, prefix, secret_hash, state, created_at)
		VALUES ('child', 'acc', 'key', 'k', 'p', '\x01', 'active', 0)`)
	db.exec(t, `UPDATE keys SET caps = '{"life_total": 100}' WHERE id = 'key'`)
	child := budget.Payer{Key: "child", Account: "acc", Parent: &budget.ParentKey{ID: "key"}}
	try := func() error {
		r, err := l.Reserve(t.Context(), child, newRequest(), demand(20, 20), nil)
		if err == nil {
			settle(t, r, 20, 20)
		}
		return err
	}
	must(t, try())
	settle(t, reserve(t, l, demand(20, 20)), 20, 20) // of the parent itself
	e, refused := errors.AsType[*budget.Exceeded](try())
	if want := (budget.Exceeded{Scope: budget.ScopeParent, Limit: 100, Used: 80}); !refused || *e != want {
		t.Errorf("got %+v, want %+v", e, want)
	}
	b, err := l.ReadBalance(t.Context(), child)
	must(t, err)
	if b.Key.Used[quota.Life].Total() != 40 || b.Parent.Used[quota.Life].Total() != 80 || b.Account.Used[quota.Day].Total() != 80 {
		t.Errorf("got %+v, want 40 tokens of the key, 80 of its parent and 80 of the account", b)
	}
	for _, change := range []string{`state = 'paused'`, `state = 'active', expires_at = 1`} {
		db.exec(t, `UPDATE keys SET `+change+` WHERE id = 'key'`)
		if err := try(); !errors.Is(err, budget.ErrKeyDisabled) {
			t.Errorf("%s of the parent: got %v, want ErrKeyDisabled", change, err)
		}
	}
}

func TestExpiredKeyIsRefused(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	insertKey(t, db)
	db.exec(t, `UPDATE keys SET expires_at = $1`, time.Now().Add(time.Hour).UnixMicro())
	settle(t, reserve(t, l, demand(1, 1)), 1, 1)
	db.exec(t, `UPDATE keys SET expires_at = $1`, time.Now().Add(-time.Second).UnixMicro())
	if _, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); !errors.Is(err, budget.ErrKeyDisabled) {
		t.Errorf("got %v, want ErrKeyDisabled", err)
	}
}

// A client that stops in the middle of a change holds no lock of the ledger.
func TestOpenTransactionOnKeysDelaysNoRequest(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	insertKey(t, db)
	tx, err := db.conn.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `UPDATE keys SET caps = '{"day_total": 10}'`)
	must(t, err)
	settle(t, reserve(t, l, demand(10, 10)), 10, 10)
	must(t, tx.Commit(t.Context()))
	if _, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); err == nil {
		t.Error("a request beyond a cap that was set is admitted")
	}
}
