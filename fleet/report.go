package fleet

import "time"

// ModelSnapshot is what a fleet knows of one model, for people and for other programs.
type ModelSnapshot struct {
	ID           string          `json:"id"`
	Checkpoint   string          `json:"checkpoint"`
	Precision    string          `json:"precision"`
	Status       string          `json:"status"`
	MaxModelLen  *int64          `json:"max_model_len"` // tokens; null: no backend has said
	MaxLogprobs  int             `json:"max_logprobs"`
	BootEstimate float64         `json:"boot_estimate_seconds,omitempty"` // of a model that is not warm and ours to start
	Windows      []string        `json:"warm_windows"`                    // recurring ones, as the configuration has them
	Booked       []BookedWindow  `json:"booked_windows"`
	Backends     []BackendSnapshot `json:"backends"`
}

// BackendSnapshot is what is known of one backend.
type BackendSnapshot struct {
	Name     string    `json:"name"`
	URL      string    `json:"url"`
	GPU      string    `json:"gpu"`
	State    State     `json:"state"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason,omitempty"`
	Version  string    `json:"version,omitempty"` // vLLM's
	Breaker  string    `json:"breaker"`
	InFlight int64     `json:"in_flight"`
}

// Snapshot tells of every model, in the order of the configuration.
func (f *Fleet) Snapshot() []ModelSnapshot {
	all := []ModelSnapshot{}
	for _, m := range f.Models() {
		all = append(all, f.report(m))
	}
	return all
}

func (f *Fleet) report(m *Model) ModelSnapshot {
	r := ModelSnapshot{
		ID: m.ID(), Checkpoint: m.Checkpoint(), Precision: m.Precision(), Status: m.Status(), MaxLogprobs: m.MaxLogprobs(),
		Windows: []string{}, Booked: []BookedWindow{},
	}
	if n := m.MaxModelLen(); n > 0 {
		r.MaxModelLen = &n
	}
	if r.Status != StatusWarm {
		r.BootEstimate = m.BootEstimate().Seconds()
	}
	for _, w := range m.config.WarmWindows {
		r.Windows = append(r.Windows, w.String())
	}
	r.Booked = append(r.Booked, f.BookedWindows(m.ID())...)
	for _, b := range m.backends {
		r.Backends = append(r.Backends, b.report())
	}
	return r
}

func (b *Backend) report() BackendSnapshot {
	b.mu.Lock()
	l, inFlight := b.life, b.inFlight
	b.mu.Unlock()
	return BackendSnapshot{
		Name: b.Name, URL: b.URL("").String(), GPU: b.GPU, State: l.state, Since: l.since.UTC(), Reason: l.reason,
		Version: b.Version(), Breaker: string(b.Breaker()), InFlight: inFlight,
	}
}
