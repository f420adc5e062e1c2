package fleet

import "testing"

// The end of a boot reaches the gateway after an operator has ordered a stop there, and before the stop has its lease.
func TestStopThatNoRowTellsOfYetIsNotForgotten(t *testing.T) {
	for _, c := range []struct {
		name    string
		mine    bool // the lease that has ended
		state   State
		pending int  // requests for the lease
		held    bool // the row
		want    bool
	}{
		{name: "after an own boot", mine: true, state: Draining, want: true},
		{name: "after another gateway's boot", state: Draining, want: true},
		{name: "after another gateway's boot, while the drain waits for its lease", state: Ready, pending: 1, want: true},
		{name: "a stop that another gateway has ended", state: Stopped},
		{name: "a stop of another gateway", state: Stopped, held: true, want: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &Backend{}
			b.life.state, b.life.stoppedByOperator, b.life.claim.seen = c.state, true, 1
			b.life.claim.pending = c.pending
			b.follow(&lease{fence: 2, mine: c.mine, held: c.held})
			if got := b.life.stoppedByOperator; got != c.want {
				t.Errorf("the operator's stop: got %t, want %t", got, c.want)
			}
		})
	}
}
