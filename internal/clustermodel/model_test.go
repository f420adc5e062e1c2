package clustermodel_test

import (
	"flag"
	"strings"
	"testing"

	"basegate/internal/clustermodel"
)

var large = flag.Bool("large", false, "explore with more requests and faults: 16 million states, 5 GB of memory")

var (
	oneSlot          = clustermodel.Config{Requests: []clustermodel.Request{{0, 0, 2}, {1, 0, 2}}, Limits: [2]uint8{1, 1}}
	oneGateway       = clustermodel.Config{Requests: []clustermodel.Request{{0, 0, 2}, {0, 0, 2}}, Limits: [2]uint8{1, 1}}
	threeOfOneSlot   = clustermodel.Config{Requests: []clustermodel.Request{{0, 0, 2}, {1, 0, 2}, {0, 0, 2}}, Limits: [2]uint8{1, 1}}
	twoKeys          = clustermodel.Config{Requests: []clustermodel.Request{{0, 0, 2}, {1, 0, 2}, {1, 1, 2}}, Limits: [2]uint8{1, 1}}
	oneOfAccount     = clustermodel.Config{Requests: []clustermodel.Request{{0, 0, 2}, {1, 0, 2}, {1, 1, 2}}, Limits: [2]uint8{1, 1}, Account: 1}
	tokens           = clustermodel.Config{Requests: []clustermodel.Request{{0, 0, 2}, {1, 1, 2}}, Limits: [2]uint8{1, 1}, Cap: 3}
	differentDemands = clustermodel.Config{Requests: []clustermodel.Request{{0, 0, 2}, {1, 0, 2}, {0, 0, 1}}, Limits: [2]uint8{2, 2}, Cap: 3}
)

// exploration is a configuration and what may happen in it.
type exploration struct {
	name   string
	config clustermodel.Config
	faults uint8
	leaves uint8
	change func(*clustermodel.Config)
}

var explorations = []exploration{
	{"two requests and one slot", oneSlot, 2, 1, nil},
	{"two requests and one slot, the key may be paused", oneSlot, 1, 1, mayPause},
	{"three requests and one slot", threeOfOneSlot, 1, 0, nil},
	{"three requests of two keys", twoKeys, 0, 1, nil},
	{"three requests of two keys and one slot of the account", oneOfAccount, 0, 1, mayPause},
	{"two requests share the tokens of an account", tokens, 2, 0, nil},
	{"two requests share tokens, a new day begins", tokens, 1, 1, midnightComes},
	{"two requests share tokens, the cap is raised", tokens, 1, 1, capIsRaised},
	{"three requests with different demands", differentDemands, 0, 1, midnightComes},
}

var largeExplorations = []exploration{
	{"two requests and one slot", oneSlot, 3, 1, nil},
	{"three requests and one slot", threeOfOneSlot, 1, 1, nil},
	{"three requests of two keys", twoKeys, 1, 0, mayPause},
	{"three requests of two keys and one slot of the account", oneOfAccount, 1, 0, nil},
	{"two requests share the tokens of an account", tokens, 2, 1, nil},
	{"two requests share tokens, a new day begins and the cap is raised", tokens, 1, 1, func(c *clustermodel.Config) {
		midnightComes(c)
		capIsRaised(c)
	}},
	{"three requests with different demands", differentDemands, 1, 0, nil},
}

func mayPause(c *clustermodel.Config)      { c.Pause = true }
func midnightComes(c *clustermodel.Config) { c.Midnight = true }
func capIsRaised(c *clustermodel.Config)   { c.Raise = 4 }

func TestEveryReachableStateKeepsTheInvariants(t *testing.T) {
	all, limit := explorations, 4_000_000
	switch {
	case *large:
		all, limit = largeExplorations, 60_000_000
	case testing.Short() || raceDetector:
		all, limit = shortened(all), 500_000
	}
	states := 0
	var taken [64]int
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) {
			c := e.config
			c.Faults, c.Leaves = e.faults, e.leaves
			if e.change != nil {
				e.change(&c)
			}
			r := clustermodel.Explore(&clustermodel.Ledger{c}, limit)
			if r.Violation != "" {
				t.Fatalf("%d states: %s\n%s", r.States, r.Violation, strings.Join(r.Trace, "\n"))
			}
			t.Logf("%d faults, %d disconnects: %d states, %d transitions, depth %d", e.faults, e.leaves, r.States, r.Actions, r.Depth)
			states += r.States
			for kind, n := range r.Taken {
				taken[kind] += n
			}
		})
	}
	t.Logf("%d states", states)
	for kind, n := range taken[:clustermodel.Kinds] {
		if n == 0 && !t.Failed() {
			t.Errorf("no exploration has an action of kind %d", kind)
		}
	}
}

// shortened returns explorations with at most one fault, and few disconnects.
func shortened(all []exploration) []exploration {
	var short []exploration
	for _, e := range all {
		e.faults = min(e.faults, 1)
		if len(e.config.Requests) == 3 {
			e.faults = 0
		}
		if e.faults > 0 && e.change != nil || len(e.config.Requests) == 3 {
			e.leaves = 0
		}
		short = append(short, e)
	}
	return short
}

func TestAnOutageGivesNoGatewayUp(t *testing.T) {
	h := &clustermodel.Heartbeats{Limit: 3, Intervals: 14, Faults: 4}
	if testing.Short() || raceDetector {
		h.Intervals, h.Faults = 10, 3
	}
	r := clustermodel.Explore(h, 10_000_000)
	if r.Violation != "" {
		t.Fatalf("%s\n%s", r.Violation, strings.Join(r.Trace, "\n"))
	}
	t.Logf("%d states, %d transitions, depth %d", r.States, r.Actions, r.Depth)
	for _, m := range []struct {
		name   string
		broken clustermodel.HeartbeatRule
	}{
		{"intervals count in which the observer did not beat", clustermodel.CountOwnBeats},
		{"the count goes on after the observer has lost its connection", clustermodel.OneConnection},
	} {
		h.Broken = m.broken
		r := clustermodel.Explore(h, 10_000_000)
		if !strings.Contains(r.Violation, "was given up although it ran") {
			t.Fatalf("%s: got %q after %d states", m.name, r.Violation, r.States)
		}
		t.Logf("%s: found in %d states: %s\n%s", m.name, r.States, r.Violation, strings.Join(r.Trace, "\n"))
	}
}
