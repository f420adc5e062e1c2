package fleet

// BatchLines returns how many batch lines the backend runs.
func (b *Backend) BatchLines() int64 { return b.places.running.Load() }

// Known reports whether there is a preference for a backend.
func (p Prefix) Known() bool { return p.known() }
