package clustermodel

import "fmt"

// Heartbeats is the Model of the rule by which gateways give each other up. Each gateway that runs and can reach the
// database beats once in an interval, and looks at the other's row in the same statement.
type Heartbeats struct {
	Limit     uint8 // intervals without a change after which a gateway is given up
	Intervals uint8 // of a run
	Faults    uint8 // stops, cuts and outages together
	Broken    HeartbeatRule
}

// HeartbeatRule is a rule of Heartbeats.
type HeartbeatRule uint8

// The rules that can be broken.
const (
	CountOwnBeats HeartbeatRule = 1 << iota // intervals count only if the observer beat in them
	OneConnection                           // a lost connection of the observer begins the count again
)

// Beats is a state of Heartbeats.
type Beats struct {
	Down      bool // the database
	Interval  uint8
	Faults    uint8
	Observers [gateways]Observer
	Wrong     bool // a gateway was given up that ran and could reach the database
}

// Observer is a gateway, with its observations of the other one.
type Observer struct {
	Silent    bool  // it is stopped or cut off
	Beaten    bool  // in this interval
	Unbroken  bool  // it beat in the interval before
	Connected bool  // its connection has lasted since its last beat
	Impeded   bool  // it was silent at some time since its last beat
	Changed   bool  // the other's row has changed since this one looked
	Quiet     uint8 // intervals for which the other's row has not changed
	Missed    uint8 // intervals in a row that the other has counted, or should have, in which this one was silent
	Abandoned bool  // the other has given it up
}

// The kinds of actions of Heartbeats.
const (
	beat uint8 = iota
	interval
	fallSilent
	speak
	outage
	outageEnds
)

// Initial returns the state in which both gateways have just joined.
func (h *Heartbeats) Initial() Beats {
	b := Beats{Faults: h.Faults}
	for g := range b.Observers {
		b.Observers[g].Changed = true
	}
	return b
}

// Next emits the heartbeats, the end of the interval and the environment.
func (h *Heartbeats) Next(b *Beats, emit func(Action, *Beats)) {
	if b.Wrong {
		return
	}
	act := func(a Action, change func(*Beats)) {
		next := *b
		change(&next)
		emit(a, &next)
	}
	due := false
	for g := range b.Observers {
		o := &b.Observers[g]
		if !o.Silent && !b.Down && !o.Beaten {
			due = true
			act(Action{Kind: beat, A: g}, func(n *Beats) { h.beat(n, g) })
		}
		switch {
		case o.Silent:
			act(Action{Kind: speak, Environment: true, A: g}, func(n *Beats) { n.Observers[g].Silent = false })
		case b.Faults > 0:
			act(Action{Kind: fallSilent, Environment: true, A: g}, func(n *Beats) {
				n.Faults--
				o := &n.Observers[g]
				o.Silent, o.Impeded, o.Connected = true, true, false
				n.Observers[1-g].Missed = 0 // this observer begins its count again
			})
		}
	}
	switch {
	case b.Down:
		act(Action{Kind: outageEnds, Environment: true}, func(n *Beats) { n.Down = false })
	case b.Faults > 0:
		act(Action{Kind: outage, Environment: true}, func(n *Beats) {
			n.Faults--
			n.Down = true
			for g := range n.Observers {
				n.Observers[g].Connected, n.Observers[g].Missed = false, 0
			}
		})
	}
	if !due && b.Interval < h.Intervals {
		act(Action{Kind: interval}, h.interval)
	}
}

// beat changes a gateway's row and looks at the other's.
func (h *Heartbeats) beat(b *Beats, g int) {
	o, other := &b.Observers[g], &b.Observers[1-g]
	o.Beaten, o.Impeded, o.Missed, o.Abandoned = true, false, 0, false // it joins again if it was given up
	other.Changed = true
	countGaps := h.Broken&CountOwnBeats != 0
	restarted := !o.Unbroken || !o.Connected && h.Broken&OneConnection == 0
	switch {
	case o.Changed || restarted && !countGaps:
		o.Quiet = 0
	case !countGaps:
		o.Quiet++
	}
	o.Changed, o.Connected = false, true
	if o.Quiet >= h.Limit && !other.Abandoned {
		other.Abandoned = true
		b.Wrong = !other.Impeded
	}
}

// interval begins the next interval.
func (h *Heartbeats) interval(b *Beats) {
	b.Interval++
	for g := range b.Observers {
		o, other := &b.Observers[g], &b.Observers[1-g]
		if h.Broken&CountOwnBeats != 0 && !o.Changed {
			o.Quiet++
		}
		if other.Beaten && !o.Beaten {
			o.Missed++
		} else {
			o.Missed = 0
		}
	}
	for g := range b.Observers {
		o := &b.Observers[g]
		o.Unbroken, o.Beaten = o.Beaten, false
	}
}

// Check returns the invariant that a state violates.
func (h *Heartbeats) Check(b *Beats) string {
	if b.Wrong {
		return "a gateway was given up although it ran and could reach the database whenever the other could"
	}
	for g := range b.Observers {
		if o := &b.Observers[g]; o.Missed > h.Limit+1 && !o.Abandoned {
			return "a silent gateway is not given up"
		}
	}
	return ""
}

// Final accepts every state: a run ends after Intervals.
func (*Heartbeats) Final(*Beats) string { return "" }

// Describe returns what an action does, in words.
func (*Heartbeats) Describe(_ *Beats, a Action, after *Beats) string {
	switch a.Kind {
	case beat:
		text := fmt.Sprintf("gateway %d beats", a.A)
		if after.Observers[1-a.A].Abandoned {
			text += ", and has given up the other one"
		}
		return text
	case interval:
		return "an interval passes"
	case fallSilent:
		return fmt.Sprintf("gateway %d is stopped or cut off", a.A)
	case speak:
		return fmt.Sprintf("gateway %d runs again and is connected", a.A)
	case outage:
		return "PostgreSQL stops"
	default:
		return "PostgreSQL runs again"
	}
}
