package fleet

// State is the lifecycle state of a backend.
type State string

// The states.
const (
	// Ready backends respond. While a model has any, requests are routed only to them.
	Ready State = "ready"
	// Starting backends have been launched or woken and do not respond yet.
	Starting State = "starting"
	// Stopped backends do not run, and the gateway can launch them.
	Stopped State = "stopped"
	// Asleep backends run in vLLM's sleep mode, and the gateway can wake them.
	Asleep State = "asleep"
	// Draining backends get no new requests; after the last in-flight request they are stopped or put to sleep.
	Draining State = "draining"
	// Unreachable backends do not respond, although the gateway has not stopped them.
	Unreachable State = "unreachable"
	// Failed backends could not be launched or woken.
	Failed State = "failed"
)

// event is an input of the state machine.
type event uint8

const (
	eventAnswered       event = iota // a probe found the backend serving
	eventSleeping                    // a probe found the backend asleep
	eventUnreachable                 // a probe or an attempt got no response
	eventStartRequested              // launch it, wake it, or cancel its drain
	eventDrainRequested              // stop it or put it to sleep once no request is in flight
	eventStopped                     // the stop command has succeeded
	eventSlept                       // the request to sleep has succeeded
	eventFailed                      // a launch, wake, stop or request to sleep has failed
	eventAbandoned                   // the gateway that booted the backend has given the boot up
	eventCount
)

// transitionTable is the lifecycle's state machine: for each state, the events that change it and the states they lead
// to. An event that is not listed for a state is late or impossible there and has no effect.
//
//	stopped, asleep, unreachable, failed ------ start requested --> starting
//	starting ---------------------------------- answered ---------> ready
//	starting ---------------------------------- failed -----------> failed
//	starting ---------------------------------- abandoned --------> unreachable
//
//	ready, starting, asleep, unreachable, failed -- drain requested --> draining
//	draining ---------------------------------- stopped ----------> stopped
//	draining ---------------------------------- slept ------------> asleep
//	draining ---------------------------------- failed -----------> unreachable
//	draining ---------------------------------- start requested --> ready (the drain is cancelled)
//
// Probes find backends that changed without the gateway:
//
//	stopped, asleep, unreachable, failed ------ answered ---------> ready
//	ready, stopped, unreachable, failed ------- sleeping ---------> asleep
//	ready, asleep ----------------------------- unreachable ------> unreachable
var transitionTable = map[State]map[event]State{
	Ready: {
		eventSleeping:       Asleep, // not by the gateway
		eventUnreachable:    Unreachable,
		eventDrainRequested: Draining,
	},
	Starting: {
		eventAnswered:       Ready,
		eventDrainRequested: Draining, // an operator ends the boot
		eventFailed:         Failed,
		eventAbandoned:      Unreachable, // until the next probe or start
	},
	Stopped: {
		eventAnswered:       Ready, // not started by the gateway
		eventSleeping:       Asleep,
		eventStartRequested: Starting,
	},
	Asleep: {
		eventAnswered:       Ready, // not woken by the gateway
		eventUnreachable:    Unreachable,
		eventStartRequested: Starting,
		eventDrainRequested: Draining,
	},
	Draining: {
		eventStartRequested: Ready, // only while nothing has been stopped: see Backend.requestStart
		eventStopped:        Stopped,
		eventSlept:          Asleep,
		eventFailed:         Unreachable, // until the next probe
	},
	Unreachable: {
		eventAnswered:       Ready,
		eventSleeping:       Asleep,
		eventStartRequested: Starting,
		eventDrainRequested: Draining,
	},
	Failed: {
		eventAnswered:       Ready,
		eventSleeping:       Asleep,
		eventStartRequested: Starting,
		eventDrainRequested: Draining,
	},
}
