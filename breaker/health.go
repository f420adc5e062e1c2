package breaker

// Health is what a backend's /health says of its engine right after an attempt has failed.
type Health uint8

// The values of Health.
const (
	Silent       Health = iota // no answer in time, or one of a version whose /health says nothing about the engine
	Healthy                    // the engine runs
	Unhealthy                  // the engine is dead
	NotListening               // the server refuses connections
	healthCount
)

// Doubt is what kind of failure a backend's /health decides the class of, because neither its status nor its text does.
type Doubt uint8

// The values of Doubt.
const (
	Certain     Doubt = iota // the class is known
	Failed                   // an error with a text that no version is known to send for a single reason
	Empty                    // status 500 without a body, by which versions before 0.9 report a dead engine
	Unavailable              // status 503 in the form of vLLM's errors
	Broken                   // a connection that broke
	doubtCount
)

// judgements are the classes by doubt and health. Success stands for: as it was.
var judgements = [doubtCount][healthCount]Class{
	Failed:      {Healthy: RequestFailed, Unhealthy: EngineDead, NotListening: Aborted},
	Empty:       {Healthy: RequestFailed, Unhealthy: EngineDead, NotListening: EngineDead},
	Unavailable: {Healthy: Busy, Unhealthy: EngineDead, NotListening: Aborted},
	Broken:      {Unhealthy: EngineDead, NotListening: Ended},
}

// Judge returns the outcome with the class that the backend's health proves.
func (o Outcome) Judge(h Health) Outcome {
	if class := judgements[o.Doubt][h]; class != Success {
		o.Class = class
	}
	o.Doubt = Certain
	return o
}
