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

// transitionTable is the lifecycle's state machine: the next state of each event in each state. An event that is not listed for
// a state is late or impossible there and has no effect. docs/architecture.md has it as a diagram.
var transitionTable = map[State]map[event]State{
	// Something else may have started or stopped a backend, or put it to sleep: probes find it so.
	Stopped:     {eventStartRequested: Starting, eventAnswered: Ready, eventSleeping: Asleep},
	Asleep:      {eventStartRequested: Starting, eventAnswered: Ready, eventDrainRequested: Draining, eventUnreachable: Unreachable},
	Unreachable: {eventStartRequested: Starting, eventAnswered: Ready, eventDrainRequested: Draining, eventSleeping: Asleep},
	Failed:      {eventStartRequested: Starting, eventAnswered: Ready, eventDrainRequested: Draining, eventSleeping: Asleep},

	Starting: {eventAnswered: Ready, eventFailed: Failed, eventAbandoned: Unreachable, eventDrainRequested: Draining},
	Ready:    {eventDrainRequested: Draining, eventSleeping: Asleep, eventUnreachable: Unreachable},

	// A start is possible only while nothing has been stopped: see Backend.requestStart. After a failure the next probe decides.
	Draining: {eventStartRequested: Ready, eventStopped: Stopped, eventSlept: Asleep, eventFailed: Unreachable},
}
