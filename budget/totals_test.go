package budget_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/database"
)

// counters returns those of a month before which nothing was used, of a day in it, and of requests that were admitted on that day.
func counters(monthInput, monthOutput, dayInput, dayOutput, reservedInput, reservedOutput int64) (c budget.Counters) {
	c.Used[quota.Month] = quota.Tokens{Input: monthInput, Output: monthOutput}
	c.Used[quota.Life] = c.Used[quota.Month]
	c.Used[quota.Day] = quota.Tokens{Input: dayInput, Output: dayOutput}
	for w := range c.Reserved {
		c.Reserved[w] = quota.Tokens{Input: reservedInput, Output: reservedOutput}
	}
	return c
}

func TestTotalsAreThoseOfTheCurrentWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(29 * 24 * time.Hour) // to January 30, while no ticker runs
		l := newLedger(t)
		spend(t, l, "k1", "a1", 10, 5)
		spend(t, l, "k2", "a1", 100, 50)
		open := reserve(t, l, budget.Payer{Key: "k1", Account: "a1"}, demand(7, 3))
		check := func(what string, got, want budget.Counters) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		b := l.Balance(budget.Payer{Key: "k1", Account: "a1"})
		check("a key", b.Key, counters(10, 5, 10, 5, 7, 3))
		check("its account", b.Account, counters(110, 55, 110, 55, 7, 3))
		check("an unused key", l.Balance(budget.Payer{Key: "k3"}).Key, budget.Counters{})
		open.Release()
		time.Sleep(24 * time.Hour)
		spend(t, l, "k1", "a1", 1, 0)
		check("the next day", l.Balance(budget.Payer{Key: "k1"}).Key, counters(11, 5, 1, 0, 0, 0))
		time.Sleep(24 * time.Hour)
		ever := counters(11, 5, 0, 0, 0, 0)
		ever.Used[quota.Month] = quota.Tokens{}
		check("the next month", l.Balance(budget.Payer{Key: "k1"}).Key, ever)
		check("the next month, after a start", startLedger(t, l.Database()).Balance(budget.Payer{Key: "k1"}).Key, ever)
	})
}

// The rows do not name the parent of their key; the keys do.
func TestCountersOfAParentSurviveAStart(t *testing.T) {
	db := openDatabase(t, newPath(t))
	for _, text := range []string{
		`INSERT INTO accounts (id, email, name, admin, state, created_at) VALUES ('a', 'ada@example.org', 'Ada', false, 'active', 1)`,
		`INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at) VALUES ('parent', 'a', '', '', '1', 'active', 1)`,
		`INSERT INTO keys (id, account_id, parent, name, prefix, secret_hash, state, created_at) VALUES ('key', 'a', 'parent', '', '', '2', 'active', 1)`,
	} {
		must(t, db.WriteGrouped(t.Context(), func(tx database.Tx) error { return database.Exec(t.Context(), tx, text) }))
	}
	p := budget.Payer{Key: "key", Account: "a", Parent: &budget.ParentKey{ID: "parent"}}
	l := startLedger(t, db)
	settle(t, reserve(t, l, p, demand(10, 5)), 10, 5)
	spend(t, l, "parent", "a", 1, 1)
	want := l.Balance(p)
	if want.Parent != counters(11, 6, 11, 6, 0, 0) || want.Key != counters(10, 5, 10, 5, 0, 0) || want.Account != want.Parent {
		t.Errorf("got %+v", want)
	}
	l.Close()
	got := startLedger(t, db).Balance(p)
	if got.Parent != want.Parent || got.Key != want.Key || got.Account != want.Account {
		t.Errorf("after a start: got %+v, want %+v", got, want)
	}
}

func TestKeyIsRefusedWithItsParent(t *testing.T) {
	a, now := budget.NewAccount("acc", map[string]*budget.Owner{}), time.Now()
	a.SetPayer(&budget.Payer{Key: "key", Account: "acc", Parent: &budget.ParentKey{ID: "parent", Expires: now.Add(time.Hour)}})
	try := func(key string, at time.Time) budget.Kind {
		w := &budget.Waiter{Request: budget.Request{ID: "req", KeyID: key}, Demand: demand(1, 1)}
		return a.Admit(at, w).Kind
	}
	if got := try("key", now); got != budget.Granted {
		t.Errorf("got %s, want it granted", got)
	}
	if got := try("key", now.Add(2*time.Hour)); got != budget.KeyInvalid {
		t.Errorf("after the parent has expired: got %s", got)
	}
	a.Key("parent").Disabled = true
	if got := try("key", now); got != budget.KeyInvalid {
		t.Errorf("its parent is disabled: got %s", got)
	}
	if got := try("other", now); got != budget.Granted {
		t.Errorf("another key: got %s, want it granted", got)
	}
}

func TestLastUseSurvivesRestartsAndNewMonths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		check := func(when string, l *budget.Ledger, key string, want time.Time) {
			t.Helper()
			got, err := l.LastUse(t.Context(), key)
			must(t, err)
			if !got.Time.Equal(want) {
				t.Errorf("%s: %s was last used at %v, want %v", when, key, got.Time, want)
			}
		}
		db := openDatabase(t, path)
		l := startLedger(t, db)
		spend(t, l, "k1", "a1", 1, 1)
		time.Sleep(time.Hour)
		last := time.Now()
		spend(t, l, "k1", "a1", 1, 1)
		check("immediately", l, "k1", last)
		check("without a request", l, "k2", time.Time{})
		other := startLedger(t, db)
		check("after a start in the same month", other, "k1", last)
		other.Close()
		time.Sleep(2 * time.Second) // the maintenance goroutine writes it, without a Close
		must(t, db.Close())
		l.Close()

		time.Sleep(45 * 24 * time.Hour)
		db = openDatabase(t, path)
		l = startLedger(t, db)
		check("after a start in a later month", l, "k1", last)
		last = time.Now()
		spend(t, l, "k1", "a1", 1, 1)
		check("after another request", l, "k1", last)
		l.Close()
		must(t, db.Close())

		time.Sleep(45 * 24 * time.Hour)
		check("after a start in a month after Close", startLedger(t, openDatabase(t, path)), "k1", last)
	})
}

func TestLastAddressIsThatOfTheLatestRequestAndSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		db := openDatabase(t, path)
		l := startLedger(t, db)
		from := func(address string) {
			t.Helper()
			time.Sleep(time.Minute)
			q := newRequest()
			q.Address = address
			r, err := l.Reserve(t.Context(), budget.Payer{Key: "k1", Account: "a1"}, q, demand(1, 1), nil)
			must(t, err)
			settle(t, r, 1, 1)
		}
		check := func(when, want string, at time.Time) {
			t.Helper()
			got, err := l.LastUse(t.Context(), "k1")
			must(t, err)
			if got.Address != want || !got.Time.Equal(at) {
				t.Errorf("%s: got %v from %q, want %v from %q", when, got.Time, got.Address, at, want)
			}
		}
		restart := func() {
			l.Close()
			must(t, db.Close())
			db = openDatabase(t, path)
			l = startLedger(t, db)
		}
		from("192.0.2.1")
		from("2001:db8::7")
		check("immediately", "2001:db8::7", time.Now())
		from("") // a line of a batch
		check("after a line of a batch", "2001:db8::7", time.Now())
		restart()
		check("after a restart", "2001:db8::7", time.Now())
		from("")
		check("after a line in the new process", "2001:db8::7", time.Now())
		restart()
		check("after that process", "2001:db8::7", time.Now())
		from("192.0.2.1")
		check("after another request", "192.0.2.1", time.Now())
		l.Close()
		must(t, db.Close())
	})
}
