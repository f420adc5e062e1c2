package budget_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
)

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
		check("a key", b.Key, budget.Counters{MonthInput: 10, MonthOutput: 5, Day: 15, ReservedInput: 7, ReservedOutput: 3, ReservedDay: 10})
		check("its account", b.Account, budget.Counters{MonthInput: 110, MonthOutput: 55, Day: 165, ReservedInput: 7, ReservedOutput: 3, ReservedDay: 10})
		check("an unused key", l.Balance(budget.Payer{Key: "k3"}).Key, budget.Counters{})
		open.Release()
		time.Sleep(24 * time.Hour)
		spend(t, l, "k1", "a1", 1, 0)
		check("the next day", l.Balance(budget.Payer{Key: "k1"}).Key, budget.Counters{MonthInput: 11, MonthOutput: 5, Day: 1})
		time.Sleep(24 * time.Hour)
		check("the next month", l.Balance(budget.Payer{Key: "k1"}).Key, budget.Counters{})
	})
}

func TestLastUseSurvivesRestartsAndNewMonths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		check := func(when string, l *budget.Ledger, key string, want time.Time) {
			t.Helper()
			got, err := l.LastUse(t.Context(), key)
			must(t, err)
			if !got.Equal(want) {
				t.Errorf("%s: %s was last used at %v, want %v", when, key, got, want)
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
