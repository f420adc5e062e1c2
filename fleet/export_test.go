package fleet

// BatchLines returns how many batch lines the backend runs.
func (b *Backend) BatchLines() int64 { return b.places.running.Load() }

// QueueRead reports whether the backend's queue has been read since a batch line asked for a place.
func (b *Backend) QueueRead() bool { return b.queueRead.Load() }

// Known reports whether there is a preference for a backend.
func (p Prefix) Known() bool { return p.known() }
