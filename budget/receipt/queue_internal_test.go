package receipt

import (
	"slices"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

func TestQueueKeepsTheLastInsertionOfAPlaceThatWasRolledBack(t *testing.T) {
	var q queue
	q.reset(4)
	a, b, c := tlog.Hash{1}, tlog.Hash{2}, tlog.Hash{3}
	for _, add := range []struct {
		seq  int64
		leaf tlog.Hash
	}{{5, a}, {6, a}, {5, b}, {6, c}, {7, a}} { // the first transaction is rolled back
		if !q.insert(add.seq, add.leaf) {
			t.Fatalf("entry %d is refused", add.seq)
		}
	}
	if got := q.take(); len(got) != 0 {
		t.Errorf("took %v before any is confirmed", got)
	}
	q.confirm(6)
	q.confirm(5)
	if got := q.take(); !slices.Equal(got, []tlog.Hash{b, c}) {
		t.Errorf("took %v, want %v", got, []tlog.Hash{b, c})
	}
	for _, seq := range []int64{6, 9} {
		if q.insert(seq, a) {
			t.Errorf("entry %d is accepted after 6 was taken and 7 inserted", seq)
		}
	}
	q.confirm(7)
	if got := q.take(); !slices.Equal(got, []tlog.Hash{a}) {
		t.Errorf("took %v, want %v", got, []tlog.Hash{a})
	}
}
