package clustermodel_test

import (
	"strings"
	"testing"

	"basegate/internal/clustermodel"
)

// Each rule of the protocol is broken, and the explorer must find what follows from that.
func TestEachBrokenRuleIsFound(t *testing.T) {
	for _, m := range []struct {
		name   string
		config clustermodel.Config
		broken clustermodel.Rule
		faults uint8
		leaves uint8
		change func(*clustermodel.Config)
		want   string
	}{
		{"the function does not check the epoch", oneSlot, clustermodel.FenceCalls, 2, 0, nil, "an old epoch changed"},
		{"a call does not hold the gateway's lock", oneSlot, clustermodel.HoldGatewayLock, 2, 0, nil, "an old epoch changed"},
		{
			"nothing fences, and a settlement does not need its row", oneSlot, clustermodel.FenceCalls | clustermodel.DeleteReturning, 2, 0,
			func(c *clustermodel.Config) { c.Ignore, c.Safety = clustermodel.FenceCalls, true }, "charged twice",
		},
		{"a repeated sequence is executed", oneSlot, clustermodel.ReplayLane, 1, 0, nil, "admitted twice"},
		{"an old sequence is executed", oneSlot, clustermodel.RefuseOldSequence, 1, 0, nil, "admitted twice"},
		{"a call of unknown outcome is sent as a new one", oneSlot, clustermodel.ResendSameCall, 1, 0, nil, "admitted twice"},
		{"the sequence of a refused call is used for another one", oneGateway, clustermodel.SkipRefused, 2, 0, nil, "not settled"},
		{"the reaper does not raise the epoch", oneSlot, clustermodel.RaiseEpoch, 2, 0, nil, "never"},
		{"the last byte is sent before the commit", oneSlot, clustermodel.CommitBeforeEnd, 0, 0, nil, "not settled"},
		{"a fenced gateway ends its responses as complete", oneSlot, clustermodel.FailOnFence, 1, 0, nil, "not settled"},
		{"one statement locks and reads", oneSlot, clustermodel.LockThenRead, 0, 0, nil, "leaves a request waiting"},
		{
			"one statement locks and reads; only the end is looked at", oneSlot, clustermodel.LockThenRead, 0, 0,
			func(c *clustermodel.Config) { c.Ignore = clustermodel.LockThenRead }, "never",
		},
		{"a new request is evaluated before those that wait", differentDemands, clustermodel.QueueBehind, 0, 0, nil, "before an earlier one"},
		{"a cancellation frees only the waiter", oneSlot, clustermodel.FreeOnCancel, 0, 1, nil, "never released"},
		{"a settlement does not grant to other keys of the account", oneOfAccount, clustermodel.GrantOnSettle, 0, 0, nil, "leaves a request waiting"},
		{"a settlement does not grant", oneSlot, clustermodel.GrantOnSettle, 0, 0, nil, "leaves a request waiting"},
		{"the reaper does not grant", oneSlot, clustermodel.GrantOnReap, 1, 0, nil, "leaves a request waiting"},
		{"the reaper leaves the waiters of its gateway", oneSlot, clustermodel.DropWaiters, 1, 0, nil, "never"},
		{"reserved tokens do not count", tokens, clustermodel.CountReserved, 0, 0, nil, "exceed the cap"},
		{"a grant notifies nobody, and nobody polls", oneSlot, clustermodel.NotifyGrants | clustermodel.PollGrants, 0, 0, nil, "never ends"},
		{"a grant notifies, a notification is lost, and nobody polls", oneSlot, clustermodel.PollGrants, 1, 0, nil, "never ends"},
		{"a raised cap decides no waiter", tokens, clustermodel.GrantOnChange, 0, 0, func(c *clustermodel.Config) { c.Raise = 4 }, "leaves a request waiting"},
		{"a paused key decides no waiter", oneSlot, clustermodel.GrantOnChange, 0, 0, func(c *clustermodel.Config) { c.Pause = true }, "leaves a request waiting"},
		{"a call begins a new day and does not grant", tokens, clustermodel.GrantOnRollover, 0, 0, midnightComes, "leaves a request waiting"},
		{"a settlement counts in the window of its end", tokens, clustermodel.ChargeInWindow, 0, 0, midnightComes, "not the sums"},
	} {
		t.Run(m.name, func(t *testing.T) {
			c := m.config
			c.Broken, c.Faults, c.Leaves = m.broken, m.faults, m.leaves
			if m.change != nil {
				m.change(&c)
			}
			r := clustermodel.Explore(&clustermodel.Ledger{c}, 2_000_000)
			if r.Violation == "" || !strings.Contains(r.Violation, m.want) {
				t.Fatalf("%d states: got %q, want %q", r.States, r.Violation, m.want)
			}
			t.Logf("found in %d states: %s\n%s", r.States, r.Violation, strings.Join(r.Trace, "\n"))
			if testing.Short() || raceDetector {
				return
			}
			c.Broken, c.Ignore = 0, 0
			if r := clustermodel.Explore(&clustermodel.Ledger{c}, 2_000_000); r.Violation != "" {
				t.Errorf("with the rule obeyed: %s\n%s", r.Violation, strings.Join(r.Trace, "\n"))
			}
		})
	}
}
