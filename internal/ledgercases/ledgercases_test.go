package ledgercases_test

import (
	"testing"

	"basegate/internal/ledgercases"
)

func TestCasesHoldEveryOperationAndDecisionOften(t *testing.T) {
	const often = 5
	counts := map[string]int{}
	for _, c := range ledgercases.All(t) {
		for _, s := range c.Steps {
			counts[string(s.Op)]++
			if d := s.Reply.Decision; d != nil {
				counts["at once: "+string(d.Kind)]++
			}
			for _, d := range s.Reply.Decided {
				counts["after a wait: "+string(d.Kind)]++
			}
		}
	}
	for _, op := range []ledgercases.Op{
		ledgercases.Admit, ledgercases.Settle, ledgercases.Checkpoint, ledgercases.Interrupt, ledgercases.Cancel,
		ledgercases.Clock, ledgercases.SetCaps,
	} {
		if counts[string(op)] < often {
			t.Errorf("%d operations %s, want %d", counts[string(op)], op, often)
		}
	}
	for _, kind := range []string{
		"at once: granted", "at once: refused", "at once: count", "at once: wait", "after a wait: granted", "after a wait: refused",
	} {
		if counts[kind] < often {
			t.Errorf("%d decisions %s, want %d", counts[kind], kind, often)
		}
	}
	for _, kind := range []string{"at once: disabled", "after a wait: disabled"} {
		if counts[kind] == 0 {
			t.Errorf("no decision %s", kind)
		}
	}
	t.Log(counts)
}
