package clustermodel

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
)

// Action is one step of a model. Environment actions may happen or not; every other action happens at some time if it stays
// possible.
type Action struct {
	Kind        uint8
	Environment bool
	A           int // the gateway or the request that the action is about
}

// Model is a state machine. S holds no pointers, and all that distinguishes two states.
type Model[S comparable] interface {
	Initial() S
	// Next emits every action that is possible in a state, and the state after it.
	Next(s *S, emit func(Action, *S))
	// Check returns the invariant that a state violates, or an empty string.
	Check(s *S) string
	// Final returns what is wrong with a state in which only the environment can act, or an empty string.
	Final(s *S) string
	// Describe returns what an action does, in words.
	Describe(before *S, a Action, after *S) string
}

// Result is the outcome of an exploration.
type Result struct {
	States    int
	Actions   int      // transitions between them
	Depth     int      // of the longest shortest path
	Taken     [64]int  // transitions, by the kind of their actions
	Violation string   // empty if there is none, and every reachable state was visited
	Trace     []string // the shortest sequence of actions that leads to the violation
}

// Explore visits every reachable state breadth-first, up to a number of states. It reports the first violation: of an
// invariant, in a final state, or an infinite run without the environment, in which a request may never end.
func Explore[S comparable](m Model[S], limit int) Result {
	e := &explorer[S]{model: m, seed: maphash.MakeSeed(), table: make([]uint32, 1<<16)}
	initial := m.Initial()
	e.add(&initial, 0)
	for at := uint32(0); int(at) < len(e.states); at++ {
		if len(e.states) > limit {
			return e.result("the exploration was stopped: too many states", int(at))
		}
		if violation := e.expand(at); violation != "" {
			return e.result(violation, int(at))
		}
	}
	if at := e.cycle(); at >= 0 {
		return e.result("requests may go round for ever: actions lead back to this state", at)
	}
	return e.result("", 0)
}

// explorer holds the states in the order of their discovery.
type explorer[S comparable] struct {
	model   Model[S]
	seed    maphash.Seed
	states  []S
	parents []uint32
	depths  []uint16
	table   []uint32 // open addressing: the index of a state plus 1, by the hash of the state
	edges   []uint32 // of actions that are not the environment's
	ends    []uint32 // the end of each state's edges
	actions int
	taken   [64]int
}

// add returns the index of a state, and adds it if it is new.
func (e *explorer[S]) add(s *S, parent uint32) uint32 {
	if len(e.states)*2 >= len(e.table) {
		e.grow()
	}
	mask := uint64(len(e.table) - 1)
	at := maphash.Comparable(e.seed, *s) & mask
	for ; e.table[at] != 0; at = (at + 1) & mask {
		if e.states[e.table[at]-1] == *s {
			return e.table[at] - 1
		}
	}
	if len(e.states) >= math.MaxUint32-1 {
		panic("too many states")
	}
	index := uint32(len(e.states))
	e.table[at] = index + 1
	e.states = append(e.states, *s)
	e.parents = append(e.parents, parent)
	depth := uint16(0)
	if index > 0 {
		depth = e.depths[parent] + 1
	}
	e.depths = append(e.depths, depth)
	return index
}

func (e *explorer[S]) grow() {
	table := make([]uint32, 2*len(e.table))
	mask := uint64(len(table) - 1)
	for i := range e.states {
		at := maphash.Comparable(e.seed, e.states[i]) & mask
		for table[at] != 0 {
			at = (at + 1) & mask
		}
		table[at] = uint32(i + 1)
	}
	e.table = table
}

// expand adds the states that follow one state, and returns what is wrong with it.
func (e *explorer[S]) expand(at uint32) (violation string) {
	s := e.states[at]
	if violation := e.model.Check(&s); violation != "" {
		return violation
	}
	final := true
	e.model.Next(&s, func(a Action, next *S) {
		e.actions++
		e.taken[a.Kind]++
		to := e.add(next, at)
		if !a.Environment {
			final = false
			e.edges = append(e.edges, to)
		}
	})
	e.ends = append(e.ends, uint32(len(e.edges)))
	if final {
		return e.model.Final(&s)
	}
	return ""
}

// cycle returns a state on a cycle of actions that are not the environment's, or -1: it removes states without incoming
// edges until none is left (Kahn's algorithm).
func (e *explorer[S]) cycle() int {
	incoming := make([]uint32, len(e.states))
	for _, to := range e.edges {
		incoming[to]++
	}
	var free []uint32
	for i := range incoming {
		if incoming[i] == 0 {
			free = append(free, uint32(i))
		}
	}
	removed := 0
	for len(free) > 0 {
		at := free[len(free)-1]
		free = free[:len(free)-1]
		removed++
		from := uint32(0)
		if at > 0 {
			from = e.ends[at-1]
		}
		for _, to := range e.edges[from:e.ends[at]] {
			if incoming[to]--; incoming[to] == 0 {
				free = append(free, to)
			}
		}
	}
	if removed == len(e.states) {
		return -1
	}
	return slices.IndexFunc(incoming, func(n uint32) bool { return n > 0 })
}

func (e *explorer[S]) result(violation string, at int) Result {
	r := Result{States: len(e.states), Actions: e.actions, Taken: e.taken, Depth: int(slices.Max(e.depths)), Violation: violation}
	if violation != "" {
		r.Trace = e.trace(uint32(at))
	}
	return r
}

// trace describes the actions that lead to a state.
func (e *explorer[S]) trace(at uint32) []string {
	var all []string
	for at != 0 {
		parent := e.parents[at]
		before, after := e.states[parent], e.states[at]
		text := ""
		e.model.Next(&before, func(a Action, next *S) {
			if text == "" && *next == after {
				text = e.model.Describe(&before, a, next)
			}
		})
		all = append(all, text)
		at = parent
	}
	slices.Reverse(all)
	for i := range all {
		all[i] = fmt.Sprintf("%2d. %s", i+1, all[i])
	}
	return all
}
