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

// transitionRules are the lifecycle's state machine: the events that lead from some states to another one. An event that is
// not listed for a state is late or impossible there and has no effect. docs/architecture.md has them as a diagram.
var transitionRules = []struct {
	from []State
	on   event
	to   State
}{
	{[]State{Stopped, Asleep, Unreachable, Failed}, eventStartRequested, Starting},
	{[]State{Starting, Stopped, Asleep, Unreachable, Failed}, eventAnswered, Ready}, // also of one that something else has started
	{[]State{Starting}, eventFailed, Failed},
	{[]State{Starting}, eventAbandoned, Unreachable}, // until the next probe or start

	{[]State{Ready, Starting, Asleep, Unreachable, Failed}, eventDrainRequested, Draining}, // an operator also ends a boot
	{[]State{Draining}, eventStartRequested, Ready},                                        // only while nothing has been stopped: see Backend.requestStart
	{[]State{Draining}, eventStopped, Stopped},
	{[]State{Draining}, eventSlept, Asleep},
	{[]State{Draining}, eventFailed, Unreachable}, // until the next probe

	{[]State{Ready, Stopped, Unreachable, Failed}, eventSleeping, Asleep}, // not by the gateway
	{[]State{Ready, Asleep}, eventUnreachable, Unreachable},
}

// transitionTable has the target of each event in each state.
var transitionTable = func() map[State]map[event]State {
	table := map[State]map[event]State{}
	for _, r := range transitionRules {
		for _, from := range r.from {
			if table[from] == nil {
				table[from] = map[event]State{}
			}
			table[from][r.on] = r.to
		}
	}
	return table
}()
