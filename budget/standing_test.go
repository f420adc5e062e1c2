package budget_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
)

func TestAStandingIsWhatIsTakenNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(29 * 24 * time.Hour) // from the beginning of a year, while nothing ticks
		l := newLedger(t)
		spend(t, l, "k1", "a1", 10, 5)
		spend(t, l, "k2", "a1", 100, 50)
		open := reserve(t, l, budget.Payer{Key: "k1", Account: "a1"}, exactly(7, 3))
		want := func(what string, got, want budget.WindowTotals) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		want("a key", l.KeyTotals("k1"), budget.WindowTotals{MonthInput: 10, MonthOutput: 5, Day: 15, Reserved: 10})
		want("its account", l.AccountTotals("a1"), budget.WindowTotals{MonthInput: 110, MonthOutput: 55, Day: 165, Reserved: 10})
		want("nobody", l.KeyTotals("k3"), budget.WindowTotals{})
		open.Release()
		time.Sleep(24 * time.Hour)
		spend(t, l, "k1", "a1", 1, 0)
		want("the next day", l.KeyTotals("k1"), budget.WindowTotals{MonthInput: 11, MonthOutput: 5, Day: 1})
		time.Sleep(24 * time.Hour)
		want("the next month", l.KeyTotals("k1"), budget.WindowTotals{})
	})
}

func TestTheLastUseOfAKeyIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		want := func(when string, l *budget.Ledger, key string, want time.Time) {
			t.Helper()
			got, err := l.LastUse(t.Context(), key)
			must(t, err)
			if !got.Equal(want) {
				t.Errorf("%s: %s was last used at %v, want %v", when, key, got, want)
			}
		}
		db := openDatabase(t, path)
		l := start(t, db)
		spend(t, l, "k1", "a1", 1, 1)
		time.Sleep(time.Hour)
		last := time.Now()
		spend(t, l, "k1", "a1", 1, 1)
		want("at once", l, "k1", last)
		want("never used", l, "k2", time.Time{})
		other := start(t, db)
		want("by a start that finds its rows", other, "k1", last)
		other.Close()
		time.Sleep(2 * time.Second) // it is written down without a Close
		must(t, db.Close())
		l.Close()

		time.Sleep(45 * 24 * time.Hour)
		db = openDatabase(t, path)
		l = start(t, db)
		want("by a start in a later month", l, "k1", last)
		last = time.Now()
		spend(t, l, "k1", "a1", 1, 1)
		want("used again", l, "k1", last)
		l.Close()
		must(t, db.Close())

		time.Sleep(45 * 24 * time.Hour)
		want("by a start after a close", start(t, openDatabase(t, path)), "k1", last)
	})
}
