package fleet

import "time"

// ModelSnapshot is the state of one model and its backends at one time.
type ModelSnapshot struct {
	ID           string            `json:"id"`
	Checkpoint   string            `json:"checkpoint"`
	Precision    string            `json:"precision"`
	Status       string            `json:"status"`
	MaxModelLen  *int64            `json:"max_model_len"` // tokens; null if no backend has reported it
	MaxLogprobs  int               `json:"max_logprobs"`
	BootEstimate float64           `json:"boot_estimate_seconds,omitempty"` // of a managed model that is not warm
	Windows      []string          `json:"warm_windows"`                    // the recurring ones of the configuration
	Booked       []BookedWindow    `json:"booked_windows"`
	Adapters     []string          `json:"adapters,omitempty"` // ids
	Backends     []BackendSnapshot `json:"backends"`
}

// BackendSnapshot is the state of one backend at one time.
type BackendSnapshot struct {
	Name     string    `json:"name"`
	URL      string    `json:"url"` // empty of a replica that has not said where it is
	GPU      string    `json:"gpu"`
	State    State     `json:"state"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason,omitempty"`
	Version  string    `json:"version,omitempty"` // of vLLM
	Breaker  string    `json:"breaker"`
	InFlight int64     `json:"in_flight"`
	Held     int       `json:"held"` // requests that wait here because the engine is full

	Adapters []AdapterSnapshot `json:"adapters,omitempty"`
}

// Snapshot returns the state of every model, in the order of the configuration.
func (f *Fleet) Snapshot() []ModelSnapshot {
	all := []ModelSnapshot{}
	for _, m := range f.BaseModels() {
		all = append(all, f.snapshot(m))
	}
	return all
}

func (f *Fleet) snapshot(m *Model) ModelSnapshot {
	s := ModelSnapshot{
		ID: m.ID(), Checkpoint: m.Checkpoint(), Precision: m.Precision(), Status: m.Status(), MaxLogprobs: m.MaxLogprobs(),
		Windows: []string{}, Booked: []BookedWindow{},
	}
	if n := m.MaxModelLen(); n > 0 {
		s.MaxModelLen = &n
	}
	if s.Status != StatusWarm {
		s.BootEstimate = m.BootEstimate().Seconds()
	}
	for _, w := range m.config.WarmWindows {
		s.Windows = append(s.Windows, w.String())
	}
	s.Booked = append(s.Booked, f.BookedWindows(m.ID())...)
	for _, a := range m.Adapters() {
		s.Adapters = append(s.Adapters, a.ID())
	}
	for _, b := range m.backends {
		s.Backends = append(s.Backends, b.snapshot())
	}
	return s
}

func (b *Backend) snapshot() BackendSnapshot {
	b.mu.Lock()
	l, inFlight := b.life, b.inFlight
	b.mu.Unlock()
	at := b.URL("").String()
	if b.unplaced() {
		at = ""
	}
	return BackendSnapshot{
		Name: b.Name, URL: at, GPU: b.GPU, State: l.state, Since: l.since.UTC(), Reason: l.reason,
		Version: b.Version(), Breaker: string(b.Breaker()), InFlight: inFlight, Held: b.Held(), Adapters: b.Adapters(),
	}
}
