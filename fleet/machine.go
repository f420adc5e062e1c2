package fleet

// State is where a backend stands.
type State string

// The states.
const (
	// Ready backends answer, and are the only ones that requests are routed to while a model has any.
	Ready State = "ready"
	// Starting backends have been launched, or woken, and do not answer yet.
	Starting State = "starting"
	// Stopped backends do not run, and are ours to launch.
	Stopped State = "stopped"
	// Asleep backends run in vLLM's sleep mode, and are ours to wake.
	Asleep State = "asleep"
	// Draining backends get no new request; when those under way have ended they are stopped or put to sleep.
	Draining State = "draining"
	// Unreachable backends do not answer, though nobody here has stopped them.
	Unreachable State = "unreachable"
	// Failed backends could not be launched or woken.
	Failed State = "failed"
)

// event is what can happen to a backend.
type event uint8

const (
	answered event = iota // a probe found it serving
	sleeping              // a probe found it asleep
	silent                // a probe or an attempt found it not answering
	wanted                // somebody needs it: it is launched, woken, or spared
	retiring              // it is to be stopped or put to sleep, once nothing is under way
	halted                // it has been stopped
	dozed                 // it has been put to sleep
	spoiled               // what was begun has failed: a launch, a wake, a stop
	events
)

// machine says where each event leads. An event that a state does not list changes nothing there: it is late, or it
// cannot be.
var machine = map[State]map[event]State{
	Ready: {
		sleeping: Asleep, // somebody else's doing
		silent:   Unreachable,
		retiring: Draining,
	},
	Starting: {
		answered: Ready,
		retiring: Draining, // an operator ends the boot
		spoiled:  Failed,
	},
	Stopped: {
		answered: Ready, // somebody else has started it
		sleeping: Asleep,
		wanted:   Starting,
	},
	Asleep: {
		answered: Ready, // somebody else has woken it
		silent:   Unreachable,
		wanted:   Starting,
		retiring: Draining,
	},
	Draining: {
		wanted:  Ready, // nothing has been stopped yet: see Backend.want
		halted:  Stopped,
		dozed:   Asleep,
		spoiled: Unreachable, // the next probe tells
	},
	Unreachable: {
		answered: Ready,
		sleeping: Asleep,
		wanted:   Starting,
		retiring: Draining,
	},
	Failed: {
		answered: Ready,
		sleeping: Asleep,
		wanted:   Starting,
		retiring: Draining,
	},
}
